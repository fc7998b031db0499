# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch as nodes, from Python: the library opened at run time, and operators written in Python."""

import os
import pathlib

import pytest
from fork_server import Program
from onnx import TensorProto, helper

import caesura
from caesura import onnxruntime, torch_kernels

torch = pytest.importorskip("torch")
if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)


@torch.library.custom_op("caesura_python_test::twice", mutates_args=())
def twice(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * 2 + by


@twice.register_fake
def _(x, by):
    return torch.empty_like(x)


def _backward(context, dy):
    return dy * 2, None


twice.register_autograd(_backward)


def model(operator, shape=("n", 4), **attributes):
    node = helper.make_node("ATen", ["x"], ["y"], domain="org.pytorch.aten", operator=operator, **attributes)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("org.pytorch.aten", 1)]
    return helper.make_model(graph, opset_imports=opsets).SerializeToString()


def test_a_session_runs_pytorchs_operators():
    x = torch.randn(3, 4)
    (y,) = onnxruntime.InferenceSession(model("aten::gelu", approximate="tanh")).run(None, {"x": x})
    assert torch.equal(y, torch.nn.functional.gelu(x, approximate="tanh"))


def test_operators_written_in_python():
    x = torch.randn(3, 4)
    source = model("caesura_python_test::twice", by=0.5)
    with torch.inference_mode():
        (y,) = onnxruntime.InferenceSession(source).run(None, {"x": x})
    assert torch.equal(y, x * 2 + 0.5)
    run = caesura.SplitModule(source, inputs=["x"]).forward({"x": x})
    with torch.no_grad():
        gradient = run.backward([torch.ones(3, 4)])["x"]
    assert torch.equal(gradient, torch.full((3, 4), 2.0))


def test_gradients_are_those_of_autograd():
    x = torch.randn(3, 4, requires_grad=True)
    dy = torch.randn(3, 4)
    torch.nn.functional.mish(x).backward(dy)
    run = caesura.SplitModule(model("aten::mish"), inputs=["x"]).forward({"x": x.detach()})
    torch.testing.assert_close(run.backward([dy])["x"], x.grad, rtol=1e-6, atol=1e-6)


def test_errors_name_the_node():
    session = onnxruntime.InferenceSession(model("aten::view", shape=("n", 5), size=[7, 7]))
    with pytest.raises(ValueError, match=r"ATen.*invalid for input of size 15"):
        session.run(None, {"x": torch.ones(3, 5)})


def test_pytorchs_operator_samples():
    pytest.importorskip("expecttest")
    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "aten_nodes.py"
    some = [] if os.environ.get("CAESURA_LONG") else ["--ops", "^(a|index|nn.functional.(b|l|n)|linalg.s)", "--samples", "1"]
    done = Program(script, *some).result(timeout=20000)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
