# SPDX-License-Identifier: Apache-2.0
"""The changes that docs/internals/adding.md shows apply to the sources as they are."""

import pathlib
import re
import shutil
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
CHANGES = re.findall(r"^```diff\n(.*?)^```$", (TOP / "docs/internals/adding.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("change", CHANGES, ids=("op", "pass"))
def test_the_change_applies(change):
    ran = subprocess.run(["git", "apply", "--check", "-"], input=change, text=True, capture_output=True, cwd=TOP)
    assert ran.returncode == 0, ran.stderr
