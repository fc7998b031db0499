# SPDX-License-Identifier: Apache-2.0
"""The `caesura` command of an installed wheel: the program lies in the package, and is told which Python it belongs to."""

import os
import pathlib
import sys


def main():
    """Becomes the program, with the same arguments; `caesura --help` says what it does."""
    program = pathlib.Path(__file__).parent / "bin" / "caesura"
    os.environ.setdefault("CAESURA_PYTHON", sys.executable)
    os.execv(program, ["caesura", *sys.argv[1:]])
