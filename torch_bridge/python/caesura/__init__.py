# SPDX-License-Identifier: Apache-2.0
"""caesura: train PyTorch modules and ONNX models on a resumable executor.

    import caesura
    model = caesura.wrap(model)                                   # a PyTorch module: forward and backward run here
    step = caesura.compile_step(model, loss_fn, optimizer)        # or the whole step, optimizer included
    optimizer = caesura.fuse(optimizer)                           # the update of a loop of your own in one call
    session = caesura.TrainingSession("net.onnx", target="labels")  # or an ONNX model, without PyTorch
    session = caesura.onnxruntime.InferenceSession("net.onnx")    # or one that is only run
    forces = caesura.gradient("energy.onnx", by="positions")      # its gradient, as a model
    adapted = caesura.lora("net.onnx", ["q_proj", "v_proj"])      # or with an adapter, which alone trains

A name that needs PyTorch imports it at its first use.
"""

import importlib
import importlib.util
import pathlib
from typing import TYPE_CHECKING

if importlib.util.find_spec("caesura._core") is None:
    raise ImportError("caesura's compiled part was not built yet: cmake --build "
                      f"{pathlib.Path(__file__).parents[2]} --target caesura_python")

from caesura import _core
from caesura import integrations as integrations, onnxruntime as onnxruntime, optim as optim, typing as typing
from caesura.errors import Error, FallbackWarning, RankFailure, StepRefused, StrictError, Suspended
from caesura.ranks import Ranks
from caesura.reports import profile, stats, strict
from caesura.sessions.gradient import gradient
from caesura.sessions.lora import lora
from caesura.sessions.split import SplitModule
from caesura.sessions.training import TrainingSession

if TYPE_CHECKING:  # type checkers and editors look here, since the names are looked up at run time
    from caesura.frontends.clip import clip_grad_norm_
    from caesura.frontends.compile_step import CompiledStep, compile_step
    from caesura.frontends.export import load
    from caesura.frontends.fuse import fuse
    from caesura.frontends.wrap import wrap

# Names that need PyTorch, and the modules that have them.
_WITH_TORCH = {
    "CompiledStep": "caesura.frontends.compile_step",
    "clip_grad_norm_": "caesura.frontends.clip",
    "compile_step": "caesura.frontends.compile_step",
    "fuse": "caesura.frontends.fuse",
    "load": "caesura.frontends.export",
    "wrap": "caesura.frontends.wrap",
}
__all__ = [
    "CompiledStep", "Error", "FallbackWarning", "RankFailure", "Ranks", "SplitModule", "StepRefused", "StrictError",
    "Suspended", "TrainingSession", "clip_grad_norm_", "compile_step", "fuse", "gradient", "load", "lora", "profile", "stats", "strict",
    "wrap",
]
__version__: str = _core.__version__  # type: ignore[attr-defined]


def __getattr__(name: str) -> object:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'caesura' has no attribute '{name}'")
    value = getattr(importlib.import_module(_WITH_TORCH[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _WITH_TORCH.keys())
