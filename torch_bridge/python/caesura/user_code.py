# SPDX-License-Identifier: Apache-2.0
"""Which lines are the user's: those outside of PyTorch and of this package."""

import os
import sys

import torch

_OTHERS = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))


def is_users(filename: str) -> bool:
    return not filename.startswith((*_OTHERS, "<"))


def calling_line() -> tuple:
    """(file, line, function) of the user's that runs now; of the outermost frame where none is the user's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
