# SPDX-License-Identifier: Apache-2.0
"""Keys of the cache hold all sources of the package: a program that other code has made is not taken."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import caesura  # noqa: E402

FOLDER = pathlib.Path(caesura.__file__).parent

KEYS = """
import pathlib, sys
import caesura
from caesura.cache import known_code
from caesura.cache.fingerprint import Fingerprint

folder = pathlib.Path(caesura.__file__).parent
assert folder == pathlib.Path(sys.argv[1]), folder

def key():
    known_code.releases.cache_clear()
    return Fingerprint().key()

before, same = key(), []
for path in sorted(folder.rglob("*.py")):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b" ")
    if key() == before:
        same.append(str(path.relative_to(folder)))
    path.write_bytes(content)
assert key() == before
assert not same, f"the key does not hold {same}"
(folder / "lowering" / "ops" / "added.py").touch()
assert key() != before
print(len(list(folder.rglob("*.py"))))
"""


def test_a_byte_of_any_source_changes_the_key(tmp_path):
    copied = tmp_path / "caesura"
    shutil.copytree(FOLDER.resolve(), copied, ignore=shutil.ignore_patterns("__pycache__", "bench"))
    done = subprocess.run([sys.executable, "-c", KEYS, str(copied)], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
