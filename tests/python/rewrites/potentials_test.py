# SPDX-License-Identifier: Apache-2.0
"""Interatomic potentials, which take forces and stresses in their forward, train as in eager: modules of the kinds that CHGNet (crystals
as objects, a loop over them), SchNet (pairs found by distance) and MACE (a dict of one batch) are. CAESURA_LONG=1: 20 steps by both
routes; otherwise 6 steps of two kinds."""

import copy
import os
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import grad  # noqa: E402

import caesura  # noqa: E402

F, nn = torch.nn.functional, torch.nn


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


class Crystal:
    """Atoms in a cell: kinds [atoms], places [atoms, 3] as shares of the cell's vectors, cell [3, 3], pairs [2, pairs]."""

    def __init__(self, count, seed):
        random = torch.Generator().manual_seed(seed)
        self.name = f"crystal {seed}"
        self.kinds = torch.randint(0, 4, (count,), generator=random)
        self.places = torch.rand(count, 3, generator=random, dtype=torch.float64).requires_grad_()
        self.cell = torch.eye(3, dtype=torch.float64) * 3 + 0.1 * torch.rand(3, 3, generator=random, dtype=torch.float64)
        self.pairs = torch.combinations(torch.arange(count)).t()[:, seed % 2:]


class Filters(nn.Module):
    """The energy of each atom from its neighbours' distances."""

    def __init__(self):
        super().__init__()
        self.kinds, self.filter = nn.Embedding(4, 8), nn.Sequential(nn.Linear(6, 8), nn.SiLU())
        self.last = nn.Linear(8, 1)
        self.register_buffer("centres", torch.linspace(0, 4, 6))

    def forward(self, kinds, distances, pairs):
        spread = (-(distances[:, None] - self.centres).square()).exp()
        messages = self.kinds(kinds)[pairs[0]] * self.filter(spread)
        near = torch.zeros(len(kinds), 8, dtype=distances.dtype).index_add(0, pairs[1], messages)
        return self.last(F.silu(near + self.kinds(kinds))).squeeze(1)


class OfCrystals(nn.Module):
    """As CHGNet: energies per atom, forces and stresses of a list of crystals."""

    def __init__(self):
        super().__init__()
        self.atoms = Filters()

    def forward(self, crystals, task="efs"):
        kinds, positions, strains, distances, pairs, owners, volumes, first = [], [], [], [], [], [], [], 0
        for i, crystal in enumerate(crystals):
            strain = crystal.cell.new_zeros([3, 3], requires_grad=True)
            cell = crystal.cell @ (torch.eye(3, dtype=torch.float64) + strain)
            places = crystal.places @ cell
            distances.append(torch.norm(places[crystal.pairs[0]] - places[crystal.pairs[1]] + 0.1, dim=1))
            volumes.append(torch.dot(cell[0], torch.linalg.cross(cell[1], cell[2])))
            kinds.append(crystal.kinds)
            positions.append(places)
            strains.append(strain)
            pairs.append(crystal.pairs + first)
            owners.append(torch.ones(len(crystal.kinds)) * i)
            first += len(crystal.kinds)
        owners = torch.cat(owners).type(torch.int32)
        count = torch.bincount(owners)
        energies = self.atoms(torch.cat(kinds), torch.cat(distances), torch.cat(pairs, 1))
        energy = energies.new_zeros(len(count)).index_add(0, owners, energies)
        found = {"f": [-slope for slope in grad(energy.sum(), positions, create_graph=True, retain_graph=True)]}
        slopes = grad(energy.sum(), strains, create_graph=True, retain_graph=True)
        found["s"] = [slope / volume for slope, volume in zip(slopes, torch.stack(volumes))]
        return found | {"e": energy / count}


class CrystalLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = OfCrystals()

    def forward(self, crystals):
        found = self.net(crystals, task="efs")
        return found["e"].square().mean() + (torch.cat(found["f"]) - 0.1).square().mean() + torch.stack(found["s"]).square().mean()


class OfMolecules(nn.Module):
    """As SchNet: the pairs are those that are near each other."""

    def __init__(self):
        super().__init__()
        self.atoms = Filters()

    def forward(self, kinds, positions, molecules):
        with torch.no_grad():
            near = ((positions[:, None] - positions[None]).norm(dim=2) < 1.5) & (molecules[:, None] == molecules[None])
            pairs = (near & ~torch.eye(len(positions), dtype=torch.bool)).nonzero().t()
        distances = (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1)
        return torch.zeros(3, dtype=positions.dtype).index_add(0, molecules, self.atoms(kinds, distances, pairs))


class MoleculeLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = OfMolecules()

    def forward(self, kinds, positions, molecules):
        positions = positions.detach().requires_grad_()
        energy = self.net(kinds, positions, molecules)
        (slope,) = grad(energy.sum(), positions, create_graph=True)
        return (energy - 1).square().mean() + (slope - 0.1).square().mean()


class OfBatches(nn.Module):
    """As MACE: a dict, which the forward adds to."""

    def __init__(self):
        super().__init__()
        self.atoms = Filters()

    def forward(self, batch, training=True):
        batch["positions"].requires_grad_(True)
        displacement = torch.zeros(3, 3, 3, dtype=batch["positions"].dtype).requires_grad_(True)
        symmetric = 0.5 * (displacement + displacement.transpose(-1, -2))
        batch["positions"] = batch["positions"] + torch.einsum("be,bec->bc", batch["positions"], symmetric[batch["batch"]])
        pairs = batch["pairs"]
        distances = (batch["positions"][pairs[0]] - batch["positions"][pairs[1]]).norm(dim=1)
        energy = torch.zeros(3, dtype=distances.dtype).index_add(0, batch["batch"], self.atoms(batch["kinds"], distances, pairs))
        slope, virial = grad([energy], [batch["positions"], displacement], [torch.ones_like(energy)], retain_graph=training,
                             create_graph=training, allow_unused=True)
        return {"energy": energy, "forces": -slope, "virials": -virial}


class BatchLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = OfBatches()

    def forward(self, batch):
        return sum((value - 0.1).square().mean() for value in self.net(dict(batch)).values())


def molecules(counts):
    number = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return torch.randint(0, 4, (len(number),)), torch.rand(len(number), 3, dtype=torch.float64) * 2, number


def batch(counts):
    kinds, positions, number = molecules(counts)
    pairs = (number[:, None] == number[None]) & ~torch.eye(len(number), dtype=torch.bool)
    return {"kinds": kinds, "positions": positions, "batch": number, "pairs": pairs.nonzero().t().contiguous()}


SIZES = (5, 3, 4), (4, 6, 5), (6, 5, 7)
CASES = {
    "crystals": (CrystalLoss, lambda counts: ([Crystal(count, i) for i, count in enumerate(counts[:2])],)),
    "molecules": (MoleculeLoss, molecules),
    "batches": (BatchLoss, lambda counts: (batch(counts),)),
}


SHORT = [("crystals", "compile_step"), ("batches", "compile_step")]
LONG = [*SHORT, ("crystals", "wrap"), ("molecules", "wrap"), ("molecules", "compile_step")]


@pytest.mark.parametrize("name, route", LONG if os.environ.get("CAESURA_LONG") else SHORT)
def test_steps(name, route):
    """Batches of three sizes follow one another; after the second one nothing is captured."""
    make, inputs_of = CASES[name]
    plain = make().double()
    ours = copy.deepcopy(plain)
    data = [inputs_of(counts) for counts in SIZES]
    given = copy.deepcopy(data)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.01) for module in (plain, ours)]
    if route == "wrap":
        ours.net = caesura.wrap(ours.net)
        caesura.fuse(optimizers[1])
    else:
        step = caesura.compile_step(ours, None, optimizers[1])
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    with warnings.catch_warnings(), caesura.strict(route == "wrap"):  # a step in float64 has no fast path
        warnings.simplefilter("ignore", caesura.FallbackWarning)
        for i in range(20 if os.environ.get("CAESURA_LONG") else 6):
            optimizers[0].zero_grad()
            expected = plain(*data[i % 3])
            expected.backward()
            optimizers[0].step()
            if route == "wrap":
                optimizers[1].zero_grad()
                loss = ours(*given[i % 3])
                loss.backward()
                optimizers[1].step()
            else:
                loss = step(*given[i % 3])
            assert loss.item() == pytest.approx(expected.item(), rel=1e-9), i
    assert counted["unique_graphs"] <= 4
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)
