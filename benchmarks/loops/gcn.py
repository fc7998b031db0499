# SPDX-License-Identifier: Apache-2.0
"""torch_geometric's GCNConv on one graph, as in its documentation: two layers, dropout, the loss of some of the nodes."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv


class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.second = layer(256, 128), layer(128, 7)

    def forward(self, x, edges):
        x = F.dropout(F.relu(self.first(x, edges)), p=0.5, training=self.training)
        return self.second(x, edges)


def train(loop, layer):
    x, labels = torch.randn(3000, 256), torch.randint(7, (3000,))
    edges, chosen = torch.randint(3000, (2, 20000)), torch.arange(0, 3000, 3)
    model = Net(layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)

    def loss_fn(scores, targets):
        return F.cross_entropy(scores[chosen], targets[chosen])

    step = loop.step(model, loss_fn, optimizer) if loop.route == "step" else None
    called, optimizer = loop.module(model), optimizer if step else loop.optimizer(optimizer)
    while True:
        if step:
            loss = step(x, edges, labels)
        else:
            loss = loss_fn(called(x, edges), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loop.done(loss)


def run(loop):
    train(loop, GCNConv)
