# SPDX-License-Identifier: Apache-2.0
"""opt_einsum's contractions in captures, and tensorly's that call it: the order of the products is found while Dynamo traces."""

import inspect
import sys

from caesura.capture.compat import ConstantVariable, TensorVariable, UserFunctionVariable, VariableTracker, optimization_hint


class _Path(UserFunctionVariable):
    """opt_einsum's contract_path() in a trace: the order is that of the traced sizes, and gives the same results at others."""

    def call_function(self, tx, args, kwargs):
        equation, *operands = (a.realize() for a in args)
        options = {name: a.as_python_constant() for name, a in kwargs.items() if a.is_python_constant()}
        if not (equation.is_python_constant() and all(isinstance(a, TensorVariable) for a in operands) and len(options) == len(kwargs)
                and options.get("einsum_call")):
            return super().call_function(tx, args, kwargs)
        sizes = [[optimization_hint(d, 2) for d in a.as_proxy().node.meta["example_value"].shape] for a in operands]
        _, steps = self.fn(equation.as_python_constant(), *sizes, shapes=True, **options)
        return VariableTracker.build(tx, (operands, steps))


class _Einsum(UserFunctionVariable):
    """tensorly's einsum by opt_einsum, which keeps what it has found for each size: a trace finds it anew."""

    def call_function(self, tx, args, kwargs):
        found = inspect.getclosurevars(self.fn).nonlocals
        options = {"optimize": ConstantVariable.create(found["optimize"])} if isinstance(found["optimize"], str) else {}
        return UserFunctionVariable(found["oe"].contract).call_function(tx, args, options)


def _library_of(x):
    return type(x).__module__.split(".")[0]


def _not_sharing():
    """Returns False: a captured contraction shares no intermediate results with later ones."""
    return False


def functions():
    """Returns the functions that Dynamo traces in place of opt_einsum's; none if opt_einsum is not imported."""
    contract = sys.modules.get("opt_einsum.contract")
    if contract is None:
        return {}
    backends = contract.backends
    for name in ("einsum", "tensordot", "transpose"):  # the first of which imports PyTorch
        backends.get_func(name, "torch")
    backends.has_einsum("torch"), backends.has_tensordot("torch")
    backends.get_func("einsum", "torch").__globals__["_get_torch_and_device"]()
    return {contract.infer_backend: _library_of, contract.sharing.currently_sharing: _not_sharing}


def kinds():
    """Returns the variable classes by which Dynamo handles functions of opt_einsum and tensorly; none if they are not imported."""
    contract, tensorly = sys.modules.get("opt_einsum.contract"), sys.modules.get("tensorly.backend")
    found = {} if contract is None else {contract.contract_path: _Path}
    einsum = getattr(tensorly and tensorly.BackendManager.current_backend(), "einsum", None)
    if getattr(einsum, "__qualname__", None) == "use_opt_einsum.<locals>.cached_einsum":
        found[einsum] = _Einsum
    return found
