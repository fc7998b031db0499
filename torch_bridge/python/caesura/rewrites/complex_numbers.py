# SPDX-License-Identifier: Apache-2.0
"""Rewrites complex numbers as pairs of real numbers, which our kernels can compute.

Linear calls and products are rewritten. PyTorch runs the other calls (FFTs, magnitudes) on complex tensors: the pairs
are joined before such a call, and its result is split after the call if a pair is needed.
"""

import collections
import functools
from unittest import mock

import torch

from caesura.capture.compat import detect_fake_mode, make_fx, tree_leaves, tree_map
from caesura.rewrites.fx_meta import storage_of

aten = torch.ops.aten
# Calls that apply to the real and the imaginary part separately. The first argument is complex: a tensor, or a list of
# them.
_EACH = {
    aten.alias, aten.cat, aten.clone, aten.cumsum, aten.detach, aten.diagonal, aten.empty_like, aten.expand, aten.flip,
    aten.gather, aten.index, aten.index_select, aten.mean, aten.neg, aten._neg_view, aten.new_zeros, aten.permute, aten.repeat,
    aten.resolve_conj, aten.resolve_neg, aten.roll, aten.select, aten.select_backward, aten.slice, aten.slice_backward,
    aten.split, aten.split_with_sizes, aten.squeeze, aten.stack, aten.sum, aten.t, aten.transpose, aten.tril, aten.triu,
    aten.unbind, aten.unsqueeze, aten.view, aten._unsafe_view, aten.reshape, aten.zeros_like,
}
# Calls that write values into others, or select among several, with the positions of the arguments that are values.
_PUTS = {
    aten.constant_pad_nd: (0, 2), aten.copy: (0, 1), aten.diagonal_scatter: (0, 1), aten.index_add: (0, 3), aten.index_copy: (0, 3),
    aten.index_put: (0, 2), aten.masked_fill: (0, 2), aten.scatter: (0, 3), aten.scatter_add: (0, 3), aten.select_scatter: (0, 1),
    aten.slice_scatter: (0, 1), aten.where: (1, 2),
}
_FILLS = {aten.full, aten.full_like}
_CONJUGATES = {aten._conj, aten.conj_physical, aten._conj_physical}
_SUMS = {aten.add, aten.sub}
_PRODUCTS = {aten.mul, aten.mm, aten.bmm}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def has_complex(node: torch.fx.Node) -> bool:
    """True if the node is, makes or reads complex tensors."""
    return any(_is_complex(value) for n in (node, *node.all_input_nodes) for value in tree_leaves(n.meta.get("val")))


def share_complex(results) -> bool:
    """True if one of the nodes is a complex tensor whose memory another one shares, which pairs would not."""
    held = collections.Counter(map(storage_of, {n for n in results if isinstance(n, torch.fx.Node)}))
    return any(isinstance(n, torch.fx.Node) and has_complex(n) and held[storage_of(n)] > 1 for n in results)


def in_pairs(module: torch.fx.GraphModule, real_inputs=False) -> torch.fx.GraphModule:
    """Rewrites a graph of ATen calls so that complex values are pairs; a graph without complex values is unchanged.

    real_inputs: complex inputs are given as torch.view_as_real(input); otherwise as they are. Results keep their types.
    """
    if not any(map(has_complex, module.graph.nodes)):
        return module
    values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]

    def run(*arguments):
        pairs = [a if not _is_complex(v) else _Pair(*a.unbind(-1)) if real_inputs else _Joined(a)
                 for a, v in zip(arguments, values)]
        return tree_map(_joined, _Interpreter(module).run(*pairs))

    fake = detect_fake_mode(values)
    with fake, mock.patch.object(fake, "allow_non_fake_inputs", True), torch.fx.traceback.preserve_node_meta():
        given = [torch.empty_like(v) if _is_complex(v) else v for v in values]  # nothing that is to be conjugated later
        made = make_fx(run)(*(torch.view_as_real(v) if real_inputs and _is_complex(v) else v for v in given))
    made.graph.eliminate_dead_code()
    for node in made.graph.find_nodes(op="call_function", target=aten.view_as_real.default):
        if node.args[0].op == "placeholder":  # what comes in may be such
            with made.graph.inserting_before(node):
                resolved = made.graph.call_function(aten.resolve_conj.default, node.args)
            resolved.meta = dict(node.args[0].meta)
            node.args = (resolved,)
    return made


class _Pair:
    """A complex value as its real and imaginary part."""

    def __init__(self, re, im):
        self.re, self.im = re, im

    dtype = property(lambda self: {real: dtype for dtype, real in _REAL.items()}[self.re.dtype])

    @functools.cached_property
    def joined(self):
        re, im = torch.broadcast_tensors(self.re, self.im)
        return torch.view_as_complex(torch.stack([re, im], -1))


class _Joined(_Pair):
    """A complex value from PyTorch, which is split when its parts are first read."""

    def __init__(self, value):
        self.joined = value

    @functools.cached_property
    def _parts(self):
        return torch.view_as_real(self.joined).unbind(-1)

    re = property(lambda self: self._parts[0])
    im = property(lambda self: self._parts[1])


class _Interpreter(torch.fx.Interpreter):
    def call_function(self, target, args, kwargs):
        packet = getattr(target, "overloadpacket", None)
        if target is aten.view.default:
            target = aten.reshape.default  # strides may have become others than those that were traced
        if packet is aten.view_as_complex:
            return _Pair(*args[0].unbind(-1))
        if packet is aten.complex:
            return _Pair(*args)
        if packet in _CONJUGATES and isinstance(args[0], complex):
            return args[0].conjugate()
        if kwargs.get("dtype") in _REAL or any(map(_is_imaginary, tree_leaves((args, kwargs)))):
            made = _by_parts(target, packet, args, kwargs)
            if made is not None:
                return made
        args, kwargs = tree_map(_joined, (args, kwargs))
        return tree_map(lambda value: _Joined(value) if _is_complex(value) else value, target(*args, **kwargs))


def _by_parts(target, packet, args, kwargs):
    """The call's result from the parts of its arguments; None if there is no rule for the call."""
    first = args[0] if args else None
    if packet in _EACH:
        if not all(isinstance(value, _Pair) for value in (first if isinstance(first, (list, tuple)) else [first])):
            return None
        if kwargs.get("dtype") is not None:
            if kwargs["dtype"] not in _REAL:
                return None
            kwargs = {**kwargs, "dtype": _REAL[kwargs["dtype"]]}
        re, im = (target(_part(first, part), *args[1:], **kwargs) for part in ("re", "im"))
        return _Pair(re, im) if isinstance(re, torch.Tensor) else [_Pair(*parts) for parts in zip(re, im)]
    if packet in _FILLS:
        dtype = kwargs.get("dtype") or getattr(first, "dtype", None)
        if dtype not in _REAL:
            return None
        kwargs, like = {**kwargs, "dtype": _REAL[dtype]}, first.re if isinstance(first, _Pair) else first
        return _Pair(*(target(like, getattr(args[1], part), **kwargs) for part in ("real", "imag")))
    if packet in _PUTS:
        places = [i for i in _PUTS[packet] if i < len(args)]
        if packet is not aten.where and not isinstance(first, _Pair):
            return None
        pairs = {i: _pair(args[i]) for i in places}
        return _Pair(*(target(*(getattr(pairs[i], part) if i in pairs else a for i, a in enumerate(args)), **kwargs)
                       for part in ("re", "im")))
    if packet is aten.view_as_real:
        return torch.stack(torch.broadcast_tensors(first.re, first.im), -1)
    if packet in _CONJUGATES:
        return _Pair(first.re, -first.im)
    if packet is aten._to_copy:
        dtype, first = kwargs.get("dtype"), _pair(first)
        if dtype is not None and not dtype.is_complex:
            return target(first.re, **kwargs)
        if dtype is not None and dtype not in _REAL:
            return None
        kwargs = {**kwargs, "dtype": _REAL.get(dtype)}
        return _Pair(target(first.re, **kwargs), target(first.im, **kwargs))
    if packet in _SUMS and len(args) == 2 and not kwargs:
        a, b = map(_pair, args)
        return _Pair(target(a.re, b.re), target(a.im, b.im))
    if packet in _PRODUCTS and not kwargs:
        a, b = (_pair(value) if _is_imaginary(value) else value for value in args)
        if not _is_imaginary(a):
            return _Pair(target(a, b.re), target(a, b.im))
        if not _is_imaginary(b):
            return _Pair(target(a.re, b), target(a.im, b))
        return _Pair(target(a.re, b.re) - target(a.im, b.im), target(a.re, b.im) + target(a.im, b.re))
    if packet is aten.div and len(args) == 2 and not kwargs and isinstance(first, _Pair) and not _is_imaginary(args[1]):
        return _Pair(target(first.re, args[1]), target(first.im, args[1]))
    return None


def _is_complex(value):
    return isinstance(value, torch.Tensor) and value.dtype in _REAL


def _is_imaginary(value):
    return isinstance(value, (_Pair, complex))


def _part(value, name):
    return [getattr(v, name) for v in value] if isinstance(value, (list, tuple)) else getattr(value, name)


def _pair(value):
    if isinstance(value, (_Pair, torch.Tensor)):
        return value if isinstance(value, _Pair) else _Pair(value, torch.zeros_like(value))
    return _Pair(value.real, value.imag)


def _joined(value):
    return value.joined if isinstance(value, _Pair) else value
