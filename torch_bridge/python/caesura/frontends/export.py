# SPDX-License-Identifier: Apache-2.0
"""Exported steps: a training step on disk, for the C++ API and `caesura train`, and back."""

import json
import os
import pathlib

import onnx
import torch

from caesura.frontends.compile_step import CompiledStep, tensors_by_name
from caesura.runtime.optimizers import Stepping, keeps_count
from caesura.runtime.step_program import as_real, calls_pytorch

_METADATA = "caesura.step"


def export_step(path, step: CompiledStep, /, *args, **kwargs) -> None:
    """Writes a compiled step into a folder: model.onnx and state.safetensors.

    A C++ program (training/session/exported_step.h), `caesura train` or open_step() goes on with it; nothing in the folder
    needs PyTorch. The model's inputs have the names of the forward's parameters, and "target" for what the loss
    function compares with; its output is "loss". An existing step in the folder is replaced, the model first.

    Args:
        path: the folder; it is made if it is not there.
        step: what compile_step() returned.
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
        caesura.export_step("step", step, inputs, targets)
        # $ caesura train step --data train.npz --feed input=images --target labels
        caesura.load_step("step", model, optimizer)
    """
    if isinstance(step.recipe, Stepping):
        raise ValueError(f"{type(step.optimizer).__name__} is not part of the step: it cannot be exported")
    folder = pathlib.Path(path)
    program = step.capture(*args, **kwargs)
    if program.is_parallel:
        raise ValueError("the step exchanges values between ranks, each of which has its part of the parameters: it cannot be exported")
    left = calls_pytorch(program.forward)
    if left:
        raise ValueError(f"the step calls {', '.join(left)}, which PyTorch alone computes: it cannot be exported")
    if program.draws:
        drawn = sorted({str(draw.target) for draw in program.draws})
        raise ValueError(f"PyTorch draws the step's random numbers ({', '.join(drawn)}): it cannot be exported")
    if program.kept:
        raise ValueError("the step leaves tensors in attributes of the module or in arguments, which no file has: it cannot be exported")
    recipe = step.recipe
    groups = recipe.groups_of(program.trained)
    rates = [coefficients["learning_rate"] for _, _, coefficients in groups]
    rate = next((r for r in rates if r), 0.0)  # by which the groups' are known
    groups = [{"names": names, "learning_rate_scale": own / rate if rate else 1.0, "optimizer": name, "coefficients": coefficients}
              for (names, name, coefficients), own in zip(groups, rates)]
    facts = {"version": 1, "loss": "loss", "optimizer": recipe.name,
             "coefficients": recipe.coefficients | {"learning_rate": rate}, "groups": groups,
             "trainable": program.trained, "clip_norm": float(step.clip_norm), "accumulation_steps": step.accumulation_steps,
             "precision": step.precision}
    model = program.model()
    model.producer_name = "caesura"
    model.metadata_props.add(key=_METADATA, value=json.dumps(facts))
    folder.mkdir(parents=True, exist_ok=True)
    target = (folder / "model.onnx").resolve()  # a link stays, and what it leads to is replaced
    whole = target.with_name(".model.onnx.part")
    try:
        onnx.save(model, whole)
        os.replace(whole, target)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(target)) from error
    finally:
        whole.unlink(missing_ok=True)
    program.session.learning_rate = rate
    program.session.set_position(program.updates(), step.micro_steps)
    program.session.save(os.fspath(folder / "state.safetensors"))


@torch.no_grad()
def load_step(path, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
              loss_fn: torch.nn.Module | None = None) -> int:
    """Copies what was trained in an exported step back into the module, and into the optimizer's state.

    Args:
        path: the folder.
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

        updates = caesura.load_step("step", model, optimizer)
    """
    from safetensors import safe_open

    own = tensors_by_name(module, loss_fn, optimizer)
    names = {id(tensor): name for name, tensor in own.items()}
    own = {name: as_real(tensor) for name, tensor in own.items()}
    writes, problems = [], []

    def write(target, name, value):
        if target is None or target.shape != value.shape or target.dtype != value.dtype:
            problems.append(f"{name}: {value.dtype} {list(value.shape)}" +
                            ("" if target is None else f", the module has {target.dtype} {list(target.shape)}"))
        else:
            writes.append((target, value))

    with safe_open(pathlib.Path(path) / "state.safetensors", framework="pt") as file:
        counted = (file.metadata() or {}).get("property/session.updates")
        if counted is None:
            raise ValueError(f"{pathlib.Path(path) / 'state.safetensors'} is no step's: it does not tell the number of updates")
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
                state["step"] = torch.tensor(float(updates), device="cpu")
    return updates

