# SPDX-License-Identifier: Apache-2.0
"""Ops from shared libraries in Python's sessions, and options for nodes: the plug-ins are tests/core/plugin/test_ops.c and
test_ops_cpp17.cc."""

import pathlib

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import caesura
from caesura import _core, onnxruntime

PLUGIN = pathlib.Path(_core.__file__).parents[2] / "lib" / "libtest_ops_c.so"
pytestmark = pytest.mark.skipif(not PLUGIN.exists(), reason="the tests' plug-ins are not built")
X = np.array([1, 2], np.float32)


def model_of(nodes, weights=()):
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")], list(weights))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("test.c", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


TWICE = model_of([helper.make_node("Scale", ["x"], ["a"], name="first", domain="test.c", factor=2.0),
                  helper.make_node("Scale", ["a"], ["y"], name="second", domain="test.c", factor=3.0)])


def test_libraries_and_options_of_nodes():
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(PLUGIN)
    assert options.custom_ops.ops()["test.c::Scale"] == {"offset": "0"}
    options.custom_ops.for_op("Scale", "test.c").update({"offset": "1"})
    options.custom_ops.for_node("second").append("offset", "10")
    np.testing.assert_equal(onnxruntime.InferenceSession(TWICE, options).run(None, {"x": X})[0], (2 * X + 1) * 3 + 10)
    options.custom_ops.for_node("second").update({"offset": "20"})
    session = onnxruntime.InferenceSession(TWICE, options)
    options.custom_ops.for_node("second").remove("offset")  # too late: the session has a copy
    np.testing.assert_equal(session.run(None, {"x": X})[0], (2 * X + 1) * 3 + 20)
    np.testing.assert_equal(onnxruntime.InferenceSession(TWICE, options).run(None, {"x": X})[0], (2 * X + 1) * 3 + 1)


def test_what_is_wrong_is_named(tmp_path):
    options = onnxruntime.SessionOptions()
    with pytest.raises(FileNotFoundError, match="nowhere.so"):
        options.register_custom_ops_library("/nowhere.so")
    with pytest.raises(NotImplementedError, match="exports no CaesuraPluginMain"):
        options.register_custom_ops_library(_core.__file__)
    with pytest.raises(NotImplementedError, match="test.c::Scale 'first'"):
        onnxruntime.InferenceSession(TWICE).run(None, {"x": X})
    options.register_custom_ops_library(PLUGIN)
    options.custom_ops.for_node("second").update({"ofset": "1"})
    with pytest.raises(ValueError, match="'second'. has no option 'ofset'; known are: offset"):
        onnxruntime.InferenceSession(TWICE, options)
    options.custom_ops.for_node("second").remove("ofset")
    options.custom_ops.for_node("third").update({"offset": "1"})
    with pytest.raises(ValueError, match="no node of a custom op of this name; it has: first, second"):
        onnxruntime.InferenceSession(TWICE, options)


def test_option_sets():
    options = onnxruntime.OptionSet({"threads": "2"})
    options.append("device", "a;b=c")
    with pytest.raises(ValueError, match="'device' is there already"):
        options.append("device", "CPU")
    assert "device" in options and options.has("threads") and not options.has("missing")
    assert options.get("threads") == "2"
    with pytest.raises(KeyError, match="no option 'missing'; there are: device, threads"):
        options.get("missing")
    assert options.values() == {"device": "a;b=c", "threads": "2"}
    assert onnxruntime.OptionSet.parse(options.serialise()) == options
    assert onnxruntime.OptionSet({"threads": "3"}) != options
    with pytest.raises(ValueError, match="expected name=value"):
        onnxruntime.OptionSet.parse("threads")


def test_gradients_flow_through_ops_of_libraries():
    ops = onnxruntime.CustomOps()
    ops.add_library(str(PLUGIN))
    ops.for_node("scale").update({"offset": "5"})
    weight = numpy_helper.from_array(np.array([3, 4], np.float32), "w")
    model = model_of([helper.make_node("Mul", ["x", "w"], ["a"]),
                      helper.make_node("Scale", ["a"], ["y"], name="scale", domain="test.c", factor=7.0)], [weight])
    run = caesura.SplitModule(model, custom_ops=ops).forward({"x": X})
    np.testing.assert_equal(run.outputs["y"], 7 * X * [3, 4] + 5)
    np.testing.assert_equal(run.backward([np.ones(2, np.float32)])["w"], 7 * X)
    session = caesura.TrainingSession(model, loss="mse", target="t", optimizer=caesura.optim.SGD(lr=0.5), custom_ops=ops)
    loss = session.step({"x": X, "t": 7 * X * np.array([3, 4], np.float32) + 3})
    assert loss == pytest.approx(4)  # the offset's share
    np.testing.assert_allclose(session.parameters()["w"], np.array([3, 4]) - 0.5 * 2 * 7 * X)  # dy = 2 (y - t) / 2
