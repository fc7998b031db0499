# SPDX-License-Identifier: Apache-2.0
"""OpenVINO as a provider of Python's sessions: the ONNX node tests end as they do on the CPU's kernels alone."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import caesura
from caesura import conformance

OPENVINO = "OpenVINOExecutionProvider"
pytestmark = pytest.mark.skipif(OPENVINO not in caesura.get_available_providers(), reason="built without OpenVINO")


def chain(op_types) -> bytes:
    """x -> op -> op ... -> y, float32[N, 4]."""
    names = ["x", *(f"v{i}" for i in range(len(op_types) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(op_types)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[onnx.OperatorSetIdProto(version=21)], ir_version=10).SerializeToString()


def test_a_session_runs_parts_on_it():
    model = chain(["Exp", "Relu", "Tanh"])
    session = caesura.InferenceSession(model, providers=[OPENVINO, "CPUExecutionProvider"])
    assert session.get_providers() == [OPENVINO, "CPUExecutionProvider"]
    for rows in (2, 5, 2):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        assert OPENVINO in session.plan({"x": x})
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.tanh(np.exp(x)), rtol=1e-6)


def test_options():
    model = chain(["Exp"])
    session = caesura.InferenceSession(model, providers=[(OPENVINO, {"min_nodes": 1, "threads": 1})])
    assert session.get_provider_options()[OPENVINO] == {"min_nodes": "1", "threads": "1"}
    assert OPENVINO in session.plan({"x": np.zeros((1, 4), np.float32)})
    alone = caesura.InferenceSession(model, providers=[OPENVINO])
    assert OPENVINO not in alone.plan({"x": np.zeros((1, 4), np.float32)})  # one node is not worth the way
    with pytest.raises(ValueError, match="no option 'speed'"):
        caesura.InferenceSession(model, providers=[(OPENVINO, {"speed": "9"})])


# The names in FAMILIES stand for ops that OpenVINO takes, and for those that it is refused.
FAMILIES = ("softmax", "conv", "pool", "gelu", "layer_normalization", "reduce_", "resize", "matmul", "gemm", "lstm", "hardmax")


def test_node_tests_end_as_on_the_cpu():
    cases = [case for case in conformance.collect() if any(family in case.name for family in FAMILIES)]
    assert len(cases) > 300
    here = {case.name: conformance.run_case(case, conformance._make_caesura) for case in cases}
