# SPDX-License-Identifier: Apache-2.0
"""Compiled steps in loops that call backward(), clip_grad_norm_() and optimizer.step() themselves."""

import types
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from caesura.errors import StepRefused
from caesura.frontends.compile_step import CompiledStep
from caesura.frontends.fuse import fuse
from caesura.reports import lose


class WholeStep:
    """Trains by compiled steps, or tells why the loop must train by itself, by wrap() and fuse().

    After a call that has updated, the next optimizer.step() of the loop runs its closure and hooks only; the next ones are PyTorch's
    again. Nothing else of the optimizer is replaced.

    Args:
        loop: the name of the loop's part, for messages.
        optimizers: the loop's; with `refused` there may be any number of them, otherwise one.
        make: makes a compiled step of so many batches to one update.
        refused: why the loop trains by itself from the start; None: it does not.
    """

    def __init__(self, loop: str, optimizers: Sequence[torch.optim.Optimizer], make: Callable[[int], CompiledStep],
                 refused: Optional[str] = None) -> None:
        self.loop, self.optimizers, self.gradient_norm = loop, optimizers, float("nan")
        self._make = make
        self._steps: dict[int, CompiledStep] = {}
        self._has_updated = False  # and the loop's optimizer.step() is still to come
        self._steps_before = [vars(optimizer).get("step") for optimizer in optimizers]
        self.refused: Optional[str] = None
        if refused is not None:
            self._leave(refused)
            return
        (optimizer,) = optimizers
        optimizer.step = types.MethodType(self._leave_update(optimizer.step), optimizer)  # type: ignore[method-assign]

    def step(self, count: int) -> CompiledStep:
        """The compiled step of `count` batches to one update."""
        if count not in self._steps:
            self._steps[count] = self._make(count)
        return self._steps[count]

    def train(self, count: int, updates: bool, *args: Any, **kwargs: Any) -> Optional[torch.Tensor]:
        """Trains with one batch. Returns its loss; None if the loop must train with it, from here on.

        Args:
            count: batches to one update.
            updates: whether this batch is the last one before an update.
            *args: of the compiled step.
            **kwargs: likewise.
        """
        if self.refused is not None:
            return None
        try:
            step = self.step(count)
            if updates and (step.micro_steps + 1) % count:
                step.update_next()
            loss: torch.Tensor = step(*args, **kwargs)
        except StepRefused as error:
            self._leave(" ".join(line.strip() for line in str(error).splitlines()[:2]))
            return None
        self._has_updated, self.gradient_norm = updates, step.gradient_norm
        return loss

    def sums(self) -> Optional[dict[str, Any]]:
        """What is accumulated for the next update, for a checkpoint: {"count": batches to one update, "batches": those done,
        "gradients": their sums, in the order of the optimizer's parameters}. None right after an update."""
        for count, step in self._steps.items():
            if (batches := step.micro_steps % count) and self.refused is None:
                totals = step._gradients.tensors
                gradients = [totals[p].clone() if id(p) in step._window else None for p in self._parameters()]
                return {"count": count, "batches": batches, "gradients": gradients}
        return None

    def take_sums(self, sums: dict[str, Any]) -> None:
        """Goes on from what sums() returned, in a new process."""
        given = [(p, total) for p, total in zip(self._parameters(), sums["gradients"], strict=True) if total is not None]
        if self.refused is not None:
            for parameter, total in given:
                parameter.grad = total / sums["count"]
            return
        step = self.step(sums["count"])
        for parameter, total in given:
            step._gradients.of(parameter).copy_(total)
        step.micro_steps, step._window = sums["batches"], frozenset(id(p) for p, _ in given)

    def _parameters(self) -> list[torch.Tensor]:
        return [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]

    def close(self) -> None:
        """Gives the optimizers their own step() back."""
        for optimizer, before in zip(self.optimizers, self._steps_before):
            vars(optimizer).pop("step", None)
            if before is not None:
                optimizer.step = before  # type: ignore[method-assign]

    def _leave(self, why: str) -> None:
        self.refused = why
        for step in self._steps.values():
            _return_gradients(step)
        self.close()
        lose(f"compile_step in {self.loop}", why, "It trains by wrap() and fuse()", "The table in docs/guides/integrations.md tells when")
        for optimizer in self.optimizers:
            fuse(optimizer)

    def _leave_update(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._has_updated:
                self._has_updated = False
                optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers look at it
                hooked(optimizer)
            elif self.refused is None:
                plain()
            else:  # since the closure: it is another method now
                optimizer.step()
            return loss

        def leave(optimizer: torch.optim.Optimizer) -> None:
            """The compiled step has updated."""

        hooked = torch.optim.Optimizer.profile_hook_step(leave)
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step


def _return_gradients(step: CompiledStep) -> None:
    """Gives what a step has accumulated for its next update to the parameters' .grad, for a loop that goes on by itself."""
    if step.micro_steps % step.accumulation_steps:
        for parameter, total in step._gradients.tensors.items():
            if id(parameter) in step._window:
                parameter.grad = total / step.accumulation_steps
