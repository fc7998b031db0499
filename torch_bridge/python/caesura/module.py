# SPDX-License-Identifier: Apache-2.0
"""caesura.wrap: a PyTorch module that trains through caesura."""

import copy

import torch

from caesura.backend import backend as torch_backend


class _Wrapped:
    """What wrap() adds to a module's class; the class itself holds what belongs to one wrapped module."""

    _original = None
    _compiled = None

    def __call__(self, *args, **kwargs):
        return type(self)._compiled(*args, **kwargs)

    def __deepcopy__(self, memo):
        return wrap(copy.deepcopy(type(self)._original, memo))

    def __reduce__(self):
        return wrap, (type(self)._original,)


def wrap(module: torch.nn.Module, *, dynamic=None) -> torch.nn.Module:
    """`module` as a module whose forward and backward run in caesura; an instance of the module's own class.

        model = caesura.wrap(model)
        loss = model(input_ids, labels=labels).loss
        loss.backward()

    The wrapped module and the original share everything (parameters, buffers, attributes, hooks, training mode): what
    changes in one has changed in the other. The original still runs in PyTorch. state_dict() has the original's names.
    Graphs are captured at the first call, and again for inputs whose dtypes, devices, ranks or non-tensor values no graph
    was captured for; a size that changes becomes a symbol (dynamic=None), is one from the start (True), or never is (False).

    Calls that caesura has no kernel for stay with PyTorch, with a FallbackWarning; caesura.strict() forbids them,
    caesura.report() counts them. Thread safety: that of the module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"wrap() takes a torch.nn.Module, got {type(module).__name__}")
    if isinstance(module, _Wrapped):
        return module

    def call(*args, **kwargs):
        return module._call_impl(*args, **kwargs)

    # Graphs of its own: PyTorch counts them by code, and all modules share this one.
    compiled = torch.compile(call, backend=torch_backend, dynamic=dynamic, recompile_limit=64, isolate_recompiles=True)
    cls = type(type(module).__name__, (_Wrapped, type(module)), {
        "_original": module, "_compiled": staticmethod(compiled),
        "__module__": type(module).__module__, "__doc__": type(module).__doc__,
    })
    wrapped = object.__new__(cls)
    wrapped.__dict__ = module.__dict__
    return wrapped
