# SPDX-License-Identifier: Apache-2.0
"""The ranks of a compiled step."""

import torch

from caesura.errors import StepRefused
from caesura.ranks import Ranks, communicator, has_other_ranks, host_group
from caesura.rewrites.dtensors import is_dtensor
from caesura.runtime.step_shards import StepShards


class StepRanks:
    """The ranks that a compiled step trains with, from its first call on."""

    def __init__(self, module, ranks: Ranks):
        if any(isinstance(part, torch.nn.parallel.DistributedDataParallel) for part in module.modules()):
            raise StepRefused("a step exchanges gradients itself: give compile_step() the module that DistributedDataParallel "
                              "holds (its .module)")
        self._group, self._has_others = ranks.group, False
        self._communicators = {}  # by the device whose memory is exchanged
        self._has_joined = False
        self.shards = StepShards(ranks.shard)
        self._options = {"mean_over": ranks.mean_over, "exchange_dtype": ranks.exchange_dtype, "bucket_bytes": ranks.bucket_bytes}
        self._has_parts = False

    def join(self, programs):
        """Finds the other ranks, which may have come after compile_step()."""
        if self._has_others:
            return
        self._has_others = has_other_ranks(self._group)
        if self._has_others and any(p.session is not None for p in programs):
            raise StepRefused("the process group was initialised after this step's first call: make the step again")

    def refuse_optimizer(self, optimizer):
        """Refuses an optimizer that PyTorch steps: the gradients that it would read are those of this rank."""
        if has_other_ranks(self._group):
            raise StepRefused(f"with several ranks the program must do the update, which {type(optimizer).__name__} cannot be written "
                              "into; write DistributedDataParallel(caesura.wrap(module)) and a plain loop")

    def take_parts(self, tensors: dict):
        """Tells how the ranks hold these tensors, by name, of a program.

        Returns:
            The sizes of the process groups that the program may exchange among, by the groups' names; and the names of the
            tensors of which each rank has its own part.

        Raises:
            StepRefused: a DTensor is divided among other ranks than the step's, or in another way than a step takes.
        """
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return {}, frozenset()
        group = distributed.group.WORLD if self._group is None else self._group
        is_alone, parts = group == "alone", set()
        groups = {} if is_alone else {group.group_name: group.size()}
        for name, tensor in tensors.items():
            if not is_dtensor(tensor):
                continue
            mesh = tensor.device_mesh
            if mesh.ndim != 1:
                raise StepRefused(f"'{name}' lies on a device mesh of shape {tuple(mesh.shape)}, and a step takes meshes of one dim; for "
                                  "more write caesura.wrap(module) and a loop of your own")
            of_mesh = distributed.get_process_group_ranks(mesh.get_group())
            of_step = [distributed.get_rank()] if is_alone else distributed.get_process_group_ranks(group)
            if of_mesh != of_step:
                raise StepRefused(f"'{name}' lies on the ranks {of_mesh}, and the step's are {of_step}; write "
                                  "compile_step(..., ranks=Ranks(mesh.get_group()))")
            groups[mesh.get_group().group_name] = mesh.size()
            (placement,) = tensor.placements
            if placement.is_replicate():
                continue
            if type(placement) is not distributed.tensor.Shard:
                raise StepRefused(f"'{name}' is placed as {placement}, and a step takes Shard and Replicate")
            if tensor.shape[placement.dim] % mesh.size():
                raise StepRefused(f"'{name}' of {list(tensor.shape)} is divided unequally: {mesh.size()} ranks must divide its dim "
                                  f"{placement.dim} equally")
            parts.add(name)
        self._has_parts |= bool(parts)
        return groups, frozenset(parts)

    def refuse_parallel(self, draws: bool, device: torch.device):
        """Refuses options of a step whose module exchanges values between the ranks. draws: it computes with DTensors, and
        draws random numbers. device: where the parameters are."""
        if device.type != "cpu":
            raise StepRefused(f"the module is on {device}, and modules whose forward exchanges values between ranks "
                              "(parallelize_module, SyncBatchNorm) are taken on the CPU only so far; write caesura.wrap(module) and "
                              "a loop of your own")
        if draws:
            raise StepRefused("the forward draws random numbers (dropout), other ones on each rank, where parallelized modules need "
                              "the same; set dropout to 0, or write caesura.wrap(module) and a loop of your own")
        if self.shards.arguments()["shard"]:
            raise StepRefused("the forward exchanges values between ranks (parallelize_module, SyncBatchNorm), which a step with "
                              "divided state does not take; write shard=0")
        if self._options["mean_over"] != "batches":
            raise StepRefused("the forward exchanges values between ranks (parallelize_module, SyncBatchNorm), where each rank's loss "
                              "counts alike; write mean_over='batches'")

    def regroup(self, step, group):
        """Makes `step` go on with the ranks of the group, from the parameters, buffers and optimizer state of the one that
        has done the most calls. Its sessions are made again for the new ranks."""
        if self._has_parts:
            raise ValueError("ranks have parts of the parameters, and the part of a rank that was lost is gone: make the module and "
                             "the step again, and load the last state")
        if any(program.is_parallel for program in step._programs):
            raise ValueError("the forward exchanges values between the ranks that the module was captured with: make the module and "
                             "the step again, and load the last state")
        if self.shards.is_divided:
            raise ValueError("the optimizer state is divided among the ranks, and the part of a rank that was lost is gone: make "
                             "the step again, and load the last state")
        group = host_group(group)
        calls = [torch.zeros((), dtype=torch.int64, device="cpu") for _ in range(group.size())]
        torch.distributed.all_gather(calls, torch.tensor(step.micro_steps, device="cpu"), group=group)
        root = torch.distributed.get_global_rank(group, int(torch.stack(calls).argmax()))
        state = [value for p in step.optimizer.state.values() for value in p.values() if isinstance(value, torch.Tensor)]
        with torch.no_grad():
            for tensor in (*step.module.parameters(), *step.module.buffers(), *state):
                here = tensor.detach().cpu()
                torch.distributed.broadcast(here, root, group=group)
                if tensor.device.type != "cpu":
                    tensor.copy_(here)
        step.micro_steps = int(max(calls)) // step.accumulation_steps * step.accumulation_steps
        self._group, self._has_others, self._communicators, self._has_joined = group, group.size() > 1, {}, True

    def arguments(self, device: torch.device, gpu) -> dict:
        """Returns what a session of the step is opened with. Only the first one takes the parameters of rank 0: a later
        one, for other shapes, may be opened on some ranks only. device: where the parameters are. gpu: the _core.Gpu of
        that device; None: the CPU.
        """
        if self._has_others and device not in self._communicators:
            try:
                self._communicators[device] = communicator(self._group, gpu)
            except (NotImplementedError, ValueError) as error:
                raise StepRefused(f"the ranks of the step cannot exchange gradients on {device}: {error}") from None
        joins, self._has_joined = not self._has_joined, True
        return {"communicator": self._communicators.get(device), "join_ranks": joins, **self.shards.arguments(), **self._options}

    def gather_state(self, optimizer):
        """Puts the whole state into the optimizer, where this rank has parts of it."""
        if self.shards.is_divided:
            self.shards.gather(optimizer, torch.distributed.group.WORLD if self._group is None else self._group)
