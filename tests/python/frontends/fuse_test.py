# SPDX-License-Identifier: Apache-2.0
"""caesura.fuse: an optimizer's own step as one call, beside PyTorch's."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import caesura

KINDS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.1),
    "adam, amsgrad, maximize": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, maximize=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd, nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd, dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1, t0=2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "muon": lambda p: torch.optim.Muon([t for t in p if t.dim() == 2], lr=0.1),
    "groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.01}, {"params": p[1:], "betas": (0.5, 0.6)}], lr=0.1),
}


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in ((3, 4), (5,), (2, 3))]


def give_gradients(given, step, without=()):
    generator = torch.Generator().manual_seed(100 + step)
    for i, p in enumerate(given):
        gradient = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        p.grad = None if i in without else gradient


def same(ours, eager):
    assert ours.keys() == eager.keys()
    for key, value in eager.items():
        if isinstance(value, dict):
            same(ours[key], value)
        elif isinstance(value, torch.Tensor):
            torch.testing.assert_close(ours[key], value)
        else:
            assert ours[key] == value or key == "param_groups"


@pytest.fixture
def unwarned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_eagers(kind, unwarned):
    one, two = parameters(), parameters()
    eager, ours = KINDS[kind](one), caesura.fuse(KINDS[kind](two))
    assert type(ours) is type(eager)
    for step in range(5):
        for given, optimizer in ((one, eager), (two, ours)):
            give_gradients(given, step)
            if step == 3:  # rates and decay change between steps
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5
                    group["weight_decay"] = 0.2
            assert optimizer.step() is None
    torch.testing.assert_close(two, one)
    same(ours.state_dict()["state"], eager.state_dict()["state"])
    # The fifth step took the quick way, as far as there is one.
    assert len(ours.step.updates._calls) == 1


DOUBLE = """
import copy
import torch
import caesura
torch.set_default_dtype(torch.float64)
for kind in (torch.optim.SGD, torch.optim.Adam):
    plain = torch.nn.Linear(3, 2)
    fused, whole = copy.deepcopy(plain), copy.deepcopy(plain)
    eager, ours, step_of = (kind(module.parameters(), lr=0.1) for module in (plain, fused, whole))
    caesura.fuse(ours)
    step = caesura.compile_step(whole, torch.nn.functional.mse_loss, step_of)
    for _ in range(4):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        for module, optimizer in ((plain, eager), (fused, ours)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(x), y).backward()
            optimizer.step()
        step(x, y)
    for module in (fused, whole):
        torch.testing.assert_close(list(module.parameters()), list(plain.parameters()))
"""


def test_the_default_dtype_is_the_users():
    """It may be another one before the first optimizer is fused, and counts of updates are made."""
    done = subprocess.run([sys.executable, "-c", DOUBLE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_state_goes_to_an_eager_optimizer_and_back():
    one, two = parameters(), parameters()
    eager, ours = KINDS["adamw"](one), caesura.fuse(KINDS["adamw"](two))
    for step in range(6):
        for given, optimizer in ((one, eager), (two, ours)):
            give_gradients(given, step)
            optimizer.step()
        if step == 2:
            saved, other = eager.state_dict(), ours.state_dict()
            ours.load_state_dict(copy.deepcopy(saved))
            eager.load_state_dict(copy.deepcopy(other))
    torch.testing.assert_close(two, one)


@pytest.mark.parametrize("kind", ["sgd, nesterov", "adamw", "groups", "asgd"])
def test_parameters_without_gradients_stay(kind, unwarned):
    one, two = parameters(), parameters()
    eager, ours = KINDS[kind](one), caesura.fuse(KINDS[kind](two))
    for step, without in enumerate([(), (1,), (0, 2), (), (1,), (0, 1, 2)]):
        for given, optimizer in ((one, eager), (two, ours)):
            give_gradients(given, step, without)
            optimizer.step()
    torch.testing.assert_close(two, one)


def test_closures_hooks_and_schedulers(unwarned):
    losses, seen = [], []
    for fused in (False, True):
        given, calls = parameters(), []
        optimizer = torch.optim.AdamW(given, lr=0.1)
        first = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        if fused:
            caesura.fuse(optimizer)
            assert caesura.fuse(optimizer) is optimizer
        second = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
        optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("post"))

        def closure(optimizer=optimizer, given=given):
            optimizer.zero_grad()
            loss = sum((p ** 2).sum() for p in given)
            loss.backward()
            return loss

        for _ in range(4):
            losses.append(optimizer.step(closure).item())
            first.step()
            second.step()
        seen.append((calls, given, optimizer.param_groups[0]["lr"]))
    assert losses[:4] == pytest.approx(losses[4:])
    assert seen[0][0] == seen[1][0] == ["pre", "post"] * 4
    torch.testing.assert_close(seen[1][1], seen[0][1])
    assert seen[0][2] == seen[1][2]


def test_grad_scaler_skips_a_step():
    results = []
    for fused in (False, True):
        given = parameters(torch.float32)
        optimizer = torch.optim.Adam(given, lr=0.1)
        if fused:
            caesura.fuse(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(4):
            optimizer.zero_grad()
            factor = float("inf") if step == 1 else 1.0
            scaler.scale(sum((p * factor).sum() for p in given)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((given, scaler.get_scale()))
    torch.testing.assert_close(results[1], results[0])


def test_a_graph_notices_the_update():
    given = parameters()
    optimizer = caesura.fuse(torch.optim.SGD(given, lr=0.1))
    loss = (given[0] ** 2).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_step_that_raises_has_changed_nothing():
    given = parameters()
    optimizer = caesura.fuse(KINDS["groups"](given))  # the last one's is another update op
    for step in range(2):
        give_gradients(given, step)
        optimizer.step()
    before, state = copy.deepcopy(given), copy.deepcopy(optimizer.state_dict())
    give_gradients(given, 2)
    given[2].grad.resize_(7, 7)
    with pytest.raises(Exception, match=r"gradient .* must be float64\[2, 3\]"):
        optimizer.step()
    torch.testing.assert_close(given, before, rtol=0, atol=0)
    same(optimizer.state_dict()["state"], state["state"])


def test_members_and_copies():
    one, two = parameters(), parameters()
    eager, ours = torch.optim.SGD(one[:2], lr=0.1), caesura.fuse(torch.optim.SGD(two[:2], lr=0.1))
    for step in range(4):
        if step == 2:
            eager.add_param_group({"params": one[2:], "lr": 0.5})
            ours.add_param_group({"params": two[2:], "lr": 0.5})
        for given, optimizer in ((one, eager), (two, ours)):
            give_gradients(given, step)
            optimizer.step()
    torch.testing.assert_close(two, one)
    assert "step" not in vars(copy.deepcopy(ours))


@pytest.mark.parametrize("what", ["sparse", "half", "strided", "thawed"])
def test_leaves_to_pytorch_what_it_does_not_take(what):
    dense, results = parameters()[1:], []
    for fused in (False, True):
        own = copy.deepcopy(dense)
        odd = nn.Parameter(torch.ones(3, 4, 2, 2, dtype=torch.float64))
        if what == "strided":
            odd = nn.Parameter(odd.detach().to(memory_format=torch.channels_last))
        optimizer = torch.optim.SGD([*own, odd], lr=0.1)
        if fused:
            caesura.fuse(optimizer)
        caught = []
        for step in range(2):
            give_gradients([*own, odd], step)
            if what == "sparse":
                odd.grad = odd.grad.to_sparse()
            if what == "half":
                odd.grad = None
                odd.grad_dtype = None
                odd.grad = torch.ones_like(odd, dtype=torch.float16)
            if what == "thawed":
                odd.requires_grad_(False)
            with warnings.catch_warnings(record=True) as now:
                warnings.simplefilter("always")
                optimizer.step()
            caught += [w for w in now if issubclass(w.category, caesura.FallbackWarning)]
        results.append([*own, odd])
        assert len(caught) == int(fused), [str(w.message) for w in caught]
        assert all("SGD.step" in str(w.message) and w.filename == __file__ for w in caught)
    torch.testing.assert_close(results[1], results[0])


def test_foreign_classes_stay():
    class Own(torch.optim.SGD):
        pass

    optimizer = Own(parameters(), lr=0.1)
    with pytest.warns(caesura.FallbackWarning, match="there is no such update op"):
        assert caesura.fuse(optimizer) is optimizer
    assert "step" not in vars(optimizer)
    with caesura.strict(), pytest.raises(caesura.StrictError, match="there is no such update op"):
        caesura.fuse(Own(parameters(), lr=0.1))


def test_takes_optimizers_alone():
    with pytest.raises(TypeError, match="got Linear"):
        caesura.fuse(nn.Linear(2, 2))
