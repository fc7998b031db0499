# SPDX-License-Identifier: Apache-2.0
"""The ranks of a compiled step."""

import torch

from caesura.ranks import communicator
from caesura.runtime.step_program import StepRefused


class StepRanks:
    """The ranks that a compiled step trains with, from its first call on."""

    def __init__(self, module, process_group):
        if any(isinstance(part, torch.nn.parallel.DistributedDataParallel) for part in module.modules()):
            raise StepRefused("a step exchanges gradients itself: give compile_step() the module that DistributedDataParallel "
                              "holds (its .module)")
        self._group, self._communicator = process_group, None
        self._has_joined = False

    def join(self, programs):
        """Finds the other ranks, which may have come after compile_step()."""
        if self._communicator is not None:
            return
        self._communicator = communicator(self._group)
        if self._communicator is not None and any(p.session is not None for p in programs):
            raise StepRefused("the process group was initialised after this step's first call: make the step again")

    def refuse_optimizer(self, optimizer):
        """Refuses an optimizer that PyTorch steps: the gradients that it would read are those of this rank."""
        if communicator(self._group) is not None:
            raise StepRefused(f"with several ranks the program must do the update, which {type(optimizer).__name__} cannot be written "
                              "into; write DistributedDataParallel(caesura.wrap(module)) and a plain loop")

    def arguments(self) -> dict:
        """Returns what a session of the step is opened with. Only the first one takes the parameters of rank 0: a later
        one, for other shapes, may be opened on some ranks only.
        """
        joins, self._has_joined = not self._has_joined, True
        return {"communicator": self._communicator, "join_ranks": joins}
