# SPDX-License-Identifier: Apache-2.0
"""A call of PyTorch's dispatcher as an ATen node (torch_bridge/aten_op.h): the fallback for what has no ONNX ops."""

import numpy as np
import onnx
import torch
from onnx import AttributeProto, helper, numpy_helper

from caesura.capture.compat import OpOverload, schema
from caesura.lowering.registry import Refused

DOMAIN = "org.pytorch.aten"


def _numbers(numbers) -> onnx.TensorProto:
    """Exact floats, complex numbers and bools, which ONNX's float attributes are not."""
    array = np.asarray(numbers)
    return numpy_helper.from_array(array.astype(np.complex128 if array.dtype.kind == "c" else
                                                np.bool_ if array.dtype.kind == "b" else np.float64))


def _attribute(name: str, value, takes_bool: bool) -> onnx.AttributeProto:
    """One constant argument. takes_bool: a bool is one by its argument's type, and needs no tensor to say so."""
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, str) for item in value) and value:
            return helper.make_attribute(name, list(value))
        if all(isinstance(item, int) and (takes_bool or not isinstance(item, bool)) for item in value):
            return helper.make_attribute(name, [int(item) for item in value], attr_type=AttributeProto.INTS)
        if all(isinstance(item, (int, float, complex)) for item in value):
            return helper.make_attribute(name, _numbers(value))
    elif isinstance(value, torch.dtype):
        return helper.make_attribute(name, str(value).removeprefix("torch."))
    elif isinstance(value, (torch.layout, torch.memory_format)):
        return helper.make_attribute(name, str(value).removeprefix("torch."))
    elif isinstance(value, (str, torch.device)):
        return helper.make_attribute(name, str(value))
    elif isinstance(value, int) and (takes_bool or not isinstance(value, bool)):
        return helper.make_attribute(name, int(value))
    elif isinstance(value, (bool, float, complex)):
        return helper.make_attribute(name, _numbers(value))
    raise Refused(f"argument '{name}' of type {type(value).__name__}")


def aten_node(target: OpOverload, arguments: list, name_of, outputs: list) -> onnx.NodeProto:
    """The node of one call.

    arguments: in the schema's order, one for each of its arguments.
    name_of: gives the name in the graph of what is no constant (tensors, symbolic ints), and None for constants.
    outputs: names of the results, "" for those that nobody reads.

    Raises Refused for operators that write to their arguments, and for arguments that a node cannot hold.
    """
    form = schema(target)
    if form.is_mutable:
        raise Refused("writes to its arguments")
    inputs, names, none, attributes = [], [], [], []
    for formal, value in zip(form.arguments, arguments, strict=True):
        tensors = "Tensor" in str(formal.type)
        items = value if isinstance(value, (list, tuple)) else [value]
        known = [name_of(item) for item in items]
        if any(known) or (tensors and isinstance(value, (list, tuple))):
            if len(items) > 1 and not tensors:
                raise Refused(f"argument '{formal.name}' is a list that is partly known")
            inputs += [name or "" for name in known]
            names += [formal.name] * len(items)
        elif value is None:
            if formal.has_default_value() and formal.default_value is not None:
                none.append(formal.name)
        elif not (formal.has_default_value() and type(formal.default_value) is type(value)
                  and formal.default_value == value):
            attributes.append(_attribute(formal.name, value, "bool" in str(formal.type)))
    node = helper.make_node("ATen", inputs, outputs, domain=DOMAIN, operator=form.name)
    if form.overload_name:
        attributes.append(helper.make_attribute("overload_name", form.overload_name))
    if names:
        attributes.append(helper.make_attribute("arguments", names))
    if none:
        attributes.append(helper.make_attribute("none", none))
    node.attribute.extend(attributes)
    return node
