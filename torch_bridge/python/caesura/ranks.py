# SPDX-License-Identifier: Apache-2.0
"""The ranks that this process trains with, as torch.distributed has them."""

import sys
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

from caesura import _core, torch_kernels

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    Group = Union[ProcessGroup, Literal["alone"], None]


@dataclass(frozen=True)
class Ranks:
    """The ranks that train together, and how they exchange gradients; `ranks=` of compile_step() and TrainingSession.

    Each rank gives its own part of a batch to a step. Updates go by the mean gradient of all ranks, exchanged while the
    backward goes on, and a step returns the mean of their losses. All begin with the parameters of rank 0.

    Args:
        group: a process group of torch.distributed. None: the default group, where one is initialised. "alone": this
            process trains by itself, whatever groups there are.
        shard: Ranks divide the optimizer state (1), and accumulated gradients, too (2). Each keeps and updates its part,
            and losses and parameters stay those of 0. All ranks then call save(); a compiled step's optimizer.state has
            none of it (see gather_state()). compile_step() refuses 2 with accumulation.
        mean_over: The mean that an update of several batches goes by: of the "batches", or of all "tokens" that the loss
            counts. Batches are those of ranks and of accumulated steps. Tokens are targets that cross entropy does not
            ignore; of a TrainingSession's other losses each element of the prediction. compile_step() counts tokens
            without accumulation only.
        exchange_dtype: The dtype to which ranks round the gradients that they exchange; by default they do not. "bf16" is
            half the bytes.
        bucket_bytes: Ranks exchange gradients in buckets that are closed at this many bytes. Large ones suit many ranks,
            whose latency grows; the last bucket's exchange overlaps with nothing. The same on all ranks.
        logical_shards: Parts of an update's batch whose gradients are summed in one order on any number of ranks; 0: any
            order. Each part is given to one call of step(), of a TrainingSession. Any number N of ranks then trains to
            the same bits, dropout included: rank r gives parts r * logical_shards / N and on, in their order, and the
            last one's step() updates. A multiple of N, by a power of two.
        broadcast_buffers: Running statistics are those of rank 0 after each step; False: each rank keeps its own. The same holds for
            a compiled step's other buffers at its start.

    Raises:
        ValueError: an option is not as it should be.

    Example::

        step = caesura.compile_step(model, loss_fn, optimizer, ranks=caesura.Ranks(shard=1))
        session = caesura.TrainingSession("net.onnx", ranks=caesura.Ranks("alone"))
    """

    group: "Group" = None
    _: KW_ONLY
    shard: Literal[0, 1, 2] = 0
    mean_over: Literal["batches", "tokens"] = "batches"
    exchange_dtype: Optional[Literal["bf16"]] = None
    bucket_bytes: int = 4 << 20
    logical_shards: int = 0
    broadcast_buffers: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.group, str) and self.group != "alone":
            raise ValueError(f"group is a process group, None or 'alone', got {self.group!r}")
        if self.shard not in (0, 1, 2):
            raise ValueError(f"shard is 0, 1 or 2, got {self.shard}; fully_shard(module) divides parameters, too")
        if self.mean_over not in ("batches", "tokens"):
            raise ValueError(f"mean_over is 'batches' or 'tokens', got {self.mean_over!r}")
        if self.exchange_dtype not in (None, "bf16"):
            raise ValueError(f"exchange_dtype is 'bf16' or None, got {self.exchange_dtype!r}")
        if self.bucket_bytes < 1:
            raise ValueError(f"bucket_bytes is 1 or more, got {self.bucket_bytes}")
        if self.logical_shards < 0:
            raise ValueError(f"logical_shards is 0 or more, got {self.logical_shards}")


def is_sharded(module: Any) -> bool:
    """True if torch.distributed.fsdp.fully_shard() has the module itself."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def has_process_group() -> bool:
    """True if torch.distributed has a default process group, without which nothing is sharded or exchanged."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def has_other_ranks(group: "Group" = None) -> bool:
    """True if a group has other ranks; the default one, where it is initialised, for None."""
    return group != "alone" and has_process_group() and bool(_given(group).size() > 1)


def communicator(group: "Group" = None, gpu: Optional["_core.Gpu"] = None) -> Optional["_core.Communicator"]:
    """Returns the communicator of a group; of the default one, where it is initialised, for None. None if there are no other
    ranks. All ranks of the group call it.

    Args:
        group: as Ranks has it, of any backend.
        gpu: exchange this GPU's memory, through NCCL; the group carries NCCL's identity and small numbers. None: exchange
            memory of the host.

    Raises:
        NotImplementedError: the group has other ranks, and caesura was built without PyTorch or for another release; or a
            rank has no NCCL.
        ValueError: two ranks have the same GPU.
    """
    if not has_other_ranks(group):
        return None
    if why := torch_kernels.misfit():
        raise NotImplementedError(f"there are {_given(group).size()} ranks, which caesura cannot reach: {why}")
    name = host_group(group).group_name
    return _core.communicator(name) if gpu is None else gpu.communicator(name)


def host_group(group: Any = None) -> Any:
    """The process group itself if it exchanges tensors of the host. Else (NCCL's) a new group of the same ranks that does, on
    Gloo: all of them call this."""
    from caesura.capture.compat import group_timeout

    given, distributed = _given(group), sys.modules["torch.distributed"]
    if "cpu:" in distributed.get_backend_config(given):
        return given
    return distributed.new_group(distributed.get_process_group_ranks(given), timeout=group_timeout(given), backend="gloo",
                                 use_local_synchronization=True)


def _given(group: Any) -> Any:
    return sys.modules["torch.distributed"].group.WORLD if group is None else group
