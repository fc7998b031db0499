# SPDX-License-Identifier: Apache-2.0
"""Stores captured programs on disk for other processes, one file each, named by the key of the capture.

A file is not trusted: its checksum and key are checked, its facts are JSON whose types and names the reader checks,
and the program is an ONNX model that the model reader checks. A damaged file is reported and made again. A folder that
cannot be read or written to is reported once (reports.lose).
Each file is written under another name and then renamed, so that any number of processes may share the folder.
CAESURA_PROGRAM_CACHE names the folder, and CAESURA_PROGRAM_CACHE_MEGABYTES limits its size; the least recently used
files are removed first.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
import warnings

from caesura import _core
from caesura.reports import lose
from caesura.user_code import calling_line

_HEAD = b"caesura program 1\n"
_LARGEST = 1 << 30  # bytes of one file


class Damaged(ValueError):
    """The content of a file does not match its name."""


def enabled() -> bool:
    """True if the cache is on. One that is off although nobody has switched it off is reported."""
    if _core.program_cache()[0]:
        return True
    if os.environ.get("CAESURA_PROGRAM_CACHE") != "off":
        _lose("it has no folder, since neither HOME nor XDG_CACHE_HOME is set")
    return False


def _lose(why) -> None:
    """why: a sentence, or an OSError of the folder's."""
    lose("the program cache", f"{_folder()}: {why.strerror}" if isinstance(why, OSError) else why,
         "Each process captures and compiles anew, which takes seconds",
         "CAESURA_PROGRAM_CACHE names a folder that can be written to, CAESURA_PROGRAM_CACHE_MEGABYTES its size; "
         "CAESURA_PROGRAM_CACHE=off does without")


def load(key: str):
    """(facts, model's bytes) of a program, or None. A damaged one is removed, with a warning."""
    if not enabled():
        return None
    path = _folder() / key
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST)
    except FileNotFoundError:
        return None
    except OSError as error:
        _lose(error)
        return None
    with contextlib.suppress(OSError):  # a folder that is only read
        os.utime(path)
    try:
        return _unpack(key, content)
    except ValueError as error:
        discard(key, error)
        return None


def discard(key: str, why) -> None:
    """Removes a program that cannot be used, and says so."""
    path = _folder() / key
    warnings.warn_explicit(f"the cached program {path} is damaged and not used: {why}", RuntimeWarning, *calling_line()[:2])
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _lose(error)


def store(key: str, facts: dict, model: bytes) -> None:
    """Keeps a program if the cache is on."""
    if not enabled():
        return
    folder, content, limit = _folder(), _pack(key, facts, model), _core.program_cache()[1] << 20
    if len(content) > min(limit, _LARGEST):  # it would be removed at once, and all others with it
        _lose(f"a program of {len(content) >> 20} MiB is larger than the cache's files may be")
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written, name = tempfile.mkstemp(prefix=".part-", dir=folder)
        try:
            with open(written, "wb") as file:
                file.write(content)
            os.replace(name, folder / key)
        except BaseException:
            os.unlink(name)
            raise
        _shrink(folder, limit)
    except OSError as error:
        _lose(error)


def _folder() -> pathlib.Path:
    return pathlib.Path(_core.program_cache()[0])


def _pack(key: str, facts: dict, model: bytes) -> bytes:
    text = json.dumps(facts | {"key": key}).encode()
    body = len(text).to_bytes(8, "little") + text + model
    return _HEAD + hashlib.sha256(body).digest() + body


def _unpack(key: str, content: bytes):
    start = len(_HEAD) + 32
    digest, body = content[len(_HEAD):start], content[start:]
    if not content.startswith(_HEAD) or hashlib.sha256(body).digest() != digest:
        raise Damaged("its checksum is another one")
    size = int.from_bytes(body[:8], "little")
    facts = json.loads(body[8:8 + size])
    if not isinstance(facts, dict) or facts.pop("key", None) != key:
        raise Damaged("it is another program")
    return facts, body[8 + size:]


def _shrink(folder: pathlib.Path, limit: int) -> None:
    """Removes the least recently used files, and files that a crash left half written, while the folder is too
    large."""
    files = []
    for entry in os.scandir(folder):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process has removed it
        files.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= limit:
            break
        pathlib.Path(path).unlink(missing_ok=True)
        total -= size
