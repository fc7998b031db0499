# SPDX-License-Identifier: Apache-2.0
"""Running ONNX models, under onnxruntime's names: moving is an import line.

    from caesura import onnxruntime
    session = onnxruntime.InferenceSession("net.onnx")
    scores, = session.run(None, {"images": images})

OnnxModule, which needs PyTorch, imports it at its first use.
"""

from typing import TYPE_CHECKING

from caesura.sessions.inference import InferenceSession, ModelMetadata, NodeArg, get_device
from caesura.sessions.io_binding import IOBinding, OrtValue
from caesura.sessions.options import (CustomOps, ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OptionSet,
                                      RunOptions, SessionOptions)
from caesura.sessions.providers import get_available_providers

if TYPE_CHECKING:
    from caesura.sessions.onnx_module import OnnxModule, OnnxOutputs

__all__ = [
    "CustomOps", "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession",
    "ModelMetadata", "NodeArg", "OnnxModule", "OnnxOutputs", "OptionSet", "OrtValue", "RunOptions", "SessionOptions",
    "get_available_providers", "get_device",
]


def __getattr__(name: str) -> object:
    if name not in ("OnnxModule", "OnnxOutputs"):
        raise AttributeError(f"module 'caesura.onnxruntime' has no attribute '{name}'")
    from caesura.sessions import onnx_module

    return getattr(onnx_module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
