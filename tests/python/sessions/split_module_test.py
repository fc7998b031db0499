# SPDX-License-Identifier: Apache-2.0
"""caesura.SplitModule: the Python parts, beyond the C++ class."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import caesura

W = np.arange(6.0).reshape(3, 2)
X = np.linspace(-1, 1, 6).reshape(2, 3)
DY = np.array([[1.0, -2.0], [0.5, 3.0]])


@pytest.fixture()
def module():
    graph = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"]),
         helper.make_node("Shape", ["x"], ["s"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 2]),
         helper.make_tensor_value_info("s", TensorProto.INT64, [2])], [numpy_helper.from_array(W, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    onnx.checker.check_model(model)
    return caesura.SplitModule(model.SerializeToString(), inputs=["x"], threads=1)


def check(gradients, w=W):
    h = np.tanh(X)
    np.testing.assert_allclose(gradients["x"], DY @ w.T * (1 - h * h), rtol=1e-14)
    np.testing.assert_allclose(gradients["w"], h.T @ DY, rtol=1e-14)


def test_gradients_by_name_and_by_order(module):
    run = module.forward({"x": X})
    np.testing.assert_allclose(run.outputs["y"], np.tanh(X) @ W, rtol=1e-14)
    assert run.outputs["s"].tolist() == [2, 3]
    by_name = run.backward({"y": DY}, retain_graph=True)
    by_order = run.backward([DY, None])
    check(by_name)
    assert all(np.array_equal(by_name[name], by_order[name]) for name in ("x", "w"))


def test_runs_wait_side_by_side(module):
    runs = [module.forward({"x": X}) for _ in range(3)]
    del runs[1]
    for run in reversed(runs):
        run.outputs["y"][:] = np.nan  # the array is the caller's
        check(run.backward({"y": DY}))
        assert not run.pending


def test_errors_keep_the_run(module):
    run = module.forward({"x": X})
    with pytest.raises(ValueError, match=r"no outputs \['q'\]"):
        run.backward({"q": DY})
    with pytest.raises(ValueError, match=r"'y' must be float64\[2, 2\]"):
        run.backward({"y": DY[:, :1]})
    with pytest.raises(ValueError, match="'s' depends on nothing"):
        run.backward({"s": np.zeros(2, dtype=np.int64)})
    check(run.backward({"y": DY}))
    with pytest.raises(ValueError, match="the run is over"):
        run.backward({"y": DY})


def test_parameters(module):
    run = module.forward({"x": X})
    module.set_parameters({"w": 2 * W})
    np.testing.assert_array_equal(module.parameters()["w"], 2 * W)
    np.testing.assert_allclose(module.predict({"x": X})["y"], np.tanh(X) @ W * 2, rtol=1e-14)
    check(run.backward({"y": DY}))  # it began with the old parameters
    check(module.forward({"x": X}).backward({"y": DY}), 2 * W)
    with pytest.raises(KeyError):
        module.set_parameters({"v": W})
    with pytest.raises(ValueError, match="'w' is float64"):
        module.set_parameters({"w": W.T})


def test_a_run_outlives_its_module_and_ends_in_another_thread(module):
    run = module.forward({"x": X.copy()})
    results = []
    del module
    thread = threading.Thread(target=lambda: results.append(run.backward({"y": DY})))
    thread.start()
    thread.join()
    check(results[0])
