# SPDX-License-Identifier: Apache-2.0
"""JAX: forward, loss, backward and AdamW in one jitted function, with the state's memory donated."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def _linear(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def _layer_norm(p, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[name + ".weight"] + p[name + ".bias"]


def _mlp(p, x):
    layers = sorted({int(name.split(".")[0]) for name in p})
    for i in layers:
        x = _linear(p, str(i), x)
        x = x if i == layers[-1] else jax.nn.relu(x)
    return x


def _gpt(p, tokens, heads, tanh):
    batch, time = tokens.shape
    x = p["token.weight"][tokens] + p["position.weight"][:time]
    width = x.shape[-1]
    visible = jnp.tril(jnp.ones((time, time), bool))
    for i in range(1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))):
        block = f"blocks.{i}."
        q, k, v = (part.reshape(batch, time, heads, width // heads).transpose(0, 2, 1, 3)
                   for part in jnp.split(_linear(p, block + "qkv", _layer_norm(p, block + "norm_1", x)), 3, -1))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(width // heads)
        attended = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1) @ v
        x = x + _linear(p, block + "projection", attended.transpose(0, 2, 1, 3).reshape(batch, time, width))
        up = jax.nn.gelu(_linear(p, block + "up", _layer_norm(p, block + "norm_2", x)), approximate=tanh)
        x = x + _linear(p, block + "down", up)
    head = p.get("head.weight", p["token.weight"])
    return (_layer_norm(p, "norm", x) @ head.T).reshape(batch * time, -1)


def _adamw(p, gradient, m, v, count, a):
    m = a["beta1"] * m + (1 - a["beta1"]) * gradient
    v = a["beta2"] * v + (1 - a["beta2"]) * gradient**2
    unbiased = jnp.sqrt(v / (1 - a["beta2"] ** count)) + a["epsilon"]
    p = p * (1 - a["learning_rate"] * a["weight_decay"])
    return p - a["learning_rate"] / (1 - a["beta1"] ** count) * m / unbiased, m, v


def _make_update(model, adamw):
    def loss_of(p, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(model(p, x)), y[:, None], 1).mean()

    @partial(jax.jit, donate_argnums=0)
    def update(state, x, y):
        parameters, first, second, count = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        new = {name: _adamw(parameters[name], gradients[name], first[name], second[name], count + 1, adamw)
               for name in parameters}
        return (*({name: values[i] for name, values in new.items()} for i in range(3)), count + 1), loss

    return update


def load(system, folder, job):
    models = {"mlp": _mlp, "gpt": partial(_gpt, heads=job["heads"], tanh=False),
              "gpt-tanh": partial(_gpt, heads=job["heads"], tanh=True)}
    if job["jax_model"] not in models:
        raise NotImplementedError("no JAX step is written for this workload")
    update = _make_update(models[job["jax_model"]], job["adamw"])
    with np.load(folder / "weights.npz") as file:
        parameters = {name: jnp.asarray(file[name]) for name in file.files}
    zeros = lambda: jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros(), zeros(), jnp.zeros((), jnp.float32))

    def step(x, y):
        nonlocal state
        state, loss = update(state, x, y)
        return loss

    return step, lambda x, y: (jnp.asarray(x, jnp.int32 if x.dtype.kind == "i" else x.dtype), jnp.asarray(y, jnp.int32))
