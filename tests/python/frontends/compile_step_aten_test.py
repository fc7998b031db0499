# SPDX-License-Identifier: Apache-2.0
"""Calls without an ONNX equivalent run in PyTorch, with their gradients, within a compiled step."""

import copy

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


class Maxima(torch.nn.Module):
    """Reads one of two results."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.first(x).cummax(-1).values)


class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs, self.last = torch.nn.Bilinear(6, 6, 5), torch.nn.Linear(5, 4)

    def forward(self, x):
        return self.last(self.pairs(x, x.flip(1)))


class Windows(torch.nn.Module):
    """Passes a changing size to a call."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(3, 4)

    def forward(self, x):
        windows = self.first(x).unfold(1, 3, 1)
        return self.last(windows.sum(1)) + torch.trace(torch.ones(x.shape[0], x.shape[0]))


class Samples(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.grid = torch.nn.Parameter(torch.randn(1, 4, 5, 5)), torch.nn.Linear(6, 2)

    def forward(self, x):
        places = torch.tanh(self.grid(x)).view(1, 1, -1, 2)
        return F.grid_sample(self.image, places, align_corners=True)[0, :, 0].t()


def batches():
    for n in (4, 6, 4, 5):
        yield torch.randn(n, 6), torch.randint(0, 4, (n,))


def eager_losses(module, optimizer):
    for x, y in batches():
        loss = F.cross_entropy(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("kind", [Maxima, Pairs, Windows, Samples], ids=lambda kind: kind.__name__)
def test_it_trains_as_in_eager(kind):
    module = kind()
    other = copy.deepcopy(module)
    torch.manual_seed(1)
    expected = list(eager_losses(module, torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.5)))
    step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.3, momentum=0.5))
    torch.manual_seed(1)
    given = [step(x, y).item() for x, y in batches()]
    assert given == pytest.approx(expected, rel=1e-5)
    for (name, p), q in zip(module.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-6, msg=lambda m: f"{name}: {m}")
    assert bool(caesura.stats().fallbacks) == (kind is not Pairs)


def test_it_is_told_and_can_be_forbidden():
    module = Maxima()
    x, y = next(batches())

    def step():
        torch._dynamo.reset()
        return caesura.compile_step(module, F.cross_entropy, torch.optim.AdamW(module.parameters()))

    with pytest.warns(caesura.FallbackWarning, match="aten.cummax"):
        step()(x, y)
    before = module.first.weight.clone()
    with caesura.strict(), pytest.raises(caesura.StrictError, match="aten.cummax"):
        step()(x, y)
    assert torch.equal(module.first.weight, before)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_it_is_not_exported(tmp_path):
    module = Maxima()
    x, y = next(batches())
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.AdamW(module.parameters()))
    with pytest.raises(ValueError, match="aten::cummax, which PyTorch alone computes"):
        step.export(tmp_path / "step", x, y)
    assert not (tmp_path / "step").exists()




class Factorises(torch.nn.Module):
    """A Gaussian process's likelihood."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale, self.noise = torch.nn.Parameter(torch.tensor(scale)), torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, x, y):
        covariance = self.scale * (-torch.cdist(x, x).square()).exp() + self.noise * torch.eye(len(x))
        lower = torch.linalg.cholesky(covariance)
        inverse = torch.linalg.inv(covariance)
        return (torch.cholesky_solve(y[:, None], lower).squeeze(1) * y).sum() + (y @ inverse @ y) + torch.logdet(covariance)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_factorisations_check_themselves():
    module, x, y = Factorises(), torch.randn(6, 3), torch.randn(6)
    other = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (module, other)]
    step = caesura.compile_step(other, None, optimizers[1])
    for _ in range(3):
        optimizers[0].zero_grad()
        loss = module(x, y)
        loss.backward()
        optimizers[0].step()
        assert step(x, y).item() == pytest.approx(loss.item(), rel=1e-5)
    for p, q in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(p, q)
    bad = Factorises(-1.0)
    with pytest.raises(Exception, match="not positive-definite"):
        caesura.compile_step(bad, None, torch.optim.SGD(bad.parameters(), lr=1.0))(x, y)
    assert bad.scale == -1 and bad.noise == 0.5


def test_strides_over_a_part_are_refused():
    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(6, 8)

        def forward(self, x):
            return self.layer(x)[:, 1:3].as_strided((2, 2), (8, 4)).square().sum()

    module = Part()
    with pytest.raises(caesura.StepRefused, match="aten.as_strided.default of a part of a tensor .*compile_step_aten_test.py"):
        caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1.0))(torch.randn(3, 6))


ROUTES = {
    "wrap": lambda module: caesura.wrap(module), "compile": lambda module: torch.compile(module, backend="caesura"),
    "step": lambda module: caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1.0)),
}


class OfParameter(torch.nn.Module):
    def __init__(self, loss, value):
        super().__init__()
        self.loss, self.value = loss, torch.nn.Parameter(torch.tensor(value))

    def forward(self, *given):
        return self.loss(self.value, *given)


def some_and(p, x, y):
    """Appends p to the elements of x that differ from y; the length is known only at run time."""
    return (torch.cat([x[x != y], p]) * p.sum()).square().sum()


ROWS = torch.tensor([[0, -1, -1], [1, 2, -1]])
PARAMETERS = {
    "labels of rows": (lambda p: F.multilabel_margin_loss(p.view(2, 3), ROWS), [-1., 0, 1, 0, .5, 6]),
    "labels": (lambda p: F.multilabel_margin_loss(p, torch.tensor([0, -1, -1])), [-1., 0, 1]),
    "labels behind the end": (lambda p: F.multilabel_margin_loss(p, torch.tensor([2, -1, 0]), reduction="sum"), [-1., 0, 1]),
    "a part of unknown length": (lambda p: some_and(p, torch.arange(6.), torch.tensor([0., 1, 9, 3, 9, 9])), [1., -2, .5]),
}


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("loss, value", PARAMETERS.values(), ids=PARAMETERS)
def test_every_route_has_eager_s_numbers(loss, value, route):
    module = OfParameter(loss, value)
    other = copy.deepcopy(module)
    expected = module()
    expected.backward()
    given = ROUTES[route](other)()
    if route != "step":
        given.backward()
    assert given.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(other.value.grad if route != "step" else module.value - other.value, module.value.grad)
    assert not caesura.stats().fallbacks
