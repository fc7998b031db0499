# SPDX-License-Identifier: Apache-2.0
"""Shows what is lost without an error if a release of PyTorch changes: each fast way is taken, and draws are PyTorch's."""

import copy
import pathlib

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402
from caesura.cache import disk  # noqa: E402
from caesura.capture import compat, frames  # noqa: E402
from caesura.capture.bytecode import is_plain  # noqa: E402

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([0, 1, 1])


torch_kernels.load()


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


DTYPES = [torch.bool, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_our_draws_give_pytorchs_numbers_and_leave_its_state(dtype):
    def drawn(draw, *arguments, **options):
        torch.manual_seed(3)
        torch.randn(3)
        return draw(*arguments, **options), torch.get_rng_state()

    for count in (0, 1, 5, 311, 312, 313, 624, 2000):
        x = torch.empty(count, dtype=dtype)
        for p in (0.0, 0.1, 1 - 2.0**-53, 1.0):
            torch.testing.assert_close(drawn(torch.ops.caesura.bernoulli, x, p), drawn(torch.bernoulli, x, p), rtol=0, atol=0)
        for ends in ((0.0, 1.0), (-0.3, 1.1), (2.0, 2.0)) if dtype.is_floating_point else ():
            torch.testing.assert_close(drawn(torch.ops.caesura.uniform, x, *ends), drawn(torch.ops.aten.uniform, x, *ends), rtol=0, atol=0)
    ours, theirs = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    torch.testing.assert_close(torch.ops.caesura.bernoulli(x, 0.5, generator=ours), torch.bernoulli(x, 0.5, generator=theirs))
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_what_pytorch_refuses_to_draw_is_refused():
    for wrong in (lambda: torch.ops.caesura.bernoulli(torch.empty(3), 1.5), lambda: torch.ops.caesura.uniform(torch.empty(3), 2.0, 1.0),
                  lambda: torch.ops.caesura.uniform(torch.empty(3), 0.0, float("inf"))):
        with pytest.raises(RuntimeError, match=r"expects|p_in|out of bounds"):
            wrong()


@pytest.mark.skipif("GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text(), reason="there PyTorch draws by MKL, and so do we")
def test_our_draws_are_taken():
    torch.ops.caesura.bernoulli(torch.empty(3), 0.5), torch.ops.caesura.uniform(torch.empty(3))  # which look at PyTorch's
    with torch.profiler.profile() as profile:
        torch.ops.caesura.bernoulli(torch.empty(3), 0.5), torch.ops.caesura.uniform(torch.empty(3))
    names = {event.name for event in profile.events()}
    assert "caesura::bernoulli" in names and not any(name.startswith(("aten::bernoulli", "aten::uniform")) for name in names)
