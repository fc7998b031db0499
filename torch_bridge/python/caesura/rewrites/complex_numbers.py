# SPDX-License-Identifier: Apache-2.0
"""Rewrites complex numbers as pairs of real numbers, which our kernels can compute.

Linear calls and products are rewritten. PyTorch runs the other calls (FFTs, magnitudes) on complex tensors, whose memory holds
the pairs side by side. Calls that only move such values move the pairs: the two parts become tensors of their own where
arithmetic asks for them.
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
_MATRIX_PRODUCTS = {aten.mm, aten.bmm}
_PRODUCTS = {aten.mul} | _MATRIX_PRODUCTS
_SCALES = {aten.mul, aten.div}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: dtype for dtype, real in _REAL.items()}


def _axes(rank, axes, *rest):
    return None if axes is None or axes == [] else ([a % rank for a in axes] if isinstance(axes, (list, tuple)) else axes % rank, *rest)


def _more(size):
    return lambda rank, sizes, *rest: ([*sizes, size], *rest)


# Calls that move whole pairs: for each what its arguments after the first become where the tensor has one more axis, of two numbers,
# after its `rank` axes; None where they mean all axes.
_MOVES = {
    aten.cat: lambda rank, axis=0: _axes(rank, axis),
    aten.expand: _more(2),
    aten.flip: _axes,
    aten.index_select: _axes,
    aten.mean: lambda rank, axes=None, *rest: _axes(rank, axes, *rest),
    aten.new_empty_strided: lambda rank, sizes, strides: ([*sizes, 2], [*(2 * s for s in strides), 1]),
    aten.new_zeros: _more(2),
    aten.permute: lambda rank, axes: ([*(a % rank for a in axes), rank],),
    aten.repeat: _more(1),
    aten.reshape: _more(2),
    aten.roll: lambda rank, shifts, axes=(): (shifts, [a % rank for a in axes]) if axes else None,
    aten.select: _axes,
    aten.select_backward: lambda rank, sizes, axis, *rest: ([*sizes, 2], axis % len(sizes), *rest),
    aten.slice: lambda rank, axis=0, *rest: _axes(rank, axis, *rest),
    aten.slice_backward: lambda rank, sizes, axis, *rest: ([*sizes, 2], axis % len(sizes), *rest),
    aten.squeeze: lambda rank, *axes: _axes(rank, *axes) if axes else (),
    aten.sum: lambda rank, axes=None, *rest: _axes(rank, axes, *rest),
    aten.transpose: lambda rank, a, b: (a % rank, b % rank),
    aten.unsqueeze: lambda rank, axis: (axis % (rank + 1),),
    aten.view: _more(2),
    aten._unsafe_view: _more(2),
} | dict.fromkeys((aten.alias, aten.clone, aten.detach, aten.empty_like, aten.neg, aten.resolve_conj, aten._to_copy, aten.zeros_like),
                  lambda rank: ())
# The same of calls of two values, for their arguments after these.
_MOVES_OF_TWO = {
    aten.add: lambda rank: (),
    aten.copy: lambda rank: (),
    aten.select_scatter: _axes,
    aten.slice_scatter: lambda rank, axis=0, *rest: _axes(rank, axis, *rest),
    aten.sub: lambda rank: (),
}


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
        pairs = [a if not _is_complex(v) else _Woven(a) if real_inputs else _Joined(a) for a, v in zip(arguments, values)]
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

    dtype = property(lambda self: _COMPLEX[self.re.dtype])
    conjugate = property(lambda self: _Pair(self.re, -self.im))

    @functools.cached_property
    def woven(self):
        """A real tensor with one more axis, of the two parts."""
        return torch.stack(torch.broadcast_tensors(self.re, self.im), -1)

    @functools.cached_property
    def joined(self):
        pairs = self.woven
        return torch.view_as_complex(pairs if pairs.stride(-1) == 1 else pairs.contiguous())


class _Woven(_Pair):
    """A complex value whose parts lie side by side, `pairs`[..., 2], or the conjugate of that. They become tensors of their own when
    they are first read."""

    def __init__(self, pairs, conjugated=False):
        self.pairs, self.conjugated = pairs, conjugated

    dtype = property(lambda self: _COMPLEX[self.pairs.dtype])
    conjugate = property(lambda self: _Woven(self.pairs, not self.conjugated))

    @functools.cached_property
    def _parts(self):
        return self.pairs.unbind(-1)

    @functools.cached_property
    def im(self):
        return -self._parts[1] if self.conjugated else self._parts[1]

    re = property(lambda self: self._parts[0])
    woven = property(lambda self: torch.stack([self.re, self.im], -1) if self.conjugated else self.pairs)


class _Joined(_Woven):
    """A complex value from PyTorch."""

    def __init__(self, value):
        self.joined, self.conjugated = value, False

    dtype = property(lambda self: self.joined.dtype)

    @functools.cached_property
    def pairs(self):
        return torch.view_as_real(self.joined)


class _Interpreter(torch.fx.Interpreter):
    def call_function(self, target, args, kwargs):
        packet = getattr(target, "overloadpacket", None)
        if target is aten.view.default:
            target = aten.reshape.default  # strides may have become others than those that were traced
        if packet is aten.view_as_complex:
            return _Woven(args[0])
        if packet is aten.complex:
            return _Pair(*args)
        if packet in _CONJUGATES and isinstance(args[0], complex):
            return args[0].conjugate()
        if kwargs.get("dtype") in _REAL or target is not aten.view.dtype and any(map(_is_imaginary, tree_leaves((args, kwargs)))):
            made = _by_pairs(target, packet, args, kwargs) or _by_parts(target, packet, args, kwargs)
            if made is not None:
                return made
        args, kwargs = tree_map(_joined, (args, kwargs))
        return tree_map(lambda value: _Joined(value) if _is_complex(value) else value, target(*args, **kwargs))


def _by_pairs(target, packet, args, kwargs):
    """The call's result from whole pairs; None if its arguments are not woven, or if there is no such rule for the call."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        if dtype not in _REAL:
            return None
        kwargs = {**kwargs, "dtype": _REAL[dtype]}
    if packet is aten.zeros:
        return _Woven(target([*args[0], 2], **kwargs))
    if packet in _MATRIX_PRODUCTS and all(isinstance(a, _Pair) for a in args):
        return _product(target, *args)
    if packet in _SCALES:
        return _scaled(target, *args) if len(args) == 2 and not kwargs else None
    if packet in _SUMS and kwargs:
        return None
    rule, count = (_MOVES_OF_TWO[packet], 2) if packet in _MOVES_OF_TWO else (_MOVES.get(packet), 1)
    values, rest = (args[0], args[1:]) if packet is aten.cat else (args[:count], args[count:])
    if packet in _PUTS and count == 2 and type(values[1]) is _Pair:
        values = [values[0], _Woven(values[1].woven)]
    if not all(isinstance(value, _Woven) for value in values) or len({(v.conjugated, v.dtype) for v in values}) > 1:
        return None
    rank = values[0].pairs.dim() - 1
    if packet is aten.cat and any(v.pairs.dim() != rank + 1 for v in values):  # one without elements, of any rank
        return None
    if rule is None or not rank or kwargs.get("memory_format") in (torch.channels_last, torch.channels_last_3d):
        return None
    more = rule(rank, *rest)
    if more is None:
        return None
    pairs = [value.pairs for value in values]
    return _Woven(target(*([pairs] if packet is aten.cat else pairs), *more, **kwargs), values[0].conjugated)


def _scaled(target, a, b):
    """A woven value times or over a real number or tensor; None for other arguments."""
    if not isinstance(a, _Woven) and target.overloadpacket is aten.mul:
        a, b = b, a
    if not isinstance(a, _Woven) or _is_imaginary(b) or a.pairs.dim() == 1:
        return None
    return _Woven(target(a.pairs, b.unsqueeze(-1) if isinstance(b, torch.Tensor) and b.dim() else b), a.conjugated)


def _product(target, a, b):
    """A matrix product of two complex values: one product of the rows of a's parts with whole pairs of b."""
    if isinstance(b, _Woven) and b.conjugated:
        return _product(target, a.conjugate, b.conjugate).conjugate
    m, n = a.re.shape[-2], b.woven.shape[-2]
    both = target(torch.cat([a.re, a.im], -2), b.woven.flatten(-2)).unflatten(-1, (n, 2))
    (re_re, re_im), (im_re, im_im) = (both.narrow(-3, first, m).unbind(-1) for first in (0, m))
    return _Woven(torch.stack([re_re - im_im, re_im + im_re], -1))


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
        return first.woven
    if packet in _CONJUGATES:
        return first.conjugate
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
