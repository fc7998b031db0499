# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes CHGNet, an interatomic potential, from one density functional to another, on energies and forces.

    pip install chgnet                                     the weights are in the package
    python examples/recipes/chgnet_forces.py forces        trains, evaluates before and after, writes forces/
    python examples/recipes/chgnet_forces.py forces        after a kill -9: goes on from the last checkpoint

The weights that are trained know PBE. The labels come from CHGNet's weights for r2SCAN: energies and forces of crystals whose cells
are strained and whose atoms are displaced. forces/model.pth.tar is what CHGNet.from_file() takes. continue_forces.cc goes on with
forces/step on forces/batches in C++.
"""

import argparse
import pathlib

import numpy as np
import torch
from chgnet.model import CHGNet
from log import Log
from pymatgen.core import Lattice, Structure

import caesura

F = torch.nn.functional
CRYSTALS = [
    ("Fm-3m", Lattice.cubic(5.69), ["Na", "Cl"], [[0, 0, 0], [0.5, 0.5, 0.5]]),
    ("Fm-3m", Lattice.cubic(4.21), ["Mg", "O"], [[0, 0, 0], [0.5, 0.5, 0.5]]),
    ("F-43m", Lattice.cubic(5.41), ["Zn", "S"], [[0, 0, 0], [0.25, 0.25, 0.25]]),
    ("Pm-3m", Lattice.cubic(3.905), ["Sr", "Ti", "O"], [[0, 0, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0]]),
]


class Loss(torch.nn.Module):
    def __init__(self, potential):
        super().__init__()
        self.potential = potential

    def forward(self, graphs, energies, forces):
        found = self.potential(graphs, task="ef")
        return F.huber_loss(found["e"], energies, delta=0.1) + F.huber_loss(torch.cat(found["f"]), forces, delta=0.1)


def displaced(potential, count, seed):
    """`count` lists of graphs, each with one of all crystals."""
    random, lists = np.random.default_rng(seed), []
    for _ in range(count):
        lists.append([])
        for crystal in CRYSTALS:
            structure = Structure.from_spacegroup(*crystal).get_primitive_structure()
            structure = structure * (2, 1, 1) if len(structure) < 4 else structure
            structure.apply_strain(random.normal(scale=0.02, size=3))
            for i in range(len(structure)):
                structure.translate_sites([i], random.normal(scale=0.08, size=3), frac_coords=False)
            lists[-1].append(potential.graph_converter(structure))
    return lists


def predict(potential, graphs):
    found = potential(graphs, task="ef")
    return found["e"].detach(), torch.cat(found["f"]).detach()


def errors(potential, batches):
    """Mean absolute errors (meV per atom, meV per angstrom), and (expected, found) energies and forces."""
    expected = [torch.cat(part) for part in zip(*(labels for _, *labels in batches))]
    found = [torch.cat(part) for part in zip(*(predict(potential, graphs) for graphs, *_ in batches))]
    mean = [1e3 * (a - b).abs().mean().item() for a, b in zip(expected, found)]
    return dict(zip(("energy_error", "force_error"), mean)), list(zip(expected, found))


def hand_on(step, folder, batches):
    """Exports the step and batches, and prints the losses of going on here, which are those of going on in C++."""
    step.export(folder / "step", *batches[0])
    (folder / "batches").mkdir(exist_ok=True)
    for i, (graphs, energies, forces) in enumerate(batches):
        tensors = {f"graphs_{k}_{name}": value for k, graph in enumerate(graphs) for name, value in vars(graph).items()
                   if isinstance(value, torch.Tensor)} | {"energies": energies, "forces": forces}
        np.savez(folder / "batches" / f"{i}.npz", **{name: value.detach().numpy() for name, value in tensors.items()})
        print(f"{step(graphs, energies, forces).item():.9g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100, help="updates (default: 100)")
    parser.add_argument("--tracker", help="a module with init(project=), log(dict) and finish(): wandb, trackio, ...")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    potential, teacher = CHGNet.load(verbose=False), CHGNet.load(model_name="r2scan", verbose=False)
    potential.composition_model.load_state_dict(teacher.composition_model.state_dict())  # the elements' energies

    def labelled(count, seed):
        return [(graphs, *predict(teacher, graphs)) for graphs in displaced(potential, count, seed)]

    train, test = labelled(16, seed=0), labelled(4, seed=1)
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, potential.parameters()), lr=1e-4)
    step = caesura.compile_step(Loss(potential), None, optimizer)
    checkpoint, done = options.folder / "run.ckpt", 0
    error, before = errors(potential, test)
    if checkpoint.exists():
        done = step.restore(checkpoint, *train[0])["update"]
    log = Log(options.folder, options.tracker, done)
    if not done:
        log(0, **error)
    for update in range(done + 1, options.steps + 1):
        loss = step(*train[update % len(train)])
        if update % 10 == 0:
            log(update, loss=loss.item())
        if update % 20 == 0:
            step.save(checkpoint, {"update": update})  # old or new, whenever it is killed
    error, after = errors(potential, test)
    log(options.steps, **error)
    log.close("force_error")
    log.compare("r2SCAN's", "CHGNet's", ["energy (eV per atom)", "forces (eV per angstrom)"], before, after)
    torch.save({"model": potential.as_dict()}, options.folder / "model.pth.tar")
    hand_on(step, options.folder, train[:5])


if __name__ == "__main__":
    main()
