# SPDX-License-Identifier: Apache-2.0
"""Cache keys: a call's program has a key of two parts.

The first part is known before the call: the module with all that it holds, and the arguments. The second part is the
code that a capture has traced, because the first part does not tell which code is called. A note on disk, found by the
first part, names the traced code. If that code and all that it names are unchanged, both parts together are the
program's key.
"""

import contextlib

from caesura.cache import disk
from caesura.cache.fingerprint import Fingerprint, Unkeyed
from caesura.reports import note_detour

_TRACES = 8  # noted for one call: programs whose globals differ


class Key:
    """text: the first part. signature: of the arguments. watch: of all that the key is made of.

    A subclass has _fill(fingerprint), which adds what there is before the call and gives the arguments' signature.
    """

    def __init__(self):
        self._start()
        self.text = self._fingerprint.key()

    def _start(self):
        self._fingerprint, self._traced, self._program = Fingerprint(), None, ""
        with _keyed():
            self.signature = self._fill(self._fingerprint)
        self.watch = self._fingerprint.watch

    def follow(self, traced) -> str:
        """The key of a program for which this code was traced; "" if the call would not lead to that code. The watch
        then covers both parts."""
        traced = [tuple(code) for code in traced]
        if traced != self._traced:
            if self._traced is not None:
                self._start()
            self._traced = traced
            try:
                with _keyed():
                    self._program = self._fingerprint.key() if self._fingerprint.follow(traced) else ""
            except Unkeyed as error:
                note_detour("a call is not kept on disk", f"the code of its capture leads to {error}")
                self._program = ""
        return self._program

    def programs(self):
        """(traced, key) of the programs that may be on disk."""
        for traced in _noted(self.text):
            program = self.follow(traced)
            if program:
                yield traced, program

    def note(self, traced) -> None:
        """Notes on disk which code was traced."""
        noted, traced = _noted(self.text), [list(code) for code in traced]
        if traced not in noted:
            disk.store(self.text, {"traced": [traced, *noted[:_TRACES - 1]]}, b"")


@contextlib.contextmanager
def _keyed():
    """Turns errors that the user's objects raise when they are read, and too deep nesting, into Unkeyed, so that no
    call fails because of its key."""
    try:
        yield
    except Unkeyed:
        raise
    except Exception as error:
        raise Unkeyed(f"an object: {type(error).__name__}: {error}") from error


def _noted(text: str) -> list:
    content = disk.load(text)
    if content is None:
        return []
    noted = content[0].get("traced")
    if not isinstance(noted, list) or not all(_is_trace(traced) for traced in noted):
        disk.discard(text, "its facts are others")
        return []
    return noted


def _is_trace(traced) -> bool:
    return isinstance(traced, list) and all(
        isinstance(code, list) and [type(part) for part in code] == [str, int] for code in traced)
