# SPDX-License-Identifier: Apache-2.0
"""The parameters of a step in rows and buckets that all of its programs, on all ranks, have in common."""

import json

from caesura import _core
from caesura.errors import StepRefused


class RankRows:
    """Each program trains all that any rank's programs use, where the ranks' calls of a step use different parameters. A row is
    a list of parameters that are used together, and have had the same number of updates: an update leaves a row that no rank
    uses as it is. Until ranks' calls have differed there are no rows, and a program trains what it uses."""

    def __init__(self):
        self.rows = None  # (number of the optimizer's group, names) each
        self.buckets = []  # of names, in the order of the exchange; each is of one row
        self.statistics = []  # the names of running statistics that any program writes to
        self._uses = []  # the sorted names of each of this rank's programs
        self._written = []  # the statistics of this rank's

    def note(self, names) -> None:
        """Remembers what a program uses."""
        names = sorted(names)
        if names not in self._uses:
            self._uses.append(names)

    def take_statistics(self, names) -> bool:
        """Remembers which running statistics a program writes to. False if there are rows, made without some of these."""
        self._written = sorted({*self._written, *names})
        return self.rows is None or set(names) <= set(self.statistics)

    def drop(self) -> bool:
        """Forgets rows and buckets, until they are laid anew. True if there were any."""
        had, self.rows, self.buckets, self.statistics = self.rows is not None, None, [], []
        return had

    def arguments(self) -> dict:
        """Returns what a session of the step is opened with besides."""
        return {} if self.rows is None else {"buckets": self.buckets, "statistics": self.statistics, "skips_unused": True}

    def used(self, names) -> list:
        """The numbers of the rows whose parameters are among these names."""
        return [i for i, (_, row) in enumerate(self.rows or ()) if row[0] in names]

    def fit(self, names) -> bool:
        """True if a program may use these names: each row is among them whole or not at all."""
        return names == {name for _, row in self.rows if not names.isdisjoint(row) for name in row}

    def lay(self, among, programs, differing, wanted, group_of, bytes_of, bucket_bytes) -> bool:
        """Lays rows and buckets anew, on all ranks. False if that changes nothing.

        Args:
            among: the ranks' communicator.
            programs: this rank's.
            differing: the one whose step has differed from the other ranks'; None: none has.
            wanted: whether a rank needs other rows; otherwise they are laid where the steps that differ have other buckets.
            group_of: of a name what the parameters of a row have in common, the number of the optimizer's group first; None
                for a parameter that is not trained.
            bytes_of: of a name the bytes of its parameter, and its dtype.
        """
        exchanged = [program.session.exchanged for program in programs if program.session is not None]
        order = [name for buckets in exchanged for bucket in buckets for name in bucket]
        now = None if differing is None else [differing.session.exchanged, sorted(differing.session.statistics)]
        is_parallel = any(program.is_parallel for program in programs)
        own = [self._uses, order, now, self._written, [self.rows, self.buckets, self.statistics], is_parallel]
        by_rank = [json.loads(dict(facts)["rows"]) for facts in among.gather_facts([("rows", json.dumps(own))])]
        if not wanted and all(of[2] == by_rank[0][2] for of in by_rank):
            return False
        if any(of[5] for of in by_rank):
            raise StepRefused("the ranks' calls use different parameters, which a step whose forward exchanges values between ranks "
                              "(parallelize_module, SyncBatchNorm) does not take")
        uses = sorted({tuple(names) for of in by_rank for names in of[0]})
        names = dict.fromkeys([*by_rank[0][1], *(name for use in uses for name in use)])
        rows, buckets = {}, []
        open_buckets = {}  # of each row and dtype: its names, and their bytes
        for name in (name for name in names if group_of(name) is not None):
            key = group_of(name), tuple(i for i, use in enumerate(uses) if name in use)
            rows.setdefault(key, []).append(name)
            size, dtype = bytes_of(name)
            bucket = open_buckets.setdefault((key, dtype), [[], 0])
            bucket[0].append(name)
            bucket[1] += size
            if bucket[1] >= bucket_bytes:
                buckets.append(open_buckets.pop((key, dtype))[0])
        buckets += [bucket for bucket, _ in open_buckets.values()]
        if len(rows) > _core.most_rows:
            raise StepRefused(f"the ranks' calls use {len(rows)} sets of parameters that are not always used together, and a step takes "
                              f"{_core.most_rows}")
        laid = [[[group[0], row] for (group, _), row in rows.items()], buckets, sorted({name for of in by_rank for name in of[3]})]
        if all(of[4] == laid for of in by_rank):
            return False
        self.rows, self.buckets, self.statistics = [(number, row) for number, row in laid[0]], *laid[1:]
        return True
