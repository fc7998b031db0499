# SPDX-License-Identifier: Apache-2.0
"""Adapters train beside frozen weights of few bits, which no step unpacks as a whole.

A weight is an input of MatMulNBits, or of DequantizeLinear with blocks; both train as its numbers in float32 do.
"""

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import caesura

N, K, BLOCK, RANK = 48, 64, 32, 4


def tensors(n, k):
    """Returns (int4 numbers [n, k], scales [n, k / BLOCK], adapter A [k, RANK], adapter B [RANK, n], first layer [k, k])."""
    rng = np.random.default_rng(0)
    return (rng.integers(-8, 8, (n, k)), (rng.random((n, k // BLOCK)) * 0.05).astype(np.float32),
            *((0.1 * rng.standard_normal(shape)).astype(np.float32) for shape in ((k, RANK), (RANK, n), (k, k))))


def model(weights, n=N, k=K):
    """y = tanh(x first) (W^T + A B), with W [n, k] as `weights` says: "nbits", "dequantize" or "float"."""
    q, scales, a, b, first = tensors(n, k)
    found = {"a": a, "b": b, "first": first}
    if weights == "nbits":
        numbers = (q + 8).astype(np.uint8).reshape(n, k // BLOCK, BLOCK)
        found |= {"q": numbers[..., ::2] | numbers[..., 1::2] << 4, "scales": scales}
        base = [helper.make_node("MatMulNBits", ["h", "q", "scales"], ["base"], domain="com.microsoft", K=k, N=n, bits=4,
                                 block_size=BLOCK)]
    elif weights == "dequantize":
        found |= {"scales": scales}
        base = [helper.make_node("DequantizeLinear", ["q", "scales"], ["w"], axis=1, block_size=BLOCK),
                helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["h", "t"], ["base"])]
    else:
        found |= {"w": np.ascontiguousarray((q * np.repeat(scales, BLOCK, 1)).T.astype(np.float32))}
        base = [helper.make_node("MatMul", ["h", "w"], ["base"])]
    nodes = [helper.make_node("MatMul", ["x", "first"], ["p"]), helper.make_node("Tanh", ["p"], ["h"]), *base,
             helper.make_node("MatMul", ["h", "a"], ["low"]), helper.make_node("MatMul", ["low", "b"], ["change"]),
             helper.make_node("Add", ["base", "change"], ["y"])]
    initializers = [numpy_helper.from_array(value, name) for name, value in found.items()]
    if weights == "dequantize":
        initializers.append(helper.make_tensor("q", TensorProto.INT4, [n, k], q.ravel().tolist()))
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])], initializers)
    return helper.make_model(graph, ir_version=10,
                             opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])


def session(weights, n=N, k=K, **options):
    options = {"loss": "mse", "optimizer": caesura.optim.AdamW(lr=0.01), "frozen": ["w"] if weights == "float" else []} | options
    return caesura.TrainingSession(model(weights, n, k), **options)


def batch(i, n=N, k=K):
    rng = np.random.default_rng(i)
    return {"x": rng.standard_normal((16, k)).astype(np.float32), "target": rng.standard_normal((16, n)).astype(np.float32)}


def losses(of, steps=range(6)):
    return [of.step(batch(i)) for i in steps]


@pytest.mark.parametrize("weights", ["nbits", "dequantize"])
def test_trains_as_with_the_numbers_in_float32(weights, capfd):
    ours, floats = session(weights), session("float")
    assert capfd.readouterr().err == ""
    assert sorted(ours.parameters()) == sorted(floats.parameters()) == ["a", "b", "first"]
    np.testing.assert_allclose(losses(ours), losses(floats), rtol=1e-5)
    for name, value in floats.parameters().items():
        np.testing.assert_allclose(ours.parameters()[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("weights", ["nbits", "dequantize"])
def test_half_precision_leaves_the_weights_as_they_are(weights):
    np.testing.assert_allclose(losses(session(weights, precision="bf16")), losses(session("float")), rtol=2e-2)


@pytest.mark.parametrize("weights", ["nbits", "dequantize"])
def test_no_step_holds_the_weights_in_float32(weights):
    n, k = 2048, 1024
    unpacked = 4 * n * k
    ours, floats = session(weights, n, k), session("float", n, k)
    feeds = batch(0, n, k)
    assert ours.memory(feeds).arena < unpacked
    assert ours.memory(feeds).peak < floats.memory(feeds).peak - unpacked // 2
    plan = ours.plan(feeds).text
    assert "com.microsoft::MatMulNBits " in plan and "ai.caesura::TransposedMatMulNBits " in plan and "DequantizeLinear" not in plan
    assert ours.step(feeds) == pytest.approx(floats.step(feeds), rel=1e-5)


def test_recomputation_changes_nothing():
    def deep(**options):
        net = model("nbits", K, K)
        last = net.graph.node[-1].output
        for i in range(4):
            source, last[0] = f"d{i}", f"d{i}"
            product = helper.make_node("MatMulNBits", [source, "q", "scales"], [f"m{i}"], domain="com.microsoft", K=K, N=K, bits=4,
                                       block_size=BLOCK)
            net.graph.node.extend([product, helper.make_node("Tanh", [f"m{i}"], ["y"])])
            last = net.graph.node[-1].output
        return caesura.TrainingSession(net, loss="mse", optimizer=caesura.optim.SGD(lr=0.1), **options)

    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2048, K)).astype(np.float32) for name in ("x", "target")}
    plain = deep()
    small = deep(memory_budget=int(0.8 * plain.memory(feeds).arena))
    assert small.memory(feeds).arena < plain.memory(feeds).arena
    assert [small.step(feeds) for _ in range(3)] == [plain.step(feeds) for _ in range(3)]


@pytest.mark.parametrize("weights", ["nbits", "dequantize"])
def test_a_checkpoint_goes_on(weights, tmp_path):
    whole, first, second = session(weights), session(weights), session(weights)
    expected = losses(whole)
    assert losses(first, range(3)) == expected[:3]
    first.save(tmp_path / "step.safetensors")
    second.restore(tmp_path / "step.safetensors")
    assert losses(second, range(3, 6)) == expected[3:]


def test_the_step_as_a_plain_file(tmp_path):
    ours = session("nbits", optimizer=caesura.optim.SGD(lr=0.1))
    ours.export_training(tmp_path / "step.onnx", what="step")
    onnx.checker.check_model(onnx.load(tmp_path / "step.onnx"), full_check=True)
    run = onnx.reference.ReferenceEvaluator(str(tmp_path / "step.onnx"))
    found = dict(zip(run.output_names, run.run(None, batch(0) | {"caesura.step": np.array(1)})))
    assert float(found["caesura.loss"]) == pytest.approx(ours.step(batch(0)), rel=1e-6)
    for name, value in ours.parameters().items():
        np.testing.assert_allclose(found[f"updated.{name}"], value, rtol=1e-5, atol=1e-6)


def test_frozen_weights_are_not_trained():
    with pytest.raises(NotImplementedError, match="MatMulNBits .* has no gradient for its input 2"):
        session("nbits", trainable=["scales"])
    with pytest.raises(ValueError, match="no floating initializer 'q'"):
        session("nbits", trainable=["q"])
    with pytest.raises(ValueError, match="1 weights are whole numbers that DequantizeLinear or MatMulNBits reads .*'q'"):
        session("nbits", frozen=["a", "b", "first"])


def test_a_damaged_node_is_named():
    damaged = model("nbits")
    next(a for a in damaged.graph.node[2].attribute if a.name == "block_size").i = 64
    with pytest.raises(ValueError, match=r"com.microsoft::MatMulNBits .*B: expected \[48, 1, 32\], got \[48, 2, 16\]"):
        caesura.TrainingSession(damaged, loss="mse").step(batch(0))
