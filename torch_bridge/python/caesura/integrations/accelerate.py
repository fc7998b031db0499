# SPDX-License-Identifier: Apache-2.0
"""Accelerate: compile_step() that goes by what an Accelerator was told."""

import os
from collections.abc import Callable
from typing import Any, Optional

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DDPCommunicationHookType, DistributedType, DynamoBackend
from safetensors import safe_open
from safetensors.torch import save_file

from caesura.capture.sources import forward_has_target, take_target
from caesura.frontends import compile_step as frontend
from caesura.frontends.compile_step import CompiledStep
from caesura.integrations.in_place import unwrapped, wrap_in_place
from caesura.integrations.whole_step import WholeStep
from caesura.ranks import Ranks

__all__ = ["AcceleratedStep", "compile_step"]

_EXCHANGED = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)  # a step's ranks exchange gradients in these


def compile_step(accelerator: Accelerator, model: torch.nn.Module, loss_fn: Optional[Callable[[Any, Any], torch.Tensor]],
                 optimizer: AcceleratedOptimizer, *, clip_norm: float = 0.0, **options: Any) -> "AcceleratedStep":
    """Makes a step of caesura.compile_step() that accumulates as an Accelerator does.

    It takes the place of accumulate(), forward, backward(), clip_grad_norm_(), optimizer.step() and zero_grad(). save_state() and
    load_state() stay: their files resume with or without it, and between the batches of an update where it is on both sides.

    Args:
        accelerator: the Accelerator.
        model: as accelerator.prepare() returns it. It is wrapped in place, so that evaluation runs in caesura, too.
        loss_fn: as caesura.compile_step() takes it; None if the model returns its loss.
        optimizer: as accelerator.prepare() returns it.
        clip_norm: likewise.
        **options: more arguments of caesura.compile_step(): masks, memory_budget, dynamic, threads, ranks.

    Returns:
        AcceleratedStep: call it with a batch.

    Raises:
        ValueError: an option is not as it should be.
        StrictError: within strict(), where training would go by wrap() and fuse().

    Example::

        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        step = caesura.integrations.accelerate.compile_step(accelerator, model, loss_fn, optimizer, clip_norm=1.0)
        for inputs, targets in loader:
            loss = step(inputs, targets)
            scheduler.step()
    """
    return AcceleratedStep(accelerator, model, loss_fn, optimizer, clip_norm, options)


class AcceleratedStep:
    """A training step of an Accelerator's loop; compile_step() makes it.

    A call takes the model's arguments, and the target last (or as ``target=...``) if there is a loss function. It returns the loss of
    the batch, without a gradient, and updates where accelerator.sync_gradients is true after it. With several processes the loss of
    a call that updates is the mean of theirs; that of another one is this process's.

    Where that cannot be one program, a FallbackWarning tells why, and calls do the same by wrap() and fuse(). `refused` has the
    reason; None: there is none.

    Raises:
        StrictError: from a call within strict() that would go by wrap() and fuse().

    Example::

        loss = step(inputs, targets)
        if accelerator.sync_gradients:
            print(float(loss), step.gradient_norm)
    """

    def __init__(self, accelerator: Accelerator, model: torch.nn.Module, loss_fn: Optional[Callable[[Any, Any], torch.Tensor]],
                 optimizer: AcceleratedOptimizer, clip_norm: float, options: dict[str, Any]) -> None:
        self.accelerator, self.model, self.loss_fn, self.optimizer, self.clip_norm = accelerator, model, loss_fn, optimizer, clip_norm
        wrap_in_place(model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model)
        plain = unwrapped(model)

        def make(count: int) -> CompiledStep:
            return frontend.compile_step(plain, loss_fn, optimizer.optimizer, clip_norm=clip_norm, accumulation_steps=count,
                                         **{"ranks": ranks_of(model), **options})

        self._forward_has_target = forward_has_target(plain)
        self._whole = WholeStep("AcceleratedStep", [optimizer.optimizer], make, why_not(accelerator))
        accelerator.register_save_state_pre_hook(self._save_sums)
        accelerator.register_load_state_pre_hook(self._load_sums)

    @property
    def refused(self) -> Optional[str]:
        """Why training goes by wrap() and fuse(); None where it goes by compile_step(), or has not begun."""
        return self._whole.refused

    @property
    def gradient_norm(self) -> float:
        """The global norm of the last update's gradients, before clipping. NaN before the first one, and with clip_norm=0."""
        return self._whole.gradient_norm

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        accelerator, count = self.accelerator, self.accelerator.gradient_accumulation_steps
        with accelerator.accumulate(self.model):
            loss = self._whole.train(count, accelerator.sync_gradients, *args, **kwargs)
            if loss is None:
                loss = self._train(*args, **kwargs)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss

    def _save_sums(self, models: Any, weights: Any, folder: str) -> None:
        sums = self._whole.sums()
        if sums is not None:
            gradients = {str(i): total for i, total in enumerate(sums["gradients"]) if total is not None}
            counts = {key: str(sums[key]) for key in ("count", "batches")} | {"parameters": str(len(sums["gradients"]))}
            save_file(gradients, self._sums_file(folder), counts)

    def _load_sums(self, models: Any, folder: str) -> None:
        if os.path.exists(self._sums_file(folder)):
            with safe_open(self._sums_file(folder), framework="pt") as file:
                counts = {key: int(value) for key, value in file.metadata().items()}
                there = set(file.keys())
                gradients = [file.get_tensor(str(i)) if str(i) in there else None for i in range(counts["parameters"])]
            self._whole.take_sums({"count": counts["count"], "batches": counts["batches"], "gradients": gradients})

    def _sums_file(self, folder: str) -> str:
        return os.path.join(folder, f"caesura_sums_{self.accelerator.process_index}.safetensors")

    def _train(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Forward, backward and clipping as in Accelerate's documented loop."""
        if self.loss_fn is None:
            out = self.model(*args, **kwargs)
            loss = out if isinstance(out, torch.Tensor) else out["loss"] if isinstance(out, dict) else out.loss
        else:
            args, kwargs, target = take_target(self._forward_has_target, args, kwargs)
            loss = self.loss_fn(self.model(*args, **kwargs), target)
        self.accelerator.backward(loss)
        if self.accelerator.sync_gradients and self.clip_norm:
            self._whole.gradient_norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip_norm))
        return loss.detach()


def ranks_of(model: torch.nn.Module) -> Ranks:
    """The ranks that exchange gradients in the place of an Accelerator's DistributedDataParallel."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return Ranks(model.process_group, broadcast_buffers=model.broadcast_buffers)
    return Ranks("alone")


def why_not(accelerator: Accelerator) -> Optional[str]:
    """Returns why a compiled step cannot take the place of an Accelerator's loop; None if it can."""
    kind = accelerator.distributed_type
    if kind not in _EXCHANGED:
        return f"the model is distributed by {kind.value.lower()}"
    if getattr(accelerator, "parallelism_config", None) is not None:
        return "parallelism_config divides a batch or the model"
    if accelerator.ddp_handler is not None and accelerator.ddp_handler.comm_hook != DDPCommunicationHookType.NO:
        return f"comm_hook={accelerator.ddp_handler.comm_hook.value!r} exchanges gradients for DistributedDataParallel"
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        return f"dynamo_backend={accelerator.state.dynamo_plugin.backend.value.lower()!r} gives the model to torch.compile"
    if accelerator.native_amp and accelerator.mixed_precision != "bf16":
        return f"mixed_precision={accelerator.mixed_precision!r} scales numbers in PyTorch"
    return None
