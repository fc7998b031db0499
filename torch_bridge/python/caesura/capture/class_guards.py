# SPDX-License-Identifier: Apache-2.0
"""Guards for changes after a capture that Dynamo's guards do not check: functions of classes (`Layer.forward = ...`),
and hooks of all modules."""

import torch

from caesura import _core
from caesura.capture.compat import global_hooks


class Classes:
    """A snapshot of the classes of a module and its parts, of torch.Tensor, and of global module hooks."""

    def __init__(self, module):
        kinds = {type(part) for part in module.modules()} | {torch.Tensor}
        self._functions = {cls: _functions(cls) for kind in kinds for cls in kind.__mro__[:-1]}
        self._hooks = list(map(len, global_hooks()))
        self._begin()

    def _begin(self):
        self._watch = _core.Watch()
        for cls in self._functions:
            self._watch.class_(cls)
        for hooks in global_hooks():
            self._watch.length(hooks)

    def unchanged(self) -> bool:
        """True if the functions and hooks are unchanged. The check is cheap until an attribute of a class has
        changed."""
        if self._watch.unchanged():
            return True
        if self._hooks != list(map(len, global_hooks())):
            return False
        for cls, functions in self._functions.items():
            now = _functions(cls)
            if now.keys() != functions.keys() or any(now[name] is not function for name, function in functions.items()):
                return False
        self._begin()  # a number of a class, which dynamo looks at
        return True


def _functions(cls) -> dict:
    """The class's attributes that are callable or descriptors, by name."""
    return {name: value for name, value in vars(cls).items() if callable(value) or hasattr(type(value), "__get__")}
