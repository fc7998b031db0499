# SPDX-License-Identifier: Apache-2.0
"""Compiled steps that stop in the middle of a call, and go on in this process or another one."""

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from caesura import _core
from caesura.errors import Suspended
from caesura.runtime.optimizers import Recipe
from caesura.runtime.step_program import Captured, StepProgram
from caesura.runtime.step_ranks import StepRanks
from caesura.runtime.update_rows import UpdateRows
from caesura.typing import Path, Properties

_FACTS = "caesura.compiled_step"  # the property of a checkpoint that tells what no session knows
_NEVER = 2**31 - 1


class Suspendable(_core.StepCalls):
    """The part of a CompiledStep that stops a call before any of its nodes. While a step waits no other one begins.

    resume() does not repeat side effects of the forward's Python code. A step that leaves results in attributes of the
    module, or trains with other ranks, stops between two calls: the call raises Suspended before it begins, and no step
    waits.
    """

    micro_steps: int  # of the extension, as the next three
    _window: frozenset[int]
    _loss_scale: float
    _waits: bool
    _keep_scaler: Callable[[Any], None]
    _programs: list[StepProgram]  # of CompiledStep, as all that follows
    _recipe: Any  # a Recipe, or Stepping
    _ranks: StepRanks
    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    accumulation_steps: int
    _capture_call: Callable[[tuple[Any, ...], dict[str, Any]], Captured]

    def __init__(self) -> None:
        super().__init__()
        self._flag, self._stop_at = _core.SuspendFlag(), _NEVER
        self._deadline: float | None = None

    def _prepare(self, program: StepProgram) -> None:
        """Gives a program that was just opened the settings of the step."""
        session = program.session
        if not program.leaves_results:
            session.suspend_flag = self._flag
            session.suspend_at(self._stop_at)
            if self._deadline is not None:
                session.suspend_after(self._deadline - time.monotonic())

    def _refuse_to_begin(self) -> None:
        """Raises Suspended if a call is to stop, for a program that cannot stop among its nodes."""
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        if self.suspend or is_late or self._stop_at != _NEVER:
            self._forget_stop()
            raise Suspended(
                "the step has not begun: it leaves results in attributes of the module or in arguments, so it stops between two calls only")

    def _refuse_while_one_waits(self) -> None:
        if self._waits:
            raise ValueError("a step waits; resume() or drop() first")

    def _sessions(self) -> list[Any]:
        return [p.session for p in self._programs if p.session is not None and not p.leaves_results]

    def update_next(self) -> None:
        """Has the next call update, whatever number of batches came before it: where an epoch ends within an accumulation. The
        sum of their gradients is still divided by `accumulation_steps`. All ranks call it.

        Example::

            if is_last_batch:
                step.update_next()
            loss = step(inputs, targets)
        """
        self._refuse_while_one_waits()
        accumulated = self.micro_steps % self.accumulation_steps
        if not accumulated:
            self._window = frozenset()  # the sums of the update before are none of this one's
        self.micro_steps += self.accumulation_steps - 1 - accumulated

    @property
    def suspend(self) -> bool:
        """True stops the call that runs now, and each later one, before its next node: it raises caesura.Suspended, and
        the step waits. May be set from any thread."""
        return self._flag.is_set

    @suspend.setter
    def suspend(self, value: bool) -> None:
        self._flag.is_set = value
        for session in [] if value else self._sessions():
            session.suspend = False  # also what the ranks have agreed on

    def suspend_on(self, *signals: int) -> AbstractContextManager[Any]:
        """While the returned context is entered each of these signals sets `suspend`.

        Example::

            with step.suspend_on(signal.SIGTERM):
                loss = step(inputs, targets)
        """
        return _core.SuspendOn(self._flag, [int(s) for s in signals])

    def suspend_after(self, seconds: float | None) -> None:
        """Stops calls likewise once so many seconds have passed; None: never."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        for session in self._sessions():
            session.suspend_after(seconds)

    def suspend_at(self, node: int, /) -> None:
        """Stops the next call, or the rest of the one that waits, before this node of its program, counted from 0."""
        self._stop_at = node
        for session in self._sessions():
            session.suspend_at(node)

    def _forget_stop(self, keeps: Any = None) -> None:
        """suspend_at() counts no more, except for the session `keeps`, where it is of the step that waits."""
        self._stop_at = _NEVER
        for session in self._sessions():
            if session is not keeps:
                session.suspend_at(_NEVER)

    @property
    def suspended(self) -> bool:
        """True if a step waits for resume() or drop()."""
        return self._waits

    @property
    def step_differences(self) -> list[str]:
        """The ways in which the step that waits may round otherwise than in the process that began it; empty where it may not."""
        return self._waiting().session.step_differences() if self._waits else []

    def _waiting(self) -> Any:
        if not self._waits:
            raise ValueError("no step waits")
        return next(p for p in self._programs if p.session is not None and p.session.suspended)

    @torch.no_grad()
    def resume(self) -> torch.Tensor:
        """Goes on with the step that waits, to its end.

        Returns:
            The loss, as the call would have returned it.

        Raises:
            Suspended: it was suspended again.
            ValueError: no step waits.

        Example::

            try:
                loss = step(inputs, targets)
            except caesura.Suspended:
                loss = step.resume()
        """
        program = self._waiting()
        if not program.holds_its_tensors():
            raise ValueError("a parameter or the optimizer's state was replaced while the step waited: drop() it")
        self._forget_stop(program.session)
        is_first = self.micro_steps % self.accumulation_steps == 0
        self._window = (frozenset() if is_first else self._window) | program.learning
        self._loss_scale = program.session.loss_scale
        try:
            loss = program.session.resume_step()
        finally:
            self._waits = program.session.suspended
        program.ended()
        return torch.tensor(loss, dtype=program.dtype, device="cpu")

    def drop(self) -> None:
        """Gives up the step that waits; parameters, optimizer and buffers are as before it.

        Raises:
            RuntimeError: it waits in the middle of its updates, and parameters are half updated: restore() a checkpoint.
            ValueError: no step waits.
        """
        program = self._waiting()
        self._forget_stop()
        self._waits = False
        program.session.drop_step()

    @torch.no_grad()
    def save(self, path: Path, properties: Properties | None = None) -> None:
        """Writes a checkpoint (safetensors): trained parameters, buffers that the step writes to, optimizer state and
        options, PyTorch's random state, and the step that waits. A crash leaves the old file or the new.

        Args:
            path: the file.
            properties: what else restore() shall return, by name: ints, floats and texts.

        Raises:
            ValueError: the step has not run yet, or its optimizer's state is PyTorch's own.
            OSError: the file cannot be written.

        Example::

            step.save("run.ckpt", {"batch": 17})
        """
        opened = [p for p in self._programs if p.session is not None]
        if not opened:
            raise ValueError("nothing to save: the step has not run")
        if not isinstance(self._recipe, Recipe):
            raise ValueError(f"{type(self.optimizer).__name__} is not part of the step: save the module's and the optimizer's "
                             "state_dict(), between calls")
        if self._ranks.rows.rows is not None:
            raise ValueError("the ranks' calls train different parameters: save the module's and the optimizer's state_dict()")
        if self._ranks.shards.is_divided:
            self._ranks.meet(self, "save()")
        program = self._waiting() if self._waits else opened[-1]
        names = {id(p): name for name, _, p in program.bound}
        for other in opened:
            if {name for name, _, _ in other.bound} != set(names.values()):
                raise ValueError("the step's programs train different parameters: save the module's and the optimizer's state_dict()")
        if not self._waits:
            program.session.set_position(program.updates(), self.micro_steps)
        is_first = self.micro_steps % self.accumulation_steps == 0
        facts = {"version": 1, "micro_steps": self.micro_steps,
                 "counts": {name: float(self._recipe.count(p)) for name, p in program.learners.items()},
                 "rows": program.rows if program.has_offsets else None,
                 "counters": {name: int(self.module.get_buffer(name)) for name in self._counters(program)},
                 "coefficients": [[_at(group, place) for place in self._recipe.places()] for group in self.optimizer.param_groups],
                 "window": [] if is_first else sorted(names[i] for i in self._window),
                 "loss_scale": self._loss_scale, "random": bytes(torch.get_rng_state().tolist()).hex()}
        program.session.save(os.fspath(path), dict(properties or {}) | {_FACTS: json.dumps(facts)})

    def _counters(self, program: StepProgram) -> list[str]:
        """The names of the buffers that count the program's calls."""
        names = {id(buffer): name for name, buffer in self.module.named_buffers()}
        return [names[id(counter)] for counter, _ in program.counted]

    @torch.no_grad()
    def restore(self, path: Path, /, *args: Any, **kwargs: Any) -> dict[str, int | float | str]:
        """Goes on from a checkpoint that save() has written, perhaps in another process; resume() then ends the step that
        waits in it. A step that waits here is given up.

        The module, the loss and the options of compile_step() are the same as there. Trained parameters and optimizer
        state may be anything; frozen parameters are the module's own.

        Args:
            path: the file.
            *args: inputs as for a call of the step. They only tell dtypes and shapes, by which the program is captured;
                nothing is trained.
            **kwargs: likewise.

        Returns:
            dict: the properties that save() was given.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it does not fit; all differences are listed, and nothing is changed.
            StepRefused: no program can be captured for these inputs.

        Example::

            step = caesura.compile_step(model, loss_fn, optimizer)
            done = step.restore("run.ckpt", inputs, targets)["batch"]
            if step.suspended:
                loss = step.resume()
        """
        facts = _read_facts(os.fspath(path))
        self._ranks.drop_rows(self)
        program = self._capture_call(args, kwargs).program
        names = {name: p for name, _, p in program.bound}
        learners = program.learners.keys()
        groups, places = self.optimizer.param_groups, self._recipe.places()
        if facts["counts"].keys() != learners or facts["counters"].keys() != set(self._counters(program)) or \
                [len(row) for row in facts["coefficients"]] != [len(places)] * len(groups) or not learners >= set(facts["window"]):
            raise ValueError(f"checkpoint '{os.fspath(path)}' does not fit the step: it trains other parameters, or in other groups")
        if facts["rows"] is None:
            rows = UpdateRows(self._recipe.members).of(program.learners)
        elif sorted(name for _, row in facts["rows"] for name in row) != sorted(learners):
            raise ValueError(f"checkpoint '{os.fspath(path)}' does not fit the step: its rows are of other parameters")
        else:
            rows = facts["rows"], True
        if (program.rows, program.has_offsets) != rows:
            program.open(program.forward, program.bound, rows)
        properties: dict[str, int | float | str] = program.session.restore(os.fspath(path))
        self._ranks.shards.agree()
        self._keep_scaler(program.session)
        del properties[_FACTS]
        self._calls, self._waits = [], program.session.suspended
        self._programs = [p for p in self._programs if p.is_captured]
        for other in self._programs:  # one of them may have held a step among its updates
            if other is not program:
                other.session = None
        self.micro_steps, self._loss_scale = facts["micro_steps"], facts["loss_scale"]
        self._window = frozenset(id(names[name]) for name in facts["window"])
        for name, count in facts["counts"].items():
            self._recipe.count(names[name]).fill_(count)
        for name, count in facts["counters"].items():
            self.module.get_buffer(name).fill_(count)
        for group, row in zip(groups, facts["coefficients"]):
            for place, value in zip(places, row):
                put_option(group, place, value)
        torch.set_rng_state(facts["random"])
        return properties


def _read_facts(path: str) -> dict[str, Any]:
    """The property _FACTS of a checkpoint; each fact has its type."""
    text = _core.checkpoint_properties(path).get(f"caller.{_FACTS}")
    if not isinstance(text, str):
        raise ValueError(f"'{path}' is no checkpoint of a compiled step")
    try:
        facts = json.loads(text)
        if facts["version"] != 1:
            raise ValueError
        random = torch.tensor(list(bytes.fromhex(facts["random"])), dtype=torch.uint8, device="cpu")
        if random.shape != torch.get_rng_state().shape:
            raise ValueError
        return {"micro_steps": int(facts["micro_steps"]), "loss_scale": float(facts["loss_scale"]),
                "counts": {name: float(count) for name, count in facts["counts"].items()},
                "counters": {name: int(count) for name, count in facts["counters"].items()},
                "coefficients": [[float(value) for value in row] for row in facts["coefficients"]],
                "rows": None if facts.get("rows") is None else [(int(i), list(map(str, names))) for i, names in facts["rows"]],
                "window": list(map(str, facts["window"])), "random": random}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"'{path}': its facts of a compiled step are damaged, or written by a newer release") from None


def _at(group: dict[str, Any], place: tuple[str, int, Any]) -> float:
    key, index, _ = place
    return float(group[key] if index < 0 else group[key][index])


def put_option(group: dict[str, Any], place: tuple[str, int, Any], value: float) -> None:
    """Sets an option of an optimizer's group. place: (key, index in a tuple or -1, anything)."""
    key, index, _ = place
    if index >= 0:
        group[key] = tuple(value if i == index else old for i, old in enumerate(group[key]))
    elif isinstance(group[key], torch.Tensor):
        group[key].fill_(value)
    elif group[key] != value:  # an int that is the same stays one
        group[key] = value
