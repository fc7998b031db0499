# SPDX-License-Identifier: Apache-2.0
"""Known code: code and classes of PyTorch and the standard library, which their releases identify."""

import collections
import functools
import hashlib
import operator
import pathlib
import platform
import sys
import sysconfig

import onnx
import torch

import caesura

_SILENT = {"math", "cmath", "operator", "_operator", "functools", "_functools", "itertools", "typing", "types", "collections",
           "dataclasses", "enum", "abc", "_abc", "warnings", "_warnings", "_py_warnings", "logging", "copy", "inspect", "contextlib",
           "re", "numbers", "string", "builtins", "typing_extensions", "_collections", "_collections_abc", "collections.abc",
           "__future__"}
_TORCH = str(pathlib.Path(torch.__file__).parent) + "/"
_STANDARD = str(pathlib.Path(sysconfig.get_path("stdlib"))) + "/"


class _Object:
    """An object whose state is all visible to Python; its memory layout is compared with that of other classes."""


class _Dict(dict):
    """The same for a dict."""


class _OrderedDict(collections.OrderedDict):
    """The same for an ordered dict."""


def is_plain_class(cls) -> bool:
    """True if all state of the class's objects (dicts among them) is visible to Python."""
    like = _OrderedDict if issubclass(cls, collections.OrderedDict) else _Dict if issubclass(cls, dict) else _Object
    layout = operator.attrgetter("__basicsize__", "__itemsize__", "__dictoffset__", "__weakrefoffset__")
    return layout(cls) == layout(like)


def is_known(filename: str) -> bool:
    """True if the file belongs to PyTorch or the standard library."""
    standard = filename.startswith(_STANDARD) and "/site-packages/" not in filename
    return standard or filename.startswith(_TORCH) or filename in ("<built-in>", "<frozen abc>", "<frozen _collections_abc>")


def is_silent(module: str) -> bool:
    """True if the module's functions depend only on their arguments and on what each Fingerprint holds from the
    start."""
    return module in _SILENT or module == "torch" or module.startswith(("torch.", "typing."))


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


@functools.cache
def releases() -> tuple:
    """The releases that identify known code: of Python, PyTorch, ONNX and this package."""
    package = hashlib.sha256()
    # The whole package's: a build's folder has links, which rglob() does not follow.
    folder = pathlib.Path(caesura.__file__).resolve().parent
    for path in sorted(folder.rglob("*.py")):
        package.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return (sys.version, str(torch.__version__), torch.version.git_version, onnx.__version__, platform.machine(),
            torch.backends.cpu.get_cpu_capability(), package.hexdigest())
