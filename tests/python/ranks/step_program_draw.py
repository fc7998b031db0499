# SPDX-License-Identifier: Apache-2.0
"""Draws the programs of step_programs.py: a module, the options of its steps, and what happens to it."""

import dataclasses
import random

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

# Calls that are refused by name so far, by what the program has.
LIMITS = (("splits_rows", "step_offset of group"), ("divides_grown", "is another tensor than the one whose divided state"))
WIDTH, CLASSES = 8, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.gelu(self.inner(self.norm(x)))


class Net(nn.Module):
    def __init__(self, parts, seed, has_length, writes, is_expert):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(6, WIDTH)
        kinds = {"linear": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), "block": Block,
                 "batch": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH))}
        self.body = nn.Sequential(*(kinds[kind]() for kind in parts if kind in kinds))
        if "tied" in parts and len(self.body) > 1 and isinstance(self.body[0], nn.Sequential):
            self.body.append(nn.Linear(WIDTH, WIDTH))
            self.body[-1].weight = self.body[0][0].weight
        self.expert = nn.Linear(WIDTH, WIDTH)
        self.heads = nn.ModuleDict({task: nn.Linear(WIDTH, CLASSES) for task in "ab"})
        self.register_buffer("scale", 0.5 + torch.rand(WIDTH))
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.has_length, self.writes, self.is_expert = has_length, writes, is_expert

    def forward(self, x, mask, task="a"):
        h = torch.tanh(self.first(x))
        h = self.body(h.mean(1) if self.has_length else h) * mask * self.scale
        if self.writes:
            self.seen.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        if self.is_expert:  # of the rows that values choose
            at = (h[:, 0] > 0).nonzero().flatten()
            h = h.index_add(0, at, self.expert(h[at]))
        return self.heads[task](h)


def squares(scores, targets):
    return F.mse_loss(scores, F.one_hot(targets, CLASSES).float())


OPTIMIZERS = {  # those by which small roundings stay small
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-2, momentum=0.9)}
SPOILS = ("lr", "decay", "eval", "value", "state", "hook", "frozen", "input")
OPTIONS = ("clip_norm", "accumulation_steps", "precision", "bucket_bytes", "optimizer", "loss", "code")


@dataclasses.dataclass
class StepProgram:
    seed: int
    ranks: int
    later_ranks: int        # those that go on from a checkpoint; 0: none
    saves_at: int
    by_file: bool           # CompiledStep.save(), where it may be; otherwise state_dict()
    updates: int
    parts: list
    has_length: bool
    writes: bool
    is_expert: bool
    varies: bool            # rows and lengths, by rank and call
    tasks: str              # "one", "turns" or "by rank"
    thaws_at: int           # the update at which the first layer, which is frozen before, trains; -1: always
    frozen: list
    loss: object
    optimizer: str
    clip_norm: float
    accumulation_steps: int
    precision: str
    ranks_options: dict
    begins_apart: bool
    has_state: bool         # rank 0's optimizer has trained before
    rate_changes_at: int
    spoil: str              # what one rank has otherwise in an update; "": nothing
    spoiled_at: int
    spoiled_by: int
    other_option: str       # and when the step is made
    uses_disk: bool
    grows_at: int           # the update at which head a is another module, with parameters that come then; -1: none

    @property
    def over_tokens(self):
        return self.ranks_options.get("mean_over") == "tokens"

    @property
    def shard(self):
        return self.ranks_options.get("shard", 0)

    @property
    def broadcasts(self):
        return self.ranks_options.get("broadcast_buffers", True)

    @property
    def grows(self):
        return self.grows_at > 0 and not self.later_ranks

    def has(self, limit):
        """Returns True if the program may come to this one of LIMITS."""
        # A refused call has split one rank's rows of parameters that have had as many updates.
        splits = self.optimizer in ("AdamW", "Adam", "Adagrad") and self.spoil == "frozen"
        return {"splits_rows": splits, "divides_grown": self.shard > 0 and self.grows}[limit]


def draw(seed):
    r = random.Random(seed)

    def one_in(n):
        return r.randrange(n) == 0

    optimizer = r.choice(list(OPTIMIZERS))
    over_tokens = one_in(8)
    options = {}
    if over_tokens:
        options["mean_over"] = "tokens"
    if one_in(3):
        options["shard"] = 1
    elif optimizer in ("SGD", "momentum") and one_in(4):
        options["exchange_dtype"] = "bf16"
    if one_in(3):
        options["bucket_bytes"] = r.choice([1, 200, 600])
    if one_in(4):
        options["broadcast_buffers"] = False
    parts = r.choices(["linear", "block", "batch", "tied"], weights=[4, 2, 1, 1], k=r.randrange(1, 4))
    precision = "bf16" if "batch" not in parts and one_in(10) else "fp32"  # a batch norm makes much of roundings
    thaws_at = 2 if one_in(5) else -1
    frozen = [name for name in ("body.0", "expert") if one_in(5)]
    ranks = r.choice([2, 2, 2, 3, 4])
    accumulation = 1 if over_tokens or not one_in(3) else r.choice([2, 3])
    return StepProgram(
        seed=seed, ranks=ranks, later_ranks=r.choice([1, 2, 2, 3, 4]) if one_in(3) else 0, saves_at=2, by_file=one_in(2), updates=4,
        parts=parts, has_length="batch" not in parts and one_in(3), writes=one_in(4), is_expert=one_in(4), varies=one_in(3),
        tasks=r.choices(["one", "turns", "by rank"], weights=[5, 2, 1])[0], thaws_at=thaws_at, frozen=frozen,
        loss=F.cross_entropy if over_tokens or one_in(2) else squares, optimizer=optimizer,
        clip_norm=r.choice([0.0, 0.0, 0.1, 1.0]), accumulation_steps=accumulation, precision=precision, ranks_options=options,
        begins_apart=one_in(2), has_state=one_in(4), rate_changes_at=r.randrange(4) if one_in(4) else -1,
        spoil=r.choice(SPOILS) if one_in(2) else "", spoiled_at=r.randrange(2), spoiled_by=r.randrange(ranks),
        other_option=r.choice(OPTIONS) if one_in(4) else "", uses_disk=one_in(6), grows_at=r.randrange(1, 4) if one_in(4) else -1)
