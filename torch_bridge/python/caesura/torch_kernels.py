# SPDX-License-Identifier: Apache-2.0
"""The kernels that call PyTorch's own operators (domain org.pytorch.aten), from a library beside this module."""

import functools
import importlib.util
import pathlib

from caesura import _core

_PATH = pathlib.Path(__file__).parent / "libcaesura_torch.so"


def built() -> bool:
    """True if the library was built and PyTorch is installed."""
    return _PATH.exists() and importlib.util.find_spec("torch") is not None


@functools.cache
def load() -> bool:
    """Opens the library for all sessions that are made from here on; False if it was not built.

    Raises ImportError if there is no PyTorch, NotImplementedError if the library was built with another release.
    """
    if not _PATH.exists():
        return False
    import torch  # its libraries must be in the process first

    try:
        _core.load_torch_library(str(_PATH), torch.__version__)
    except OSError as error:  # of another release, whose symbols are others
        raise NotImplementedError(f"PyTorch's operators as nodes are not there with PyTorch {torch.__version__}: "
                                  f"{_PATH.name} was built with another release ({error}); build caesura with this one") from None
    return True
