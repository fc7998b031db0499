# SPDX-License-Identifier: Apache-2.0
"""Calls of wrapped and compiled modules from disk: hits, changes that need another key, and damaged files."""

import copy
import json
import os
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from caesura.cache import disk  # noqa: E402
from caesura.frontends import dynamo_backend  # noqa: E402
from program_cache_test import flip, folder, load, run_anew, run_two  # noqa: E402, F401
from wrap_test import Net, gradients  # noqa: E402


def captured(run) -> int:
    """Counts the graphs that `run` captures, as in a new process."""
    count, original = [], dynamo_backend.aot_autograd
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "aot_autograd", lambda **kwargs: count.append(1) or original(**kwargs))
        run()
    return len(count)


def hit(module, *args, wrap=caesura.wrap, rtol=1e-4, **kwargs) -> bool:
    """Returns True if a wrapped copy of the module finds all its calls on disk. Results must equal eager's."""
    def run():
        plain, other = copy.deepcopy(module), wrap(copy.deepcopy(module))
        for _ in range(2):
            torch.manual_seed(3)
            loss, expected = gradients(plain, *args, **kwargs)
            torch.manual_seed(3)
            given, actual = gradients(other, *args, **kwargs)
            torch.testing.assert_close(given, loss, rtol=rtol, atol=1e-5)
            for gradient, its in zip(expected.values(), actual.values(), strict=True):  # names differ under torch.compile
                torch.testing.assert_close(its, gradient, rtol=rtol, atol=1e-4)
        for buffer, its in zip(plain.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(its, buffer)

    return captured(run) == 0


def net_with(*layers):
    return torch.nn.Sequential(torch.nn.Linear(6, 16), *layers, torch.nn.Linear(16, 4))


class Halves(torch.nn.Module):
    """Views, a constant, a dict of outputs, and an input that is written to."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        a, b = self.first(x).chunk(2, dim=1)
        return {"sum": (a * b + torch.tensor([2.0])).sum(), "flat": a.t()}["sum"]


def file_of_the_graph(folder):
    """The only file there that is a graph's call."""
    (file,) = [f for f in folder.iterdir() if "call" in disk.load(f.name)[0]]
    return file


@pytest.mark.parametrize("make", [
    Net, lambda: net_with(torch.nn.BatchNorm1d(16)), Halves,
    lambda: net_with(torch.nn.LayerNorm(16), torch.nn.Softmax(-1), torch.nn.Hardtanh(-0.5, 0.5)),
], ids=["net", "batch norm", "halves", "softmax"])
@pytest.mark.parametrize("wrap", [caesura.wrap, lambda module: torch.compile(module, backend="caesura")], ids=["wrap", "compile"])
def test_the_second_time_it_is_found(make, wrap, folder):
    module, x = make(), torch.randn(5, 6)
    with caesura.strict():
        assert [hit(module, x, wrap=wrap) for _ in range(3)] == [False, True, True]
    file = file_of_the_graph(folder)
    assert file.stat().st_mode & 0o077 == 0


def test_the_switch(folder, monkeypatch):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", "off")
    assert [hit(Net(), torch.randn(5, 6)) for _ in range(2)] == [False, False] and not folder.exists()


def test_dropout_draws_the_same():
    module, x, seen = net_with(torch.nn.Dropout(0.5)), torch.randn(5, 6), []

    def run():
        wrapped = caesura.wrap(module)
        torch.manual_seed(1)
        seen.append([gradients(wrapped, x)[0].item() for _ in range(3)])

    assert [captured(run) for _ in range(2)] == [1, 0]
    assert seen[0] == seen[1] and len(set(seen[0])) == 3


def test_derivatives_of_derivatives_of_what_was_found():
    module, x = Net(torch.nn.Tanh()), torch.randn(5, 6)

    def second(net):
        given = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(net(given).sum(), given, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), list(module.parameters()), allow_unused=True)

    found = []
    caesura.reports.reset()
    assert [captured(lambda: found.append(second(caesura.wrap(module)))) for _ in range(2)] == [1, 0]
    assert not caesura.stats().fallbacks
    for expected, *others in zip(second(module), *found):
        for other in others:
            torch.testing.assert_close(other, expected)


def test_what_is_left_to_pytorch_is_told_of_again():
    class Sorted(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x @ x.t()) * x.sum()

    def run():
        caesura.reports.reset()
        with pytest.warns(caesura.FallbackWarning, match="linalg_eigh.*call_cache_test.py"):
            caesura.wrap(Sorted())(x.requires_grad_()).sum().backward()

    def forbidden():
        with caesura.strict(), pytest.raises(Exception, match="strict: this would be left to PyTorch"):
            caesura.wrap(Sorted())(x)

    x = torch.randn(4, 4)
    assert [captured(run) for _ in range(2)] == [1, 0]
    captured(forbidden)


# --- the key ---

def test_other_inputs_are_another_call():
    x = torch.randn(5, 6)
    assert not hit(Net(), x)
    assert not hit(Net(), torch.randn(7, 6))
    assert not hit(Net(), torch.randn(6, 5).t())  # other strides
    assert not hit(Net(), x.clone().requires_grad_())
    assert not hit(Net().double(), x.double())
    assert hit(Net(), x)


@pytest.mark.parametrize("change", [
    lambda module: setattr(module.norm, "eps", 0.1), lambda module: setattr(module, "act", torch.nn.GELU("tanh")),
    lambda module: setattr(module, "first", torch.nn.Linear(6, 16, bias=False)),
    lambda module: module.norm.register_forward_hook(lambda module, inputs, output: output * 2),
], ids=["attribute", "argument", "layer", "hook"])
def test_another_module_is_another_call(change):
    x = torch.randn(5, 6)
    assert not hit(Net(), x)
    module = Net()
    change(module)
    assert not hit(module, x)
    assert hit(Net(), x) and hit(module, x)


def test_frozen_parameters_are_another_call():
    x, module = torch.randn(5, 6), Net()
    assert not hit(module, x)
    module.first.weight.requires_grad_(False)

    def run():
        wrapped = caesura.wrap(module)
        module.zero_grad()
        wrapped(x).sum().backward()
        assert module.first.weight.grad is None and module.last.weight.grad is not None

    assert [captured(run) for _ in range(2)] == [1, 0]


def test_autocast_and_modes_are_in_the_key():
    x, module = torch.randn(5, 6), net_with(torch.nn.Dropout(0.0))

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            assert caesura.wrap(module)(x).dtype == torch.bfloat16

    def predict():
        with torch.no_grad():
            assert not caesura.wrap(module)(x).requires_grad

    assert not hit(module, x)
    assert [captured(run) for _ in range(2)] == [1, 0]
    assert [captured(predict) for _ in range(2)] == [1, 0]
    assert hit(module, x)


def test_the_users_lines_are_in_the_key(tmp_path):
    """Code that has moved to other lines needs a new capture, so that errors name the present lines."""
    source = "import torch\nclass Made(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x).relu()\n"
    x = torch.randn(5, 6)
    made = load(tmp_path, source).Made(6, 4)
    assert [hit(made, x) for _ in range(2)] == [False, True]
    assert not hit(load(tmp_path, "\n" + source).Made(6, 4), x)


def test_sizes_that_change_are_captured_with_a_symbol():
    module = Net()
    hit(module, torch.randn(5, 6))

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for rows in (5, 7, 9, 5, 11):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(gradients(wrapped, x)[0], gradients(plain, x)[0])

    assert [captured(run) for _ in range(2)] == [1, 1]  # with the symbol; five rows come from disk


@pytest.mark.parametrize("kind", ["function", "checkpoint", "shared"])
def test_what_no_key_holds_is_captured_each_time(kind, folder):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            return 3 * dy

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x, y):
            if kind == "checkpoint":
                return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)
            return self.net(Twice.apply(x) if kind == "function" else x + y)

    x = torch.randn(5, 6, requires_grad=kind == "function")
    assert [hit(Model(), x, x[:1] if kind == "shared" else None) for _ in range(2)] == [False, False]
    assert not folder.exists()


# --- the files ---

def numbers_in(facts):
    """Yields (list, index) of all ints in it."""
    found = []
    for key, value in facts.items() if isinstance(facts, dict) else enumerate(facts):
        if isinstance(value, (dict, list)):
            found += numbers_in(value)
        elif type(value) is int:
            found.append((facts, key))
    return found


@pytest.mark.parametrize("damage", [flip, lambda c: c[:len(c) // 2], lambda c: b"", lambda c: c + b"x"],
                         ids=["bit", "half", "empty", "longer"])
def test_a_damaged_file_is_told_of_and_made_anew(folder, damage):
    module, x = Net(), torch.randn(5, 6)
    hit(module, x)
    file = file_of_the_graph(folder)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with pytest.warns(RuntimeWarning, match="damaged and not used"):
        assert not hit(module, x)
    assert file.read_bytes() == whole and hit(module, x)


@pytest.mark.parametrize("forge", [
    lambda text: "{}", lambda text: '{"call": {"dict": []}}', lambda text: text.replace('"add_program"', '"__del__"'),
    lambda text: text.replace('"bytes"', '"pickle"'), lambda text: text.replace('"layout"', '"device"'),
    lambda text: text.replace('["values", ', '["values", -'), lambda text: text.replace('["values", ', '["values", 9999999999999'),
])
def test_facts_that_do_not_fit_are_told_of(folder, forge):
    module, x = Net(), torch.randn(5, 6)
    hit(module, x)
    file = file_of_the_graph(folder)
    facts, content = disk.load(file.name)
    forged = json.loads(forge(json.dumps(facts)))
    assert forged != facts
    disk.store(file.name, forged, content)
    with pytest.warns(RuntimeWarning, match="damaged and not used"):
        assert not hit(module, x)
    assert hit(module, x)


def test_numbers_that_do_not_fit_harm_nothing(folder):
    """A changed number in a call's file gives a warning, an error, or another result, but never a crash."""
    choose, module, x = random.Random(0), Halves(), torch.randn(5, 6)
    hit(module, x)
    file = file_of_the_graph(folder)
    facts, content = disk.load(file.name)
    text, refused = json.dumps(facts), 0

    def run():
        try:
            gradients(caesura.wrap(copy.deepcopy(module)), x)
        except Exception:  # any error is allowed; the process must survive
            return 1
        return 0

    for _ in range(300 if os.environ.get("CAESURA_LONG") else 40):
        forged = json.loads(text)
        where, key = choose.choice(numbers_in(forged))
        where[key] = choose.choice([-2, -1, 0, 1, 2, 7, 40, 1 << 20, (1 << 62) + 1])
        disk.store(file.name, forged, content)
        torch._dynamo.reset()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            refused += run() or any("damaged" in str(w.message) for w in told)
    assert refused > 10


PROCESS = """
import pathlib, os, time, torch, caesura
from caesura.frontends import dynamo_backend
from wrap_test import Net, gradients
count, original = [], dynamo_backend.aot_autograd

def capture(**kwargs):  # both at once: neither goes on before the other is here
    count.append(1)
    here = pathlib.Path(os.environ["CAESURA_PROGRAM_CACHE"]).parent
    (here / f"{os.getpid()}.capturing").touch()
    until = time.monotonic() + 240
    while len(list(here.glob("*.capturing"))) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return original(**kwargs)

torch.manual_seed(0)
dynamo_backend.aot_autograd = capture
net, x = caesura.wrap(Net()), torch.randn(5, 6)
print([gradients(net, x)[0].item() for _ in range(2)], len(count))
"""


def test_processes_share_the_folder(folder):
    answers = run_two(PROCESS)
    assert answers[0] == answers[1] and answers[0].endswith("] 1\n") and len(list(folder.iterdir())) == 3
    assert run_anew(PROCESS) == answers[0].replace("] 1", "] 0")
