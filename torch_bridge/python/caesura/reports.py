# SPDX-License-Identifier: Apache-2.0
"""Counters: how much time our kernels and PyTorch take, which calls were left to PyTorch and why, and what is not used."""

import contextlib
import copy
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Optional

from caesura import _core
from caesura.errors import FallbackWarning, StrictError
from caesura.typing import Path
from caesura.user_code import calling_line, is_installed, is_users


@dataclass
class Stats:
    """Counts of a process since its start. The difference of two has what came between them.

    Draws of a given shape (dropout masks, rand, randn_like) are no fallbacks: they are eager's own numbers by design.
    Draws that depend on values (multinomial, poisson) are. Code outside of captured graphs is not counted: code after a
    graph break (the break itself is among the fallbacks), an optimizer of PyTorch's, data loading.

    Attributes:
        kernel_seconds: time in programs of caesura's kernels and in compiled steps, with the calls in them that PyTorch
            computes.
        eager_seconds: time in ATen calls of captured graphs that were left to PyTorch, and in draws from its generator.
        kernel_calls: the number of the first.
        eager_calls: the number of the second, and of calls whose capture failed.
        fallbacks: dict from (op, reason) to the set of places where it was met.
        lost: dict from a part of caesura that this process does without to why, what that costs, and what to do: PyTorch's
            bridge, the program cache, the fast path of a module or step, cuDNN, the cache of CUDA kernels. A difference
            has all of them.
        detours: dict from (what, reason) to how often: calls that Dynamo handled although they captured nothing, graphs
            whose autograd node is PyTorch's, calls that have no key on disk.

    Example::

        before = caesura.stats()
        loss = model(inputs)
        print(caesura.stats() - before)
    """
    kernel_seconds: float = 0.0
    eager_seconds: float = 0.0
    kernel_calls: int = 0
    eager_calls: int = 0
    fallbacks: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    detours: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def kernel_share(self) -> float:
        """The part of the time that caesura's kernels took, 0 to 1."""
        total = self.kernel_seconds + self.eager_seconds
        return self.kernel_seconds / total if total else 0.0

    def __sub__(self, before: "Stats") -> "Stats":
        fallbacks = {what: places - before.fallbacks.get(what, set()) for what, places in self.fallbacks.items()}
        detours = {what: count - before.detours.get(what, 0) for what, count in self.detours.items()}
        return Stats(self.kernel_seconds - before.kernel_seconds, self.eager_seconds - before.eager_seconds,
                     self.kernel_calls - before.kernel_calls, self.eager_calls - before.eager_calls,
                     {what: places for what, places in fallbacks.items() if places}, dict(self.lost),
                     {what: count for what, count in detours.items() if count})

    def __str__(self) -> str:
        lines = [f"own kernels {self.kernel_seconds:.3f} s in {self.kernel_calls} calls ({self.kernel_share:.1%}), "
                 f"left to PyTorch {self.eager_seconds:.3f} s in {self.eager_calls} calls"]
        lines += [f"  {op}: {reason} (at {', '.join(sorted(places)[:3])})" for (op, reason), places in self.fallbacks.items()]
        lines += [f"  not used: {part}: {why}" for part, why in self.lost.items()]
        lines += [f"  the longer way, {count} times: {what}: {reason}" for (what, reason), count in self.detours.items()]
        return "\n".join(lines)


Problem = tuple[str, str, str]  # what is left to PyTorch: the op, the reason, the place


class _Local(threading.local):
    strict = False
    refusal: StrictError | None = None  # the latest
    waiting: list[Problem] | None = None  # the warnings to give if the call succeeds


RECORD = Stats()
_ROW = 8  # calls that capture nothing and miss the fast path; fewer are usual where keys are compared and modes change
_local = _Local()
_sources: list[Callable[[], tuple[float, int, float, int]]] = []
ended_well: set[str] = set()  # where captures have failed, of calls that have ended well in eager: there is no mistake of the user's


def collect_from(take: Callable[[], tuple[float, int, float, int]]) -> None:
    """`take()` gives what a part in C++ has counted since the last time: the first four fields of Stats."""
    _sources.append(take)


def refuse_lost_parts() -> None:
    """Raises within strict() if C++ does without a part of itself (core/base/log.h has warned of it)."""
    if _local.strict and (lost := _core.lost_parts()):
        _refuse("; ".join(f"{part} is not used: {text}" for part, text in lost.items()))


def stats() -> Stats:
    """Returns the counters as they are now; later calls do not change the result.

    Returns:
        Stats: print it, read its fields, or take the difference of two.

    Example::

        print(caesura.stats())
    """
    for take in _sources:
        counted = take()
        RECORD.kernel_seconds += counted[0]
        RECORD.kernel_calls += counted[1]
        RECORD.eager_seconds += counted[2]
        RECORD.eager_calls += counted[3]
    RECORD.lost.update(_core.lost_parts())
    return copy.deepcopy(RECORD)


def reset() -> None:
    """Sets all counters to zero, so that each fallback warns again; for tests. Parts of caesura that are not used stay
    listed."""
    stats()
    vars(RECORD).update(vars(Stats(lost=RECORD.lost)))


@contextlib.contextmanager
def recorded() -> Iterator[_core.Recording]:
    """Records what caesura's programs and steps do in the block. Gives what write_page() takes."""
    recording = _core.Recording()
    recording.begin()
    try:
        yield recording
    finally:
        recording.end()


def write_page(recording: _core.Recording, path: Path, title: str, session: Any = None) -> None:
    """The page of a recording, with what has fallen back in this process so far. session: a _core.Training, whose curves it
    shows."""
    now = stats()
    fallbacks = [(op, reason, sorted(places)) for (op, reason), places in now.fallbacks.items()]
    recording.write(os.fspath(path), title, fallbacks, (now.kernel_seconds, now.eager_seconds), session)


@contextlib.contextmanager
def profile(path: Path, title: str = "profile") -> Iterator[None]:
    """Writes a page about what caesura runs within a `with` block: time by op and by source line, memory, graph, what fell
    back and why, and what to try first.

    The page shows calls of wrapped modules and of torch.compile(backend="caesura"), steps of compile_step() and of
    TrainingSession, on all threads; of more than 256 runs the first. It does not show what PyTorch computes outside of
    them. Runs that are watched take a little longer.

    Args:
        path: the page, one HTML file that needs no other; it replaces a file that is there. It is written when the block
            ends without an error.
        title: the page's heading.

    Returns:
        A context manager.

    Raises:
        ValueError: another profile is being recorded in this process.
        OSError: the file cannot be written.

    Example::

        model(x).sum().backward()  # captures
        with caesura.profile("report.html"):
            model(x).sum().backward()
    """
    with recorded() as recording:
        yield
    write_page(recording, path, title)


@contextlib.contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Forbids fallbacks, and parts of caesura that are not used, within a `with` block, in this thread.

    Args:
        on: False allows them again within an outer strict().

    Returns:
        A context manager.

    Raises:
        StrictError: from a capture within the block, if a part would be left to PyTorch or is not used; from a call whose
            fast path is not taken, before it runs. From torch.compile it comes inside of the error that PyTorch makes of it.

    Example::

        with caesura.strict():
            loss = model(inputs)
    """
    before, _local.strict = _local.strict, on
    try:
        yield
    finally:
        _local.strict = before


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raises a StrictError from within the block as it is, also if PyTorch has wrapped it."""
    try:
        yield
    except StrictError:
        raise
    except Exception as error:
        refusal, _local.refusal = _local.refusal, None
        if refusal is not None and str(refusal) in str(error):
            raise refusal from None
        raise


def _refuse(what: str) -> NoReturn:
    refusal = _local.refusal = StrictError(f"strict: {what}")
    raise refusal


def fall_back(problems: list[Problem]) -> None:
    """Reports calls that stay with PyTorch, a list of (op, reason, place), each once."""
    if problems and _local.strict:
        listed = "\n".join(f"  {op}: {reason} (at {place})" for op, reason, place in dict.fromkeys(problems))
        _refuse(f"this would be left to PyTorch:\n{listed}")
    new = {}
    for op, reason, place in problems:
        places = RECORD.fallbacks.setdefault((op, reason), set())
        if place not in places:
            new.setdefault((op, reason), place)
        places.add(place)
    if new:
        listed = "; ".join(f"{op} at {place}: {reason}" for (op, reason), place in new.items())
        warnings.warn_explicit(f"left to PyTorch: {listed}", FallbackWarning, *_line_of(*new.values()))


def lose(part: str, why: str, effect: str, remedy: str) -> None:
    """Reports a part of caesura that this process does without: why, what that costs, and what the user can do. Each part
    warns once for each reason."""
    text = f"{why}. {effect}. {remedy}"
    if _local.strict:
        _refuse(f"{part} is not used: {text}")
    if RECORD.lost.get(part) != text:
        RECORD.lost[part] = text
        warnings.warn_explicit(f"{part} is not used: {text}", FallbackWarning, *calling_line()[:2])


def note_detour(what: str, reason: object) -> None:
    """Counts what took a longer way, by design or because of a limit: stats() lists it, nobody is warned."""
    key = what, str(reason)
    if key not in RECORD.detours:
        logging.getLogger("caesura").info("the longer way: %s: %s", *key)
    RECORD.detours[key] = RECORD.detours.get(key, 0) + 1


class Detour(Exception):
    """Raised with (reason, remedy): calls like this one go through Dynamo each time."""


class Detours:
    """The calls of one module or step that Dynamo handles although they capture nothing. A first call of its kind captures,
    and is none of them.

    Each comes with a reason and a remedy, what the user can do: "" if another message has said it, or if it is by design.
    """

    def __init__(self, of: str) -> None:
        """of: what is called, for the user."""
        self._of, self._why, self._row = of, ("", ""), 0
        self._number: Optional[int] = None

    def tell(self) -> None:
        """Before a call that may be one more: reports that the fast path is not taken if the last calls were such."""
        reason, remedy = self._why
        if self._row >= _ROW and remedy:
            lose(f"the fast path of {self._of}", reason, "Each call costs Dynamo's guards and bytecode", remedy)

    def add(self, why: tuple[str, str], is_first: bool = False, number: Optional[int] = None) -> None:
        """After a call that asked Dynamo. why: (reason, remedy). is_first: whether it has captured. number: it counts all
        calls, so that calls in a row are told from rare ones; None where a kind of calls that has missed the fast path will
        always miss it."""
        if is_first:
            return
        is_alike = why == self._why and (number is None or number - 1 == self._number)
        self._row, self._why, self._number = self._row + 1 if is_alike else 1, why, number
        note_detour(f"calls of {self._of}", why[0])

    @contextlib.contextmanager
    def after(self, why: tuple[str, str], is_first: bool, number: int) -> Iterator[None]:
        """The same with the (reason, remedy) of a Detour that the block raises, if it raises one."""
        try:
            yield
        except Detour as detour:
            why = detour.args
        self.add(why, is_first, number)


def _line_of(*places: str) -> tuple[str, int]:
    """(file, line) of the first of the places ("model.py:12 in forward") in a file that is no installed package's; of the line
    that calls where there is none."""
    for place in places:
        file, _, line = place.partition(" in ")[0].rpartition(":")
        if line.isdigit() and is_users(file) and not is_installed(file):
            return file, int(line)
    return calling_line()[:2]


def fall_back_if_it_ends_well(problem: Problem, is_users_error: bool) -> None:
    """Tells of a capture that has failed, of a call that runs in eager now: if that ends well, within told_at_the_end(). Outside
    of it nobody knows how the call ends: an error that looks like the user's own is not told there."""
    if _local.waiting is not None:
        _local.waiting.append(problem)
    elif not is_users_error:
        fall_back([problem])


@contextlib.contextmanager
def told_at_the_end() -> Iterator[None]:
    """Reports failed captures of the block if it succeeds. If it fails, only its error is raised."""
    before, _local.waiting = _local.waiting, []
    problems = _local.waiting
    try:
        yield
    finally:
        _local.waiting = before
    ended_well.update(place for _, _, place in problems)
    fall_back(problems)
    RECORD.eager_calls += len(problems)
