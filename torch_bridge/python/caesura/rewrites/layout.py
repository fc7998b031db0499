# SPDX-License-Identifier: Apache-2.0
"""Memory layouts: our values are dense, while PyTorch's may be transposed (channels_last).

A value gets a copy in PyTorch's layout if a user sees it, or if a call depends on its layout.
"""

import torch

from caesura.rewrites.fx_meta import is_static, makes_view

aten = torch.ops.aten
_CALLS = (aten.as_strided.default, aten.as_strided_scatter.default)


def lay_arguments(graph: torch.fx.Graph, past_views: bool) -> list:
    """Gives as_strided calls arguments that lie in memory as in the trace. past_views: whether to lay what such an argument is a
    view of. Returns the calls for which that is impossible, because their base is a part of a larger tensor."""
    left = []
    for node in [n for call in _CALLS for n in graph.find_nodes(op="call_function", target=call)]:
        base, given = node.args[0], node.args[0].meta["val"]
        while past_views and makes_view(base) and node.target == _CALLS[0]:
            if base.args[0].meta["val"].dtype != given.dtype:  # a complex value by its parts
                break
            base = base.args[0]
        x = base.meta["val"]
        is_laid = x.is_contiguous() and x.storage_offset() == 0
        if is_laid and base is node.args[0]:
            continue
        order = memory_order(x) if is_static((*given.stride(), given.storage_offset())) else None
        if order is None:
            left.append(node)
            continue
        with graph.inserting_before(node):
            dense = base if is_laid else _dense(graph, base, order)
        sizes = node.args[1:]
        if len(sizes) == (2 if node.target == _CALLS[0] else 3):
            sizes = (*sizes, given.storage_offset())
        with graph.inserting_before(node):
            made = call(graph, node, node.target, dense, *sizes)
            if node.target == _CALLS[1]:
                made = back(graph, made, order)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    return left


def lay_results(graph: torch.fx.Graph, first: int, last: int, eager=()):
    """Gives the outputs from `first` to `last` the memory layout of the trace; views of one tensor stay views of one tensor. eager:
    tensors without values that lie as eager's results, None for views. What was written to lies otherwise in a functional trace."""
    output = next(n for n in graph.nodes if n.op == "output")
    results, laid = list(output.args[0]), {}
    for i, node in list(enumerate(results))[first:last]:
        chain = [node]
        while isinstance(chain[-1], torch.fx.Node) and makes_view(chain[-1]):
            chain.append(chain[-1].args[0])
        base = chain.pop()
        x = base.meta.get("val") if isinstance(base, torch.fx.Node) and base.op == "call_function" else None
        order = memory_order(x) if isinstance(x, torch.Tensor) else None
        if order is None or order == list(range(x.dim())):
            continue
        with graph.inserting_before(output):
            if base not in laid:
                laid[base] = back(graph, _dense(graph, base, order), order)
            for view in reversed(chain):
                if view not in laid:
                    laid[view] = graph.node_copy(view, lambda n: laid.get(n, n))
        results[i] = laid[node]
    for i, like in enumerate(eager, first):
        if like is None:
            continue
        node, strides = results[i], _hints(like.stride())
        made = node.meta["val"] if isinstance(node, torch.fx.Node) else like
        moved = any(a != b for a, b, size in zip(_hints(made.stride()), strides, _hints(like.shape)) if size != 1)
        order = memory_order(like) if moved and made.shape == like.shape else None
        if order is not None:
            with graph.inserting_before(output):
                results[i] = back(graph, _dense(graph, node, order), order)
    output.args = (type(output.args[0])(results),)


def as_traced(graph, node, source):
    """An input for a call `node` that depends on the layout of `source`: a copy with the axes in memory as in the
    trace, or `source` itself if its axes lie in order or one element stands for several."""
    x = source.meta["val"]
    sizes, strides = _hints(x.shape), _hints(x.stride())
    if None in (*sizes, *strides):
        return source
    order = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    moving = [axis for axis in order if sizes[axis] != 1]
    if moving == sorted(moving) or 0 in [strides[axis] for axis in moving]:
        return source
    with graph.inserting_before(node):
        return back(graph, _dense(graph, source, order), order)


def _hints(sizes) -> list:
    """Sizes as they were when the graph was captured; None for one that is known only at run time."""
    return [d if isinstance(d, int) else d.node.hint for d in sizes]


def memory_order(x):
    """The axes from the outermost in memory to the innermost; None if x is a part of a tensor, or sizes depend on values."""
    if x.layout != torch.strided:
        return None
    sizes, strides, offset = _hints(x.shape), _hints(x.stride()), _hints([x.storage_offset()])
    if None in (*sizes, *strides) or offset != [0]:
        return None
    order, step = sorted(range(x.dim()), key=lambda axis: -strides[axis]), 1
    for axis in reversed(order):
        if sizes[axis] != 1 and strides[axis] != step and 0 not in sizes:
            return None
        step *= sizes[axis]
    return order


def _dense(graph, node, order):
    return call(graph, node, aten.clone.default, call(graph, node, aten.permute.default, node, order),
                 memory_format=torch.contiguous_format)


def back(graph, node, order):
    """A view of `node`, whose axes are those in `order`, with the axes in their own order."""
    return call(graph, node, aten.permute.default, node, [order.index(axis) for axis in range(len(order))])


def call(graph, like, target, *args, **kwargs):
    """A call that stands for `like`, or for a part of it, with its metadata."""
    made = graph.call_function(target, args, kwargs)
    values = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    made.meta = {**like.meta, "val": target(*values[0], **values[1])}
    return made
