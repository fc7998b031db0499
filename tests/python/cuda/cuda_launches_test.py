# SPDX-License-Identifier: Apache-2.0
"""Launches of a whole training step of a GPT on the stand-in for CUDA: how many each layer adds, by kind."""

import numpy as np
import onnx.parser
import pytest

import caesura
from standin_cuda import standin  # noqa: F401

KINDS = {"kernels": "kernel ", "products": "cublasLtMatmul", "cuDNN": "cudnnBackendExecute", "copies": "copy ", "fills": "fill "}
# The kernels of a layer: groups of rows; the activation; attention's scores and their gradient, where cuDNN has no plan for it;
# dropouts, whose gradients are of the groups; biases that become float32.
NAMES = {name: "kernel " + name for name in ("rows", "elementwise", "probabilities", "score_slopes", "dropout", "widen")}
WIDTH, HEADS, TIME, WORDS = 16, 2, 8, 11
BLOCK = """
    na@ = LayerNormalization <axis = -1> (IN, scale_a@, shift_a@)
    m@ = MatMul (na@, qkv@)
    l@ = Add (m@, qkv_bias@)
    q@, k@, v@ = Split <axis = -1, num_outputs = 3> (l@)
    a@ = Attention <is_causal = 1, q_num_heads = 2, kv_num_heads = 2> (q@, k@, v@)
    pm@ = MatMul (a@, proj@)
    pb@ = Add (pm@, proj_bias@)
    pd@ = Dropout (pb@)
    xa@ = Add (IN, pd@)
    nb@ = LayerNormalization <axis = -1> (xa@, scale_b@, shift_b@)
    um@ = MatMul (nb@, up@)
    ub@ = Add (um@, up_bias@)
    g@ = Gelu <approximate = "tanh"> (ub@)
    dm@ = MatMul (g@, down@)
    db@ = Add (dm@, down_bias@)
    dd@ = Dropout (db@)
    xb@ = Add (xa@, dd@)"""
WEIGHTS = {"scale_a": (16,), "shift_a": (16,), "qkv": (16, 48), "qkv_bias": (48,), "proj": (16, 16), "proj_bias": (16,),
           "scale_b": (16,), "shift_b": (16,), "up": (16, 64), "up_bias": (64,), "down": (64, 16), "down_bias": (16,)}


def gpt(layers, drops):
    rng = np.random.default_rng(0)
    block = BLOCK if drops else BLOCK.replace("Dropout", "Identity")
    body, x, weights = "", "x", {"token": (WORDS, WIDTH), "position": (TIME, WIDTH), "scale_f": (16,), "shift_f": (16,)}
    for i in map(str, range(layers)):
        body += block.replace("@", i).replace("IN", x)
        x = "xb" + i
        weights |= {name + i: shape for name, shape in WEIGHTS.items()}
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 23]>
        gpt (int64[N, {TIME}] tokens) => (float[N, {TIME}, {WORDS}] scores) {{
    e = Gather <axis = 0> (token, tokens)
    x = Add (e, position){body}
    last = LayerNormalization <axis = -1> ({x}, scale_f, shift_f)
    head = Transpose <perm = [1, 0]> (token)
    scores = MatMul (last, head) }}""")
    for name, shape in weights.items():
        values = np.ones(shape) if name.startswith("scale") else rng.normal(size=shape) * 0.1
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
    return model


def launches(standin, layers, precision, drops):  # noqa: F811
    session = caesura.TrainingSession(gpt(layers, drops), loss="cross_entropy", target="next", class_axis=-1, clip_norm=1.0,
                                      precision=precision, optimizer=caesura.optim.AdamW(lr=1e-3), providers=[standin.provider()])
    rng = np.random.default_rng(1)
    feeds = {name: rng.integers(0, WORDS, (2, TIME)) for name in ("tokens", "next")}
    session.step(feeds)
    counted = KINDS | NAMES
    before = {kind: standin.operations(name) for kind, name in counted.items()}
    session.step(feeds)
    return {kind: standin.operations(name) - before[kind] for kind, name in counted.items()}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_layer_adds_few(standin, precision, drops):  # noqa: F811
    one, two = launches(standin, 1, precision, drops), launches(standin, 2, precision, drops)
    layer = {kind: two[kind] - one[kind] for kind in one}
    print(f"{precision}{', dropout' if drops else ''}: a step of one layer {one}; each further layer {layer}; twelve layers "
          f"{ {kind: one[kind] + 11 * layer[kind] for kind in one} }")
    assert layer["products"] == (26 if precision == "fp32" else 12)  # four products, with two gradients each
    assert layer["cuDNN"] == (2 if precision == "bf16" else 0)  # attention and its gradient
    # In bf16 two biases become float32, as cuBLASLt wants them; with dropouts they are no part of their products.
    most = {("fp32", False): 10, ("fp32", True): 12, ("bf16", False): 9, ("bf16", True): 9}
    assert layer["kernels"] <= most[precision, drops]
    assert layer["kernels"] == sum(layer[name] for name in NAMES)
    # Casts of weights, and copies of what an update overwrites, are a launch for many tensors.
    assert layer["copies"] == layer["fills"] == 0
