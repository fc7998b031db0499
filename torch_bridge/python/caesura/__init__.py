# SPDX-License-Identifier: Apache-2.0
"""caesura: train and run ONNX models on a resumable executor.

    import caesura
    session = caesura.InferenceSession("net.onnx")
    outputs = session.run(None, {"x": x})
"""

from caesura.inference_session import InferenceSession, ValueInfo
from caesura.split_module import SplitModule
from caesura.training_session import TrainingSession

__all__ = ["InferenceSession", "SplitModule", "TrainingSession", "ValueInfo"]
__version__ = "0.1.0"
