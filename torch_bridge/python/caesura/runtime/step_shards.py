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
        # Before the first update the ranks' buckets may differ. Whole state that parts were taken from is kept until then.
        self.is_agreed, self._kept = False, {}

    def arguments(self) -> dict:
        """Returns what a session of the step is opened with."""
        return {"shard": self._shard, "buckets": self.members()}

    def members(self) -> list:
        """The names of each bucket's parameters."""
        return [bucket["members"] for bucket in self._buckets]

    def take_whole(self, optimizer, group):
        """Gathers the state, and divides it in other buckets from then on."""
        self.gather(optimizer, group)
        self._buckets, self._parts, self.is_agreed = [], {}, False

    def agree(self):
        """Is told that the ranks have the same buckets."""
        self.is_agreed, self._kept = True, {}

    @property
    def is_divided(self) -> bool:
        """True if a rank has parts of the state only; False before the first session is opened."""
        return bool(self._buckets)

    def refuse_others(self, learners: dict):
        """Refuses tensors that come in place of others of their names, which the state that is divided is of."""
        for name, parameter in learners.items():
            if self._parameters.get(name, parameter) is not parameter:
                raise StepRefused(f"'{name}' is another tensor than the one whose divided state (shard) the ranks have; make the step "
                                  "again")

    def fit(self, rows) -> bool:
        """True if the parameters of these rows (Recipe.rows_of) are those that are divided, and each bucket is of one row."""
        row_of = {name: row for row, (_, names) in enumerate(rows) for name in names}
        members = self.members()
        return {name for names in members for name in names} == row_of.keys() and all(
            len({row_of[name] for name in names}) == 1 for names in members)

    def bind(self, program, optimizer):
        """Has the program's session write to this rank's parts. They are taken from whole state, where the optimizer has some
        (load_state_dict() leaves it so), and what was taken is dropped there."""
        self._buckets = program.session.shards
        self._parameters.update(program.tensors())
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
            for parameter in map(self._parameters.get, bucket["members"]):
                whole = optimizer.state.get(parameter, {}).pop(key, None)
                if whole is not None:
                    self._kept[parameter, key] = whole
            program.session.bind_parameter(f"{state}.{bucket['name']}", part)

    def gather(self, optimizer, group):
        """Puts the whole state into the optimizer; all ranks of the group call it."""
        for bucket, state, part in self._each(None) if self.is_agreed else ():
            parts = [torch.empty_like(part) for _ in range(group.size())]
            torch.distributed.all_gather(parts, part, group=group)
            block = torch.cat(parts)
            for name, offset in zip(bucket["members"], bucket["offsets"]):
                parameter = self._parameters[name]
                values = block[offset:offset + parameter.numel()]
                optimizer.state[parameter][state.removeprefix("optimizer.")] = values.view(parameter.shape).clone()
        for (parameter, key), whole in self._kept.items():
            optimizer.state[parameter][key] = whole
        self._kept = {}

    def _each(self, session):
        """(bucket, state, this rank's part of it) of all; a part that is new is what the session begins with."""
        for bucket in self._buckets:
            for state in bucket["states"]:
                name = f"{state}.{bucket['name']}"
                if name not in self._parts:
                    self._parts[name] = session.parameter(name).to_torch().clone()
                yield bucket, state, self._parts[name]
