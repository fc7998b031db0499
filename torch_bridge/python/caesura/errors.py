# SPDX-License-Identifier: Apache-2.0
"""The errors and the warning of caesura's own. Wrong arguments are Python's ValueError, KeyError and TypeError."""

from caesura import _core
from caesura.user_code import with_source


class Error(RuntimeError):
    """The base of Suspended, RankFailure, StepRefused and StrictError.

    Example::

        try:
            loss = step(inputs, targets)
        except caesura.Error as error:
            print(type(error).__name__, error)
    """

    __slots__ = ()  # laid out as RuntimeError is, so that errors of the extension can derive from it


Suspended: type[Error] = _core.Suspended  # type: ignore[attr-defined]
RankFailure: type[Error] = _core.RankFailure  # type: ignore[attr-defined]
for _error in (Suspended, RankFailure):  # the extension makes them before there is an Error
    _error.__bases__ = (Error,)


class StepRefused(Error):
    """Raised if a step cannot be one program. The message names the reason and the line of your code; nothing has
    changed. If an error within the capture ended it that neither you nor this package foresaw, that error is its __cause__.

    Example::

        try:
            loss = step(inputs, targets)
        except caesura.StepRefused as error:
            print(error)
    """

    def __init__(self, message: str) -> None:
        super().__init__(with_source(message))


class StrictError(Error):
    """Raised within strict() in place of a fallback to PyTorch, and where a part of caesura is not used.

    Example::

        try:
            with caesura.strict():
                model(inputs)
        except caesura.StrictError as error:
            print(error)                                          # lists the ops, the reasons and the lines
    """


class FallbackWarning(UserWarning):
    """Warns that something is left to PyTorch, or that a part of caesura is not used, once for each cause; it points at the
    line of your code.

    Example::

        warnings.simplefilter("error", caesura.FallbackWarning)   # or: with caesura.strict(): ...
    """
