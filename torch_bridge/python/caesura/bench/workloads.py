# SPDX-License-Identifier: Apache-2.0
"""The workloads: each has a module, batches and a learning rate.

Every module maps one input to scores [n, classes]; the loss is the mean cross-entropy with targets [n]. All systems
start from the same weights (the seed's) and see the same batches.
"""

from dataclasses import dataclass, replace
from collections.abc import Callable

import numpy as np

BATCHES = 8  # distinct ones, taken in turns


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    build: Callable  # () -> torch.nn.Module
    input_shape: tuple
    classes: int
    tokens: bool = False      # inputs are numbers below `classes`, with one target a position; else images or rows
    bfloat16: bool = False    # torch.autocast, precision="bf16"
    jax_model: str = ""       # which of systems/jax_step.py's models it is
    heads: int = 0

    def module(self):
        """The module with its initial weights, in training mode."""
        import torch

        torch.manual_seed(1)
        return self.build().train()

    def batches(self) -> list:
        """BATCHES pairs of NumPy arrays (input, targets)."""
        rng = np.random.default_rng(2)
        return [self._batch(rng) for _ in range(BATCHES)]

    def _batch(self, rng):
        if not self.tokens:
            x = rng.standard_normal(self.input_shape, dtype=np.float32)
            return x, rng.integers(0, self.classes, self.input_shape[0])
        batch, time = self.input_shape
        text = rng.integers(0, self.classes, (batch, time + 1))
        return np.ascontiguousarray(text[:, :-1]), text[:, 1:].reshape(-1)


def _gpt(name: str, about: str, batch: int = 8, **sizes) -> Workload:
    from . import models

    gpt = models.GptSizes(**sizes)
    plain = gpt.activation != "silu" and gpt.norm == "layer"
    jax_model = "" if not plain else "gpt-tanh" if gpt.activation == "gelu-tanh" else "gpt"
    return Workload(name, about, lambda: models.Gpt(gpt), (batch, gpt.time), gpt.vocabulary, tokens=True,
                    heads=gpt.heads, jax_model=jax_model)


def _bfloat16(workload: Workload) -> Workload:
    return replace(workload, name=workload.name + "-bf16", about=workload.about + ", mixed bfloat16",
                   bfloat16=True, jax_model="")


def _llama(name: str, about: str, batch: int, **sizes) -> Workload:
    from . import models

    llama = models.LlamaSizes(**sizes)
    return Workload(name, about, lambda: models.Llama(llama), (batch, llama.time), llama.vocabulary, tokens=True)


def _images(name: str, about: str, build: str, input_shape: tuple, classes: int) -> Workload:
    from . import models

    return Workload(name, about, getattr(models, build), input_shape, classes)


def _mlp(name: str, about: str, batch: int, *widths: int) -> Workload:
    from . import models

    return Workload(name, about, lambda: models.mlp(*widths), (batch, widths[0]), widths[-1], jax_model="mlp")


def standard() -> list:
    """The workloads that a plain run takes."""
    chargpt = _gpt("chargpt", "6 layers, width 384, 6 heads, T=128, batch 8")
    gpt2 = _gpt("gpt2", "GPT-2 124M, T=64, batch 4", batch=4, layers=12, width=768, heads=12, time=64, vocabulary=50257,
                activation="gelu-tanh", tied=True)
    return [
        _mlp("tiny-mlp", "32-64-64-8, batch 16", 16, 32, 64, 64, 8),
        _mlp("mlp", "784-512-512-10, batch 64", 64, 784, 512, 512, 10),
        _images("digits-cnn", "3 convolutions on 8x8, batch 64", "digits_cnn", (64, 1, 8, 8), 10),
        chargpt, _bfloat16(chargpt),
        _llama("llama", "4 layers, width 256, 8 heads (4 kv), T=128, batch 4", 4),
        _images("resnet18", "64x64, batch 16", "resnet18", (16, 3, 64, 64), 1000),
        gpt2, _bfloat16(gpt2),
    ]


def perturbed() -> list:
    """chargpt, a little different in one way each, and in all ways: what is tuned for one shape shows here."""
    return [
        _gpt("chargpt-width392", "7 heads, width 392", width=392, heads=7),
        _gpt("chargpt-time120", "T=120", time=120),
        _gpt("chargpt-heads5", "5 heads, width 400", width=400, heads=5),
        _gpt("chargpt-silu-rms", "SiLU for GELU, RMSNorm for LayerNorm", activation="silu", norm="rms"),
        _gpt("chargpt-batch7", "batch 7", batch=7),
        _gpt("chargpt-perturbed", "all of these: width 400, 5 heads, T=120, SiLU, RMSNorm, batch 7", batch=7, width=400,
             heads=5, time=120, activation="silu", norm="rms"),
    ]


def small() -> list:
    """Shrunken ones, for tests."""
    return [_gpt("small-gpt", "2 layers, width 32", batch=2, layers=2, width=32, heads=2, time=16),
            _bfloat16(_gpt("small-gpt", "2 layers, width 32", batch=2, layers=2, width=32, heads=2, time=16)),
            _llama("small-llama", "2 layers, width 32", 2, layers=2, width=32, hidden=48, heads=4, kv_heads=2, time=16,
                   vocabulary=50)]


def find(name: str) -> Workload:
    for workload in standard() + perturbed() + small():
        if workload.name == name:
            return workload
    raise KeyError(name)
