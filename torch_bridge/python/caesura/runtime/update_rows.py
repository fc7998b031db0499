# SPDX-License-Identifier: Apache-2.0
"""The parameters of an optimizer that are always updated together."""


class UpdateRows:
    """Rows of each of an optimizer's groups: parameters that have had the same number of updates. Rows are split, and never joined,
    so that programs are seldom opened again. They follow from the calls alone: all ranks have the same ones."""

    def __init__(self, members: list):
        """members: ids of each group's parameters."""
        self._whole = self._rows = [[ids] for ids in members]
        self._first = None  # the parameters of the first call
        self.is_apart = False  # whether calls have updated different parameters, or counts have differed

    def take(self, counts: dict) -> None:
        """Takes the counts, by id, of the parameters that a call updates."""
        self._rows = [[part for row in rows for part in _parted(row, counts)] for rows in self._rows]
        self._first = self._first or counts.keys()
        self.is_apart |= counts.keys() != self._first or len(set(counts.values())) > 1

    def of(self, learners: dict) -> tuple[list, bool]:
        """The rows of parameters, by name: (number of the group, names), with which a program is opened, and whether their counts
        may differ; otherwise each group is one row."""
        names = {id(parameter): name for name, parameter in learners.items()}
        rows = self._rows if self.is_apart else self._whole
        return [(i, [names[of] for of in row if of in names]) for i, group in enumerate(rows) for row in group], self.is_apart


def _parted(row: list, counts: dict) -> list:
    """The row in parts that have the same count; one part has those that have none."""
    parts: dict = {}
    for of in row:
        parts.setdefault(counts.get(of), []).append(of)
    return list(parts.values())
