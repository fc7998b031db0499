# SPDX-License-Identifier: Apache-2.0
"""nn.LSTM, nn.GRU and nn.RNN in captured graphs.

PyTorch's call is of all layers at once, and AOTAutograd would take it apart into the calls of every step. Here it is an operator
a layer and direction, with a derivative: caesura::recurrent and caesura::recurrent_backward, which lowering/ops/recurrent.py says in our
ops. Weights have PyTorch's layout. Sequences are [steps, batch, features].
"""

import torch

from caesura.capture.compat import VF

F = torch.nn.functional

# Gates, fields of the trace beside them, and whether there is a cell.
KINDS = {"lstm": (4, 4, True), "gru": (3, 2, False), "rnn_tanh": (1, 1, False), "rnn_relu": (1, 1, False)}
_FUNCTIONS = {getattr(VF, kind): kind for kind in KINDS}

_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("recurrent(str kind, Tensor x, Tensor w, Tensor r, Tensor? b, Tensor? rb, Tensor h, Tensor? c, bool reverse, "
                "Tensor? lengths=None) -> (Tensor, Tensor, Tensor, Tensor)")
_library.define("recurrent_backward(str kind, Tensor dy, Tensor dh, Tensor? dc, Tensor x, Tensor w, Tensor r, Tensor? b, "
                "Tensor? rb, Tensor h, Tensor? c, Tensor trace, bool reverse, Tensor? lengths=None) "
                "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")


def _like(value, x):
    return x.new_empty(0) if value is None else torch.empty_like(value, memory_format=torch.contiguous_format)


@torch.library.register_fake("caesura::recurrent", lib=_library)
def _(kind, x, w, r, b, rb, h, c, reverse, lengths=None):
    gates, fields, _ = KINDS[kind]
    (steps, batch, _), hidden = x.shape, r.shape[1]
    return (x.new_empty(steps, batch, hidden), _like(h, x), _like(c, x),
            x.new_empty(1, steps * batch * (gates + fields) * hidden))


@torch.library.register_fake("caesura::recurrent_backward", lib=_library)
def _(kind, dy, dh, dc, x, w, r, b, rb, h, c, trace, reverse, lengths=None):
    return tuple(_like(value, x) for value in (x, w, r, b, rb, h, c))


def is_there(lengths, steps):
    """[steps, batch]: whether sequences of such lengths have the step."""
    return torch.arange(steps)[:, None] < lengths


def _turned(x, lengths):
    """The steps of each sequence in the other order."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(len(x))[:, None]
    return x.take_along_dim(torch.where(steps < lengths, lengths - 1 - steps, steps)[:, :, None], 0)


def _layer(kind, x, w, r, b, rb, h, c, reverse, lengths):
    """The layer by PyTorch's own operator: y and the last states."""
    x = _turned(x, lengths) if reverse else x
    hx = h[None] if c is None else (h[None], c[None])
    weights = [w, r] if b is None else [w, r, b, rb]
    function = getattr(VF, kind)
    if lengths is None:
        y, *last = function(x, hx, weights, b is not None, 1, 0.0, False, False, False)
    else:
        data, sizes = torch.ops.aten._pack_padded_sequence(x, lengths, False)
        y, *last = function(data, sizes, hx, weights, b is not None, 1, 0.0, False, False)
        y = torch.ops.aten._pad_packed_sequence(y, sizes, False, 0.0, len(x))[0]
    return (_turned(y, lengths) if reverse else y, *(state[0] for state in last))


# Where a program leaves the call to PyTorch: without a trace, and the forward once more in the backward.
@torch.library.impl("caesura::recurrent", "CPU", lib=_library)
def _(kind, x, w, r, b, rb, h, c, reverse, lengths=None):
    gates, fields, _ = KINDS[kind]
    y, last, *cell = _layer(kind, x, w, r, b, rb, h, c, reverse, lengths)
    trace = x.new_zeros(1, x.shape[0] * x.shape[1] * (gates + fields) * r.shape[1])
    return y.contiguous(), last.clone(), cell[0].clone() if cell else x.new_empty(0), trace


@torch.library.impl("caesura::recurrent_backward", "CPU", lib=_library)
def _(kind, dy, dh, dc, x, w, r, b, rb, h, c, trace, reverse, lengths=None):
    inputs = [None if t is None else t.detach().requires_grad_() for t in (x, w, r, b, rb, h, c)]
    given = [t for t in inputs if t is not None]
    with torch.enable_grad():
        results = _layer(kind, *inputs, reverse, lengths)
    found = iter(torch.autograd.grad(results, given, [dy, dh] if c is None else [dy, dh, dc], allow_unused=True))
    gradients = [x.new_empty(0) if t is None else next(found) for t in inputs]
    return tuple(torch.zeros_like(t) if g is None else g.contiguous() for g, t in zip(gradients, inputs))


def _backward(ctx, dy, dh, dc, _):
    x, w, r, b, rb, h, c, lengths, trace = ctx.saved_tensors
    found = torch.ops.caesura.recurrent_backward(ctx.kind, dy, dh, None if c is None else dc, x, w, r, b, rb, h, c, trace,
                                                 ctx.reverse, lengths)
    return (None, *(None if t is None else g for g, t in zip(found, (x, w, r, b, rb, h, c))), None, None)


def _setup(ctx, inputs, output):
    ctx.kind, *tensors, ctx.reverse, lengths = inputs
    ctx.save_for_backward(*tensors, lengths, output[3])
    ctx.mark_non_differentiable(output[3])


torch.library.register_autograd("caesura::recurrent", _backward, setup_context=_setup, lib=_library)


def _dropped(x, dropout, lengths):
    """Returns F.dropout(x, dropout); with lengths, only the steps that sequences have take random numbers, as packed data does."""
    if lengths is None:
        return F.dropout(x, dropout)
    rows = is_there(lengths, x.size(0)).flatten().nonzero()[:, 0]
    flat = x.flatten(0, 1)
    return torch.zeros_like(flat).index_copy(0, rows, F.dropout(flat[rows], dropout)).view_as(x)


def call_layers(kind, x, hx, weights, has_biases, layers, dropout, training, bidirectional, batch_first, lengths=None):
    """Computes the same as VF.lstm, gru, rnn_tanh and rnn_relu, and of each sequence so many steps as `lengths` says, in decreasing
    order; the steps beyond are 0."""
    directions, states, lasts = 2 if bidirectional else 1, hx if KINDS[kind][2] else (hx,), []
    # Under autocast PyTorch's GRU gives float32, from its state of zeros, the others the dtype of their products.
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") and kind != "gru" else None
    x = x.transpose(0, 1) if batch_first else x
    step = 4 if has_biases else 2
    for layer in range(layers):
        parts = []
        for k in range(layer * directions, (layer + 1) * directions):
            w, r, *biases = weights[k * step:(k + 1) * step]
            h, *c = (state[k].to(w.dtype) for state in states)
            y, *last, _ = torch.ops.caesura.recurrent(kind, x.to(w.dtype), w, r, *(biases or (None, None)), h, c[0] if c else None,
                                                      k % 2 == 1 if bidirectional else False, lengths)
            parts.append(y)
            lasts.append(last[:len(states)])
        x = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
        if layer < layers - 1 and dropout and training:
            x = _dropped(x, dropout, lengths)
    results = [x.transpose(0, 1) if batch_first else x, *(torch.stack(state) for state in zip(*lasts))]
    return tuple(result if dtype is None else result.to(dtype) for result in results)


def _is_layers(node):
    """True if the call takes padded (not packed) sequences and has no projections."""
    if node.op != "call_function" or node.target not in _FUNCTIONS or not isinstance(node.args[2], (list, tuple)):
        return False
    _, _, weights, has_biases, layers, _, _, bidirectional, _ = node.args
    return len(weights) == layers * (2 if bidirectional else 1) * (4 if has_biases else 2)


def by_layers(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph of dynamo's with such calls as operators of ours; the graph itself where it has none."""
    if not any(_is_layers(node) for node in module.graph.nodes):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    module = torch.fx.GraphModule(module, graph)
    for node in module.graph.nodes:
        if _is_layers(node):
            node.args, node.target = (_FUNCTIONS[node.target], *node.args), call_layers
    module.recompile()
    return module
