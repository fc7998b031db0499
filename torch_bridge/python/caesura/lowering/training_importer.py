# SPDX-License-Identifier: Apache-2.0
"""Imports a captured forward as a model to train: training mode switches its ONNX batch norms and dropout on."""

import functools

import torch
from onnx.helper import make_attribute

from caesura import torch_kernels
from caesura.capture.compat import OpOverload, free_unbacked_symbols, symbol_by_values
from caesura.capture.derivatives import derivative, tensors_given
from caesura.capture.rng_inputs import DRAWS, Draw
from caesura.lowering.aten_fallback import aten_node
from caesura.lowering.importer import Importer, arguments_of, value_of, written
from caesura.lowering.onnx_builder import DOMAIN, Scalar, Tensor, Writer, make_model, onnx_type
from caesura.lowering.ops.exchange import is_exchange, write_exchange
from caesura.lowering.ops.gradient_conventions import CONVENTIONS, derived, detach
from caesura.lowering.ops.loss import with_ignored
from caesura.lowering.ops.normalization import fixed_batch_norm
from caesura.lowering.registry import TABLE, Refused, aten
from caesura.reports import fall_back
from caesura.rewrites import autograd_function
from caesura.rewrites.complex_numbers import has_complex
from caesura.rewrites.fx_meta import describe, is_read, is_symbolic, plain, result
from caesura.rewrites.stop_gradient import stop_at_cuts


def leaves_statistics(node, written: dict) -> bool:
    """True if a batch norm reads its running statistics as they were before the step, and what it makes of them is only left
    there: a training session does that by itself. written: each input that is written to, and what it becomes."""
    if node.target != aten._native_batch_norm_legit_functional.default or is_read(node, 1) or is_read(node, 2):
        return False
    if node.args[3].meta["val"].dtype == torch.float64:  # epsilon and momentum, as attributes, would be rounded to float32
        return False
    news = [next((user for user in node.users if user.args[1] == i), None) for i in (3, 4)]
    return all(new is not None and written.get(node.args[i]) is new and all(reader.op == "output" for reader in new.users)
               for i, new in zip((3, 4), news))


def _batch_norm(w, node, x, weight, bias, mean, variance, training, momentum, epsilon):
    if not training:
        none = w.full(0, x.dtype, (0,))
        return fixed_batch_norm(w, node, x, weight, bias, mean, variance, epsilon), none, none, mean, variance
    if momentum is None:
        raise Refused("running statistics as a plain mean of all batches")
    if node not in w.left_statistics:
        made = TABLE[node.target](w, node, x, weight, bias, mean, variance, training, momentum, epsilon)
        return *made[:3], *(detach(w, node, statistic) for statistic in made[3:])  # autograd knows no gradient of theirs
    dtype, shape = result(node, 0)
    x = w.cast(x, mean.dtype)
    weight = w.full(1, mean.dtype, mean.shape) if weight is None else weight
    bias = w.full(0, mean.dtype, mean.shape) if bias is None else bias
    y = w.make("BatchNormalization", [x, weight, bias, mean, variance], x.dtype, shape, epsilon=float(epsilon),
               momentum=1 - float(momentum))
    return w.cast(y, dtype), None, None, mean, variance  # the training session writes the new statistics


def _batch_norm_inference(w, node, x, weight, bias, mean, variance, momentum, epsilon):
    return _batch_norm(w, node, x, weight, bias, mean, variance, False, momentum, epsilon)


def _dropout(w, node, x, ratio, training):
    if not training or ratio == 0:
        return x, None
    if is_read(node, 1):
        raise Refused("a dropout whose mask is read")
    return w.make("Dropout", [x, w.constant(ratio, torch.float32)], *result(node, 0)), None


def _embedding(w, node, weight, indices, padding=-1, by_frequency=False, sparse=False):
    if by_frequency:
        raise Refused("gradients scaled by frequency")
    y = TABLE[node.target](w, node, weight, indices)
    if padding < 0:
        return y
    # The row of what pads does not learn from here.
    is_padding = w.make("Equal", [indices, w.constant(padding, indices.dtype)], torch.bool, indices.shape)
    is_padding = w.make("Unsqueeze", [is_padding, w.constant([-1])], torch.bool, (*indices.shape, 1))
    return w.make("Where", [is_padding, detach(w, node, y), y], y.dtype, y.shape)


def _nll_loss(w, node, x, target, weight, reduction, ignore_index):
    kind, scores, _ = w.origin.get(x.name, (None, None, None))
    if kind != "LogSoftmax" or x.rank < 2:
        return TABLE[node.target](w, node, x, target, weight, reduction, ignore_index)
    target, ignore_index = with_ignored(w, target, ignore_index)
    inputs = [scores, target] + ([weight] if weight is not None else [])
    dtype, shape = result(node, 0)
    return w.make("SoftmaxCrossEntropyLoss", inputs, dtype, shape, reduction=("none", "mean", "sum")[reduction],
                  ignore_index=ignore_index), None


def _log_softmax(w, node, x, axis, half_to_float):
    y = TABLE[node.target](w, node, x, axis, half_to_float)
    if x.rank > 0 and axis % x.rank == min(1, x.rank - 1):
        w.origin[y.name] = ("LogSoftmax", w.cast(x, y.dtype), None)
    return y


# Draws whose derivatives PyTorch has as zeros.
_WITHOUT_GRADIENT = {aten.bernoulli, aten.binomial, aten.multinomial, aten.normal, aten.poisson}


def _by_pytorch(w, node, *arguments):
    """The call as a node that PyTorch computes and, by its own derivative, differentiates."""
    if not isinstance(node.target, OpOverload):
        raise Refused("no equivalent in ONNX ops")
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags
    is_constant = node.target.overloadpacket in _WITHOUT_GRADIENT
    if is_random and not is_constant:
        raise Refused("no equivalent in ONNX ops, and PyTorch's draws random numbers, for its gradient others")
    if why := torch_kernels.misfit():
        raise Refused(f"no equivalent in ONNX ops, and PyTorch's cannot be called: {why}")
    values = node.meta["val"]
    several = isinstance(values, (list, tuple))
    made = []
    for i, value in enumerate(values if several else [values]):
        if several and not is_read(node, i):
            made.append(None)
        elif isinstance(value, torch.Tensor):
            onnx_type(value.dtype)
            made.append(Tensor(w.fresh("aten"), value.dtype, tuple(plain(d) for d in value.shape)))
        else:
            raise Refused(f"gives a {type(value).__name__}")
    target, given = node.target, [w.ints(a) if isinstance(a, list) and any(isinstance(i, Scalar) for i in a) else a for a in arguments]
    if target is aten._embedding_bag_forward_only.default:  # traced without gradients; the other one has a derivative
        target, given[5] = aten._embedding_bag.default, False  # which is dense
    if is_constant:
        given = [detach(w, node, a) if isinstance(a, Tensor) else a for a in given]
    written = aten_node(target, given, lambda item: item.name if isinstance(item, (Tensor, Scalar)) else None,
                        [w.name(tensor) for tensor in made])
    written.name = w.fresh("aten")
    if is_random:
        written.attribute.append(make_attribute("random_stream", written.name))
    w.add(written)
    w.stated += [tensor for tensor in made if tensor is not None]
    return tuple(made) if several else made[0]


_FORWARD = {
    aten.embedding.default: _embedding,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_inference,
    aten.native_dropout.default: _dropout,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten._log_softmax.default: _log_softmax,
}
# Calls that are not to be decomposed on the way to a forward model; the last ones PyTorch differentiates: infinity or NaN
# times zero stands in the derivatives of what they are made of.
KEPT = set(TABLE) | set(CONVENTIONS) | set(_FORWARD) | DRAWS | {aten.special_log_ndtr.default, aten.renorm.default}
# To be decomposed in a forward that takes gradients: our rules do not differentiate what our ops have for these.
DECOMPOSED_TWICE = {aten.native_layer_norm.default, aten.native_layer_norm_backward.default, aten.native_batch_norm_backward.default,
                    aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default,
                    aten._native_batch_norm_legit_no_training.default}


def _is_left_twice(node):
    transposed = node.target == aten.convolution_backward.default and node.args[7]
    return transposed or node.target in (aten.max_pool2d_with_indices_backward.default,
                                         aten.max_pool3d_with_indices_backward.default)


class ForwardImporter(Importer):
    """Imports for training. `left` holds what PyTorch computes: (op, reason, place); `draws` the rng_inputs.Draws, each an input.

    functions: the autograd.Functions among the calls (autograd_function.py). decompositions: backwards are traced with them; None
    for an importer of a backward, which nothing differentiates. twice: whether there are gradients among the calls. groups: as
    write_exchange() takes it.
    """

    def __init__(self, functions=(), decompositions=None, twice=False, groups=None):
        super().__init__()
        self.left, self.draws, self.functions, self.decompositions, self.twice = [], [], functions, decompositions, twice
        self.groups = groups or {}

    def function(self, node):
        if node.target in DRAWS:
            return self._draw
        if node.target is autograd_function.TARGET:
            return self._with_gradient
        if node.target is torch.ops.higher_order.cond:
            return self._cond
        if node.target is torch.ops.higher_order.while_loop:
            return self._while_loop
        if is_exchange(node):
            return functools.partial(write_exchange, self.groups)
        ours = CONVENTIONS.get(node.target) or super().function(node)
        if has_complex(node) or (self.twice and _is_left_twice(node)):
            ours = None
        if ours is not None and self.decompositions is not None and (count := derived(node.target, arguments_of(node))):
            ours = functools.partial(self._with_pytorchs_gradient, ours, count)
        return _FORWARD.get(node.target) or functools.partial(self._ours_or_pytorchs, ours)

    def _ours_or_pytorchs(self, ours, w, node, *arguments):
        reason = "no equivalent in ONNX ops"
        if ours is not None:
            try:
                return written(ours, w, node, arguments)
            except Refused as error:  # nobody reads the nodes that it has written
                reason = str(error)
        result = _by_pytorch(w, node, *arguments)
        self.left.append((str(node.target), reason, describe(node)))
        return result


    def _draw(self, w, node, *arguments):
        if free_unbacked_symbols(node.meta["val"]):
            raise Refused("the sizes of its random numbers depend on values, so that they cannot be drawn before the step")
        self.draws.append(Draw(node, value_of(w.fresh("random"), node.meta["val"])))
        return self.draws[-1].value

    def _call(self, w, module, given) -> list:
        """Writes the calls of a graph in the graph with w. Gives its results, each by a node of its own."""
        if not all(isinstance(value, Tensor) for value in given):
            raise Refused("a branch or loop over numbers that are no tensors")
        module.graph.eliminate_dead_code()
        stop_at_cuts(module)
        called = ForwardImporter(self.functions, self.decompositions, self.twice, self.groups)
        called.writer, called.constants = w, attributes_of(module)
        called.values.update(zip(module.graph.find_nodes(op="placeholder"), given, strict=True))
        called.know_shapes()
        for call in module.graph.nodes:
            if call.op == "call_function":
                called.write(call)
        if called.draws:
            raise Refused("a branch or loop that draws random numbers")
        self.left += called.left
        (output,) = module.graph.find_nodes(op="output")
        made = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
        values = [called.argument(value) for value in made]
        return [Tensor(w.op("Identity", [value]), value.dtype, value.shape) for value in values]

    def _body(self, w, inputs, write):
        """A body for a node in the graph with w. write: writes it with the writer that it is given, and gives the results."""
        writer = Writer()
        writer.begin_at(w)
        made = make_model(writer, inputs, write(writer)).graph
        w.begin_at(writer)
        return made

    def _cond(self, w, node, condition, then, otherwise, given):
        bodies = [self._body(w, [], lambda body, branch=branch: self._call(body, branch, given)) for branch in (then, otherwise)]
        results = [value_of(w.fresh("if"), value) for value in node.meta["val"]]
        w.node("If", [condition], [r.name for r in results], then_branch=bodies[0], else_branch=bodies[1])
        return tuple(results)

    def _while_loop(self, w, node, condition, step, carried, others):
        (first,) = self._call(w, condition, [*carried, *others])
        count, goes_on = (Tensor(w.fresh("loop"), dtype, ()) for dtype in (torch.int64, torch.bool))
        values = [value_of(w.fresh("loop"), value) for value in node.meta["val"]]

        def write(body):
            found = self._call(body, step, [*values, *others])
            return [*self._call(body, condition, [*found, *others]), *found]

        body = self._body(w, [count, goes_on, *values], write)
        results = [value_of(w.fresh("loop"), value) for value in node.meta["val"]]
        w.node("Loop", [None, first, *carried], [r.name for r in results], body=body)
        return tuple(results)

    def _with_gradient(self, w, node, values, inputs, saved, number):
        given = [[n.meta["val"] for n in nodes] for nodes in node.args[:3]]
        return self._give_gradient(w, node, self.functions[number].trace(*given, self.decompositions), values, inputs, saved)

    def _with_pytorchs_gradient(self, ours, count, w, node, *arguments):
        """Returns the results of `ours`, whose gradients by the first `count` arguments are PyTorch's own derivative."""
        nodes = tensors_given(node)
        if nodes is None:
            raise Refused("a derivative by a number that changes")
        moving = arguments_of(node)[:count]
        inputs = [n for n in nodes if n in moving and n.meta["val"].is_floating_point()]
        made = ours(w, node, *arguments)
        value, *others = made if isinstance(made, tuple) else (made,)
        if not inputs or not value.dtype.is_floating_point:
            return made
        traced = derivative(node, nodes, inputs, self.decompositions)
        given = self._give_gradient(w, node, traced, [value], *([self.values[n] for n in of] for of in (inputs, nodes)))
        return (*given, *others) if isinstance(made, tuple) else given[0]

    def _give_gradient(self, w, node, traced, values, inputs, saved):
        """The values, with the gradients of `inputs` that the traced graph makes of the values' gradients and of `saved`."""
        backward = ForwardImporter()
        backward.constants = attributes_of(traced)
        names = [Tensor(w.fresh("given"), t.dtype, t.shape) for t in (*values, *inputs, *saved)]
        backward.writer.begin_at(w)
        places = [*range(len(values)), *range(len(values) + len(inputs), len(names))]
        for placeholder, i in zip(traced.graph.find_nodes(op="placeholder"), places, strict=True):
            backward.bind(placeholder, names[i].name)
        backward.know_shapes()
        for call in traced.graph.nodes:
            if call.op == "call_function":
                backward.write(call)
        if backward.draws:
            raise Refused("a backward that draws random numbers")
        self.left += backward.left
        (output,) = traced.graph.find_nodes(op="output")
        of, results = [], []
        for i, gradient in enumerate(output.args[0]):
            if gradient is not None:
                value = backward.argument(gradient)
                of.append(len(values) + i)
                results.append(Tensor(backward.writer.op("Identity", [value]), value.dtype, value.shape))
        body = make_model(backward.writer, names, results).graph
        w.begin_at(backward.writer)
        outputs = [w.fresh("with_gradient") for _ in values]
        w.node("WithGradient", [*(detach(w, node, v) for v in values), *inputs, *(detach(w, node, s) for s in saved)], outputs,
               domain=DOMAIN, gradient=body, gradient_inputs=of)
        return tuple(Tensor(name, value.dtype, value.shape) for name, value in zip(outputs, values))


def attributes_of(module: torch.fx.GraphModule) -> dict:
    """The graph's get_attr nodes and what they are."""
    return {node: getattr(module, node.target) for node in module.graph.find_nodes(op="get_attr")}


def _taken_sizes(module) -> list:
    """(call, axis of its result or None, size): numbers and sizes that depend on values, which a trace takes to be others, as they are
    combined with them."""
    found = {}
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "call_function" else None
        dims = enumerate(value.shape) if isinstance(value, torch.Tensor) else [(None, value)]
        for axis, size in dims:
            symbol = symbol_by_values(size) if isinstance(size, torch.SymInt) else None
            if symbol is not None and symbol != size.node.expr:
                found.setdefault(symbol, (node, axis, size))
    return list(found.values())


def _checked(importer, taken, loss):
    """The loss, whose run fails where one of these sizes is not what it was taken for."""
    w = importer.writer
    for node, axis, size in taken:
        found = importer.values[node]
        found = w.scalar(found) if axis is None else w.size_of(found, axis)
        message = f"a size that depends on values does not fit the sizes that it meets (at {describe(node)})"
        holds = w.make("Equal", [found, w.given_size(size.node.expr)], torch.bool, ())
        loss = w.make("Check", [loss, holds], loss.dtype, loss.shape, domain=DOMAIN, message=message)
    return loss


def import_forward(importer: ForwardImporter, module: torch.fx.GraphModule, names: dict, loss: torch.fx.Node, writes=()):
    """The ONNX model of a captured forward: its output is `loss`, and what it assigns.

    names: placeholder to the name of its input; a number that no shape tells becomes the input that number_input() names.
    writes: (name of an input, node): the value that a step leaves in that input, which is added if not in `names`.
    The rest of the graph is removed. Calls without an equivalent become nodes that PyTorch computes, with a warning.
    Raises Refused, which lists the calls that cannot become such nodes.
    """
    # Nodes that only the dropped outputs need are removed.
    next(n for n in module.graph.nodes if n.op == "output").args = ((loss, *(node for _, node in writes)),)
    module.graph.eliminate_dead_code(lambda node: node.target in DRAWS or node.is_impure(False))
    stop_at_cuts(module)
    importer.constants = attributes_of(module)
    inputs = [importer.bind(node, name) for node, name in names.items()]
    importer.know_shapes()
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        if node not in names and is_symbolic(node):
            symbol = node.meta["val"]
            try:
                importer.values[node] = Scalar(importer.writer.scalar(symbol).name, symbol)
            except Refused:
                inputs.append(importer.bind(node, number_input(i)))
    problems, taken = [], _taken_sizes(module)
    for node in needed(module, {loss, *(node for _, node in writes), *(node for node, _, _ in taken)}):
        try:
            importer.write(node)
        except Refused as error:
            problems.append((str(node.target), str(error), describe(node)))
        except KeyError:
            pass  # reads the result of a refused call
    if problems:
        raise Refused("\n".join(f"  {op}: {why} (at {where})" for op, why, where in dict.fromkeys(problems)))
    fall_back(importer.left)
    inputs += [draw.value for draw in importer.draws]
    result_ = _checked(importer, taken, importer.values[loss])
    importer.writer.node("Identity", [result_], ["loss"])
    outputs = [Tensor("loss", result_.dtype, result_.shape)]
    for name, value in [(name, importer.values[node]) for name, node in writes]:
        value = importer.writer.scalar(value) if isinstance(value, Scalar) else value
        outputs.append(Tensor(importer.writer.fresh("written"), value.dtype, value.shape))
        importer.writer.node("Assign", [name, value], [outputs[-1].name], domain=DOMAIN)
        if name not in (i.name for i in inputs):
            inputs.append(Tensor(name, value.dtype, value.shape))
    return make_model(importer.writer, inputs, outputs)


def number_input(i: int) -> str:
    """The name of placeholder i's input, where it is a number."""
    return f"number_{i}"


# Calls that read the shape of their first argument, and not its values.
_OF_SHAPES = {aten.copy.default, aten.empty_like.default, aten.fill.Scalar, aten.fill.Tensor, aten.full_like.default,
              aten.new_empty.default, aten.new_full.default, aten.new_ones.default, aten.new_zeros.default, aten.ones_like.default,
              aten.rand_like.default, aten.randn_like.default, aten.sym_size.int, aten.zero.default, aten.zeros_like.default}


def needed(module, outputs, values=False):
    """The calls that `outputs` depend on, in order, and all draws: later ones would have the numbers of those left out. values:
    without those of which only the shape is read."""
    wanted = set(outputs).union(*(module.graph.find_nodes(op="call_function", target=target) for target in DRAWS))
    for node in reversed(module.graph.nodes):
        if node in wanted:
            shaped = values and node.target in _OF_SHAPES
            wanted.update(n for n in node.all_input_nodes if not shaped or n in (*node.args[1:], *node.kwargs.values()))
    return [n for n in module.graph.nodes if n in wanted and n.op == "call_function"]
