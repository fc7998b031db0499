# SPDX-License-Identifier: Apache-2.0
"""caesura.fuse: an optimizer of PyTorch's whose step is one call."""

import time
import types
from typing import Any, Optional, TypeVar

import torch
from onnx import TensorProto, helper

from caesura import _core
from caesura.capture.compat import increment_version
from caesura.errors import StepRefused
from caesura.lowering.onnx_builder import onnx_type
from caesura.ranks import Ranks
from caesura.reports import RECORD, Detour, fall_back, note_detour
from caesura.runtime.optimizers import describe_own_step
from caesura.runtime.step_fast_path import ZERO, open_update
from caesura.runtime.step_program import StepProgram, as_real
from caesura.runtime.step_making import StepMaking
from caesura.runtime.step_ranks import StepRanks
from caesura.user_code import calling_line

T = TypeVar("T", bound=torch.optim.Optimizer)
_PROGRAMS = 8  # sets of parameters with gradients that an optimizer goes back and forth between


def fuse(optimizer: T, *, threads: int = 0) -> T:
    """Makes an optimizer's step one call of caesura's, with the updates that a compiled step has.

    It stays the same object of the same class: groups, state, state_dict(), schedulers, hooks and GradScaler work as before,
    and rates, betas, momentum and decay that change count from the next step. A step either updates all parameters or, where
    it raises, none. copy.deepcopy() and pickle give an optimizer that is not fused.

    PyTorch's own step runs, with one FallbackWarning for each cause, for sparse gradients, gradients of another dtype than
    their parameters, parameters that are not on the CPU or not contiguous (channels_last), and for classes and options that have
    no such update.

    Args:
        optimizer: an optimizer of torch.optim.
        threads: Threads to a kernel; 0: CAESURA_NUM_THREADS, or as many as OpenMP takes.

    Returns:
        The optimizer itself.

    Raises:
        TypeError: it is no torch.optim.Optimizer.

    Example::

        model = caesura.wrap(model)
        optimizer = caesura.fuse(torch.optim.AdamW(model.parameters(), lr=1e-3))
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"fuse takes an optimizer of torch.optim, got {type(optimizer).__name__}")
    if hasattr(optimizer.step, "updates"):
        return optimizer
    updates = _Updates(optimizer, threads)
    if (cause := updates.describe()) is not None:
        _leave(optimizer, cause)
        return optimizer
    raw = type(optimizer).step.__wrapped__  # type: ignore[attr-defined]  # without the calls of hooks

    def step(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        self._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if (cause := updates.run()) is not None:
            _leave(self, cause)
            raw(self)
        return loss

    hooked = torch.optim.Optimizer.profile_hook_step(step)
    hooked.updates, hooked._wrapped_by_lr_sched = updates, True  # type: ignore[attr-defined]
    optimizer.register_load_state_dict_post_hook(lambda _: updates.forget())  # loading replaces a state's tensors
    optimizer.step = types.MethodType(hooked, optimizer)  # type: ignore[method-assign]
    return optimizer


def _leave(optimizer: torch.optim.Optimizer, cause: str) -> None:
    file, line = calling_line()[:2]
    fall_back([(f"{type(optimizer).__name__}.step", cause, f"{file}:{line}")])


class _Updates(_core.StepCalls):
    """The updates of an optimizer, a program for each set of parameters that have gradients. Called with the gradients of all
    parameters, it returns None, or the reason why PyTorch must make the update; nothing has changed then."""

    clip_norm, accumulation_steps, precision, memory_budget = 0.0, 1, "fp32", 0

    def __init__(self, optimizer: torch.optim.Optimizer, threads: int) -> None:
        super().__init__()
        self.optimizer, self.threads = optimizer, threads
        self._ranks = StepRanks(torch.nn.Module(), Ranks("alone"), StepMaking("alone"))
        self._recipe: Any = None
        self._programs: dict[tuple[int, ...], _UpdateProgram] = {}

    def describe(self) -> Optional[str]:
        """Describes the optimizer as it is now. Returns the reason why it has no program."""
        self._calls, self._programs = [], {}
        self._names = {id(p): f"{g}.{i}" for g, group in enumerate(self.optimizer.param_groups) for i, p in enumerate(group["params"])}
        found = describe_own_step(self.optimizer)
        self._recipe = None if isinstance(found, str) else found
        return found if isinstance(found, str) else None

    def forget(self) -> None:
        """Has the next update describe the optimizer."""
        self._calls, self._recipe = [], None

    @torch.no_grad()
    def run(self) -> Optional[str]:
        """Makes an update with the parameters' gradients."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        cause = self(*(p.grad for p in parameters))
        if isinstance(cause, str):
            return cause
        increment_version([p for p in parameters if p.grad is not None])
        return None

    def _first(self, gradients: tuple[Optional[torch.Tensor], ...], _: dict[str, Any]) -> Optional[str]:
        """Runs a call that matches none of `_calls`."""
        if (self._recipe is None or self._recipe.change()) and (cause := self.describe()) is not None:
            return cause
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        given = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        if not given:
            return None
        if (cause := next(filter(None, (_misfit(parameters[i], gradient) for i, gradient in given.items())), None)) is not None:
            return cause
        key = tuple(given)
        try:
            if key not in self._programs:
                if len(self._programs) >= _PROGRAMS:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = _UpdateProgram(self, [(i, parameters[i]) for i in key])
            program = self._programs[key]
            program.rebind()
            program.follow_counts()
        except StepRefused as error:
            return str(error)
        self._recipe.begin(program, 0)
        feeds = {name: as_real(given[i]).contiguous() for name, i in program.feeds} | {"zero": ZERO}
        began = time.perf_counter()
        program.session.step(feeds)
        RECORD.kernel_seconds += time.perf_counter() - began
        RECORD.kernel_calls += 1
        self._recipe.end(program, 1, None)
        if all(gradient.is_contiguous() and not gradient.is_complex() for gradient in given.values()):
            try:
                call = open_update(self, program, gradients)
                self._calls = [call, *(c for c in self._calls if c.program is not program)][:_PROGRAMS]
            except Detour as detour:
                note_detour(f"the step of {type(self.optimizer).__name__}", detour.args[0])
        return None

    # Nothing stops an update midway, so none waits.
    def _prepare(self, program: StepProgram) -> None:
        pass

    def _refuse_while_one_waits(self) -> None:
        pass


def _misfit(parameter: torch.Tensor, gradient: torch.Tensor) -> Optional[str]:
    """The reason why our update does not take them."""
    if gradient.layout != torch.strided:
        return "a sparse gradient"
    if parameter.device.type != "cpu":
        return f"parameters on {parameter.device}"
    if gradient.dtype != parameter.dtype or gradient.device != parameter.device:
        return "a gradient of another dtype or device than its parameter"
    if not parameter.requires_grad:
        return "a gradient of a parameter that requires none"
    return None if parameter.is_contiguous() else "parameters that are not contiguous"


class _UpdateProgram(StepProgram):
    """The update of some parameters by the gradients that it is fed."""

    more = {"gradient_inputs": True}

    def __init__(self, owner: _Updates, parameters: list[tuple[int, torch.Tensor]]) -> None:
        """parameters: with their places among all that the optimizer has."""
        super().__init__(owner)
        bound = [(owner._names[id(p)], None, p) for _, p in parameters]
        self.feeds = [(f"gradient.{name}", i) for (i, _), (name, _, _) in zip(parameters, bound)]
        # The loss is computed: the copy of a constant, after the updates, might fail, so that they would keep what they overwrite.
        inputs = [helper.make_tensor_value_info(name, onnx_type(real.dtype), list(real.shape))
                  for name, _, p in bound for real in (as_real(p),)]
        inputs.append(helper.make_tensor_value_info("zero", TensorProto.FLOAT, []))
        outputs = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
        graph = helper.make_graph([helper.make_node("Neg", ["zero"], ["loss"])], "update", inputs, outputs)
        self.open(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), bound)
