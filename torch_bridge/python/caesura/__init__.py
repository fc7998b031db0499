# SPDX-License-Identifier: Apache-2.0
"""caesura: train and run ONNX models on a resumable executor.

    import caesura
    session = caesura.InferenceSession("net.onnx")
    outputs = session.run(None, {"x": x})
"""

from caesura.inference_session import InferenceSession, ValueInfo

__all__ = ["InferenceSession", "ValueInfo"]
__version__ = "0.1.0"
