# SPDX-License-Identifier: Apache-2.0
"""Shows what is lost without an error if a release of PyTorch changes: each fast way is taken, and draws are PyTorch's."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402
from caesura.cache import disk  # noqa: E402
from caesura.capture import compat, frames  # noqa: E402
from caesura.capture.bytecode import is_plain  # noqa: E402

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([0, 1, 1])


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", str(tmp_path))


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2))


def step_of(module, **options):
    return caesura.compile_step(module, nn.functional.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1), **options)


def codes(function) -> list:
    return [entry.code for entry in compat.cache_entries(function.__code__)]


def test_a_plain_capture_is_plain():
    wrapped, step = caesura.wrap(net()), step_of(net())
    wrapped(X).sum().backward()
    step(X, Y)
    made = codes(compat.original(type(wrapped)._calls.compiled)) + codes(type(step)._loss)
    assert len(made) >= 2 and all(map(is_plain, made))


def test_code_with_marks_for_profilers_is_not_plain(monkeypatch):
    wrapped = caesura.wrap(net())
    monkeypatch.setitem(frames.UNMARKED, "record_runtime_overhead", True)
    wrapped(X)
    assert not any(map(is_plain, codes(compat.original(type(wrapped)._calls.compiled))))


def test_a_call_is_kept_at_once_and_recalled(monkeypatch):
    assert disk.enabled()
    module = net()
    first = caesura.wrap(module)(X)
    first.sum().backward()
    torch._dynamo.reset()
    again = caesura.wrap(copy.deepcopy(module))
    monkeypatch.setattr(type(again)._calls, "_ask_dynamo", lambda *_: pytest.fail("Dynamo was asked"))
    again(X).sum().backward()


@pytest.mark.parametrize("dynamic", [None, True], ids=["by its key", "by Dynamo's guards"])
def test_a_step_goes_past_dynamo(monkeypatch, dynamic):
    step = step_of(net(), dynamic=dynamic)
    step(X, Y)
    monkeypatch.setattr(step, "_run", lambda *_: pytest.fail("Dynamo was asked"))
    step(X, Y)


def test_draws_are_pytorchs():
    module = net()
    wrapped = caesura.wrap(module)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = module(X), torch.rand(())
        torch.manual_seed(seed)
        torch.testing.assert_close((wrapped(X), torch.rand(())), expected)
