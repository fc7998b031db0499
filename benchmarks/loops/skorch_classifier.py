# SPDX-License-Identifier: Apache-2.0
"""A classifier of skorch, fitted as an estimator of scikit-learn is."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback


def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                               torch.nn.Linear(128, 10))


class Route(Callback):
    def __init__(self, loop):
        self.loop = loop

    def on_train_begin(self, fitted, **_):
        fitted.optimizer_ = self.loop.optimizer(fitted.optimizer_)


def run(loop):
    x, y = np.random.default_rng(0).normal(size=(1280, 64)).astype("float32"), np.arange(1280) % 10
    model = net()
    if loop.route == "step":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
        step = loop.step(model, torch.nn.functional.cross_entropy, optimizer)
        while True:
            for at in range(0, 1280, 64):
                loop.done(step(torch.from_numpy(x[at : at + 64]), torch.from_numpy(y[at : at + 64])))
    loop.hook()
    fitted = NeuralNetClassifier(loop.module(model), criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.SGD,
                                 optimizer__momentum=0.9, optimizer__fused=True, lr=0.05, batch_size=64, max_epochs=100000,
                                 train_split=None, callbacks=[Route(loop)], verbose=0)
    fitted.fit(x, y)
