# SPDX-License-Identifier: Apache-2.0
"""The kernels that call PyTorch's own operators (domain org.pytorch.aten), from a library beside this module."""

import functools
import importlib.util
import pathlib
import re

from caesura import _core

_PATH = pathlib.Path(__file__).parent / "libcaesura_torch.so"


def built() -> bool:
    """True if the library was built and PyTorch is installed."""
    return _PATH.exists() and importlib.util.find_spec("torch") is not None


def built_for() -> str:
    """The release of PyTorch that the library was built with. It is read from the file, because a library for another release
    can often not be opened. "" if none was built."""
    found = re.search(rb"was built with PyTorch ([\w.]+)", _PATH.read_bytes()) if _PATH.exists() else None
    return found[1].decode() if found else ""


@functools.cache
def load() -> bool:
    """Opens the library for all sessions that are made from here on; False if it was not built.

    Raises ImportError if there is no PyTorch, NotImplementedError if the library does not fit this one.
    """
    if not _PATH.exists():
        return False
    import torch  # its libraries must be in the process first

    try:
        _core.load_torch_library(str(_PATH), torch.__version__)
    except OSError as error:  # of another release, whose symbols are others
        raise NotImplementedError(f"{_PATH.name} was built with PyTorch {built_for()}, and this is {torch.__version__}: "
                                  f"{error}") from None
    except NotImplementedError as error:
        raise NotImplementedError(f"{error}; this is PyTorch {torch.__version__}") from None
    return True


@functools.cache
def misfit() -> str:
    """Why the library is not open; "" if load() opens it."""
    try:
        return "" if load() else f"{_PATH.name} was not built (CAESURA_TORCH=OFF)"
    except NotImplementedError as error:
        return str(error)


def state() -> str:
    """What `caesura env` prints of the library: which PyTorch it was built with, which is installed, and whether both fit."""
    if importlib.util.find_spec("torch") is None:
        return f"built with PyTorch {built_for()}; no PyTorch is installed" if _PATH.exists() else misfit()
    import torch

    why = misfit()
    return f"not loaded: {why}" if why else f"loaded, built with PyTorch {built_for()}; this is PyTorch {torch.__version__}"
