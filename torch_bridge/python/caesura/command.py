# SPDX-License-Identifier: Apache-2.0
"""The `caesura` command of an installed wheel: starts the program in the package, and tells it which Python to use."""

import os
import pathlib
import sys

from caesura import torch_kernels


def main():
    """Becomes the program, with the same arguments; `caesura --help` says what it does."""
    program = pathlib.Path(__file__).parent / "bin" / "caesura"
    os.environ.setdefault("CAESURA_PYTHON", sys.executable)
    plugins = [os.environ.get("CAESURA_PLUGIN_PATH"), torch_kernels.plugin_folder()]
    if any(plugins):
        os.environ["CAESURA_PLUGIN_PATH"] = ":".join(filter(None, plugins))
    os.execv(program, ["caesura", *sys.argv[1:]])
