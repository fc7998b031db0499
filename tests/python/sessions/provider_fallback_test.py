# SPDX-License-Identifier: Apache-2.0
"""Provider fallback of sessions and modules: the Python parts, beyond the C++ classes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import caesura

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2) / 8, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    onnx.checker.check_model(made)
    return made.SerializeToString()


@pytest.mark.parametrize("made, run", [
    (lambda: caesura.TrainingSession(model(), loss="mse", optimizer=caesura.optim.AdamW(lr=1e-2), threads=1),
     lambda session: session.step({"x": X, "target": np.ones((2, 2), np.float32)})),
    (lambda: caesura.SplitModule(model(), threads=1), lambda module: module.forward({"x": X}).backward([X[:, :2]])),
], ids=["TrainingSession", "SplitModule"])
def test_sessions_say_what_they_run_on(made, run):
    session = made()
    for change in (session.disable_fallback, session.enable_fallback):
        change()
        run(session)
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.fallback_record() is None
