# SPDX-License-Identifier: Apache-2.0
"""The public import path of ORTModule: that of onnxruntime.training.ortmodule, with another first word."""

from caesura.integrations.ortmodule import DebugOptions, LogLevel, ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
