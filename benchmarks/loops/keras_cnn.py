# SPDX-License-Identifier: Apache-2.0
"""Keras 3 on PyTorch: compile() and fit()."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch

import caesura


class Turns(keras.callbacks.Callback):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def on_train_batch_end(self, batch, logs=None):
        first = not self.loop.losses  # later ones are means over the epoch
        self.loop.done(torch.tensor(logs["loss"]) if first else None)


def run(loop):
    keras.utils.set_random_seed(0)
    parts = keras.layers
    model = keras.Sequential([keras.Input((28, 28, 1)), parts.Conv2D(16, 3, activation="relu"), parts.MaxPooling2D(),
                              parts.Conv2D(32, 3, activation="relu"), parts.GlobalAveragePooling2D(), parts.Dropout(0.3),
                              parts.Dense(64, activation="relu"), parts.Dense(10)])
    if loop.route == "wrap":
        model = caesura.wrap(model)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=loop.route in ("compile", "autotune"))
    data = np.random.default_rng(0).normal(size=(1024, 28, 28, 1)).astype("float32")
    model.fit(data, np.arange(1024) % 10, batch_size=32, epochs=10**5, verbose=0, shuffle=False, callbacks=[Turns(loop)])
