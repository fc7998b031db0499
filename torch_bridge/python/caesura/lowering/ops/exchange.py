# SPDX-License-Identifier: Apache-2.0
"""Lowers the exchanges of parallelized modules (torch.ops._c10d_functional) to exchanges of a step's ranks.

The ops, their shapes and gradients: core/ops/collectives/ops.cc.
"""

import torch

from caesura.lowering.onnx_builder import DOMAIN
from caesura.lowering.registry import Refused
from caesura.rewrites.fx_meta import result

_ELSEWHERE = "write caesura.wrap(module) and a loop of your own"


def is_exchange(node: torch.fx.Node) -> bool:
    """True for a call that exchanges values between ranks."""
    return node.op == "call_function" and getattr(node.target, "namespace", None) == "_c10d_functional"


def write_exchange(groups: dict, w, node, x, *arguments):
    """Writes one call. groups: the size of each process group of the step's ranks, by name; no other may exchange."""
    call = node.target.overloadpacket.__name__
    if call == "wait_tensor":  # our exchanges have ended when their nodes have run
        return x
    if call not in _EXCHANGES:
        raise Refused(f"a step has no such exchange: {_ELSEWHERE}")
    *options, group = arguments
    if group not in groups:
        raise Refused(f"it is among other ranks than the step's (group '{group}'): {_ELSEWHERE}")
    return x if groups[group] == 1 else _EXCHANGES[call](w, node, x, groups[group], *options)


def _all_reduce(w, node, x, ranks, operation):
    return _summed(w, node, "AllReduce", x, ranks, operation)


def _reduce_scatter(w, node, x, ranks, operation, _):
    return _summed(w, node, "ReduceScatter", x, ranks, operation)


def _summed(w, node, op_type, x, ranks, operation):
    if operation not in ("sum", "avg") or (operation == "avg" and not x.dtype.is_floating_point):
        raise Refused(f"a step sums and averages floats, and this is '{operation}' of {x.dtype}: {_ELSEWHERE}")
    total = w.make(op_type, [x], *result(node), domain=DOMAIN, ranks=ranks)
    return total if operation == "sum" else w.make("Div", [total, w.constant(ranks, x.dtype)], total.dtype, total.shape)


def _all_gather(w, node, x, ranks, _):
    return w.make("AllGather", [x], *result(node), domain=DOMAIN, ranks=ranks)


def _all_to_all(w, node, x, ranks, given, taken):
    if len(set(map(int, (*given, *taken)))) > 1:
        raise Refused(f"ranks give each other unequally many rows: {_ELSEWHERE}")
    return w.make("AllToAll", [x], *result(node), domain=DOMAIN, ranks=ranks)


_EXCHANGES = {"all_reduce": _all_reduce, "reduce_scatter_tensor": _reduce_scatter, "all_gather_into_tensor": _all_gather,
              "all_to_all_single": _all_to_all}
