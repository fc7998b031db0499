# SPDX-License-Identifier: Apache-2.0
"""Training loops around a compiled step, and torch.vmap within it, give eager's results."""

import copy
import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from compile_step_test import Net, batches, eager, fresh, same  # noqa: E402, F401


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def beside_eager(make, optimizer=adamw, around=None, loss_fn=F.cross_entropy, count=5):
    """around(module, optimizer) returns a function that is called after each step."""
    module = make()
    other, data = copy.deepcopy(module), batches(count)
    optimizers = [optimizer(m.parameters()) for m in (module, other)]
    after = [around(m, o) if around else None for m, o in zip((module, other), optimizers)]
    expected = eager(module, optimizers[0], data, loss_fn, schedule=after[0] and types.SimpleNamespace(step=after[0]))
    step, losses = caesura.compile_step(other, loss_fn, optimizers[1]), []
    for batch in data:
        losses.append(step(*batch).item())
        if after[1]:
            after[1]()
    assert losses == pytest.approx(expected, rel=1e-5)
    same(module, other)


# --- the optimizer ----------------------------------------------------------------------------------------------

def in_groups(first, second):
    def make(parameters):
        parameters = list(parameters)
        return torch.optim.AdamW([{"params": parameters[:2], "lr": first}, {"params": parameters[2:], "lr": second}])
    return make


def changed_once(module, optimizer):
    calls = []

    def after():
        calls.append(None)
        if len(calls) == 3:
            optimizer.param_groups[1]["lr"] = 5e-2
    return after


def warm_up(module, optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: epoch / 3).step


def apart(module, optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda epoch: epoch / 3, lambda epoch: 1 / (epoch + 1)]).step


@pytest.mark.parametrize("rates", [(0.0, 1e-2), (1e-2, 0.0), (0.0, 0.0), (1e-2, 1e-3)])
@pytest.mark.parametrize("around", [None, changed_once, warm_up, apart])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_rates_of_groups(rates, around):
    beside_eager(Net, in_groups(*rates), around, count=7)


def test_no_warning_of_a_schedule():
    """A schedule does not warn: it sees that the optimizer stepped before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beside_eager(Net, around=lambda m, optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5).step)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_hooks_around_the_optimizers_step():
    def scaled(module, optimizer):
        optimizer.register_step_pre_hook(lambda *_: [p.grad.mul_(0.1) for p in module.parameters()] and None)

    def clamped_later(module, optimizer):
        calls = []

        def after():
            calls.append(None)
            if len(calls) == 3:
                optimizer.register_step_post_hook(lambda *_: [p.data.clamp_(-0.2, 0.2) for p in module.parameters()] and None)
        return after

    beside_eager(Net, sgd, lambda m, o: scaled(m, o))
    beside_eager(Net, adamw, clamped_later)


def test_state_that_is_thrown_away():
    def thrown(module, optimizer):
        calls = []

        def after():
            calls.append(None)
            if len(calls) == 3:
                optimizer.state.clear()
        return after
    beside_eager(Net, adamw, thrown)


@pytest.mark.parametrize("register", [lambda p: p.register_hook(lambda g: g * 0.1),
                                      lambda p: p.register_post_accumulate_grad_hook(lambda p: None)])
def test_refuses_hooks_of_parameters(register):
    module = Net()
    register(module.first.weight)
    step = caesura.compile_step(module, F.cross_entropy, adamw(module.parameters()))
    with pytest.raises(caesura.StepRefused, match="gradient hooks .* first.weight"):
        step(*batches(1)[0])


def test_parameters_of_the_loss():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.full((4,), 0.5))

        def forward(self, y, target):
            return F.cross_entropy(y * self.scale, target)

    scales = [Scaled(), Scaled()]
    modules = [Net(), Net()]
    modules[1].load_state_dict(modules[0].state_dict())
    optimizers = [adamw([*m.parameters(), *s.parameters()]) for m, s in zip(modules, scales)]
    data = batches(4)
    expected = eager(modules[0], optimizers[0], data, scales[0])
    step = caesura.compile_step(modules[1], scales[1], optimizers[1])
    assert [step(*batch).item() for batch in data] == pytest.approx(expected, rel=1e-5)
    same(*modules)
    same(*scales)
    assert not torch.equal(scales[1].scale, torch.full((4,), 0.5))


def test_refuses_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        module = nn.parallel.DistributedDataParallel(Net())
        with pytest.raises(caesura.StepRefused, match="exchanges gradients itself"):
            caesura.compile_step(module, F.cross_entropy, adamw(module.parameters()))
    finally:
        torch.distributed.destroy_process_group()


# --- the arguments of calls --------------------------------------------------------------------------------------

class Times(Net):
    def forward(self, x, factor):
        return super().forward(x)[:, :factor] * factor


def test_numbers_that_change():
    """The second number makes a capture that serves all numbers."""
    module = Times()
    other = copy.deepcopy(module)
    optimizers = [sgd(m.parameters()) for m in (module, other)]
    step = caesura.compile_step(other, lambda y, target: y.square().mean(), optimizers[1])
    for i, (x, _) in enumerate(batches(8)):
        optimizers[0].zero_grad()
        loss = module(x, i % 3 + 2).square().mean()
        loss.backward()
        optimizers[0].step()
        assert step(x, i % 3 + 2, None).item() == pytest.approx(loss.item(), rel=1e-5)
    same(module, other)
    assert len(step._programs) <= 3


def test_refuses_to_be_captured_without_end(monkeypatch):
    monkeypatch.setattr(sys.modules[caesura.CompiledStep.__module__], "_CAPTURES", 5)  # 64 captures take seconds

    class Counts(Net):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    module = Counts()
    step = caesura.compile_step(module, F.cross_entropy, sgd(module.parameters()))
    with pytest.raises(caesura.StepRefused, match="captured 5 times"):
        for _ in range(8):
            step(*batches(1)[0])


def test_refuses_a_loss_that_is_no_number():
    module = Net()
    step = caesura.compile_step(module, lambda y, target: F.cross_entropy(y, target, reduction="none"), sgd(module.parameters()))
    with pytest.raises(caesura.StepRefused, match=r"the loss is no number but torch.float32 \[5\]"):
        step(*batches(1)[0])


# --- torch.vmap --------------------------------------------------------------------------------------------------

class Mapped(Net):
    def forward(self, x):
        return torch.vmap(lambda row: Net.forward(self, row))(x)


class PartlyStopped(Net):
    """Stops a gradient within a vmap."""

    def forward(self, x):
        def row(x):
            y = self.norm(F.gelu(self.first(x)))
            with torch.no_grad():
                scale = y.square().mean()
            return self.last(y * scale + y.detach())
        return torch.vmap(row)(x)


@pytest.mark.parametrize("make", [Mapped, PartlyStopped])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_vmap(make):
    beside_eager(make, sgd)
