# SPDX-License-Identifier: Apache-2.0
"""The ranks that this process trains with, as torch.distributed has them."""

import sys
from typing import Optional

from caesura import _core, torch_kernels


def has_other_ranks(process_group=None) -> bool:
    """True if a process group has other ranks; the default one, where it is initialised, for None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return _given(process_group).size() > 1


def communicator(process_group=None, gpu: Optional["_core.Gpu"] = None) -> Optional["_core.Communicator"]:
    """Returns the communicator of a process group; of the default one, where it is initialised, for None. None if there
    are no other ranks. All ranks of the group call it.

    Args:
        process_group: a group of torch.distributed, of any backend.
        gpu: exchange this GPU's memory, through NCCL; the group carries NCCL's identity and small numbers. None: exchange
            memory of the host.

    Raises:
        NotImplementedError: the group has other ranks, and caesura was built without PyTorch or for another release; or a
            rank has no NCCL.
        ValueError: two ranks have the same GPU.
    """
    if not has_other_ranks(process_group):
        return None
    if why := torch_kernels.misfit():
        raise NotImplementedError(f"there are {_given(process_group).size()} ranks, which caesura cannot reach: {why}")
    name = host_group(process_group).group_name
    return _core.communicator(name) if gpu is None else gpu.communicator(name)


def host_group(process_group=None):
    """The process group itself if it exchanges tensors of the host. Else (NCCL's) a new group of the same ranks that does, on
    Gloo: all of them call this."""
    from caesura.capture.compat import group_timeout

    group, distributed = _given(process_group), sys.modules["torch.distributed"]
    if "cpu:" in distributed.get_backend_config(group):
        return group
    return distributed.new_group(distributed.get_process_group_ranks(group), timeout=group_timeout(group), backend="gloo",
                                 use_local_synchronization=True)


def _given(process_group):
    return sys.modules["torch.distributed"].group.WORLD if process_group is None else process_group
