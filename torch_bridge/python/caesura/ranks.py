# SPDX-License-Identifier: Apache-2.0
"""The ranks that this process trains with, as torch.distributed has them."""

import sys
from typing import Optional

from caesura import _core, torch_kernels


def communicator(process_group=None) -> Optional["_core.Communicator"]:
    """Returns the communicator of a process group; of the default one, where it is initialised, for None. None if there
    are no other ranks.

    Raises:
        NotImplementedError: the group has other ranks, and caesura was built without PyTorch or for another release.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if process_group is None else process_group
    if group.size() == 1:
        return None
    if not torch_kernels.load():
        raise NotImplementedError(f"there are {group.size()} ranks, and caesura was built without PyTorch: it cannot reach them")
    return _core.communicator(group.group_name)
