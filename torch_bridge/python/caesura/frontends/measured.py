# SPDX-License-Identifier: Apache-2.0
"""The methods of a compiled step that report on it: plan(), memory(), evaluate() and report()."""

from collections.abc import Callable
from typing import Any

import torch

from caesura.capture.sources import take_target
from caesura.frontends.suspendable import put_option
from caesura.frontends.wrap import wrap
from caesura.reports import recorded, write_page
from caesura.runtime.step_program import Captured, StepProgram
from caesura.typing import Memory, Path, Plan


class Measured:
    """The part of a CompiledStep that reads it; the names are a TrainingSession's."""

    micro_steps: int
    _gradient_norm: float  # of the extension
    module: torch.nn.Module
    loss_fn: Callable[..., Any] | None
    optimizer: torch.optim.Optimizer
    accumulation_steps: int
    dynamic: bool | None
    _forward_has_target: bool
    _programs: list[StepProgram]
    _calls: list[Any]
    _capture_call: Callable[[tuple[Any, ...], dict[str, Any]], Captured]
    _evaluated: torch.nn.Module | None = None

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Does what a call of the step does, under a TrainingSession's name for it."""
        loss: torch.Tensor = self(*args, **kwargs)  # type: ignore[operator]
        return loss

    @torch.no_grad()
    def evaluate(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        """Runs forward and loss in evaluation mode. Nothing is trained, and buffers stay.

        The forward runs as in caesura.wrap(module), the loss function in PyTorch. With ranks each has the loss of its own
        batch.

        Args:
            *args: as for the step itself.
            **kwargs: likewise.

        Returns:
            tuple: (loss, output of the module).

        Example::

            loss, scores = step.evaluate(inputs, targets)
        """
        roots = [root for root in (self.module, self.loss_fn) if isinstance(root, torch.nn.Module)]
        parts = [(part, part.training) for root in roots for part in root.modules()]
        if self._evaluated is None:
            self._evaluated = wrap(self.module, dynamic=self.dynamic)
        target = None
        if self.loss_fn is not None:
            args, kwargs, target = take_target(self._forward_has_target, args, kwargs)
        try:
            for part, _ in parts:
                part.training = False
            output = self._evaluated(*args, **kwargs)
            if self.loss_fn is not None:
                return self.loss_fn(output, target), output
        finally:
            for part, mode in parts:
                part.training = mode
        return output if isinstance(output, torch.Tensor) else output["loss"] if isinstance(output, dict) else output.loss, output

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans a step for such inputs, and captures its program if necessary. Nothing runs and nothing changes.
        With other ranks, all call it.

        Args:
            *args: inputs as for a call of the step. They only tell dtypes and shapes.
            **kwargs: likewise.

        Returns:
            Plan: its text, and the bytes of its arena.

        Raises:
            StepRefused: no program can be captured for these inputs.
            MemoryError: the least memory of a step is above `memory_budget`.

        Example::

            print(step.plan(inputs, targets).arena_bytes)
        """
        return Plan(*self._of_session("plan", args, kwargs))

    def memory(self, *args: Any, **kwargs: Any) -> Memory:
        """Tells the bytes that a step with such inputs takes, and captures its program if necessary. Nothing runs and nothing
        changes. With other ranks, all call it.

        Args:
            *args: inputs as for a call of the step. They only tell dtypes and shapes.
            **kwargs: likewise.

        Returns:
            Memory: parameters, gradients, optimizer state, arena and peak.

        Raises:
            StepRefused: no program can be captured for these inputs.
            MemoryError: the least memory of a step is above `memory_budget`.

        Example::

            print(step.memory(inputs, targets))
        """
        return Memory(*self._of_session("step_memory", args, kwargs))

    def _of_session(self, method: str, args: Any, kwargs: Any) -> Any:
        """What a method of the session's tells of a step with such inputs."""
        captured = self._capture_call(args, kwargs)
        with torch.random.fork_rng([]):
            return getattr(captured.program.session, method)(captured.program.feeds_of(captured.values))

    @property
    def updates(self) -> int:
        """The number of updates done; those that a scaled loss has left out are among them."""
        return self.micro_steps // self.accumulation_steps

    @property
    def gradient_norm(self) -> float:
        """The global norm of the last update's gradients, before clipping. NaN before the first one, and with clip_norm=0;
        clip_norm=math.inf measures it and clips nothing.
        """
        return self._gradient_norm

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update: that of the optimizer's first group. Setting it changes the rates of the
        other groups in proportion.
        """
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        before = self.learning_rate
        for group in self.optimizer.param_groups:
            put_option(group, ("lr", -1, None), rate * (float(group["lr"]) / before if before else 1.0))

    def report(self, path: Path, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs one step, as any other, and writes a page about it: its time by op and by source line, its memory and graph,
        what fell back and why, what to try first, and the losses of the steps so far.

        Args:
            path: the page, one HTML file that needs no other; it replaces a file that is there.
            *args: as for the step itself.
            **kwargs: likewise.

        Returns:
            The step's loss.

        Raises:
            OSError: the file cannot be written; the step was done.

        Example::

            step(inputs, targets)  # captures
            loss = step.report("report.html", inputs, targets)
        """
        with recorded() as recording:
            loss = self.step(*args, **kwargs)
        program = self._calls[0].program if self._calls else self._programs[-1]
        write_page(recording, path, type(self.module).__name__, program.session)
        return loss

    def __repr__(self) -> str:
        return (f"CompiledStep({type(self.module).__name__}, {type(self.optimizer).__name__}: {len(self._programs)} programs, "
                f"{self.updates} updates)")
