# SPDX-License-Identifier: Apache-2.0
"""Types for hints: what arguments may be, and what calls return."""

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

if TYPE_CHECKING:
    import onnx

    from caesura.frontends.compile_step import CompiledStep
    from caesura.reports import Stats
    from caesura.sessions.onnx_module import OnnxOutputs
    from caesura.sessions.split import ForwardRun

__all__ = ["Array", "Commit", "CompiledStep", "DType", "Feeds", "ForwardRun", "Loss", "Masks", "Memory", "Model", "OnFailure",
           "OnnxOutputs", "Path", "Plan", "Precision", "Properties", "Providers", "Schedule", "Stats", "TrainingPart"]

Path = Union[str, "os.PathLike[str]"]
Model = Union[str, "os.PathLike[str]", bytes, "onnx.ModelProto"]  # a file's path, its bytes, or the model
Array = Any  # of NumPy, or of any library with DLPack; lists and numbers are copied
DType = Any  # as NumPy has it (np.float32, ml_dtypes.bfloat16, "float32"), or ONNX's number of it
Feeds = dict[str, Array]  # by the inputs' names
Properties = Mapping[str, Union[int, float, str]]
Providers = Sequence[Union[str, tuple[str, Mapping[str, Any]]]]  # names, or (name, options)
Precision = Literal["fp32", "bf16", "fp16"]
Masks = Literal["own", "pytorch"]  # whose dropout masks a compiled step has
Loss = Literal["cross_entropy", "mse", "l1", "bce_with_logits", "output"]
Commit = Literal["late", "eager-consume"]
OnFailure = Literal["stop", "skip", "retry", "retry-on-defaults", "retry-in-parts"]
Schedule = Literal["constant", "linear", "cosine", "polynomial", "step"]
TrainingPart = Literal["step", "accumulate", "gradients"]


_ELSEWHERE = {"CompiledStep": "caesura.frontends.compile_step", "ForwardRun": "caesura.sessions.split",
              "OnnxOutputs": "caesura.sessions.onnx_module", "Stats": "caesura.reports"}


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'caesura.typing' has no attribute '{name}'")
    return getattr(importlib.import_module(_ELSEWHERE[name]), name)


class Memory(NamedTuple):
    """The bytes that a training step takes, known before the first one; print() shows them in MB.

    Attributes:
        parameters: those that the step trains, and its running statistics.
        gradients: of one update. They lie in the arena, except sums over the batches of an update.
        optimizer_state: what the optimizer keeps; of this rank, where the ranks divide it.
        arena: activations, gradients and workspaces.
        peak: the arena and all beside it: parameters (frozen ones, too), optimizer state, the batch and what is handed out.

    Example::

        memory = step.memory(inputs, targets)
        print(memory, memory.peak)
    """

    parameters: int
    gradients: int
    optimizer_state: int
    arena: int
    peak: int

    def __str__(self) -> str:
        return "\n".join(f"{name.replace('_', ' '):16}{count / 1e6:12,.3f} MB" for name, count in zip(Memory.__annotations__, self))


class Plan(NamedTuple):
    """The plan of a step or of a run; print() shows it.

    Attributes:
        text: one line for each node, after a line of totals.
        arena_bytes: the memory that holds activations, gradients and workspaces.

    Example::

        plan = session.plan(feeds)
        print(plan, plan.arena_bytes)
    """

    text: str
    arena_bytes: int

    def __str__(self) -> str:
        return self.text
