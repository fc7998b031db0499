# SPDX-License-Identifier: Apache-2.0
"""The optimizer state of a compiled step, divided among its ranks."""

import torch

from caesura.errors import StepRefused


class StepShards:
    """The parts of the optimizer state that this rank has: tensors that all sessions of a step write to.

    The first session decides how the parameters lie in buckets; later ones take its buckets.
    """

    def __init__(self, shard):
        self._shard = shard
        self._buckets, self._parts, self._parameters = [], {}, {}

    def arguments(self) -> dict:
        """Returns what a session of the step is opened with."""
        return {"shard": self._shard, "shard_buckets": [bucket["members"] for bucket in self._buckets]}

    @property
    def is_divided(self) -> bool:
        """True if a rank has parts of the state only; False before the first session is opened."""
        return bool(self._buckets)

    def refuse_others(self, rows, learners: dict):
        """Refuses parameters that do not fit the state that is divided. rows: Recipe.rows_of() them; learners: they, by name."""
        for name, parameter in learners.items():
            if self._parameters.get(name, parameter) is not parameter:
                raise StepRefused(f"'{name}' is another tensor than the one whose divided state (shard) the ranks have; make the step "
                                  "again")
        place_of = {name: (group, row) for row, (group, names) in enumerate(rows) for name in names}
        for members in (bucket["members"] for bucket in self._buckets):
            first = place_of.get(members[0])
            other = next((name for name in members if place_of.get(name) != first), None)
            if other is None or first is None or other not in place_of:
                continue  # the session refuses other names
            apart = ("are in other groups of the optimizer, and with divided state (shard) they lie in one bucket, whose update has one "
                     "rate; make the step again" if place_of[other][0] != first[0] else
                     "have had other numbers of updates, and with divided state (shard) they lie in one bucket, whose update counts "
                     "one; write shard=0")
            raise StepRefused(f"'{members[0]}' and '{other}' {apart}")

    def bind(self, program, optimizer):
        """Has the program's session write to this rank's parts. They are taken from whole state, where the optimizer has some
        (load_state_dict() leaves it so), and what was taken is dropped there."""
        self._buckets = program.session.shards
        self._parameters.update((name, value) for name, _, value in program.bound)
        for bucket, state, part in self._each(program.session):
            key = state.removeprefix("optimizer.")
            for member, first, last, at in bucket["pieces"]:
                parameter = self._parameters[bucket["members"][member]]
                whole = optimizer.state.get(parameter, {}).get(key)
                if whole is None:
                    continue
                if whole.shape != parameter.shape:
                    raise ValueError(f"the optimizer's {key} is {list(whole.shape)}, its parameter {list(parameter.shape)}")
                part[at:at + last - first] = whole.detach().reshape(-1)[first:last]
            for member in bucket["members"]:
                optimizer.state.get(self._parameters[member], {}).pop(key, None)
            program.session.bind_parameter(f"{state}.{bucket['name']}", part)

    def gather(self, optimizer, group):
        """Puts the whole state into the optimizer; all ranks of the group call it."""
        for bucket, state, part in self._each(None):
            parts = [torch.empty_like(part) for _ in range(group.size())]
            torch.distributed.all_gather(parts, part, group=group)
            block = torch.cat(parts)
            for name, offset in zip(bucket["members"], bucket["offsets"]):
                parameter = self._parameters[name]
                values = block[offset:offset + parameter.numel()]
                optimizer.state[parameter][state.removeprefix("optimizer.")] = values.view(parameter.shape).clone()

    def _each(self, session):
        """(bucket, state, this rank's part of it) of all; a part that is new is what the session begins with."""
        for bucket in self._buckets:
            for state in bucket["states"]:
                name = f"{state}.{bucket['name']}"
                if name not in self._parts:
                    self._parts[name] = session.parameter(name).to_torch().clone()
                yield bucket, state, self._parts[name]
