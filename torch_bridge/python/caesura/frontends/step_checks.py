# SPDX-License-Identifier: Apache-2.0
"""Checks of compile_step: it refuses hooks that only eager training calls, and raises the errors that eager training raises."""

from typing import Any, NoReturn

import torch

from caesura.capture.compat import backward_hooks, global_backward_hooks, global_hooks, has_accumulation_hooks, has_hooks
from caesura.capture.frames import HOOKS_WITHIN, first_line, is_known, place_of, why
from caesura.errors import StepRefused
from caesura.ranks import Ranks, is_sharded


def refuse_ranks(ranks: Ranks, accumulation_steps: int) -> None:
    """Refuses options of the ranks that no step takes."""
    if ranks.logical_shards:
        raise ValueError(f"logical_shards={ranks.logical_shards} is TrainingSession's: the programs of a step have no logical shards")
    if ranks.mean_over == "tokens" and accumulation_steps != 1:
        raise ValueError(f"mean_over='tokens' needs accumulation_steps=1, got {accumulation_steps}: the programs of a step do not "
                         "count tokens together")
    if ranks.shard == 2 and accumulation_steps != 1:
        raise ValueError(f"shard=2 needs accumulation_steps=1, got {accumulation_steps}: the programs of a step accumulate whole "
                         "gradients; take shard=1")


def refuse_hooks(step: Any) -> None:
    """Refuses hooks that PyTorch's backward would call and the program would not, and those of fully_shard()."""
    hooked = [step._names[id(p)] for group in step.optimizer.param_groups for p in group["params"]
              if has_hooks(p) or has_accumulation_hooks(p)]
    if hooked:
        raise StepRefused(f"gradient hooks are not called by a step: {', '.join(hooked)} has such")
    roots = [root for root in (step.module, step.loss_fn) if isinstance(root, torch.nn.Module)]
    sharded = [name or type(root).__name__ for root in roots for name, part in root.named_modules() if is_sharded(part)]
    if sharded:
        raise StepRefused(f"fully_shard() has {sharded[0]}: its hooks gather and free parameters around each forward and backward, which "
                          "no step does. Write caesura.wrap(module), whose layers run in kernels, and a loop of your own; or leave "
                          "fully_shard() out and divide the optimizer's state, compile_step(..., ranks=caesura.Ranks(shard=1))")
    hooked = [name or type(root).__name__ for root in roots for name, part in root.named_modules() if any(backward_hooks(part))]
    hooked += ["every module"] if any(global_backward_hooks()) else []
    if hooked:
        raise StepRefused(f"gradient hooks are not called by a step: {', '.join(hooked)} has backward hooks")


def raise_as_eager(step: Any, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    """Raises the forward's own error if that error ended the capture. Buffers keep their values."""
    buffers = [(buffer, buffer.clone()) for buffer in step.module.buffers()]
    try:
        with torch.random.fork_rng([]), torch.enable_grad():
            step._loss(*args, **kwargs)
    except Exception as own:
        own.__suppress_context__ = True
        raise
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    if any(global_hooks()) and "GraphModule()" in str(error):  # a hook that fails on the graph's arguments
        raise StepRefused(f"the step cannot be one program: {HOOKS_WITHIN} (at {place_of(error)})")
    told = why(error) if is_known(error) else f"its capture fails where eager goes on: {first_line(error)}"
    raise StepRefused(f"the step cannot be one program: {told} (at {place_of(error)})") from None if is_known(error) else error
