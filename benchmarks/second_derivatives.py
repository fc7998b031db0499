#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures training steps whose loss depends on derivatives: eager PyTorch, caesura.wrap with
caesura.fuse, and caesura.compile_step.

    OMP_NUM_THREADS=1 python benchmarks/second_derivatives.py [--rounds 15] [--only REGEX] [--check]

A step is forward, derivatives, loss, backward and AdamW. With wrap the derivatives are taken in the loop, and the optimizer is fused
(caesura.fuse); with compile_step they are taken in the module that it is given. The routes take turns. It prints the median CPU time
of a step in milliseconds, and the median of each route's time over eager's in the same round, with the quartiles, and the ratio of
the least times, which others on the machine disturb less; at last the geometric means. --check compares 20 steps in float64 with
eager's, and measures nothing.
"""

import argparse
import copy
import math
import re
import statistics
import time
import warnings

import torch
from torch.autograd import grad

import caesura

nn, F = torch.nn, torch.nn.functional


def mlp(*sizes, activation=nn.Tanh):
    layers = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


class Broken(nn.Module):
    """Two nets with a graph break between."""

    def __init__(self):
        super().__init__()
        self.first, self.last = mlp(64, 256, 256), mlp(256, 256, 1)

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.last(h)


class SchNet(nn.Module):
    """Energies of molecules by continuous-filter convolutions (Schuett and others, 2017)."""

    def __init__(self, width=64, layers=3, bases=32):
        super().__init__()
        self.kinds = nn.Embedding(10, width)
        self.register_buffer("centres", torch.linspace(0, 5, bases))
        self.filters = nn.ModuleList(nn.Sequential(nn.Linear(bases, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers))
        self.before = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers))
        self.last = nn.Sequential(nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1))

    def forward(self, kinds, positions, pairs, molecules):
        distances = (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1)
        spread = (-10 * (distances[:, None] - self.centres).square()).exp()
        near = 0.5 * ((distances * (math.pi / 5)).cos() + 1)
        h = self.kinds(kinds)
        for filters, before, after in zip(self.filters, self.before, self.after):
            messages = before(h)[pairs[0]] * (filters(spread) * near[:, None])
            h = h + after(torch.zeros_like(h).index_add(0, pairs[1], messages))
        atoms = self.last(h).squeeze(1)
        return torch.zeros(8, dtype=atoms.dtype).index_add(0, molecules, atoms)


def molecules():
    """8 molecules of 20 atoms, the pairs of those near each other, energies and forces."""
    positions = torch.rand(160, 3) * 4
    number = torch.arange(8).repeat_interleave(20)
    near = (torch.cdist(positions, positions) < 2) & (number[:, None] == number) & ~torch.eye(160, dtype=torch.bool)
    return torch.randint(0, 10, (160,)), positions, near.nonzero().t().contiguous(), number, torch.randn(8), torch.randn(160, 3)


# Each function makes a loss of a net and inputs, whose first input is one that the loss takes derivatives by.

def gradient_penalty(net, real, made, mixed):
    mixed = mixed.requires_grad_()
    slope, = grad(net(mixed).sum(), mixed, create_graph=True)
    return net(made).mean() - net(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def forces(net, kinds, positions, pairs, number, energies, pulls):
    positions = positions.requires_grad_()
    energy = net(kinds, positions, pairs, number)
    slope, = grad(energy.sum(), positions, create_graph=True)
    return F.mse_loss(energy, energies) + 10 * F.mse_loss(-slope, pulls)


def burgers(net, t, x):
    t, x = t.requires_grad_(), x.requires_grad_()
    u = net(torch.cat([t, x], 1))
    by_t, by_x = grad(u.sum(), (t, x), create_graph=True)
    by_xx, = grad(by_x.sum(), x, create_graph=True)
    return (by_t + u * by_x - (0.01 / math.pi) * by_xx).square().mean()


def curvature(net, x, labels, *direction):
    """The loss and the curvature along a direction in the space of the parameters."""
    loss = F.cross_entropy(net(x), labels)
    parameters = list(net.parameters())
    slopes = grad(loss, parameters, create_graph=True)
    along = sum((g * d).sum() for g, d in zip(slopes, direction))
    return loss + 0.1 * along.square()


def rows():
    """Name to (net, loss, inputs)."""
    net = mlp(64, 128, 128, 10)
    direction = [torch.randn_like(p) * 0.01 for p in net.parameters()]
    return {
        "gradient penalty": (mlp(64, 256, 256, 1, activation=nn.SiLU), gradient_penalty, [torch.randn(64, 64) for _ in range(3)]),
        "forces": (SchNet(), forces, list(molecules())),
        "PINN": (mlp(2, 64, 64, 64, 1), burgers, [torch.rand(512, 1) for _ in range(2)]),
        "Hessian-vector product": (net, curvature, [torch.randn(128, 64), torch.randint(0, 10, (128,)), *direction]),
        "graph break": (Broken(), gradient_penalty, [torch.randn(64, 64) for _ in range(3)]),
    }


class WithLoss(nn.Module):
    def __init__(self, net, loss):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, *inputs):
        return self.loss(self.net, *inputs)


def in_a_loop(net, loss, inputs, prepare=lambda optimizer: optimizer):
    optimizer = prepare(torch.optim.AdamW(net.parameters(), lr=1e-3))

    def step():
        optimizer.zero_grad()
        value = loss(net, *(x.detach() for x in inputs))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def compiled(net, loss, inputs):
    step = caesura.compile_step(WithLoss(net, loss), None, torch.optim.AdamW(net.parameters(), lr=1e-3))
    return lambda: step(*inputs)


def routes(net, loss, inputs):
    made = {"eager": in_a_loop(copy.deepcopy(net), loss, inputs),
            "wrap": in_a_loop(caesura.wrap(copy.deepcopy(net)), loss, inputs, caesura.fuse)}
    if not isinstance(net, Broken):  # which compile_step refuses
        made["compile_step"] = compiled(copy.deepcopy(net), loss, inputs)
    return made


def measure(made, rounds, seconds):
    """CPU times of a step by route: a list of rounds each."""
    counts = {}
    for name, step in made.items():
        for _ in range(3):
            step()
        began = time.process_time()
        step()
        counts[name] = max(1, round(seconds / (time.process_time() - began)))
    times = {name: [] for name in made}
    for _ in range(rounds):
        for name, step in made.items():
            began = time.process_time()
            for _ in range(counts[name]):
                step()
            times[name].append((time.process_time() - began) / counts[name] * 1e3)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each route in a round")
    parser.add_argument("--only", default=".")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    means = {}
    for name, (net, loss, inputs) in rows().items():
        if not re.search(given.only, name):
            continue
        if given.check:
            net, inputs = net.double(), [x.double() if x.is_floating_point() else x for x in inputs]
            found = {route: torch.stack([step() for _ in range(20)]) for route, step in routes(net, loss, inputs).items()}
            print(name, {route: ((losses - found["eager"]).abs() / found["eager"].abs()).max().item() for route, losses in found.items()})
            continue
        times = measure(routes(net, loss, inputs), given.rounds, given.seconds)
        line = f"{name:24} eager {statistics.median(times['eager']):7.3f} ms"
        for route in [route for route in times if route != "eager"]:
            low, middle, high = statistics.quantiles((a / b for a, b in zip(times[route], times["eager"])), n=4)
            least = min(times[route]) / min(times["eager"])
            means.setdefault(route, []).append((middle, least))
            line += f"  {route} {statistics.median(times[route]):7.3f} ms, {middle:.2f} [{low:.2f}, {high:.2f}], least {least:.2f}"
        print(line, flush=True)
    for route, pairs in means.items():
        for kind, ratios in zip(("medians", "least times"), zip(*pairs)):
            print(f"{route}, {kind}: geometric mean {statistics.geometric_mean(ratios):.2f}, highest {max(ratios):.2f}")
    print(caesura.stats())


if __name__ == "__main__":
    warnings.simplefilter("default", caesura.FallbackWarning)
    main()
