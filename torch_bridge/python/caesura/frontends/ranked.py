# SPDX-License-Identifier: Apache-2.0
"""Compiled steps whose ranks change, and whose optimizer state the ranks have divided."""

from collections.abc import Callable
from typing import Optional

import torch

from caesura.runtime.step_ranks import StepRanks


class Ranked:
    """The part of a CompiledStep that all of its ranks call together."""

    _ranks: StepRanks
    optimizer: torch.optim.Optimizer
    _open_again: Callable[[], None]

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
