# SPDX-License-Identifier: Apache-2.0
"""Model texts that are not UTF-8: names give a readable error, and free texts are escaped."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from caesura import onnxruntime


def model_bytes(op_type="Relu", domain="", **attributes) -> bytes:
    node = helper.make_node(op_type, ["INPUT"], ["OUTPUT"], name="NODENAME", domain=domain, **attributes)
    graph = helper.make_graph([node], "GRAPHNAME", [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["SYMBOL"])],
                              [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, None)], doc_string="GRAPHTEXT")
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="PRODUCER", doc_string="MODELTEXT")
    helper.set_model_props(model, {"METAKEY": "METAVALUE"})
    return model.SerializeToString()


def broken(name: str) -> bytes:
    """Returns as many bytes, of which the first is invalid as the start of a UTF-8 character."""
    return b"\xff" + name.encode()[1:]


@pytest.mark.parametrize("name", ["INPUT", "OUTPUT", "NODENAME", "GRAPHNAME", "METAKEY"])
def test_a_name_is_refused(name):
    model = model_bytes()
    assert name.encode() in model
    with pytest.raises(ValueError, match=r"UTF-8[\s\S]*\\xff|\\xff[\s\S]*UTF-8"):
        onnxruntime.InferenceSession(model.replace(name.encode(), broken(name)))


@pytest.mark.parametrize("name, arguments", [
    ("MYOPTYPE", dict(op_type="MYOPTYPE", domain="my.domain")),
    ("my.domain", dict(op_type="Op", domain="my.domain")),
    ("ATTRIBUTE", dict(op_type="Op", domain="my.domain", ATTRIBUTE=1)),
])
def test_a_name_of_an_op_is_refused(name, arguments):
    with pytest.raises(ValueError, match=r"\\xff" + name[1:]):
        onnxruntime.InferenceSession(model_bytes(**arguments).replace(name.encode(), broken(name)))


def test_free_texts_come_escaped():
    model = model_bytes()
    for name in ("PRODUCER", "MODELTEXT", "GRAPHTEXT", "METAVALUE", "SYMBOL"):
        model = model.replace(name.encode(), broken(name))
    session = onnxruntime.InferenceSession(model)
    meta = session.get_modelmeta()
    assert meta.producer_name == r"\xffRODUCER" and meta.description == r"\xffODELTEXT"
    assert meta.custom_metadata_map == {"METAKEY": r"\xffETAVALUE"}
    assert session.run(None, {"INPUT": np.ones(2, np.float32)})[0].tolist() == [1, 1]


def test_an_error_quotes_a_value():
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[1], auto_pad="PADWORD")
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(ValueError, match=r"\\xffADWORD"):
        session = onnxruntime.InferenceSession(model.replace(b"PADWORD", broken("PADWORD")))
        session.run(None, {"x": np.ones((1, 1, 2), np.float32)})


def test_a_run_whose_loop_does_not_end_is_terminated():
    import threading

    body = onnx.parser.parse_graph("b (int64 i, bool c, float a) => (bool d, float e) { d = Identity (c) e = Add (a, a) }")
    graph = helper.make_graph([helper.make_node("Loop", ["", "t", "x"], ["y"], body=body)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
                              [onnx.numpy_helper.from_array(np.array(True), "t")])
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    options = onnxruntime.RunOptions()
    timer = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(RuntimeError, match="ended by its caller"):
        session.run(None, {"x": np.array(0, np.float32)}, options)
    timer.join()
