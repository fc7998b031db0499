# SPDX-License-Identifier: Apache-2.0
"""Steps that a rank cannot make: the other ranks are told, whose first calls would wait for it."""

import collections
import logging

import torch

from caesura.ranks import has_other_ranks

_BEGUN = "begun"  # of a step that a rank has called; otherwise the word is a refusal
_counts = collections.Counter()  # of steps that this process has made or refused to, by the group's name


class StepMaking:
    """One step that all ranks of a group make, by its number among theirs.

    The group's store holds one word for it, which the first rank sets that calls the step or that cannot make it. So a rank that
    refuses waits for no other one, unless one has begun.
    """

    def __init__(self, group):
        self._group, self._key = group, None
        self.find()

    def find(self) -> None:
        """Takes a number where the group has other ranks; they may come after the step was made."""
        if self._key is None and has_other_ranks(self._group):
            group = torch.distributed.group.WORLD if self._group is None else self._group
            self._store, self._key = group.get_group_store(), f"caesura.step.{_counts[group.group_name]}"
            _counts[group.group_name] += 1

    def begin(self) -> str:
        """Returns "" where this rank's first call may go on, or the words of the rank that refuses. All ranks get the same."""
        word = self._say(_BEGUN)
        return "" if word == _BEGUN else word

    def refuse(self, words: str) -> bool:
        """Returns False if the other ranks find these words, or another refusal, in their first call. True if one has begun."""
        return self._say(words) == _BEGUN

    def _say(self, word):
        if self._key is None or self._store is None:
            return word
        try:
            return self._store.compare_set(self._key, "", word).decode()
        except RuntimeError as error:  # the rank that has the store may be lost
            logging.getLogger("caesura").info("the ranks' store does not answer: %s", error)
            return word
