# SPDX-License-Identifier: Apache-2.0
"""Imports an FX graph of ATen calls as an ONNX model, node by node."""

import logging
import operator

import torch

from caesura.capture.compat import OpOverload, schema
from caesura.lowering.onnx_builder import Scalar, Tensor, Writer, make_model, onnx_type
from caesura.lowering.registry import TABLE, Refused
from caesura.rewrites.fx_meta import describe, plain


def value_of(name: str, meta):
    """The graph's view of what FX says of a node: a Tensor, a Scalar, or None for neither."""
    if isinstance(meta, torch.Tensor):
        onnx_type(meta.dtype)
        if meta.layout != torch.strided:
            raise Refused(f"layout {meta.layout}")
        return Tensor(name, meta.dtype, tuple(plain(d) for d in meta.shape))
    if isinstance(meta, (torch.SymInt, torch.SymFloat, int, float)) and not isinstance(meta, bool):
        return Scalar(name, meta)
    raise Refused(f"values of type {type(meta).__name__}")


def arguments_of(node: torch.fx.Node) -> list:
    """The call's arguments in the schema's order, defaults filled in."""
    if not isinstance(node.target, OpOverload):
        return list(node.args)
    out = []
    for i, argument in enumerate(schema(node.target).arguments):
        if i < len(node.args):
            out.append(node.args[i])
        else:
            out.append(node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None))
    return out


def written(function, writer, node, arguments):
    """The result of a rule for a call. A rule that fails does not count, since PyTorch can run the call."""
    try:
        return function(writer, node, *arguments)
    except Refused:
        raise
    except Exception as error:
        logging.getLogger("caesura").info("the rule of %s fails", node.target, exc_info=True)
        raise Refused(f"its rule fails, {type(error).__name__}: {' '.join(str(error).split())}") from error


class Importer:
    """Writes the ONNX nodes of FX nodes one after the other."""

    def __init__(self, constants=None):
        self.writer = Writer()
        self.values = {}  # FX node to Tensor, Scalar, or a tuple of them
        self.constants = constants or {}  # FX node to torch.Tensor, for get_attr nodes

    def bind(self, node: torch.fx.Node, name: str):
        """Makes `node` an input of the graph."""
        value = value_of(name, node.meta.get("val"))
        self.values[node] = value
        if isinstance(value, Scalar):
            if isinstance(value.symbol, torch.SymInt):
                self.writer.know(value.symbol, name)
        return value

    def know_shapes(self) -> None:
        """Sizes that no input gives by itself are read off the inputs that have them."""
        for value in list(self.values.values()):
            if isinstance(value, Tensor):
                self.writer.know_shape(value)

    def argument(self, item):
        if isinstance(item, torch.fx.Node):
            if item in self.constants and item not in self.values:
                if isinstance(self.constants[item], torch.fx.GraphModule):  # of a branch or a loop
                    return self.constants[item]
                self.values[item] = self.writer.constant(self.constants[item])
            value = self.values[item]
            symbol = plain(value.symbol) if isinstance(value, Scalar) else None
            return value if symbol is None or isinstance(symbol, torch.SymInt | torch.SymFloat) else symbol
        if isinstance(item, (list, tuple)):
            return [self.argument(i) for i in item]
        return item

    def result(self, node: torch.fx.Node) -> Tensor:
        """The value of a node as a result of the graph."""
        value = self.values[node]
        return self.writer.scalar(value) if isinstance(value, Scalar) else value

    def function(self, node: torch.fx.Node):
        """The rule that writes this call; None if there is none."""
        return TABLE.get(node.target)

    def write(self, node: torch.fx.Node) -> None:
        """Writes one call. Raises Refused; the writer is then to be thrown away."""
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        function = self.function(node)
        if function is None:
            raise Refused("no equivalent in ONNX ops")
        self.writer.source = describe(node) if node.meta.get("stack_trace") else ""
        result = written(function, self.writer, node, [self.argument(a) for a in arguments_of(node)])
        if isinstance(result, Scalar) and isinstance(result.symbol, torch.SymInt):
            self.writer.know(result.symbol, result.name)
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, Tensor):
                self.writer.know_shape(value)
        self.values[node] = result


def import_graph(nodes, inputs, outputs, constants=None, phase="", yields=()):
    """The ONNX model of FX `nodes` (in order), as a function of the nodes `inputs` that gives the nodes `outputs`. phase: the
    part of a training step that its nodes belong to, "backward" or "" (the forward). yields: (node, nodes, nodes) each,
    in order: after the first one the program yields the second ones, and releases these of its inputs.

    Raises Refused, with the node, where a call has no equivalent.
    """
    importer = Importer(constants)
    importer.writer.phase = phase
    bound = [importer.bind(node, f"input_{i}") for i, node in enumerate(inputs)]
    importer.know_shapes()
    yields = {last: (handed, released) for last, handed, released in yields}
    for node in nodes:
        try:
            importer.write(node)
        except Refused as error:
            error.node = node
            raise
        if node in yields:
            handed, released = yields[node]
            importer.writer.stop([importer.result(n) for n in handed], [importer.values[n] for n in released])
    results = []
    for node in outputs:
        value = importer.result(node)
        name = importer.writer.op("Identity", [value])
        results.append(Tensor(name, value.dtype, value.shape))
    return make_model(importer.writer, bound, results)
