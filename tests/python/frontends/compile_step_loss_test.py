# SPDX-License-Identifier: Apache-2.0
"""A compiled step trains on the loss, and on no other value that the forward keeps or returns."""

import copy
import dataclasses

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402


@pytest.fixture(autouse=True)
def no_sizes_from_before():
    torch._dynamo.reset()  # else Dynamo would treat a size as changing because another test used a different one

@dataclasses.dataclass
class Output:
    logged: torch.Tensor
    loss: torch.Tensor


class Net(nn.Module):
    """keep(module, the layer's output, loss) is called in the forward, and may return another result."""

    def __init__(self, keep):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(0.5))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("copy", torch.zeros(()))
        self.keep, self.last, self.all, self.named = keep, None, [], {}

    def forward(self, x):
        y = self.layer(x) * self.scale.exp()
        loss = (y - 1).square().mean()
        given = self.keep(self, y, loss)
        return loss if given is None else given


def set_to(make):
    return lambda self, y, loss: setattr(self, "last", make(self, y, loss))


KEEPS = {
    "a logged norm": set_to(lambda self, y, loss: y.norm().clone().detach()),
    "a logged matrix": set_to(lambda self, y, loss: (y - 1).clone().detach()),
    "a detached loss": set_to(lambda self, y, loss: loss.detach()),
    "a copy of the loss": set_to(lambda self, y, loss: loss.clone().detach()),
    "the loss itself": set_to(lambda self, y, loss: loss),
    "what equals the loss": set_to(lambda self, y, loss: (y - 1).square().mean().clone().detach()),
    "a copy of a parameter": set_to(lambda self, y, loss: self.scale.detach().clone()),
    "a copy of a matrix": set_to(lambda self, y, loss: self.layer.weight.clone().detach()),
    "a view of a parameter": set_to(lambda self, y, loss: self.layer.weight.detach()),
    "a part of a parameter": set_to(lambda self, y, loss: self.layer.weight.detach()[1:3, ::2]),
    "a transposed copy": set_to(lambda self, y, loss: self.layer.weight.detach().t().clone()),
    "a parameter in another shape": set_to(lambda self, y, loss: self.layer.weight.detach().reshape(2, 8).clone()),
    "a parameter's sum": set_to(lambda self, y, loss: self.scale.detach().sum()),
    "a parameter": set_to(lambda self, y, loss: self.scale),
    "an input": set_to(lambda self, y, loss: y.detach().clone()),
    "in a list": lambda self, y, loss: setattr(self, "all", [y.mean().clone().detach(), self.scale.detach().clone()]),
    "in a dict": lambda self, y, loss: setattr(self, "named", {"norm": y.norm().clone().detach(), "t": self.scale.detach().clone()}),
    "in a buffer": lambda self, y, loss: (self.seen.copy_(y.norm().clone().detach()), None)[1],
    "a parameter in a buffer": lambda self, y, loss: (self.seen.copy_(self.scale.detach()), None)[1],
    "a buffer in a buffer": lambda self, y, loss: (self.copy.copy_(self.seen), self.seen.copy_(y.mean().detach()), None)[2],
    "a dict with it": lambda self, y, loss: {"logged": y.norm().clone().detach(), "loss": loss},
    "an object with it": lambda self, y, loss: Output(logged=y.norm().clone().detach(), loss=loss),
    "several losses": lambda self, y, loss: {"loss": loss + y.abs().mean(), "other": y.square().sum().clone().detach()},
    "an ordinary copy": lambda self, y, loss: loss.clone().detach() * 0 + loss.clone(),
}


def values(kept):
    """Returns the tensors that a module has kept."""
    return [kept.last] if isinstance(kept.last, torch.Tensor) else [*kept.all, *kept.named.values()]


@pytest.mark.parametrize("name", KEEPS)
def test_trains_on_what_was_returned(name):
    eager = Net(KEEPS[name])
    ours = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, ours)]
    step = caesura.compile_step(ours, None, optimizers[1])
    for i in range(4):
        x = torch.full((3, 4), 1.0 + i)
        out = eager(x)
        loss = out if isinstance(out, torch.Tensor) else out["loss"] if isinstance(out, dict) else out.loss
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        assert step(x).item() == pytest.approx(loss.item(), rel=1e-5)
        for a, b in zip(values(eager), values(ours), strict=True):
            torch.testing.assert_close(b.detach(), a.detach(), rtol=1e-5, atol=1e-6)
    for a, b in zip(eager.state_dict().values(), ours.state_dict().values()):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)


LOSSES = {
    "a parameter": lambda self, x: self.scale,
    "a view of one": lambda self, x: self.scale.view(1),
    "an element of one": lambda self, x: self.layer.weight[1, 2],
    "its copy": lambda self, x: self.scale.clone(),
    "its sum": lambda self, x: self.scale.sum(),
    "its sum with a kept copy": lambda self, x: setattr(self, "last", self.scale.detach().clone()) or self.scale.sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_a_parameter(name):
    class Bare(Net):
        def forward(self, x):
            return LOSSES[name](self, x)

    eager = Bare(None)
    ours = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, ours)]
    step = caesura.compile_step(ours, None, optimizers[1])
    for _ in range(3):
        loss = eager(torch.ones(3, 4))
        optimizers[0].zero_grad()
        loss.backward()
        before = loss.item()
        optimizers[0].step()
        assert step(torch.ones(3, 4)).item() == pytest.approx(before)
    for a, b in zip(eager.parameters(), ours.parameters()):
        torch.testing.assert_close(b, a)


@pytest.mark.parametrize("returned", [lambda loss: (loss, loss * 2), lambda loss: [loss], lambda loss: None, lambda loss: 1.5])
def test_refuses_what_is_no_loss(returned):
    class Other(Net):
        def forward(self, x):
            return returned(self.layer(x).mean())

    module = Other(None)
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="the loss must be a tensor, returned or in `loss`"):
        step(torch.ones(3, 4))
