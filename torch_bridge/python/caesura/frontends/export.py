# SPDX-License-Identifier: Apache-2.0
"""Exported steps: a training step on disk, for the C++ API and `caesura train`, and back."""

import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import onnx
import torch

from caesura import _core
from caesura.capture.sources import tensors_of_step
from caesura.runtime.optimizers import Stepping, keeps_count
from caesura.runtime.step_program import Captured, as_real, calls_pytorch
from caesura.typing import Path, TrainingPart

_METADATA = "caesura.step"


class Exported:
    """The part of a CompiledStep that writes it into a folder."""

    micro_steps: int
    optimizer: torch.optim.Optimizer
    clip_norm: float
    accumulation_steps: int
    precision: str
    _recipe: Any  # a Recipe, or Stepping
    _capture_call: Callable[[tuple[Any, ...], dict[str, Any]], Captured]

    def export(self, folder: Path, /, *args: Any, **kwargs: Any) -> None:
        """Writes the step into a folder: model.onnx and state.safetensors.

        A C++ program (training/session/exported_step.h), `caesura train` or TrainingSession.open() goes on with it; nothing in
        the folder needs PyTorch. The model's inputs have the names of the forward's parameters, and "target" for what the loss
        function compares with; a tensor in a list, a dict or an attribute of an object has its place after that name
        ("graphs_0_bond_graph"). Its output is "loss". An existing step in the folder is replaced, the model first.

        Args:
            folder: it is made if it is not there.
            *args: inputs as for a call of the step. They only tell dtypes and shapes (with dynamic=True sizes become
                symbols); nothing is trained.
            **kwargs: likewise.

        Raises:
            ValueError: the step cannot be exported: its optimizer or some of its ops are PyTorch's, PyTorch draws its
                random numbers, or it keeps tensors in attributes of the module, or writes to arguments.
            StepRefused: no program can be captured for these inputs.
            OSError: a file cannot be written, which the error names; a model that was there before is still whole.

        Example::

            step = caesura.compile_step(model, loss_fn, optimizer, dynamic=True)
            step.export("step", inputs, targets)
            # $ caesura train step --data train.npz --feed input=images --target labels
            caesura.load("step", model, optimizer)
        """
        if isinstance(self._recipe, Stepping):
            raise ValueError(f"{type(self.optimizer).__name__} is not part of the step: it cannot be exported")
        into = pathlib.Path(folder)
        program = self._capture_call(args, kwargs).program
        if program.is_parallel:
            raise ValueError("the step exchanges values between ranks, each of which has its part of the parameters: it cannot be exported")
        left = calls_pytorch(program.forward)
        if left:
            raise ValueError(f"the step calls {', '.join(left)}, which PyTorch alone computes: it cannot be exported")
        if program.draws:
            drawn = sorted({str(draw.target) for draw in program.draws})
            raise ValueError(f"PyTorch draws the step's random numbers ({', '.join(drawn)}): it cannot be exported")
        if program.kept:
            raise ValueError("the step leaves tensors in attributes of the module or in arguments, which no file has: it cannot be "
                             "exported")
        if program.has_offsets:
            raise ValueError("the step's parameters have had other numbers of updates (heads that take turns, parts that were thawed), "
                             "and an exported step counts one: it cannot be exported")
        recipe = self._recipe
        groups = recipe.groups_of(program.rows)
        rates = [coefficients["learning_rate"] for _, _, coefficients in groups]
        rate = next((r for r in rates if r), 0.0)  # by which the groups' are known
        groups = [{"names": names, "learning_rate_scale": own / rate if rate else 1.0, "optimizer": name, "coefficients": coefficients}
                  for (names, name, coefficients), own in zip(groups, rates)]
        facts = {"version": 1, "loss": "loss", "optimizer": recipe.name,
                 "coefficients": recipe.coefficients | {"learning_rate": rate}, "groups": groups}
        facts |= _core.step_entries({"trainable": program.trained, "clip_norm": float(self.clip_norm),
                                     "accumulation_steps": self.accumulation_steps, "precision": self.precision})
        model = program.model()
        model.producer_name = "caesura"
        model.metadata_props.add(key=_METADATA, value=json.dumps(facts))
        into.mkdir(parents=True, exist_ok=True)
        target = (into / "model.onnx").resolve()  # a link stays, and what it leads to is replaced
        whole = target.with_name(".model.onnx.part")
        try:
            onnx.save(model, whole)
            os.replace(whole, target)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, os.fspath(target)) from error
        finally:
            whole.unlink(missing_ok=True)
        program.session.learning_rate = rate
        program.session.set_position(program.updates(), self.micro_steps)
        program.session.save(os.fspath(into / "state.safetensors"))

    def export_training(self, path: Path, /, *args: Any, what: TrainingPart = "step", opset: int = 0, **kwargs: Any) -> None:
        """Writes the step as one ONNX file of ONNX's own operators, which any runtime of ONNX runs.

        See TrainingSession.export_training() for its inputs and outputs, which have the names that export() gives them.

        Args:
            path: the file.
            *args: inputs, as for export().
            what: the part of the step, as there.
            opset: the version of ONNX's operators, as there.
            **kwargs: likewise.

        Raises:
            NotImplementedError: ONNX, or this `opset`, has no operators for nodes of the step; all of them are listed, and
                nothing is written.
            ValueError: the step cannot be exported, as for export(), or `opset` is out of range.
            StepRefused: no program can be captured for these inputs.

        Example::

            step.export_training("step.onnx", inputs, targets)
        """
        with tempfile.TemporaryDirectory() as folder:
            self.export(folder, *args, **kwargs)
            _core.Training.open_step(folder, 0, 0).export_training(os.fspath(path), what, opset)


@torch.no_grad()
def load(folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
         loss_fn: torch.nn.Module | None = None) -> int:
    """Copies what was trained in an exported step back into the module, and into the optimizer's state.

    Args:
        folder: the folder.
        module: the module that the step was compiled from, or one with the same parameters.
        optimizer: its optimizer; None leaves optimizer state out.
        loss_fn: its loss, if that has parameters.

    Returns:
        int: the number of updates done.

    Raises:
        ValueError: parameters do not fit the module; all of them are listed, and nothing is changed. Or the file is no
            step's.
        FileNotFoundError: the folder holds no step.

    Example::

        updates = caesura.load("step", model, optimizer)
    """
    from safetensors import safe_open

    own = tensors_of_step(module, loss_fn, optimizer)
    names = {id(tensor): name for name, tensor in own.items()}
    own = {name: as_real(tensor) for name, tensor in own.items()}
    writes, problems = [], []

    def write(target: Any, name: Any, value: Any) -> None:
        if target is None or target.shape != value.shape or target.dtype != value.dtype:
            problems.append(f"{name}: {value.dtype} {list(value.shape)}" +
                            ("" if target is None else f", the module has {target.dtype} {list(target.shape)}"))
        else:
            writes.append((target, value))

    with safe_open(pathlib.Path(folder) / "state.safetensors", framework="pt") as file:
        counted = (file.metadata() or {}).get("property/session.updates")
        if counted is None:
            raise ValueError(f"{pathlib.Path(folder) / 'state.safetensors'} is no step's: it does not tell the number of updates")
        updates = int(counted.removeprefix("int:"))
        states = {}
        for key in file.keys():
            if key.startswith("parameter/"):
                name = key.removeprefix("parameter/")
                write(own.get(name), name, file.get_tensor(key))
            elif key.startswith("optimizer/optimizer."):
                state, name = key.removeprefix("optimizer/optimizer.").split(".", 1)
                states.setdefault(name, {})[state] = file.get_tensor(key)
    if problems:
        raise ValueError("the step does not fit the module:\n  " + "\n  ".join(problems))
    for target, value in writes:
        target.copy_(value)
    if optimizer is not None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if names.get(id(parameter)) not in states:
                continue
            state = optimizer.state[parameter]
            for key, value in states[names[id(parameter)]].items():
                value = torch.view_as_complex(value) if parameter.is_complex() else value
                if isinstance(state.get(key), torch.Tensor):
                    state[key].copy_(value)
                else:
                    state[key] = value
            if not keeps_count(optimizer):
                continue
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].fill_(updates)
            else:
                state["step"] = torch.tensor(float(updates), dtype=torch.float32, device="cpu")
    return updates
