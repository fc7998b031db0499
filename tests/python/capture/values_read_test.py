# SPDX-License-Identifier: Apache-2.0
"""Forwards that read values (.item(), float()), update a momentum encoder or count batches act as in eager."""

import copy

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(4, 3), None


class Logs(Net):
    def forward(self, x):
        loss = self.layer(x).square().mean()
        self.seen = {"loss": loss.item(), "positive": (x > 0).sum().item(), "of both": 2 * float(loss) + 1 / float(x.sum())}
        return loss


class DividesByItself(Net):
    """The number passes no gradient."""

    def forward(self, x):
        loss = self.layer(x).square().mean()
        return loss / (1 + loss.item())


class Averages(Net):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3, momentum=None)

    def forward(self, x):
        return (self.norm(self.layer(x)) * x[:, :3]).mean()


class Momentum(Net):
    def __init__(self):
        super().__init__()
        self.slow = copy.deepcopy(self.layer).requires_grad_(False)

    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.slow.parameters(), self.layer.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)

    def forward(self, x):
        self.update()
        with torch.no_grad():
            target = self.slow(x)
        return (self.layer(x * 2) - target).square().mean()


class MomentumOfData(Momentum):
    def update(self):
        for slow, fast in zip(self.slow.parameters(), self.layer.parameters()):
            slow.data.copy_(slow.data * 0.9 + fast.data * 0.1)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize("route", ["wrap", "compile_step"])
@pytest.mark.parametrize("make", [Logs, DividesByItself, Averages, Momentum, MomentumOfData])
def test_as_eager(make, route):
    plain = make().double()
    other = copy.deepcopy(plain)
    optimizers = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1) for m in (plain, other)]
    is_eager = route == "wrap" and make in (Logs, DividesByItself)  # a graph break
    with caesura.strict(not is_eager):
        run = caesura.wrap(other) if route == "wrap" else caesura.compile_step(other, None, optimizers[1])
        for x in torch.randn(4, 5, 4, dtype=torch.float64):
            for optimizer in optimizers:
                optimizer.zero_grad()
            expected = plain(x)
            expected.backward()
            optimizers[0].step()
            loss = run(x)
            if route == "wrap":
                loss.backward()
                optimizers[1].step()
            torch.testing.assert_close(loss.detach(), expected.detach())
            assert other.seen == (plain.seen and pytest.approx(plain.seen))
    for (name, a), (_, b) in zip(plain.state_dict().items(), other.state_dict().items()):
        torch.testing.assert_close(b, a, msg=name)


class Counts(Net):
    """A number in double, for which Dynamo holds the number that it was, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen_so_far", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        self.seen_so_far.add_(2)
        return self.layer(x).mean()


@pytest.mark.parametrize("route", ["wrap", "step"])
def test_a_number_that_is_written_to_and_not_read(route):
    module = Counts()
    run = caesura.wrap(module) if route == "wrap" else caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    for i in range(3):
        run(torch.randn(5, 4))
        assert module.seen_so_far == 2.5 + 2 * i


def test_an_encoder_that_the_optimizer_trains_is_refused_by_line():
    module = Momentum().requires_grad_()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=f"{__file__}:.* in update"):
        step(torch.randn(5, 4))
