# SPDX-License-Identifier: Apache-2.0
"""Temporary changes of PyTorch, shared by all threads that need them."""

import threading


class Shared:
    """A change that is in force while anybody is within it, in any thread: the first makes it, the last undoes it.

    change: makes a context manager, whose body is the time of the change.
    """

    def __init__(self, change):
        self._change, self._lock = change, threading.Lock()
        self._within, self._current = 0, None

    def __enter__(self):
        with self._lock:
            if self._within == 0:
                self._current = self._change()
                self._current.__enter__()
            self._within += 1

    def __exit__(self, *error):
        with self._lock:
            self._within -= 1
            if self._within == 0:
                self._current.__exit__(None, None, None)
