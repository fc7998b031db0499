# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantizeLSTM (com.microsoft), as onnxruntime's quantize_dynamic writes it, agrees with a NumPy reference.

It is also compared with an LSTM of the dequantized weights."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from caesura import onnxruntime

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 6
NAMES = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P", "W_scale", "W_zero", "R_scale", "R_zero"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Quantized:
    """Computes ONNX's DynamicQuantizeLinear. `margin` is the least distance of an element from a tie.

    Near a tie float32's last bits decide the direction of the rounding."""

    def __init__(self):
        self.margin = 0.5

    def __call__(self, x, ranged):
        low, high = min(0, np.float32(ranged).min()), max(0, np.float32(ranged).max())
        scale = np.float32(high - low if high > low else 1) / np.float32(255)
        zero = np.rint(np.clip(-low / scale, 0, 255))
        steps = np.float64(x) / scale
        self.margin = min(self.margin, np.abs(steps - np.floor(steps) - 0.5).min())
        return np.clip(np.rint(steps) + zero, 0, 255) - zero, scale


def direction_of(f, d, reverse, quantized):
    """Returns one direction's Y [steps, batch, hidden], Y_h and Y_c."""
    steps, batch = f["X"].shape[:2]
    lens = f.get("sequence_lens", np.full(batch, steps))
    w = (f["W"][d].astype(int) - of_direction(f["W_zero"], d)) * of_direction(f["W_scale"], d)
    r = (f["R"][d].astype(int) - of_direction(f["R_zero"], d)) * of_direction(f["R_scale"], d)
    hidden = r.shape[0]
    bias = f["B"][d].reshape(2, -1).sum(0) if "B" in f else 0
    p = f["P"][d].reshape(3, hidden) if "P" in f else np.zeros((3, hidden))
    h = f["initial_h"][d] if "initial_h" in f else np.zeros((batch, hidden))
    c = f["initial_c"][d] if "initial_c" in f else np.zeros((batch, hidden))
    q, scale = quantized(f["X"], f["X"][:lens.max()])
    y = np.zeros((steps, batch, hidden))
    for t in range(steps)[::-1 if reverse else 1]:
        runs = (t < lens)[:, None]
        qh, h_scale = quantized(h, h * runs)
        i, o, g, a = np.split(scale * (q[t] @ w) + h_scale * (qh @ r) + bias, 4, axis=1)
        i, g, a = sigmoid(i + p[0] * c), sigmoid(g + p[2] * c), np.tanh(a)
        cell = g * c + i * a
        state = sigmoid(o + p[1] * cell) * np.tanh(cell)
        h, c, y[t] = np.where(runs, state, h), np.where(runs, cell, c), np.where(runs, state, 0)
    return y, h, c


def of_direction(parameter, d):
    """Returns a scale or zero point of direction d: one number, or a row with one number per column."""
    return parameter[d].astype(np.float64)


def reference(f, direction):
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    quantized = Quantized()
    ys, hs, cs = zip(*(direction_of(f, d, reverse, quantized) for d, reverse in enumerate(reversals)))
    assert quantized.margin > 1e-4, "the case has an element between two steps: take another seed"
    return np.stack(ys, 1), np.stack(hs), np.stack(cs)


def feeds(seed, directions, dtype, per_column, optional=()):
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    scales = (directions, 4 * HIDDEN) if per_column else (directions,)
    middle = (info.min + info.max + 1) // 2
    f = {"X": rng.standard_normal((STEPS, BATCH, INPUT)).astype(np.float32),
         "W": rng.integers(info.min, info.max + 1, (directions, INPUT, 4 * HIDDEN)).astype(dtype),
         "R": rng.integers(info.min, info.max + 1, (directions, HIDDEN, 4 * HIDDEN)).astype(dtype),
         "B": rng.standard_normal((directions, 8 * HIDDEN)).astype(np.float32) / 4,
         "W_scale": rng.uniform(0.002, 0.006, scales).astype(np.float32), "W_zero": (middle + rng.integers(-9, 10, scales)).astype(dtype),
         "R_scale": rng.uniform(0.002, 0.006, scales).astype(np.float32), "R_zero": (middle + rng.integers(-9, 10, scales)).astype(dtype)}
    more = {"sequence_lens": np.array([2, 4, 3], np.int32),
            "initial_h": rng.uniform(-1, 1, (directions, BATCH, HIDDEN)).astype(np.float32),
            "initial_c": rng.uniform(-1, 1, (directions, BATCH, HIDDEN)).astype(np.float32),
            "P": rng.uniform(-1, 1, (directions, 3 * HIDDEN)).astype(np.float32)}
    return f | {name: more[name] for name in optional}


def model_of(node, f, outputs=("Y", "Y_h", "Y_c")):
    infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
             for name, array in f.items()]
    graph = helper.make_graph([node], "net", infos,
                              [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def quantized_node(f, **attributes):
    return helper.make_node("DynamicQuantizeLSTM", [name if name in f else "" for name in NAMES], ["Y", "Y_h", "Y_c"],
                            domain="com.microsoft", hidden_size=HIDDEN, **attributes)


def run(node, f):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model_of(node, f), options).run(None, f)


OPTIONAL = ("sequence_lens", "initial_h", "initial_c", "P")
CASES = list(itertools.product(["forward", "reverse", "bidirectional"], [np.int8, np.uint8], [False, True], [(), OPTIONAL]))


@pytest.mark.parametrize("direction, dtype, per_column, optional", CASES)
def test_is_the_reference(direction, dtype, per_column, optional):
    f = feeds(3, 2 if direction == "bidirectional" else 1, dtype, per_column, optional)
    for got, want in zip(run(quantized_node(f, direction=direction), f), reference(f, direction)):
        # No element is near a tie, so both sides round equally. Only float32's rounding against float64 is left.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)


def test_is_near_the_lstm_of_its_weights():
    f = feeds(1, 2, np.int8, True)
    del f["W_zero"], f["R_zero"]
    floats = {"X": f["X"], "B": f["B"],
              "W": (f["W"] * f["W_scale"][:, None]).transpose(0, 2, 1), "R": (f["R"] * f["R_scale"][:, None]).transpose(0, 2, 1)}
    lstm = helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y", "Y_h", "Y_c"], hidden_size=HIDDEN, direction="bidirectional")
    f |= {"W_zero": np.zeros((2, 4 * HIDDEN), np.int8), "R_zero": np.zeros((2, 4 * HIDDEN), np.int8)}
    exact = run(lstm, floats)
    for got, want in zip(run(quantized_node(f, direction="bidirectional"), f), exact):
        difference = np.abs(got - want).max()
        # Half a step of X is 1/510 of its range (about 5), or 0.01. It enters each of a product's 4 terms, whose
        # weights average 0.25; half of the errors cancel. H has a smaller range, and gates have a slope of 1 at most.
        assert 0 < difference < 0.02


def test_of_zeros_is_an_lstm_of_its_bias():
    f = feeds(0, 1, np.int8, False)
    f["X"] = np.zeros((1, BATCH, INPUT), np.float32)
    i, o, _, a = np.split(f["B"][0].astype(np.float64).reshape(2, -1).sum(0), 4)
    y = sigmoid(o) * np.tanh(sigmoid(i) * np.tanh(a))
    np.testing.assert_allclose(run(quantized_node(f), f)[1][0, 0], y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("change, message", [
    ({"W_scale": np.ones(5, np.float32)}, r"input 8: expected 1 or 24 elements, got 5"),
    ({"R_zero": np.zeros(1, np.uint8)}, "zero point of the weights' dtype at inputs 10 and 11"),
    ({"W": np.zeros((1, 4 * HIDDEN, INPUT), np.int8)}, r"input 1: expected \[1, 4, 24\], got \[1, 24, 4\]"),
    ({"R": np.zeros((1, HIDDEN, 4 * HIDDEN), np.float32)}, "W and R must be int8 or uint8"),
])
def test_refuses_what_does_not_fit(change, message):
    f = feeds(0, 1, np.int8, False) | change
    with pytest.raises(ValueError, match=message):
        run(quantized_node(f), f)


@pytest.mark.parametrize("name", ["W", "R"])
def test_refuses_a_node_without_its_weights(name):
    f = feeds(0, 1, np.int8, False)
    del f[name]
    with pytest.raises(ValueError, match=f"input {NAMES.index(name)}: expected a tensor, got none"):
        run(quantized_node(f), f)


def test_types_of_its_outputs_are_known():
    f = feeds(0, 2, np.int8, False)
    session = onnxruntime.InferenceSession(model_of(quantized_node(f, direction="bidirectional"), f))
    assert [(o.type, o.shape) for o in session.get_outputs()] == [
        ("tensor(float)", [STEPS, 2, BATCH, HIDDEN])] + [("tensor(float)", [2, BATCH, HIDDEN])] * 2
