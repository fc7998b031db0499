# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX graph in PyTorch, node by node, bodies of control flow included."""

import gradients_beside_pytorch_basic as basic
import gradients_beside_pytorch_movement as movement
import gradients_beside_pytorch_nn as nn
import gradients_beside_pytorch_signal as signal
import onnx
import torch
from onnx import numpy_helper

OPS = {**basic.OPS, **movement.OPS, **nn.OPS, **signal.OPS}
CONTROL_FLOW = {"If", "Loop", "Scan"}


def wide(array):
    """Returns a copy as a tensor, in float64 if the array is float32."""
    tensor = torch.from_numpy(array.copy())
    return tensor.double() if tensor.dtype == torch.float32 else tensor


def tensor_of(proto):
    return wide(numpy_helper.to_array(proto))


def _attribute(proto):
    value = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [v.decode() for v in value]
    return value


def _run_body(body, inputs, outer):
    return run_graph(body, {**outer, **dict(zip((i.name for i in body.input), inputs))})


def _if(a, inputs, outer):
    return _run_body(a["then_branch"] if bool(inputs[0]) else a["else_branch"], [], outer)


def _loop(a, inputs, outer):
    trips, going, state = inputs[0], inputs[1], inputs[2:]
    scans, i = [], 0
    going = True if going is None else bool(going)
    while going and (trips is None or i < int(trips)):
        go, *results = _run_body(a["body"], [torch.tensor(i), torch.tensor(True), *state], outer)
        state, scanned = results[:len(state)], results[len(state):]
        scans.append(scanned)
        going, i = bool(go), i + 1
    return [*state, *(torch.stack(column) for column in zip(*scans))]


def _scan(a, inputs, outer):
    count = a["num_scan_inputs"]
    state, scanned = inputs[:-count], inputs[-count:]
    outputs = len(a["body"].output) - len(state)
    axes = a.get("scan_input_axes", [0] * count)
    slices = [x.unbind(axis)[::-1 if back else 1]
              for x, axis, back in zip(scanned, axes, a.get("scan_input_directions", [0] * count))]
    rows = []
    for parts in zip(*slices):
        results = _run_body(a["body"], [*state, *parts], outer)
        state, row = results[:len(state)], results[len(state):]
        rows.append(row)
    backwards = a.get("scan_output_directions", [0] * outputs)
    axes = a.get("scan_output_axes", [0] * outputs)
    return [*state, *(torch.stack(column[::-1 if back else 1], axis)
                      for column, axis, back in zip(zip(*rows), axes, backwards))]


def run_graph(graph, values):
    """Returns the graph's outputs. `values`: its inputs, and outer values that its bodies read."""
    values = dict(values)
    for proto in graph.initializer:
        values.setdefault(proto.name, tensor_of(proto))
    for node in graph.node:
        attributes = {a.name: _attribute(a) for a in node.attribute}
        inputs = [values[name] if name else None for name in node.input]
        if node.op_type == "Constant":
            results = tensor_of(attributes["value"])
        elif node.op_type in CONTROL_FLOW:
            results = {"If": _if, "Loop": _loop, "Scan": _scan}[node.op_type](attributes, inputs, values)
        else:
            if node.op_type == "Dropout":
                attributes["y"] = values["ours"]
            results = OPS[node.op_type](attributes, *inputs)
        # A sequence is one value, several outputs are many.
        several = len(node.output) > 1 or node.op_type in CONTROL_FLOW or isinstance(results, tuple)
        for name, value in zip(node.output, results if several else [results]):
            values[name] = value
    return [values[output.name] for output in graph.output]


def ops_of(graph):
    """Returns the op types of the graph and its bodies, except ops that only make or route values."""
    out = set()
    for node in graph.node:
        out.add(node.op_type)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                out |= ops_of(attribute.g)
    return out - {"Constant"}
