# SPDX-License-Identifier: Apache-2.0
"""The kernels that call PyTorch's own operators (domain org.pytorch.aten), from a library beside this package."""

import functools
import importlib.util
import pathlib

from caesura import _core

_PATH = pathlib.Path(__file__).parent / "libcaesura_torch.so"


def built() -> bool:
    """Whether the library lies beside this package, and a PyTorch is installed."""
    return _PATH.exists() and importlib.util.find_spec("torch") is not None


@functools.cache
def load() -> bool:
    """Opens the library for all sessions that are made from here on; False where it was not built.

    Raises ImportError where there is no PyTorch, NotImplementedError where it is not the release that the library was
    built with, OSError where it does not open.
    """
    if not _PATH.exists():
        return False
    import torch  # its libraries must be in the process first

    _core.load_torch_library(str(_PATH), torch.__version__)
    return True
