# SPDX-License-Identifier: Apache-2.0
"""Compiled steps whose ranks change or run out of batches, and whose optimizer state the ranks have divided."""

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch

from caesura.runtime.gpu import CPU
from caesura.runtime.step_ranks import StepRanks


@functools.cache
def _group_of_this_rank() -> Any:
    distributed = torch.distributed
    return distributed.new_group([distributed.get_rank()], backend="gloo", use_local_synchronization=True)


class EndOfBatches:
    """A JoinHook of torch.distributed.algorithms.join: at Join's end all ranks compare that they are there."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def main_hook(self) -> None:
        raise AssertionError("a group of one rank has no others that have batches")

    def post_hook(self, is_last_joiner: bool) -> None:
        self._step._ranks.end_batches(self._step)


class Ranked:
    """The part of a CompiledStep that all of its ranks call together."""

    _ranks: StepRanks
    optimizer: torch.optim.Optimizer
    _open_again: Callable[[], None]

    _join_config: Any  # which Join sets

    def join_hook(self, **_: Any) -> EndOfBatches:
        """Join([step]) around a loop: if a rank runs out of batches before others, all raise StepRefused at once."""
        return EndOfBatches(self)

    @property
    def join_device(self) -> torch.device:
        """The device of the numbers that Join exchanges."""
        return CPU

    @property
    def join_process_group(self) -> Any:
        """This rank: Join itself need not ask the others in each call, as steps compare what all ranks do."""
        return _group_of_this_rank()

    def regroup(self, group: Optional["torch.distributed.ProcessGroup"] = None) -> None:
        """Goes on with other ranks, after a RankFailure or with more of them; all call it. See TrainingSession.regroup().

        Args:
            group: the ranks from here on, a process group of torch.distributed. None: the default group.

        Example::

            step.regroup(torch.distributed.new_group(survivors, use_local_synchronization=True))
        """
        self._ranks.regroup(self, group)
        self._open_again()

    def gather_state(self) -> None:
        """Puts the whole optimizer state into `optimizer.state`, where shard=1 has divided it. All ranks call it.

        So optimizer.state_dict() is that of one rank without `shard`, and any number of ranks loads it. The next call of
        the step takes its part again, and drops the rest.

        Raises:
            RuntimeError: a rank does not come to it, within the process group's time-out.

        Example::

            step.gather_state()
            if torch.distributed.get_rank() == 0:
                torch.save(optimizer.state_dict(), "optimizer.pt")
        """
        self._ranks.gather_state(self)
