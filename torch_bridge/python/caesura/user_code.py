# SPDX-License-Identifier: Apache-2.0
"""Finds the user's lines: code outside of PyTorch, this package and Python's standard library."""

import contextlib
import importlib.util
import linecache
import os
import re
import sys

_TORCH = importlib.util.find_spec("torch")  # None where only ONNX models are run
_OTHERS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (_TORCH and _TORCH.origin, __file__) if path)
_PYTHONS = os.path.dirname(contextlib.__file__) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"
FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)  # of a traceback: file, line, function
_PLACE = re.compile(r"\(at (.+):(\d+) in .+\)$", re.MULTILINE)


def is_users(filename: str) -> bool:
    return not filename.startswith((*_OTHERS, "<")) and (is_installed(filename) or not filename.startswith(_PYTHONS))


def is_package(filename: str) -> bool:
    """True if the file is one of this package's."""
    return filename.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep)


def is_installed(filename: str) -> bool:
    """True if the file belongs to an installed package, not to the user."""
    return _PACKAGES in filename


def calling_line() -> tuple:
    """(file, line, function) of the user's line that runs now; of the outermost frame if none is the user's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def with_source(text: str) -> str:
    """`text`, with the source below each of its lines that ends with a place, "(at model.py:12 in forward)"."""
    def shown(found):
        source = linecache.getline(found[1], int(found[2])).strip()
        return f"{found[0]}\n    {source}" if source else found[0]
    return _PLACE.sub(shown, text)
