# SPDX-License-Identifier: Apache-2.0
"""OpenVINO as a provider of Python's sessions: the ONNX node tests end as on the CPU's kernels."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from caesura import conformance, onnxruntime
from conformance_test import REASONS as CPU_REASONS

OPENVINO = "OpenVINOExecutionProvider"
pytestmark = pytest.mark.skipif(OPENVINO not in onnxruntime.get_available_providers(), reason="built without OpenVINO")


def chain(op_types) -> bytes:
    """x -> op -> op ... -> y, float32[N, 4]."""
    names = ["x", *(f"v{i}" for i in range(len(op_types) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(op_types)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[onnx.OperatorSetIdProto(version=21)], ir_version=10).SerializeToString()


def test_a_session_runs_parts_on_it():
    model = chain(["Exp", "Relu", "Tanh"])
    session = onnxruntime.InferenceSession(model, providers=[OPENVINO, "CPUExecutionProvider"])
    assert session.get_providers() == [OPENVINO, "CPUExecutionProvider"]
    for rows in (2, 5, 2):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        assert OPENVINO in session.plan({"x": x}).text
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(np.exp(x)), rtol=1e-6)


def test_options():
    model = chain(["Exp"])
    session = onnxruntime.InferenceSession(model, providers=[(OPENVINO, {"min_nodes": 1, "threads": 1})])
    assert session.get_provider_options()[OPENVINO] == {"min_nodes": "1", "threads": "1"}
    assert OPENVINO in session.plan({"x": np.zeros((1, 4), np.float32)}).text
    alone = onnxruntime.InferenceSession(model, providers=[OPENVINO])
    assert OPENVINO not in alone.plan({"x": np.zeros((1, 4), np.float32)}).text  # a single node stays on the CPU
    with pytest.raises(ValueError, match="no option 'speed'"):
        onnxruntime.InferenceSession(model, providers=[(OPENVINO, {"speed": "9"})])


def test_infinities_and_lone_inputs_are_not_its_business():
    """Nodes that OpenVINO would compute wrongly run on the CPU's kernels (openvino_refusals.cc)."""
    x = np.full((2, 4), -np.inf, np.float32)
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    for op_type, inputs in (("ReduceMax", ["x", "axes"]), ("Sum", ["x"]), ("Max", ["x"]), ("Mean", ["x"])):
        ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])], [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        graph = helper.make_graph([helper.make_node(op_type, inputs, ["y"])], "lone", *ends, [axes][: len(inputs) - 1])
        model = helper.make_model(graph, opset_imports=[onnx.OperatorSetIdProto(version=21)], ir_version=10)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[(OPENVINO, {"min_nodes": 1})])
        assert np.isneginf(session.run(None, {"x": x})[0]).all(), op_type


def test_node_tests_end_as_on_the_cpu():
    """The same cases fail as on the CPU, for the same reasons. Every 16th case, or with CAESURA_LONG all."""
    cases = conformance.collect()
    assert len(cases) >= 1884
    results = conformance.run_all(cases if os.environ.get("CAESURA_LONG") else cases[::16], "", provider="openvino")
    unexplained = {name: reason for name, reason in results.items()
                   if reason and not any(part in name for part in CPU_REASONS)}
    assert unexplained == {}
