# SPDX-License-Identifier: Apache-2.0
"""Compiled steps draw the random numbers that eager draws, from PyTorch's and Python's generators."""

import copy
import random
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from caesura.capture.rng_inputs import Draw  # noqa: E402
from compile_step_test import fresh, same  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


class Net(nn.Module):
    """loss(self, x) is the forward."""

    def __init__(self, loss, inner=2, outer=2):
        super().__init__()
        self.loss, self.first, self.last = loss, nn.Linear(inner, 8), nn.Linear(8, outer)

    def net(self, x):
        return self.last(torch.tanh(self.first(x)))

    def forward(self, x):
        return self.loss(self, x)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def run(step, data):
    torch.manual_seed(5)
    return [float(step(*batch)) for batch in data], torch.rand(())


def in_eager(module):
    optimizer = sgd(module)

    def step(x):
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step


def autoencoder(self, x):
    h = self.net(x)
    return F.mse_loss(h + torch.randn_like(h) * (h / 2).exp(), x)


def diffusion(self, x):
    t, noise = torch.randint(0, 10, (len(x), 1)), torch.randn_like(x)
    share = torch.linspace(0.9, 0.1, 10)[t]
    return F.mse_loss(self.net(share.sqrt() * x + (1 - share).sqrt() * noise), noise)


def mixed(self, x):
    share = torch.rand(1)
    return self.net(share * x + (1 - share) * x[torch.randperm(len(x))]).square().mean()


def penalised(self, x):
    share = torch.rand(len(x), 1)
    y = (share * x + (1 - share) * x.flip(0)).requires_grad_(True)
    slope, = torch.autograd.grad(self.net(y).sum(), y, create_graph=True)
    return (slope.norm(2, dim=1) - 1).square().mean()


def in_place(self, x):
    y = x + torch.empty_like(x).uniform_(-1, 1) + torch.zeros_like(x).normal_(0, 0.1) + torch.empty_like(x).exponential_()
    return self.net(y * torch.empty(len(x), 1).bernoulli_(0.5) + torch.normal(0.0, 1.0, (len(x), 2))).square().mean()


def unread(self, x):
    torch.rand(3)
    _, y, _ = torch.randn_like(x), self.net(x + torch.randn_like(x)), torch.randint(0, 5, (2,)) * 2
    return y.square().mean()


DRAWS = {
    "that nothing reads": unread,
    "autoencoder": autoencoder,
    "diffusion": diffusion,
    "mixup": mixed,
    "gradient penalty": penalised,
    "in place": in_place,
    "dropout of channels": lambda self, x: F.dropout2d(self.net(x)[..., None, None], 0.5).square().mean(),
    "alpha dropout": lambda self, x: F.alpha_dropout(self.net(x), 0.5, True).square().mean(),
    "gumbel": lambda self, x: (F.gumbel_softmax(self.net(x), tau=0.7, hard=True) - x).square().mean(),
    "gumbel and a gradient": lambda self, x: F.gumbel_softmax(self.net(x), hard=True).square().mean() + penalised(self, x),
    "bernoulli": lambda self, x: (torch.bernoulli(self.net(x).sigmoid()) - self.net(x)).square().mean(),
    "bernoulli of doubles": lambda self, x: (torch.bernoulli(self.net(x).double().sigmoid()) - self.net(x)).square().mean().float(),
    "reparametrised": lambda self, x: torch.distributions.Normal(self.net(x), 1.0).rsample().square().mean(),
    "no generator": lambda self, x: (self.net(x) * torch.randn(2, generator=None)).square().mean(),
    "by a column": lambda self, x: (self.net(x) * torch.rand_like(x.t()).t()).square().mean(),
    "checkpoint": lambda self, x: torch.utils.checkpoint.checkpoint(lambda x: self.net(x + torch.randn_like(x)), x,
                                                                    use_reentrant=False).square().mean(),
}


@pytest.mark.parametrize("sizes", [(6, 6, 6, 6, 6), (6, 3, 6, 7, 7)], ids=["one size", "sizes that change"])
@pytest.mark.parametrize("loss", DRAWS.values(), ids=DRAWS)
def test_as_eager_draws(loss, sizes):
    module, data = Net(loss), [(torch.randn(rows, 2),) for rows in sizes]
    other = copy.deepcopy(module)
    expected, state = run(in_eager(module), data)
    losses, other_state = run(caesura.compile_step(other, None, sgd(other)), data)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert state == other_state
    same(module, other)


def at_least_memory(module, *batch):
    """Returns the step that recomputes most of its activations."""
    with pytest.raises(MemoryError, match="expected at least") as error:
        caesura.compile_step(module, None, sgd(module), memory_budget=1)(*batch)
    least, most = map(int, re.search(r"at least (\d+) bytes.*?\((\d+) without", str(error.value)).groups())
    assert least < most
    return caesura.compile_step(module, None, sgd(module), memory_budget=least)


def test_numbers_drawn_in_python_change_from_call_to_call():
    def scaled(self, x):
        return (self.net(x) * random.uniform(0.5, 1.5)).square().mean() + random.uniform(0, 1)

    module, data = Net(scaled), [(torch.randn(6, 2),) for _ in range(4)]
    other, wrapped = copy.deepcopy(module), copy.deepcopy(module)
    found = []
    for step in (in_eager(module), caesura.compile_step(other, None, sgd(other)), in_eager(caesura.wrap(wrapped))):
        random.seed(3)
        found.append(run(step, data)[0] + [random.random()])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-5)
    same(module, other)
    same(module, wrapped)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64"])
def test_arrays_of_numpy_are_inputs(kind):
    module = Net(lambda self, x: self.net(x).square().mean())
    step = caesura.compile_step(module, lambda y, scale: y * torch.as_tensor(scale).float().sum(), sgd(module))
    x, scale = torch.randn(6, 2), np.array([1, 2, 3, 4], kind)
    expected = module(x).item() * 10
    assert step(x, scale).item() == pytest.approx(expected, rel=1e-5)


def test_within_a_budget_the_backward_has_the_forward_s_numbers():
    def noisy(self, x):
        h = self.net(x)
        for _ in range(6):
            h = F.gelu(h * torch.randn_like(h)) * torch.sigmoid(torch.poisson(h.abs()) / 9)
        return F.mse_loss(h, x)

    module, data = Net(noisy, 64, 64), [(torch.randn(256, 64),)] * 3
    other = copy.deepcopy(module)
    expected, _ = run(caesura.compile_step(module, None, sgd(module)), data)
    losses, _ = run(at_least_memory(other, *data[0]), data)
    assert losses == expected
    same(module, other)


# --- numbers that depend on others ------------------------------------------------------------------------------

def chosen(self, x):
    odds = self.net(x).softmax(-1)
    first, second = (torch.multinomial(odds, 1) for _ in range(2))
    return (first != second).float().mean() - odds.gather(1, first).log().mean()


def counted(self, x):
    rate = self.net(x).exp()
    return (torch.poisson(rate) * rate).mean() + torch.normal(rate, 1.0).square().mean()


@pytest.mark.parametrize("loss", [chosen, counted])
def test_drawn_in_the_program_by_a_seed_of_pytorch_s(loss):
    data = [(torch.randn(500, 2),)] * 3

    def losses():
        torch.manual_seed(0)
        module = Net(loss)
        return run(caesura.compile_step(module, None, sgd(module)), data)[0]

    first = losses()
    assert losses() == first
    torch.manual_seed(0)
    expected, _ = run(in_eager(Net(loss)), data)
    assert first == pytest.approx(expected, rel=0.2)  # the mean over 500 rows of other random numbers
    assert len(set(first)) == 3


def test_equal_draws_are_no_common_subexpression():
    module = Net(lambda self, x: ((torch.poisson(x.exp()) - torch.poisson(x.exp())) * self.net(x)).square().mean())
    assert float(caesura.compile_step(module, None, sgd(module))(torch.randn(50, 2))) > 0


def test_derivatives_of_draws_are_refused():
    module = Net(lambda self, x: torch._standard_gamma(self.net(x).exp()).mean())
    with pytest.raises(caesura.StepRefused, match="aten._standard_gamma.default: .* draws random numbers"):
        caesura.compile_step(module, None, sgd(module))(torch.randn(6, 2))


def test_export_is_refused(tmp_path):
    module = Net(autoencoder)
    with pytest.raises(ValueError, match="PyTorch draws the step's random numbers .aten.randn_like.default."):
        caesura.compile_step(module, None, sgd(module)).export(tmp_path, torch.randn(6, 2))


LAID = {
    "normal": lambda y: y + torch.randn_like(y), "uniform": lambda y: y + torch.rand_like(y),
    "dropout": lambda y: F.dropout(y, 0.5),
    "in place": lambda y: y + torch.empty_like(y).uniform_(), "by values": lambda y: y + torch.normal(y.detach(), 0.5),
    "transposed": lambda y: y.transpose(1, 3) + torch.randn_like(y.transpose(1, 3)),
    "a part": lambda y: y[..., ::2] + torch.randn_like(y[..., ::2]), "alpha": lambda y: F.alpha_dropout(y, 0.5),
}


@pytest.mark.parametrize("sizes", [[(4, 4)] * 2, [(4, 4), (5, 4), (6, 3)]], ids=["one size", "sizes that change"])
@pytest.mark.parametrize("noise", LAID.values(), ids=LAID)
def test_wrapped_they_lie_as_in_eager(noise, sizes):
    """Wrapped random numbers have eager's memory order: in channels_last they are drawn channel by channel."""
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x):
            return noise(self.conv(x))

    module = Noisy()
    wrapped = caesura.wrap(copy.deepcopy(module))
    for rows, size in enumerate(sizes, 2):
        x = torch.randn(rows, 3, *size).to(memory_format=torch.channels_last)
        results = []
        for net in (module, wrapped):
            torch.manual_seed(2)
            results.append((net(x), torch.rand(())))
        torch.testing.assert_close(results[1], results[0])


def test_a_draw_like_a_tensor_is_made_on_its_device():
    """So a GPU's numbers come from the GPU's generator. "meta" stands for the GPU."""
    graph = torch.fx.Graph()
    given = graph.placeholder("given")
    given.meta["val"] = torch.empty(2, 3, device="meta")
    draw = Draw(graph.call_function(torch.ops.aten.rand_like.default, (given,)), given)
    drawn = draw()
    assert drawn.device.type == "meta" and drawn.shape == (2, 3)


def test_a_forward_that_sets_an_attribute_back_draws_past_dynamo(monkeypatch):
    class Busy(Net):
        def forward(self, x):
            self.is_busy = True  # as transformers' models do around their layers
            loss = F.mse_loss(self.last(F.dropout(torch.tanh(self.first(x)))), x)
            self.is_busy = False
            return loss

    plain = Busy(None)
    ours = copy.deepcopy(plain)
    step = caesura.compile_step(ours, None, sgd(ours), masks="pytorch")
    data = [(torch.randn(4, 2),) for _ in range(8)]
    start = copy.deepcopy(plain.state_dict())
    expected = run(in_eager(plain), data)
    run(step, data[:3])
    ours.load_state_dict(start)
    monkeypatch.setattr(step, "_first", lambda *args, **kwargs: pytest.fail("Dynamo was asked"))
    losses = run(step, data)
    assert losses[0] == pytest.approx(expected[0], rel=1e-5) and losses[1] == expected[1]
