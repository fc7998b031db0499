# SPDX-License-Identifier: Apache-2.0
"""A captured forward as a model to be trained: batch norms and dropout as the ONNX ops that training mode switches on."""

import torch

from caesura.aten.graph_import import Importer, describe, is_symbolic
from caesura.aten.normalization import fixed_batch_norm
from caesura.aten.results import is_read, result
from caesura.aten.table import TABLE, Refused, aten
from caesura.aten.writer import Scalar, Tensor, make_model


def _batch_norm(w, node, x, weight, bias, mean, variance, training, momentum, epsilon):
    if not training:
        none = w.full(0, x.dtype, (0,))
        return fixed_batch_norm(w, node, x, weight, bias, mean, variance, epsilon), none, none, mean, variance
    if is_read(node, 1) or is_read(node, 2):
        return TABLE[node.target](w, node, x, weight, bias, mean, variance, training, momentum, epsilon)
    if momentum is None:
        raise Refused("running statistics as a plain mean of all batches")
    dtype, shape = result(node, 0)
    x = w.cast(x, mean.dtype)
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


def _detached(w, node, x, *options):
    raise Refused("a tensor that is cut off from its gradient")


def _nll_loss(w, node, x, target, weight, reduction, ignore_index):
    kind, scores, _ = w.origin.get(x.name, (None, None, None))
    if kind != "LogSoftmax" or x.rank < 2:
        return TABLE[node.target](w, node, x, target, weight, reduction, ignore_index)
    inputs = [scores, target] + ([weight] if weight is not None else [])
    dtype, shape = result(node, 0)
    return w.make("SoftmaxCrossEntropyLoss", inputs, dtype, shape, reduction=("none", "mean", "sum")[reduction],
                  ignore_index=ignore_index), None


def _log_softmax(w, node, x, axis, half_to_float):
    y = TABLE[node.target](w, node, x, axis, half_to_float)
    if axis % x.rank == min(1, x.rank - 1):
        w.origin[y.name] = ("LogSoftmax", w.cast(x, y.dtype), None)
    return y


def _topk(w, node, x, k, axis, largest, ordered):
    # Ties go to the lower index, as ONNX has it; PyTorch says nothing of them, so a program beside eager leaves it the call.
    values, indices = w.op("TopK", [x, w.ints([k])], outputs=2, axis=axis, largest=int(largest), sorted=1)
    shape = result(node, 0)[1]
    return Tensor(values, x.dtype, shape), Tensor(indices, torch.int64, shape)


_FORWARD = {
    aten.topk.default: _topk,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_inference,
    aten.native_dropout.default: _dropout,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten._log_softmax.default: _log_softmax,
}
# Calls that are not to be decomposed on the way to a forward model.
KEPT = set(TABLE) | set(_FORWARD)


class ForwardImporter(Importer):
    """Imports for training: nothing may stand in the way of a gradient unseen. `trained` holds what depends on parameters."""

    def __init__(self, constants=None):
        super().__init__(constants)
        self.trained = set()

    def function(self, node):
        if node.target == aten.detach.default and node.args[0] in self.trained:
            return _detached
        return _FORWARD.get(node.target) or super().function(node)

    def write(self, node):
        super().write(node)
        if any(source in self.trained for source in node.all_input_nodes):
            self.trained.add(node)


def import_forward(module: torch.fx.GraphModule, names: dict, trained: set, loss: torch.fx.Node):
    """The ONNX model of a captured forward whose only output is `loss`.

    names: placeholder to the name of its input. trained: the placeholders that are trained parameters. Everything else that
    the graph computes is taken out of it.
    Raises Refused, listing every call that has no equivalent.
    """
    # What is read only for outputs that are left out is not to be made.
    next(n for n in module.graph.nodes if n.op == "output").args = ((loss,),)
    module.graph.eliminate_dead_code()
    constants = {n: getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr"}
    importer = ForwardImporter(constants)
    importer.trained = set(trained)
    inputs = [importer.bind(node, name) for node, name in names.items()]
    importer.know_shapes()
    for node in module.graph.nodes:
        if node.op == "placeholder" and node not in names and is_symbolic(node):
            symbol = node.meta["val"]
            importer.values[node] = Scalar(importer.writer.scalar(symbol).name, symbol)
    problems = []
    for node in _needed(module, loss):
        try:
            importer.write(node)
        except Refused as error:
            problems.append((str(node.target), str(error), describe(node)))
        except KeyError:
            pass  # behind a refused call
    if problems:
        raise Refused("\n".join(f"  {op}: {why} (at {where})" for op, why, where in dict.fromkeys(problems)))
    result_ = importer.values[loss]
    importer.writer.node("Identity", [result_], ["loss"])
    return make_model(importer.writer, inputs, [Tensor("loss", result_.dtype, result_.shape)])


def _needed(module, output):
    """The calls that `output` depends on, in order."""
    wanted = {output}
    for node in reversed(module.graph.nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    return [n for n in module.graph.nodes if n in wanted and n.op == "call_function"]
