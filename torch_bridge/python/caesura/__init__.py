# SPDX-License-Identifier: Apache-2.0
"""caesura: train PyTorch modules and ONNX models on a resumable executor.

    import caesura
    model = caesura.wrap(model)                                   # a PyTorch module: forward and backward run here
    step = caesura.compile_step(model, loss_fn, optimizer)        # or the whole step, optimizer included
    session = caesura.TrainingSession("net.onnx", target="labels")  # or an ONNX model, without PyTorch
    session = caesura.InferenceSession("net.onnx")                # or one that is only run

What needs PyTorch imports it when it is first used.
"""

import importlib

from caesura import _core
from caesura.sessions.inference import (InferenceSession, ModelMetadata, NodeArg, get_available_providers,
                                       get_device)
from caesura.sessions.io_binding import IOBinding, OrtValue
from caesura.sessions.options import (CustomOps, ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OptionSet,
                                     RunOptions, SessionOptions)
from caesura.sessions.split import SplitModule
from caesura.sessions.training import TrainingSession, open_step

_WITH_TORCH = {
    "wrap": "caesura.frontends.wrap", "OnnxModule": "caesura.sessions.onnx_module",
    "compile_step": "caesura.frontends.compile_step", "StepRefused": "caesura.frontends.compile_step",
    "export_step": "caesura.frontends.export", "load_step": "caesura.frontends.export",
    "report": "caesura.reports", "reset_report": "caesura.reports", "strict": "caesura.reports",
    "FallbackWarning": "caesura.reports", "StrictError": "caesura.reports",
}
__all__ = ["CustomOps", "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
           "ModelMetadata", "NodeArg", "OptionSet", "OrtValue", "RunOptions", "SessionOptions", "SplitModule", "TrainingSession",
           "get_available_providers", "get_device", "open_step", *_WITH_TORCH]
__version__ = _core.__version__


def __getattr__(name):
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'caesura' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WITH_TORCH[name]), name)
    globals()[name] = value
    return value
