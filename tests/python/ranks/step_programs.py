# SPDX-License-Identifier: Apache-2.0
"""Programs of compiled steps on ranks, each drawn from a seed, and what is right: eager training in one process, by the mean of
the gradients of all ranks. Each rank of a program makes both, and compares."""

import contextlib
import datetime
import os
import random
import re
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from step_program_draw import CLASSES, LIMITS, OPTIMIZERS, WIDTH, Net, draw, squares
from torch import nn

import caesura


def hash_of(tensor):
    words = tensor.detach().float().reshape(-1).view(torch.int32).long()
    return (words * torch.arange(1, words.numel() + 1)).sum()


class Wrong(Exception):
    """A program that is not right."""


class Refused(Exception):
    """A program that comes to one of LIMITS."""


class Rank:
    """One rank of a program. group_of: makes a process group of the first n ranks of its own."""

    def __init__(self, program, rank, group_of, folder):
        self.program, self.rank, self.group_of, self.folder = program, rank, group_of, folder
        self.joining = set()  # the names of parameters that come with this update
        self.counts = dict.fromkeys(("updates", "refusals", "made", "restored", "from disk"), 0)

    # --- what is given ---
    def net(self, seed):
        p = self.program
        net = Net(p.parts, seed, p.has_length, p.writes, p.is_expert)
        for name in (*p.frozen, *(["first"] if p.thaws_at > 0 else [])):
            with contextlib.suppress(AttributeError):
                net.get_submodule(name).requires_grad_(False)
        net.expert.requires_grad_(net.expert.weight.requires_grad and p.is_expert)
        return net

    def optimizer(self, net):
        return OPTIMIZERS[self.program.optimizer](q for q in net.parameters() if q.requires_grad)

    def batch(self, update, micro_step, rank):
        p, r = self.program, random.Random(f"{self.program.seed} {update} {micro_step} {rank}")
        rows, length = (r.randrange(3, 8), r.randrange(1, 5)) if p.varies else (4, 3)
        random_of = torch.Generator().manual_seed(r.randrange(1 << 30))
        x = torch.randn(rows, *([length] if p.has_length else []), 6, generator=random_of)
        mask = (torch.rand(rows, WIDTH, generator=random_of) > 0.2) / 0.8
        targets = torch.randint(CLASSES, (rows,), generator=random_of)
        if p.over_tokens:
            targets[1:][torch.rand(rows - 1, generator=random_of) > 0.7] = -100
        task = "a"
        if p.tasks != "one":
            task = random.Random(f"{p.seed} {update} {rank if p.tasks == 'by rank' else ''}").choice("ab")
        return x, mask, task, targets

    # --- eager ---
    def begin_eager(self):
        self.eager = self.net(0)
        self.eager_optimizer = self.optimizer(self.eager)
        if self.program.has_state:
            self.train_before(self.eager, self.eager_optimizer)
        self.own_buffers = [{name: b.clone() for name, b in self.net(rank if self.program.begins_apart and not self.program.broadcasts
                                                                     else 0).named_buffers()} for rank in range(4)]

    def train_before(self, net, optimizer):
        buffers = {name: b.clone() for name, b in net.named_buffers()}
        for i in range(2):
            net.zero_grad()
            self.program.loss(net(*self.batch(100, i, 0)[:3]), self.batch(100, i, 0)[3]).backward()
            optimizer.step()
        for name, b in net.named_buffers():
            b.copy_(buffers[name])

    def eager_update(self, update, ranks):
        """Returns the loss that ranks tell of their last micro-step."""
        p, net = self.program, self.eager
        self.eager_optimizer.zero_grad()
        count = 1
        batches = [[self.batch(update, m, rank) for m in range(p.accumulation_steps)] for rank in range(ranks)]
        if p.over_tokens:
            count = sum(int((b[3] != -100).sum()) for of_rank in batches for b in of_rank)
        told = 0.0
        for rank, of_rank in enumerate(batches):
            for name, b in net.named_buffers():
                b.copy_(self.own_buffers[rank][name])
            for *args, targets in of_rank:
                scores = net(*args)
                if p.over_tokens:
                    loss = F.cross_entropy(scores, targets, reduction="sum") / count
                else:
                    loss = p.loss(scores, targets) / ranks
                (loss / p.accumulation_steps).backward()
            told += float(loss)
            self.own_buffers[rank] = {name: b.clone() for name, b in net.named_buffers()}
        if p.broadcasts:
            self.own_buffers = [self.own_buffers[0]] * 4
        if p.clip_norm:
            nn.utils.clip_grad_norm_(net.parameters(), p.clip_norm)
        self.eager_optimizer.step()
        return told

    # --- compiled ---
    def make(self, net, optimizer, group, **other):
        p = self.program
        arguments = {"clip_norm": p.clip_norm, "accumulation_steps": p.accumulation_steps, "precision": p.precision}
        options = p.ranks_options | {k: other.pop(k) for k in ("bucket_bytes",) if k in other}
        loss = other.pop("loss", p.loss)
        ranks = caesura.Ranks("alone") if group is None else caesura.Ranks(group, **options)
        if group is None:
            ranks = caesura.Ranks("alone", **{k: v for k, v in options.items() if k == "mean_over"})
        return caesura.compile_step(net, loss, optimizer, ranks=ranks, threads=1, **arguments | other)

    def refuse_to_train(self, group):
        """One rank comes with another option: all refuse its first call."""
        p, mine = self.program, self.rank == self.program.spoiled_by
        words = p.other_option
        other = {}
        if p.other_option == "clip_norm":
            other = {"clip_norm": p.clip_norm + 1}
        elif p.other_option == "accumulation_steps":
            if p.over_tokens:
                return
            other = {"accumulation_steps": p.accumulation_steps + 1}
        elif p.other_option == "precision":
            other = {"precision": "fp32" if p.precision == "bf16" else "bf16"}
        elif p.other_option == "bucket_bytes":
            other = {"bucket_bytes": 333}
        elif p.other_option == "loss":
            if p.over_tokens:
                return
            other, words = {"loss": F.cross_entropy if p.loss is squares else squares}, "the loss is"
        net = self.net(0)
        if mine and p.other_option == "code":
            net.heads["b"] = nn.Linear(WIDTH, CLASSES, bias=False)
        words = {"code": "module 'heads.b' is Linear", "optimizer": "the optimizer is"}.get(p.other_option, words)
        optimizer = self.optimizer(net)
        if mine and p.other_option == "optimizer":
            optimizer = torch.optim.Adamax(net.parameters()) if net.first.weight.requires_grad else torch.optim.Adamax(
                [q for q in net.parameters() if q.requires_grad])
        step = self.make(net, optimizer, group, **(other if mine else {}))
        *args, targets = self.batch(0, 0, self.rank)
        self.expect_refusal(step, args, targets, words)
        self.counts["made"] += 1

    def values(self, step):
        """Copies of what the step trains, by name."""
        module, state = step.module, step.optimizer.state
        found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        found |= {f"{key} of {name}": v for name, q in module.named_parameters() for key, v in state.get(q, {}).items()
                  if isinstance(v, torch.Tensor)}
        return {name: t.detach().clone() for name, t in found.items()}

    def expect_unchanged(self, step, before):
        """State that is new is zero: a program was opened. Ranks join before the first update, and what comes later."""
        if step.micro_steps == 0:
            return
        before.update({name: t for name, t in self.values(step).items() if name in self.joining})
        # These are names of divided state, which is gathered where other buckets are laid.
        new = "exp_avg", "max_exp_avg_sq", "sum of", "momentum_buffer of", "square_avg of"
        changed = [name for name, t in self.values(step).items() if not torch.equal(t, before.get(name, torch.zeros_like(t)))
                   and not (self.program.shard and name not in before and name.startswith(new))]
        if changed:
            raise Wrong(f"a refused call has changed {changed}")

    def expect_refusal(self, step, args, targets, words):
        before = self.values(step)
        try:
            step(*args, targets)
        except caesura.StepRefused as error:
            if self.is_limit(error):
                raise Refused(str(error)) from error
            if words not in str(error) and " more." not in str(error):
                raise Wrong(f"refused in other words than {words!r}: {error}") from error
        else:
            raise Wrong(f"not refused, where {words!r} differs")
        self.expect_unchanged(step, before)

    @torch.no_grad()
    def spoil(self, step, args, targets):
        """Makes a call that is refused as one rank has something otherwise."""
        p, mine = self.program, self.rank == self.program.spoiled_by
        net, group = step.module, step.optimizer.param_groups[0]
        head = net.heads[args[-1]]
        name, value = f"heads.{args[-1]}.weight", head.weight
        key = "momentum" if "momentum" in group and group["momentum"] else "weight_decay"
        state = next((k for k, v in step.optimizer.state.get(value, {}).items() if isinstance(v, torch.Tensor) and v.dim()), None)
        with contextlib.ExitStack() as mend:
            values = "the hash of the values of '"  # of another head where ranks take heads of their own
            words = {"lr": "lr", "decay": key, "eval": "in evaluation",
                     "value": values if p.tasks == "by rank" else f"{values}{name}'",
                     "state": values if p.tasks == "by rank" else f"{values}optimizer.{state}.{name}'", "hook": "hook",
                     "frozen": "requires_grad="}.get(p.spoil)
            if (p.spoil == "eval" and "batch" not in p.parts) or (p.spoil == "frozen" and (p.accumulation_steps > 1 or p.shard)):
                return  # no program tells the modes apart; the rank refuses by itself
            if (p.spoil == "state" and (state is None or p.shard)) or (p.spoil in ("value", "state") and step.micro_steps == 0):
                return  # there is none; or the ranks join first
            if mine and p.spoil == "lr":
                mend.callback(group.update, lr=group["lr"])
                group["lr"] *= 2
            elif mine and p.spoil == "decay":
                mend.callback(group.__setitem__, key, group[key])
                group[key] += 0.05
            elif mine and p.spoil == "eval":
                mend.callback(net.train)
                net.eval()
            elif mine and p.spoil in ("value", "state"):
                tensor = value.data if p.spoil == "value" else step.optimizer.state[value][state]
                mend.callback(tensor.copy_, tensor.clone())
                tensor.add_(1)
            elif mine and p.spoil == "hook":
                mend.callback(value.register_hook(lambda g: 2 * g).remove)
            elif mine and p.spoil == "frozen":
                mend.callback(head.requires_grad_, True)
                head.requires_grad_(False)
            if p.spoil == "input":
                if mine:
                    try:
                        step(args[0][..., :5], *args[1:], targets)
                    except (caesura.StepRefused, caesura.RankFailure) as error:
                        raise Wrong(f"wrong input is no refusal: {error}") from error
                    except (ValueError, RuntimeError, IndexError):
                        pass
                    else:
                        raise Wrong("wrong input is taken")
                return
            self.expect_refusal(step, args, targets, words)
            self.counts["refusals"] += 1

    def is_limit(self, error):
        return any(self.program.has(limit) and re.search(words, str(error)) for limit, words in LIMITS)

    def call(self, step, *args):
        before = None
        p = self.program
        if any(p.has(limit) for limit, _ in LIMITS):
            before = self.values(step)
        try:
            return step(*args)
        except caesura.StepRefused as error:
            if not self.is_limit(error):
                raise Wrong(f"refused: {error}") from error
            self.expect_unchanged(step, before)
            raise Refused(str(error)) from error

    def run(self):
        p = self.program
        if p.uses_disk:
            os.environ["CAESURA_PROGRAM_CACHE"] = os.path.join(self.folder, f"rank{self.rank}")
        try:
            self.begin_eager()
            last = p.saves_at if p.later_ranks else p.updates
            step = self.together(lambda: self.phase(p.ranks, 0, last))
            if p.later_ranks:
                self.save(step, p.ranks)
                self.phase(p.later_ranks, last, p.updates)
                self.counts["restored"] += 1
            elif p.uses_disk:  # once more, with the programs that the disk has
                torch._dynamo.reset()
                self.begin_eager()
                step = self.phase(p.ranks, 0, p.updates)
                self.counts["from disk"] += sum(not program.is_captured for program in step._programs)
        finally:
            os.environ["CAESURA_PROGRAM_CACHE"] = "off"
        return self.counts

    def together(self, phase):
        """Runs the first phase. Ranks that join in the next one learn whether it came to one of LIMITS."""
        step, refused = None, None
        try:
            step = phase()
        except Refused as error:
            refused = error
        if self.program.later_ranks:
            told = [str(refused or "")]
            dist.broadcast_object_list(told, group=self.group_of(max(self.program.ranks, self.program.later_ranks)), group_src=0)
            refused = refused or (Refused(told[0]) if told[0] else None)
        if refused is not None:
            raise refused
        return step

    def phase(self, ranks, first, last):
        """Updates first to last on so many ranks; the others of the program only follow in eager."""
        p, step = self.program, None
        if self.rank < ranks:
            group = self.group_of(ranks) if ranks > 1 else None
            if first == 0 and p.other_option:
                self.refuse_to_train(group)
            step = self.begin(ranks, group, first)
        for update in range(first, last):
            if update == p.thaws_at:
                for net, optimizer in [(self.eager, self.eager_optimizer)] + ([(step.module, step.optimizer)] if step else []):
                    net.first.requires_grad_(True)
                    optimizer.add_param_group({"params": list(net.first.parameters()), "lr": 0.02})
            if p.grows and update == p.grows_at:
                self.grow(self.eager, self.eager_optimizer, 0)
                if step:
                    self.grow(step.module, step.optimizer, self.rank if p.begins_apart else 0)
            if update == p.rate_changes_at:
                for optimizer in [self.eager_optimizer] + ([step.optimizer] if step else []):
                    optimizer.param_groups[0]["lr"] = 0.03
            told = self.update(step, update, first) if step else None
            self.joining = set()
            want = self.eager_update(update, ranks)
            if step:
                self.compare(step, ranks, update, told, want)
        if step:
            self.compare_state(step)
        return step

    def grow(self, net, optimizer, seed):
        torch.manual_seed(seed + 10)
        net.heads["a"] = nn.Linear(WIDTH, CLASSES)
        optimizer.add_param_group({"params": list(net.heads["a"].parameters()), "lr": 0.02})
        self.joining = {"heads.a.weight", "heads.a.bias"}

    def update(self, step, update, first):
        p = self.program
        for m in range(p.accumulation_steps):
            *args, targets = self.batch(update, m, self.rank)
            is_last = m + 1 == p.accumulation_steps
            if p.spoil and first == 0 and update == p.spoiled_at and is_last:
                self.spoil(step, args, targets)
            loss = self.call(step, *args, targets)
        self.counts["updates"] += 1
        return float(loss)

    def begin(self, ranks, group, first):
        p = self.program
        net = self.net(self.rank if p.begins_apart else 0)
        if first > p.thaws_at > 0:  # it was thawed before
            net.first.requires_grad_(True)
        if first == 0:
            optimizer = self.optimizer(net)
            if p.has_state and self.rank == 0:
                self.train_before(net, optimizer)
            return self.make(net, optimizer, group)
        return self.restore(net, group)

    # --- checkpoints ---
    def is_by_file(self):
        p = self.program
        return p.by_file and p.tasks == "one" and p.thaws_at < 0 and not p.frozen and p.broadcasts

    def save(self, step, ranks):
        path = os.path.join(self.folder, "checkpoint")
        if step is not None:
            if self.is_by_file():
                if self.rank == 0 or step._ranks.shards.is_divided:
                    step.save(path)
            else:
                step.gather_state()
                if self.rank == 0:
                    torch.save([step.module.state_dict(), step.optimizer.state_dict()], path)
        dist.barrier(self.group_of(max(ranks, self.program.later_ranks)))

    def restore(self, net, group):
        """Opens the checkpoint: the file on all ranks, state_dicts on rank 0, whose values the others take."""
        p, path = self.program, os.path.join(self.folder, "checkpoint")
        optimizer = self.optimizer(net)
        if self.is_by_file():
            step = self.make(net, optimizer, group)
            step.restore(path, *self.batch(p.saves_at, 0, self.rank))
            with torch.no_grad():  # it has neither frozen parameters nor buffers that nothing writes to
                for (_, here), (name, b) in zip(net.named_buffers(), self.eager.named_buffers()):
                    here.copy_(self.own_buffers[0][name])
                for here, there in zip(net.parameters(), self.eager.parameters()):
                    if not here.requires_grad:
                        here.copy_(there)
        else:
            module_state, optimizer_state = torch.load(path)
            if self.rank == 0 or not p.broadcasts:
                net.load_state_dict(module_state)
            if self.rank == 0:
                optimizer.load_state_dict(optimizer_state)
            step = self.make(net, optimizer, group)
        for here, there in zip(optimizer.param_groups, self.eager_optimizer.param_groups):
            here["lr"] = there["lr"]
        self.own_buffers = [self.own_buffers[0]] * 4
        return step

    # --- what is right ---
    def tolerance(self):
        p = self.program
        if p.precision == "bf16":
            return {"rtol": 0.1, "atol": 0.05}  # of products rounded to 8 bits
        if "exchange_dtype" in p.ranks_options:
            return {"rtol": 2e-2, "atol": 1e-2}
        # A batch norm divides roundings by small deviations.
        return {"rtol": 1e-4, "atol": 2e-4 if "batch" in p.parts else 2e-5}

    def compare(self, step, ranks, update, told, want):
        p = self.program
        if abs(told - want) > 1e-4 * max(1, abs(want)) + self.tolerance()["atol"]:
            raise Wrong(f"update {update} has the loss {told}, eager {want}")
        shared = [(name, t) for name, t in (*step.module.named_parameters(), *(step.module.named_buffers() if p.broadcasts else []))]
        if ranks > 1:
            bits = torch.stack([hash_of(t) for _, t in shared])
            others = [torch.empty_like(bits) for _ in range(ranks)]
            dist.all_gather(others, bits, group=self.group_of(ranks))
            for other, of in enumerate(others):
                apart = [shared[i][0] for i in (of != bits).nonzero().flatten().tolist()]
                if apart:
                    raise Wrong(f"update {update}: rank {self.rank} has not the bits of rank {other}: {apart}")
        for (name, ours), eager in zip(step.module.named_parameters(), self.eager.parameters(), strict=True):
            self.close(f"update {update}: {name}", ours, eager)
        for name, ours in step.module.named_buffers():
            self.close(f"update {update}: {name}", ours, self.own_buffers[self.rank][name])

    def close(self, name, ours, eager):
        try:
            torch.testing.assert_close(ours.detach(), eager.detach(), **self.tolerance())
        except AssertionError as error:
            raise Wrong(f"{name}: {error}") from None

    def compare_state(self, step):
        step.gather_state()
        if self.program.precision == "bf16":
            return  # an optimizer's state may be far from zero where its gradient is a rounding
        for (name, ours), eager in zip(step.module.named_parameters(), self.eager.parameters(), strict=True):
            want = self.eager_optimizer.state.get(eager, {})
            got = step.optimizer.state.get(ours, {})
            for key, value in want.items():
                if isinstance(value, torch.Tensor) and key in got:
                    self.close(f"{key} of {name}", torch.as_tensor(got[key], dtype=value.dtype), value)
                elif isinstance(value, torch.Tensor):
                    raise Wrong(f"{name} has no {key}")


def run_program(seed, rank, group_of, folder):
    """Runs a program on this rank. Returns what was counted; None: it came to one of LIMITS."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Rank(draw(seed), rank, group_of, folder).run()
        except Refused:
            return None


def ranks_of(seed):
    program = draw(seed)
    return max(program.ranks, program.later_ranks)


def run_programs(rank, seeds, path, folder):
    """Runs programs on the ranks of the default group, which stay: those of two ranks in pairs of them. What was counted goes to
    the file `path` of each rank, a line a program."""
    world = dist.get_world_size()
    groups = {(first, n): dist.new_group(list(range(first, first + n)), timeout=datetime.timedelta(seconds=90))
              for first in range(0, world, 2) for n in range(2, world - first + 1)}
    for seed in seeds:
        size = ranks_of(seed)
        first = 2 * (seed % 2) if size == 2 and world == 4 else 0
        if not first <= rank < first + size:
            continue
        own = tempfile.mkdtemp(dir=folder) if rank == first else None
        told = [own]
        dist.broadcast_object_list(told, group=groups[first, size], group_src=0)
        with open(path + str(rank), "a") as log:
            print(f"{seed} begins", file=log, flush=True)
            try:
                counts = run_program(seed, rank - first, lambda n, first=first: groups[first, n], told[0])
            except Exception as error:
                print(f"{seed} {type(error).__name__}: {error}\n{draw(seed)}", file=log, flush=True)
                raise
            print(f"{seed} {counts}", file=log, flush=True)
    return True

