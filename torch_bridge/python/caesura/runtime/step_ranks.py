# SPDX-License-Identifier: Apache-2.0
"""The ranks of a compiled step."""

import contextlib
import json
import logging
import weakref

import torch

from caesura import _core
from caesura.capture.sources import tensors_of_step
from caesura.errors import RankFailure, StepRefused
from caesura.ranks import Ranks, communicator, has_other_ranks, host_group
from caesura.rewrites.dtensors import held, is_dtensor
from caesura.runtime.gpu import CPU, open_gpu
from caesura.runtime.rank_facts import facts_of, hash_of, rates_of, values_of
from caesura.runtime.rank_rows import RankRows
from caesura.runtime.step_making import StepMaking
from caesura.runtime.step_shards import StepShards

_TRIES = 4  # of one call whose ranks differ in what they cannot tell
_MEETS = 1  # the first word of ranks that compare all their facts; a step's is 0
_UNMADE = 2  # the fifth word of a rank that could not make its step; of one that refuses a call it is 1
_ALIKE = "Nothing has changed: make them alike and call again. A new step takes all values from rank 0"


_OTHER_ROWS = "this needs calls that train the same parameters, with the same numbers of updates, on all ranks"


class RanksDiffer(StepRefused, ValueError):
    """Raised where the ranks' steps differ; a ValueError as well, as TrainingSession raises."""


class Differs(Exception):
    """Ends a call, which has done nothing, so that all ranks compare their facts and call again."""


class StepRanks:
    """The ranks that a compiled step trains with, from its first call on.

    Before the first call all ranks compare their facts, and take the tensors of rank 0. From then on each update compares
    hashes of them (training/session/rank_facts.cc). Where those differ, or a program comes with tensors that were not
    taken, nothing is done: all ranks compare their facts again, take what is missing and begin anew, or refuse the call.
    """

    def __init__(self, module, ranks: Ranks, making: StepMaking):
        if any(isinstance(part, torch.nn.parallel.DistributedDataParallel) for part in module.modules()):
            raise StepRefused("a step exchanges gradients itself: give compile_step() the module that DistributedDataParallel "
                              "holds (its .module)")
        self._group, self._has_others = ranks.group, False
        self._making, self._has_begun = making, False
        self._communicators = {}  # by the device whose memory is exchanged
        self._is_settled = False  # since all facts were compared last, nothing has differed
        # The tensors that the ranks have joined, by name; the group that did.
        self._taken, self._host = weakref.WeakValueDictionary(), None
        self._meetings = 0
        self.shards, self.rows = StepShards(ranks.shard), RankRows()
        self._wants_rows = False  # other ones than there are
        self._has_failed = False  # a step, before its exchange
        self._options = {"mean_over": ranks.mean_over, "exchange_dtype": ranks.exchange_dtype, "bucket_bytes": ranks.bucket_bytes,
                         "broadcast_buffers": ranks.broadcast_buffers}
        self._has_parts = False

    def find(self, programs, optimizer, reason):
        """Finds the other ranks, which may have come after compile_step(). reason: why the optimizer is no part of the step; None: it
        is."""
        if self._has_others:
            return
        if not has_other_ranks(self._group):
            return
        self._making.find()
        try:
            with telling_others(self._making, self._group, optimizer):
                if any(p.session is not None for p in programs):
                    raise StepRefused("the process group was initialised after this step's first call: make the step again")
                if reason:
                    self.refuse_optimizer(optimizer, reason)
        except StepRefused:
            self._making = StepMaking(self._group)
            raise
        self._has_others = True

    def refuse_optimizer(self, optimizer, reason):
        """Refuses an optimizer that PyTorch steps: the gradients that it would read are those of this rank."""
        if type(optimizer).__module__.startswith("torchft."):  # whose replicas have no process group
            raise StepRefused("torchft takes the mean of gradients in its DistributedDataParallel, which a step does not call; write "
                              "torchft.DistributedDataParallel(manager, caesura.wrap(module)) and a plain loop")
        if has_other_ranks(self._group):
            raise StepRefused(f"with several ranks the program must do the update, which PyTorch's {type(optimizer).__name__} would do "
                              f"({reason}); write DistributedDataParallel(caesura.wrap(module)) and a plain loop")

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
        tensors = self._shared(step)
        self._take(step, tensors, list(tensors), group, int(torch.stack(calls).argmax()))
        step.micro_steps = int(max(calls)) // step.accumulation_steps * step.accumulation_steps
        self._group = self._host = group
        self._has_others, self._communicators, self._is_settled = group.size() > 1, {}, False
        self._has_begun = True
        self.drop_rows(step)

    # --- what the ranks have in common ---

    def call(self, step, run):
        """Returns what run() does, on all ranks or on none: a rank that refuses the call tells the others."""
        if not self._has_others:
            return run()
        if step._capturing:
            try:
                return run()
            except Differs:
                raise StepRefused(_OTHER_ROWS) from None
        for _ in range(_TRIES):
            if step._differing is not None or not self._is_settled:
                self.meet(step)
            try:
                return run()
            except Differs:
                self._is_settled = False
            except Exception as error:
                if isinstance(error, StepRefused) or self._has_failed:
                    self._has_failed = False
                    self._tell(step, str(error))
                raise
        raise StepRefused("the ranks' steps differ in each try, and they do not find in what")

    def meet(self, step, what="a step", refused="") -> None:
        """Has all ranks compare their facts, and take the tensors of rank 0 that they have not taken. what: the call; refused: why
        this rank does not do it.

        Raises:
            StepRefused: facts differ, or another rank has refused; on all ranks, which may call again.
        """
        if not self._has_begun and (unmade := self._making.begin()):
            self._making = StepMaking(self._group)
            raise StepRefused(unmade)
        self._has_begun = True
        device = step.optimizer.param_groups[0]["params"][0].device
        among = self._communicator(device, None if device == CPU else open_gpu(device)[0])
        tensors, differing, wants = self._shared(step), step._differing, self._wants_rows
        step._differing, self._is_settled, self._wants_rows = None, False, False
        facts = [("the call", what), *rates_of(step), *self._facts(step, tensors)]
        not_taken = self._not_taken(tensors)
        words = [_MEETS, hash_of(facts), int(bool(not_taken)), int(differing is not None), int(bool(refused)), int(wants)]
        try:
            rows = _gather(among, words)
        except RankFailure as error:
            raise RankFailure(f"all ranks call {what}: {error}") from None
        if any(row[4] == _UNMADE for row in rows):  # that rank makes another one, which is this one's
            self._making, self._has_begun = StepMaking(self._group), False
        all_differed, all_want = all(row[3] for row in rows), any(row[5] for row in rows)
        if all_differed or any(row[1] != words[1] or row[4] for row in rows):
            self._compare(among, facts, refused)
        if refused:
            return
        if any(row[2] for row in rows):
            missing = [[name for key, name in of_rank if key == "missing"]
                       for of_rank in among.gather_facts([("missing", name) for name in not_taken])]
            self._take(step, tensors, [name for name in tensors if any(name in names for names in missing)], self._host_group(), 0)
        if (all_differed or all_want) and not self._lay(step, among, differing, all_want) and all_differed:
            fed = self.compared(step).keys() - {name for name, _ in differing.tensors()}
            self._raise_differences(among.gather_facts([*differing.session.step_facts(), *values_of(tensors, sorted(fed))]))
        self._meetings += 1
        step._calls = []  # their programs have the facts of before
        self._is_settled = True

    def _compare(self, among, facts, refused):
        """Raises StepRefused if another rank has refused or has other facts."""
        by_rank = among.gather_facts([("", refused), *facts])
        told = [(rank, dict(of_rank)[""]) for rank, of_rank in enumerate(by_rank) if dict(of_rank)[""]]
        if refused:
            return
        if told:
            raise StepRefused(f"rank {told[0][0]} has refused this call, and nothing has changed: {told[0][1]}")
        self._raise_differences(by_rank)

    def _raise_differences(self, by_rank):
        differences = _core.rank_differences(by_rank)
        if differences:
            raise RanksDiffer(f"the ranks' steps differ: {differences}. {_ALIKE}")

    # --- calls that use different parameters ---

    def want_rows(self):
        """Raises Differs, so that all ranks lay rows for all of their programs, where there are other ranks."""
        if self._has_others:
            self._wants_rows = True
            raise Differs

    def drop_rows(self, step):
        """Forgets the rows that all ranks have laid, if there are any."""
        if self.rows.drop():
            step._recipe.forget_rows()
            step._open_again()

    def added_to(self, bound: dict, own: dict, step) -> dict:
        """Returns what a program holds for other ranks' calls, by name. Raises Differs if the rows there are do not fit. bound: its
        tensors; own: those that it trains."""
        if not self._has_others:
            return {}
        self.rows.note(own)
        if self.rows.rows is None:
            return {}
        if not self.rows.fit(own.keys()):
            self.want_rows()
        tensors = tensors_of_step(step.module, step.loss_fn, step.optimizer)
        names = [*(name for _, row in self.rows.rows for name in row), *self.rows.statistics]
        return {name: tensors[name] for name in names if name not in bound}

    def take_statistics(self, session):
        """Takes the running statistics that a session writes to. Raises Differs if the rows there are do not have them."""
        if self._has_others and self._options["broadcast_buffers"] and not self.rows.take_statistics(session.statistics):
            self.want_rows()

    def check_counts(self, step):
        """Raises Differs if parameters of a row have had other numbers of updates."""
        group_of = self._groups(step)
        if any(len(set(map(group_of, names))) > 1 for _, names in self.rows.rows):
            self.want_rows()

    def _groups(self, step):
        """A function that gives of a parameter's name (number of its group, number of its updates), and None where none is trained."""
        recipe, tensors = step._recipe, tensors_of_step(step.module, step.loss_fn, step.optimizer)
        number_of = {of: number for number, ids in enumerate(recipe.members) for of in ids}

        def group_of(name):
            tensor = tensors.get(name)
            if id(tensor) not in number_of:
                return None
            count = float(recipe.held_count(tensor, self.shards.is_divided)) if recipe.counts_matter else 0
            return number_of[id(tensor)], count
        return group_of

    def _lay(self, step, among, differing, wanted) -> bool:
        tensors = tensors_of_step(step.module, step.loss_fn, step.optimizer)
        if not self.rows.lay(among, step._programs, differing, wanted, self._groups(step),
                             lambda name: (tensors[name].nbytes, tensors[name].dtype), self._options["bucket_bytes"]):
            return False
        if self.shards.is_divided:
            self.shards.take_whole(step.optimizer, torch.distributed.group.WORLD if self._group is None else self._group)
        step._open_again()
        return True

    def _tell(self, step, refused):
        try:
            self.meet(step, refused=refused)
        except (RankFailure, StepRefused) as error:
            logging.getLogger("caesura").info("the other ranks were not told of a refusal: %s", error)

    def admit(self, program) -> None:
        """Has the next step of the program compare this step's facts. Raises Differs if the program has tensors that the ranks
        have not taken."""
        step = program.owner
        if not self._has_others or program.meeting == self._meetings:
            return
        tensors = self._shared(step)
        if self._not_taken(tensors):
            raise Differs
        program.set_facts(hash_of(self._facts(step, tensors)))
        program.meeting = self._meetings

    def compared(self, step) -> dict:
        """The parameters, by name, that all ranks have whole, where there are others."""
        if not self._has_others:
            return {}
        return {name: tensor for name, tensor in self._shared(step).items()
                if isinstance(tensor, torch.nn.Parameter) and not is_dtensor(tensor)}

    def ended(self, step) -> None:
        """Is told that a call that was not quick has ended. None is quick before the first update with divided state."""
        if self.shards.is_divided and not self.shards.is_agreed:
            if step.micro_steps % step.accumulation_steps:
                step._calls = []
            else:
                self.shards.agree()

    def failed(self, program) -> None:
        """Is told that a step of the program has failed. Raises Differs if it has as the ranks' steps differ."""
        self._has_failed = program.session.failed_alone
        if program.session.ranks_differ:
            program.owner._differing = program
            raise Differs from None

    def _facts(self, step, tensors):
        return facts_of(step, tensors, {"clip_norm": float(step.clip_norm), "accumulation_steps": step.accumulation_steps,
                                        "precision": step.precision, "masks": step.masks,
                                        "shard": self.shards.arguments()["shard"], **self._options})

    def _shared(self, step) -> dict:
        """The tensors that are the same on all ranks, by name."""
        tensors = tensors_of_step(step.module, step.loss_fn, step.optimizer)
        if not self._options["broadcast_buffers"]:
            tensors = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter)}
        return tensors

    def _not_taken(self, tensors: dict) -> list:
        """The names of tensors that the ranks have not joined; a name may be that of another tensor now."""
        return [name for name, tensor in tensors.items() if self._taken.get(name) is not tensor]

    def _host_group(self):
        if self._host is None:
            self._host = host_group(self._group)
        return self._host

    @torch.no_grad()
    def _take(self, step, tensors, names, group, root) -> None:
        """Takes these tensors, with the optimizer's state of each, and the number of calls from a rank of the group."""
        optimizer, recipe = step.optimizer, step._recipe
        learners = {id(p) for g in optimizer.param_groups for p in g["params"]}
        own = {} if self.shards.is_divided else {
            name: {key: [str(value.dtype).removeprefix("torch."), list(value.shape)] if isinstance(value, torch.Tensor) else value
                   for key, value in optimizer.state.get(tensors[name], {}).items()}
            for name in names if id(tensors[name]) in learners and not is_dtensor(tensors[name])}
        try:
            counts = {name: float(recipe.held_count(tensors[name], self.shards.is_divided)) for name in names
                      if id(tensors[name]) in recipe.trained}
            text = [json.dumps([step.micro_steps, own, counts])]
            torch.distributed.broadcast_object_list(text, group=group, group_src=root)
            step.micro_steps, states, counts = json.loads(text[0])
            for name in names:
                _broadcast(tensors[name], group, root)
            for name, count in counts.items():
                recipe.take_count(tensors[name], count)
            for name, state in states.items():
                parameter, found = tensors[name], {}
                for key, value in state.items():
                    if isinstance(value, list):
                        dtype, shape = getattr(torch, value[0]), value[1]
                        before = optimizer.state.get(parameter, {}).get(key)
                        if not (isinstance(before, torch.Tensor) and before.dtype == dtype and list(before.shape) == shape):
                            where = "cpu" if key == "step" else parameter.device
                            before = torch.zeros(shape, dtype=dtype, device=where)
                        _broadcast(before, group, root)
                        value = before
                    found[key] = value
                if found or parameter in optimizer.state:
                    optimizer.state[parameter] = found
        except RuntimeError as error:
            self._taken.clear()
            raise RankFailure(f"the ranks have not joined, and have some tensors of rank {root}: {error}") from None
        self._taken.update((name, tensors[name]) for name in names)

    def _communicator(self, device: torch.device, gpu):
        """The ranks' communicator of that device's memory. gpu: the _core.Gpu of the device; None: the CPU."""
        if device not in self._communicators:
            try:
                self._communicators[device] = communicator(self._group, gpu)
            except (NotImplementedError, ValueError) as error:
                raise StepRefused(f"the ranks of the step cannot exchange gradients on {device}: {error}") from None
        return self._communicators[device]

    def arguments(self, device: torch.device, gpu) -> dict:
        """Returns what a session of the step is opened with. device: where the parameters are. gpu: the _core.Gpu of that device;
        None: the CPU."""
        return {"communicator": self._communicator(device, gpu) if self._has_others else None, "join_ranks": False,
                **self.shards.arguments(), **self._options, **self.rows.arguments()}

    def end_batches(self, step):
        """Is told that this rank has no more batches. All ranks come here, or all raise StepRefused."""
        self.find(step._programs, step.optimizer, step._recipe.reason)
        if self._has_others:
            self.meet(step, "the end of the batches")

    def gather_state(self, step):
        """Puts the whole state into the optimizer, where this rank has parts of it."""
        if self.shards.is_divided:
            self.meet(step, "gather_state()")
            self.shards.gather(step.optimizer, torch.distributed.group.WORLD if self._group is None else self._group)


@contextlib.contextmanager
def telling_others(making, group, optimizer):
    """Tells the other ranks of the group where the body, which makes a step of the optimizer's, fails."""
    try:
        yield
    except Exception as error:
        try:
            if has_other_ranks(group) and making.refuse(
                    f"rank {torch.distributed.get_rank(group)} has refused compile_step(), and nothing has changed: {error}"):
                _refuse(group, optimizer, str(error))
        except Exception as failure:
            logging.getLogger("caesura").info("the other ranks were not told of a refusal: %s", failure)
        raise


def _refuse(group, optimizer, words):
    """Refuses the first call of a step that is not made here, and which other ranks have begun."""
    device = optimizer.param_groups[0]["params"][0].device
    among = communicator(group, None if device == CPU else open_gpu(device)[0])
    _gather(among, [_MEETS, 0, 0, 0, _UNMADE])
    among.gather_facts([("", words)])


def _gather(among, words) -> list:
    """Returns the words of all ranks that compare their facts."""
    size, rows = _core.compared_words, [[0]]
    while any(row[0] != _MEETS for row in rows):  # a rank that began a step comes next
        all_words = among.meet(words + [0] * (size - len(words)))
        rows = [all_words[at:at + size] for at in range(0, len(all_words), size)]
    return rows


def _broadcast(tensor, group, root):
    """Gives all ranks of the group the elements of one, but for parts of a tensor of which each rank has its own."""
    if is_dtensor(tensor) and not all(placement.is_replicate() for placement in tensor.placements):
        return
    there = held(tensor).detach()
    here = there.cpu().contiguous()
    if here.numel():
        torch.distributed.broadcast(here.reshape(-1).view(torch.uint8), group=group, group_src=root)
    if here.data_ptr() != there.data_ptr():
        there.copy_(here)
