# SPDX-License-Identifier: Apache-2.0
"""Captures take sizes that depend on values: positions under a mask, and the tokens of each expert of a mixture."""

import copy

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402

F, nn = torch.nn.functional, torch.nn


class Expert(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """A loop over the experts, as in Mixtral."""

    def __init__(self, width=8, experts=4, chosen=2):
        super().__init__()
        self.before, self.router, self.after = nn.Linear(width, width), nn.Linear(width, experts), nn.Linear(width, width)
        self.experts, self.chosen = nn.ModuleList(Expert(width, 12) for _ in range(experts)), chosen

    def loop(self, mask):
        return range(len(self.experts))

    def forward(self, x):
        x = torch.relu(self.before(x))
        tokens = x.view(-1, x.shape[-1])
        weights, chosen = torch.topk(F.softmax(self.router(tokens), dim=1), self.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        y = torch.zeros_like(tokens)
        for expert in self.loop(mask):
            rank, token = torch.where(mask[expert])
            found = self.experts[expert](tokens[None, token].reshape(-1, x.shape[-1])) * weights[token, rank, None]
            y.index_add_(0, token, found)
        return self.after(y.view_as(x)) + x


class HitMixture(Mixture):
    """Loops only over experts that have a token, so that no capture knows the number of iterations."""

    def loop(self, mask):
        return mask.sum((1, 2)).nonzero()[:, 0].tolist()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)
    caesura.reports.reset()


def agree(plain, other, x):
    """Returns results, gradients of parameters (None as zeros) and of x."""
    results = []
    for module in (plain, other):
        given = x.clone().requires_grad_()
        module.zero_grad()
        y = module(given)
        y.square().mean().backward()
        results.append([y.detach(), given.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_mixture_of_experts_runs_in_our_kernels():
    plain = Mixture()
    wrapped = caesura.wrap(copy.deepcopy(plain))
    with caesura.strict():
        for shape in ((2, 5, 8), (2, 5, 8), (3, 7, 8), (1, 1, 8)):  # with one token two experts get none
            agree(plain, wrapped, torch.randn(shape))
    assert caesura.stats().kernel_share == 1 and caesura.stats().kernel_calls == 8


def test_each_routing_of_a_mixture_takes_the_same_capture():
    plain = Mixture()
    wrapped = caesura.wrap(copy.deepcopy(plain))
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    routings = set()
    with caesura.strict():
        for _ in range(6):
            x = torch.randn(2, 5, 8)
            agree(plain, wrapped, x)
            routings.add(tuple(torch.topk(plain.router(torch.relu(plain.before(x))), 2).indices.flatten().tolist()))
    assert len(routings) == 6 and counted["unique_graphs"] == 1


def test_a_mixture_of_experts_is_one_step():
    plain = Mixture()
    other = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    step = caesura.compile_step(other, F.mse_loss, torch.optim.SGD(other.parameters(), lr=0.1))
    for _ in range(4):
        x, y = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
        loss = F.mse_loss(plain(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with caesura.strict():
            torch.testing.assert_close(step(x, y), loss.detach())
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a)


def test_a_loop_of_unknown_length_is_a_graph_break():
    plain = HitMixture()
    wrapped = caesura.wrap(copy.deepcopy(plain))
    with pytest.warns(caesura.FallbackWarning, match=r"a graph break at .*sizes_by_values_test.py:\d+ in \w+: Dynamic shape operator"):
        agree(plain, wrapped, torch.randn(2, 5, 8))
    agree(plain, wrapped, torch.randn(1, 1, 8))
    assert caesura.stats().kernel_share == 1 and caesura.stats().kernel_calls > 4
    step = caesura.compile_step(plain, F.mse_loss, torch.optim.SGD(plain.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=r"a Python loop, branch or size that depends on a tensor's value"):
        step(torch.randn(2, 5, 8), torch.randn(2, 5, 8))


class Masked(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.layer(x), x)


def _assigned(y, x):
    z = y * 2
    z[x[:, 0] > 0] = y[x[:, 0] > 0] * 3
    return z


MASKS = {
    "elements": lambda y, x: y[x > 0],
    "rows": lambda y, x: y[x[:, 0] > 0] @ torch.ones(4, 3),
    "columns": lambda y, x: y[:, x[0] > 0],
    "behind an axis": lambda y, x: torch.stack([y, 2 * y])[:, x > 0],
    "places": lambda y, x: y[(x > 0).nonzero()[:, 0]],
    "where": lambda y, x: y[torch.where(x > 0)],
    "selected": lambda y, x: y.masked_select(x > 0),
    "selected by a row": lambda y, x: torch.masked_select(y, x[0] > 0),
    "selected of a row": lambda y, x: torch.masked_select(y[0], x > 0),
    "scattered": lambda y, x: y.masked_scatter(x > 0, (2 * y).reshape(-1)),
    "scattered by a row": lambda y, x: (y + 1).masked_scatter(x[0] > 0, y * y),
    "a part": lambda y, x: y[x[:, 0] > 0][:, 1:3],
    "a put": lambda y, x: torch.zeros_like(y).index_put((x > 0,), y[x > 0] * 2),
    "an assignment": _assigned,
    "a checked size": lambda y, x: y[torch.where(x[:, 0] > -9)[0]],
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    plain = Masked(MASKS[name])
    wrapped = caesura.wrap(copy.deepcopy(plain))
    with caesura.strict():
        for sign in (torch.randn(5, 4), torch.randn(3, 4), torch.ones(3, 4), -torch.ones(3, 4)):
            agree(plain, wrapped, sign)
    assert caesura.stats().kernel_share == 1


@pytest.mark.parametrize("name", MASKS)
def test_masks_in_steps(name):
    plain = Masked(MASKS[name])
    other = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    step = caesura.compile_step(other, lambda y, _: y.square().sum(), torch.optim.SGD(other.parameters(), lr=0.01))
    for x in (torch.randn(3, 4), torch.randn(3, 4), torch.ones(3, 4)):
        loss = plain(x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with caesura.strict():
            torch.testing.assert_close(step(x, 0), loss.detach())
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(b, a)


class Counted(nn.Module):
    """Rows, divided by how many have the same owner, and their means."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, owners):
        y, count = self.layer(x), torch.bincount(owners, minlength=2)
        sums = y.new_zeros(len(count), 3).index_add(0, owners, y)
        return y / count[owners][:, None], sums / count.clamp(min=1)[:, None]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_counts(dtype):
    plain = Counted()
    wrapped = caesura.wrap(copy.deepcopy(plain))
    with caesura.strict():
        for owners in ([0, 3, 1, 1], [0, 0, 0, 0], [2, 1, 5, 2]):
            x, owners = torch.randn(4, 3), torch.tensor(owners, dtype=dtype)
            for actual, expected in zip(wrapped(x, owners), plain(x, owners), strict=True):
                torch.testing.assert_close(actual, expected)
    assert caesura.stats().kernel_share == 1


def test_a_count_of_negative_numbers_fails():
    wrapped = caesura.wrap(Counted())
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError)):
            wrapped(torch.randn(2, 3), torch.tensor([0, -1]))


class Sums(nn.Module):
    """A value for each group of rows: there are as many groups as the largest number says (torch_geometric's readout)."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x, groups, wanted):
        found = x.new_zeros(int(groups.max()) + 1).index_add(0, groups, self.last(x).squeeze(1))
        return (found - wanted).square().sum()


def test_a_size_by_values_is_compared_with_what_it_meets():
    module = Sums()
    eager = copy.deepcopy(module)
    optimizer, plain = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, eager))
    step = caesura.compile_step(module, None, optimizer)
    for count in (3, 5, 4):
        batch = torch.randn(2 * count, 3), torch.arange(count).repeat(2), torch.randn(count)
        plain.zero_grad()
        expected = eager(*batch)
        expected.backward()
        plain.step()
        torch.testing.assert_close(step(*batch), expected.detach())
    for p, q in zip(module.parameters(), eager.parameters()):
        torch.testing.assert_close(p, q)
    trained = module.last.weight.clone()
    for groups in (7, 3):  # as eager: there are four values
        with pytest.raises(ValueError, match="indices: expected|does not fit the sizes that it meets .*sizes_by_values_test"):
            step(torch.randn(14, 3), torch.arange(14) % groups, torch.randn(4))
    assert torch.equal(module.last.weight, trained)
