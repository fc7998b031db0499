# SPDX-License-Identifier: Apache-2.0
"""TrainingSession.profile_step runs an ordinary step, and returns a table of ops and a timeline."""

import json

import numpy as np
import onnx

import caesura

MODEL = """<ir_version: 10, opset_import: ["": 21]>
net (float[4,3] x) => (float[4,2] y) <float[3,2] w = {1, -1, 2, 0.5, 0.25, -2}> { y = MatMul (x, w) }"""


def test_profile_step(tmp_path):
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    feeds = {"x": np.ones((4, 3), np.float32), "target": np.array([0, 1, 1, 0])}
    plain, profiled = (caesura.TrainingSession(model, optimizer=caesura.optim.SGD(lr=0.1)) for _ in range(2))
    plain.step(feeds)
    table = profiled.profile_step(feeds, tmp_path / "trace.json")
    np.testing.assert_array_equal(profiled.parameters()["w"], plain.parameters()["w"])
    assert profiled.updates == 1
    assert "MatMul" in table and "SgdUpdate" in table
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert {"MatMul", "SgdUpdate"} <= {event.get("args", {}).get("op_name") for event in events}
