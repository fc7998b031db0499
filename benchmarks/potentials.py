#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains interatomic potentials of other libraries on energies, forces and stresses: eager PyTorch, caesura.wrap with
caesura.fuse, and caesura.compile_step.

    pip install torch==2.13.0 torch_geometric chgnet mace-torch
    OMP_NUM_THREADS=1 python benchmarks/potentials.py [--only REGEX] [--rounds 5] [--check]

Each row has batches of three sizes, which follow one another. It prints the seconds of the first step, the captured programs, the
median CPU time of a step in milliseconds, the median and the quartiles of its ratio to eager's in the same round, and what changing
sizes cost. --check compares the losses of 20 steps with eager's: in float64, CHGNet (whose constants are float32) in float32.
"""

import argparse
import copy
import re
import statistics
import time
import warnings

import numpy as np
import torch

import caesura

nn, F = torch.nn, torch.nn.functional


class Pairs(nn.Module):
    """The pairs of atoms that are near each other, which torch_geometric takes from a library in C++."""

    def __init__(self, cutoff):
        super().__init__()
        self.cutoff = cutoff

    def forward(self, positions, molecules):
        with torch.no_grad():
            near = ((positions[:, None] - positions[None]).norm(dim=2) < self.cutoff) & (molecules[:, None] == molecules[None])
            pairs = (near & ~torch.eye(len(positions), dtype=torch.bool)).nonzero().t()
        return pairs, (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1)


class SchNetLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, kinds, positions, molecules, energies, forces):
        positions = positions.requires_grad_()
        energy = self.net(kinds, positions, molecules).squeeze(1)
        slope, = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        # mse_loss() asks whether there are as many energies as values, which tell it
        return (energy - energies).square().mean() + 10 * F.mse_loss(-slope, forces)


def schnet():
    from torch_geometric.nn.models import SchNet
    net = SchNet(hidden_channels=64, num_filters=64, num_interactions=3, num_gaussians=32, cutoff=3.0, interaction_graph=Pairs(3.0))
    batches = []
    for count in (8, 6, 10):
        number = torch.arange(count).repeat_interleave(12)
        batches.append((torch.randint(1, 10, (len(number),)), torch.rand(len(number), 3) * 4, number, torch.randn(count),
                        torch.randn(len(number), 3)))
    return SchNetLoss(net), batches


class MaceLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        found = self.net(dict(batch), training=True, compute_force=True, compute_stress=True)
        return sum(F.mse_loss(found[name], batch[name]) for name in ("energy", "forces", "stress"))


def mace():
    torch.serialization.add_safe_globals([slice])  # in e3nn's file of constants
    from ase.build import molecule
    from e3nn import o3
    from mace import data, modules, tools
    from mace.tools import torch_geometric
    from mace.tools.compile import disable_e3nn_codegen, simplify
    table, block = tools.AtomicNumberTable([1, 6, 8]), modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    with disable_e3nn_codegen():  # as MACE's own torch.compile does
        net = simplify(modules.ScaleShiftMACE(
            r_max=3.0, num_bessel=6, num_polynomial_cutoff=5, max_ell=2, interaction_cls=block, interaction_cls_first=block,
            num_interactions=2, num_elements=3, hidden_irreps=o3.Irreps("16x0e + 16x1o"), MLP_irreps=o3.Irreps("16x0e"), gate=F.silu,
            atomic_energies=np.array([-1.0, -3.0, -5.0]), avg_num_neighbors=6, atomic_numbers=table.zs, correlation=2,
            atomic_inter_scale=1.0, atomic_inter_shift=0.0))
    batches = []
    for names in (("CH4", "CH3CH2OH", "H2O"), ("C6H6", "CH3OH", "CO2"), ("C2H6", "H2CO", "CH3COCH3")):
        systems = []
        for name in names:
            atoms = molecule(name, cell=[20, 20, 20])
            atoms.positions += np.random.normal(scale=0.05, size=atoms.positions.shape)
            systems.append(data.AtomicData.from_config(data.config_from_atoms(atoms), z_table=table, cutoff=3.0))
        batch, = torch_geometric.dataloader.DataLoader(systems, batch_size=len(systems))
        given = batch.to_dict()
        for name, value in (("positions", given["positions"]), ("displacement", torch.zeros(len(systems), 3, 3))):
            given[name] = value.requires_grad_()  # MACE does so itself where nothing captures it
        batches.append((given,))
    return MaceLoss(net), batches


class CHGNetLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, graphs, energies, forces, stresses):
        found = self.net(graphs, task="efs")
        return (F.mse_loss(found["e"], energies) + F.mse_loss(torch.cat(found["f"]), forces)
                + 0.1 * F.mse_loss(torch.stack(found["s"]), stresses))


def chgnet():
    from chgnet.model import CHGNet
    from pymatgen.core import Lattice, Structure
    net, batches = CHGNet.load(verbose=False), []
    salt = Structure.from_spacegroup("Fm-3m", Lattice.cubic(5.69), ["Na", "Cl"], [[0, 0, 0], [0.5, 0.5, 0.5]]).get_primitive_structure()
    for cells in ((1, 2, 1), (2, 1, 2), (2, 2, 1)):
        graphs = []
        for cell in cells:
            structure = salt * (cell, 1, 1)
            structure.perturb(0.1)
            graphs.append(net.graph_converter(structure))
        count = sum(len(graph.atomic_number) for graph in graphs)
        batches.append((graphs, torch.randn(len(graphs)) - 3, torch.randn(count, 3), torch.randn(len(graphs), 3, 3)))
    return CHGNetLoss(net), batches


ROWS = {"SchNet": schnet, "MACE": mace, "CHGNet": chgnet}


def in_a_loop(loss, batches, prepare=lambda optimizer: optimizer):
    optimizer = prepare(torch.optim.AdamW(loss.parameters(), lr=1e-4))

    def step(i):
        optimizer.zero_grad()
        value = loss(*batches[i % len(batches)])
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def routes(make):
    """Name to a function of the step's number, which returns the loss. Each has a model of its own: copies of MACE's are TorchScript."""
    made = []
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        made.append(make())
    (eager, batches), (ours, _), (whole, _) = made  # pymatgen draws others each time
    given = [copy.deepcopy(batches) for _ in made]  # which hold leaves
    ours.net = caesura.wrap(ours.net)
    step = caesura.compile_step(whole, None, torch.optim.AdamW(whole.parameters(), lr=1e-4))
    return {"eager": in_a_loop(eager, given[0]), "wrap": in_a_loop(ours, given[1], caesura.fuse),
            "compile_step": lambda i: step(*given[2][i % len(batches)])}


IN_TURN, ONE_BY_ONE = [0, 1, 2] * 4, [0] * 4 + [1] * 4 + [2] * 4  # numbers of batches


def seconds_of(step, order):
    """The CPU time of a step."""
    began = time.process_time()
    for i in order:
        step(i)
    return (time.process_time() - began) / len(order)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".")
    parser.add_argument("--routes", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    for name in filter(re.compile(given.only).search, ROWS):
        torch.set_default_dtype(torch.float64 if given.check and name != "CHGNet" else torch.float32)
        made, found = {r: s for r, s in routes(ROWS[name]).items() if r == "eager" or re.search(given.routes, r)}, {}
        for route, step in made.items():
            caesura.reports.reset()
            torch._dynamo.utils.counters.clear()
            began = time.process_time()
            found[route] = [step(0)]
            line = f"{name:8} {route:12} first step {time.process_time() - began:6.1f} s"
            found[route] += [step(i) for i in range(1, 20)]
            graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            off = max(abs(a - b) / abs(b) for a, b in zip(found[route], found["eager"])).item()
            print(f"{line}, {graphs} graphs, losses {found[route][0]:.6g} to {found[route][-1]:.6g}, off by {off:.1e}; "
                  f"{caesura.stats() if route != 'eager' else ''}", flush=True)
        if given.check:
            continue
        times = {route: [] for route in made}
        for _ in range(given.rounds):
            for route, step in made.items():
                times[route].append([seconds_of(step, order) for order in (IN_TURN, ONE_BY_ONE)])
        for route, taken in times.items():
            low, middle, high = statistics.quantiles((a[0] / b[0] for a, b in zip(taken, times["eager"])), n=4)
            changing = statistics.median(a[0] / a[1] for a in taken)
            print(f"{name:8} {route:12} {statistics.median(a[0] for a in taken) * 1e3:8.1f} ms, {middle:.2f} [{low:.2f}, {high:.2f}] of "
                  f"eager's; sizes in turn over one after the other {changing:.2f}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("default", caesura.FallbackWarning)
    main()
