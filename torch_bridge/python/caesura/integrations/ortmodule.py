# SPDX-License-Identifier: Apache-2.0
"""ORTModule's names for caesura.wrap, so that moving is an import line."""

import copy
import enum
import logging
import warnings
from dataclasses import dataclass

import torch

from caesura.frontends.wrap import wrap


class LogLevel(enum.IntEnum):
    """The levels of ORTModule's log, by onnxruntime's names and numbers."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


@dataclass
class DebugOptions:
    """onnxruntime's options for looking into ORTModule.

    log_level: of the logger "caesura".
    save_onnx, onnx_prefix: not taken, with a warning; compile_step(...).export() writes a whole step as ONNX.
    """

    log_level: LogLevel = LogLevel.WARNING
    save_onnx: bool = False
    onnx_prefix: str = ""

    def __post_init__(self) -> None:
        if self.save_onnx:
            warnings.warn("save_onnx is not taken: compile_step(...).export() writes a whole step as ONNX", stacklevel=3)


class ORTModule(torch.nn.Module):
    """caesura.wrap(module) under onnxruntime's name: a class, so that isinstance and subclasses work.

        model = ORTModule(model)

    The module shares everything with the original, as wrap() says, and is an instance of the original's class too. `module` is
    the original. A subclass may override forward and call super().forward.
    debug_options: a DebugOptions; its log_level is set.
    Raises TypeError where `module` is no torch.nn.Module.
    """

    def __init__(self, module: torch.nn.Module, debug_options: DebugOptions | None = None) -> None:
        if debug_options is not None:
            logging.getLogger("caesura").setLevel(10 * (debug_options.log_level + 1))  # DEBUG is 10, CRITICAL 50
        wrapped = wrap(module)
        own = type(self)
        content = {"module": property(lambda _: module), "__module__": own.__module__, "__doc__": own.__doc__,
                   "__reduce__": lambda _: (_of_class, (own, module)),
                   "__deepcopy__": lambda _, memo: _of_class(own, copy.deepcopy(module, memo))}
        if own.forward is not ORTModule.forward:
            content["__call__"] = torch.nn.Module.__call__  # runs the subclass's forward, which calls the captured one
        self.__dict__ = vars(wrapped)
        self.__class__ = type(own.__name__, (own, type(wrapped)), content)


def _of_class(cls: type[ORTModule], module: torch.nn.Module) -> ORTModule:
    """A copy's: its attributes are the module's already, so a subclass's own __init__ has nothing to do."""
    copied = cls.__new__(cls)
    ORTModule.__init__(copied, module)
    return copied
