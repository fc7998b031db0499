# SPDX-License-Identifier: Apache-2.0
"""The bridge to PyTorch: the library with the kernels that call PyTorch's own operators (domain org.pytorch.aten). Each minor
release of PyTorch needs one of its own, in a folder beside this module: torch2.13, torch2.14 and so on. A wheel has several."""

import functools
import importlib.util
import pathlib
import re

from caesura import _core

_FOLDER = pathlib.Path(__file__).parent


def _libraries() -> dict[str, pathlib.Path]:
    """The libraries that there are, by the minor release of PyTorch ("2.13")."""
    return {path.parent.name.removeprefix("torch"): path for path in sorted(_FOLDER.glob("torch[0-9]*/libcaesura_torch.so"))}


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def built() -> bool:
    """True if a library was built and PyTorch is installed."""
    return bool(_libraries()) and importlib.util.find_spec("torch") is not None


def _built_with(library: pathlib.Path) -> str:
    """The release of PyTorch that a library was built with. It is read from the file, because a library for another release
    can often not be opened."""
    found = re.search(rb"was built with PyTorch ([\w.]+)", library.read_bytes())
    return found[1].decode() if found else "?"


def _built_for() -> str:
    """The releases of PyTorch that libraries were built with; "" if there is none."""
    return ", ".join(map(_built_with, _libraries().values()))


@functools.cache
def load() -> bool:
    """Opens the library for all sessions that are made from here on; False if none was built.

    Raises ImportError if there is no PyTorch, NotImplementedError if no library fits this one.
    """
    libraries = _libraries()
    if not libraries:
        return False
    import torch  # its libraries must be in the process first

    this = f"this is PyTorch {torch.__version__}"
    library = libraries.get(_minor(torch.__version__))
    if library is None:
        raise NotImplementedError(f"libcaesura_torch was built with PyTorch {_built_for()}; {this}")
    try:
        _core.load_torch_library(str(library), torch.__version__)
    except OSError as error:  # of another release, whose symbols are others
        raise NotImplementedError(f"{library.name} was built with PyTorch {_built_with(library)}; {this}: {error}") from None
    except NotImplementedError as error:
        raise NotImplementedError(f"{error}; {this}") from None
    return True


@functools.cache
def misfit() -> str:
    """Why the library is not open; "" if load() opens it."""
    try:
        return "" if load() else "libcaesura_torch.so was not built (CAESURA_TORCH=OFF)"
    except NotImplementedError as error:
        return str(error)


def state() -> str:
    """What `caesura env` prints of the library: which PyTorch it was built with, which is installed, and whether both fit."""
    if importlib.util.find_spec("torch") is None:
        built_for = _built_for()
        return f"built with PyTorch {built_for}; no PyTorch is installed" if built_for else misfit()
    import torch

    why = misfit()
    library = _libraries().get(_minor(torch.__version__))
    if why or library is None:
        return f"not loaded: {why}"
    return f"loaded, built with PyTorch {_built_with(library)}; this is PyTorch {torch.__version__}"


@functools.cache
def plugin_folder() -> str:
    """The folder of the plug-ins that go with the installed PyTorch, which is not imported; "" if there is none."""
    spec = importlib.util.find_spec("torch") if _libraries() else None
    if spec is None or spec.origin is None:
        return ""
    found = re.search(r"^__version__ = '([^']+)'", pathlib.Path(spec.origin).with_name("version.py").read_text(), re.M)
    library = _libraries().get(_minor(found[1])) if found else None
    return str(library.parent) if library else ""
