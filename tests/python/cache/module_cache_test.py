# SPDX-License-Identifier: Apache-2.0
"""Wrapped modules' calls from disk, without Dynamo: hits, changes of the key, calls not kept, damaged files."""

import collections
import copy
import dataclasses
import gc
import json
import os
import random
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.cache import disk, graph_calls  # noqa: E402
from caesura.capture import frames  # noqa: E402
from caesura.frontends import wrap as wrapping  # noqa: E402
from call_cache_test import file_of_the_graph, numbers_in  # noqa: E402
from fork_server import Program  # noqa: E402
from program_cache_test import COUNTING, folder, load, run_anew  # noqa: E402, F401
from wrap_test import Net  # noqa: E402


def traced(run) -> int:
    """Counts the graphs that Dynamo traces while `run` runs, as in a new process."""
    count, original = [], wrapping.torch_backend
    counting = lambda *a, **k: count.append(1) or original(*a, **k)  # noqa: E731
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wrapping, "torch_backend", counting)
        frames.watch(counting, runs_eager=True)
        run()
    return len(count)


def leaves_of(value) -> list:
    """Returns all tensors in a structure, with the types and names around them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = [*value.keys(), *value.values(), *(vars(value).items() if hasattr(value, "__dict__") else ())]
    elif hasattr(value, "__dict__") and not isinstance(value, (torch.dtype, torch.device)):
        parts = list(vars(value).items())
    else:
        return [value]
    return [type(value)] + [leaf for part in parts for leaf in leaves_of(part)]


def agree(wrapped, plain, *args, rtol=1e-4, **kwargs):
    """Compares results, gradients and buffers of both modules, with the same random numbers."""
    outcomes = []
    for module in (wrapped, plain):
        torch.manual_seed(3)
        module.zero_grad()
        results = leaves_of(module(*args, **kwargs))
        tensors = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
        if torch.is_grad_enabled():
            sum(t.sum() for t in tensors if t.requires_grad).backward()
        outcomes.append((results, [p.grad for p in module.parameters()], list(module.buffers())))
    for one, other in zip(*outcomes):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 10)
            else:
                assert a == b


def hit(module, *args, **kwargs) -> bool:
    """Returns True if a wrapped copy of the module finds its calls without a trace. Results must equal eager's."""
    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for _ in range(3):
            agree(wrapped, plain, *args, **kwargs)

    return traced(run) == 0


# --- hits ---

@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A dataclass that is a dict of its fields that are not None, as transformers' outputs are."""
    loss: torch.Tensor = None
    logits: torch.Tensor = None
    hidden: tuple = None
    none: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Cache:
    def __init__(self, keys):
        self.keys, self.length, self.dtype, self.parts = keys, keys.shape[0], keys.dtype, [{"first": keys[:1] * 2}]


class Structured(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.net, self.kind = Net(), kind

    def forward(self, x, scale=None, *, more=(), flag=True):
        y = self.net(x)
        if scale is not None:
            y = y * scale
        for part in more:
            y = y + part["value"]
        if self.kind == "dataclass":
            return Output(loss=y.sum(), logits=y, hidden=(y * 2, None), none=None)
        if self.kind == "object":
            return y, Cache(y + 1)
        if self.kind == "plain":
            return {"y": y, "parts": [y + 1, (y.sum(), 3, "text", None, True, 0.5)], 7: y.dtype}
        return y


@pytest.mark.parametrize("kind", ["tensor", "plain", "dataclass", "object"])
def test_results_of_all_forms(kind, folder):
    x = torch.randn(5, 6)
    with caesura.strict():
        assert [hit(Structured(kind), x) for _ in range(3)] == [False, True, True]
    assert len(list(folder.iterdir())) == 3  # one file lists the traced code
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())


def test_arguments_of_all_forms():
    x, scale = torch.randn(5, 6), torch.randn(5, 1, requires_grad=True)
    more = [{"value": torch.randn(4)}, {"value": torch.randn(5, 4)}]
    module = Structured("plain")
    assert [hit(module, x, scale=scale, more=more, flag=False) for _ in range(2)] == [False, True]
    assert not hit(module, x, scale, more=more, flag=False)  # by position
    assert not hit(module, x, scale=scale, more=more, flag=True)
    assert not hit(module, x, scale=scale, more=tuple(more), flag=False)
    assert hit(module, x, scale=scale, more=more, flag=False)


def test_arguments_are_those_of_the_call():
    module, x = Structured("dataclass"), torch.randn(5, 6)
    hit(module, x, more=[{"value": torch.randn(4)}])

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for _ in range(4):
            given = [{"value": torch.randn(4)}]
            agree(wrapped, plain, torch.randn(5, 6), more=given)
        lazy = torch._neg_view(torch.randn(5, 6))  # as torch.complex(...).conj().imag gives it, but dense
        assert lazy.is_neg() and lazy.is_contiguous()
        agree(wrapped, plain, lazy, more=given)

    assert traced(run) == 0


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5))

    def forward(self, x):
        return self.layers(x)


def test_buffers_modes_and_draws():
    module, x = Noisy(), torch.randn(5, 6)
    assert [hit(module, x) for _ in range(2)] == [False, True]
    assert not hit(module.eval(), x)
    with torch.no_grad():
        assert [hit(module, x) for _ in range(2)] == [False, True]
    assert hit(module, x) and hit(module.train(), x)


def test_tied_parameters_and_state_dicts():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.last.weight = self.first.weight

        def forward(self, x):
            return self.last(self.first(x).relu())

    module, x = Tied(), torch.randn(5, 6)
    assert [hit(module, x) for _ in range(2)] == [False, True]
    module.last.weight = torch.nn.Parameter(torch.randn(6, 6))
    assert not hit(module, x)


class WritesAndReads(torch.nn.Module):
    """Writes to one buffer and reads another, which may share its memory."""

    def __init__(self, shared):
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("read", self.written.view(2) if shared else torch.zeros(2))
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        self.written.add_(1)
        return x * self.weight * self.read


def test_buffers_of_one_memory_are_another_module(folder):
    x = torch.ones(2)
    for shared in (False, True):
        module = caesura.wrap(WritesAndReads(shared))
        torch._dynamo.reset()
        assert [module(x)[0].item() for _ in range(3)] == ([1, 2, 3] if shared else [0, 0, 0])


def test_a_module_that_changes_is_noticed():
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)

    def run():
        plain = copy.deepcopy(module)
        wrapped = caesura.wrap(copy.deepcopy(module))
        changes = [
            lambda m: setattr(m.net.norm, "eps", 0.3), lambda m: setattr(m.net.first, "weight", torch.nn.Parameter(torch.ones(16, 6))),
            lambda m: m.net.last.weight.requires_grad_(False), lambda m: setattr(m, "kind", "plain"),
            lambda m: m.net.register_forward_hook(lambda module, inputs, output: output * 2), lambda m: m.eval(), lambda m: m.double(),
        ]
        agree(wrapped, plain, x)
        for change in changes:
            change(plain)
            change(wrapped)
            agree(wrapped, plain, x.double() if change is changes[-1] else x)

    assert traced(run) > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert [hit(module, x, rtol=0.3) for _ in range(2)] == [False, True]  # sums of bfloat16


def test_data_and_loaded_states_are_read():
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        agree(wrapped, plain, x)
        state = {name: torch.randn_like(value) for name, value in plain.state_dict().items()}
        for net in (plain, wrapped):
            net.load_state_dict(state)
        agree(wrapped, plain, x)
        for net in (plain, wrapped):
            net.net.first.weight.data = state["net.first.weight"] * 2
        agree(wrapped, plain, x)

    assert traced(run) == 0


def test_changing_lengths_take_one_trace():
    module = Structured("tensor")
    hit(module, torch.randn(5, 6))

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for rows in (5, 7, 9, 5, 11):
            agree(wrapped, plain, torch.randn(rows, 6))

    assert traced(run) == 1


def test_derivatives_of_derivatives():
    module, x = Structured("plain"), torch.randn(5, 6)
    module.net.act = torch.nn.Tanh()
    found = []

    def second(net):
        given = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(net(given, more=[{"value": torch.ones(4)}])["y"].sum(), given, create_graph=True)
        return torch.autograd.grad(dx.square().sum(), list(module.parameters()), allow_unused=True)

    caesura.reports.reset()
    assert [traced(lambda: found.append(second(caesura.wrap(module)))) for _ in range(2)] == [1, 0]
    assert not caesura.stats().fallbacks
    for expected, *others in zip(second(module), *found):
        for other in others:
            torch.testing.assert_close(other, expected)


def test_modes_that_only_dynamo_sees_through():
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)
    wrapped = caesura.wrap(module)
    torch._dynamo.reset()
    expected = wrapped(x)

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, target, types, args=(), kwargs=None):
            return target(*args, **(kwargs or {}))

    with Counting():
        torch.testing.assert_close(wrapped(x), expected)
    torch.testing.assert_close(torch.func.vmap(lambda row: wrapped(row))(x[:, None])[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_the_same_tensor_twice_is_another_call():
    module, x = Structured("tensor"), torch.randn(4, 6)
    module.net.last = torch.nn.Linear(16, 6)
    same, other = [{"value": x}], [{"value": torch.randn(4, 6)}]
    assert [hit(module, x, more=same) for _ in range(2)] == [False, True]
    assert [hit(module, x, more=other) for _ in range(2)] == [False, True]
    assert hit(module, x, more=same)

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for more in (same, other, same):
            agree(wrapped, plain, x, more=more)

    assert traced(run) == 0


# --- calls that are not kept ---

@pytest.mark.parametrize("line,kept", [("global CALLS; CALLS = CALLS + 1", False), ("global LAST; LAST = 'forward'", True)])
def test_what_a_call_leaves_behind(tmp_path, line, kept):
    made = load(tmp_path, COUNTING % line, f"world_{kept}")  # Dynamo identifies modules by name
    module, x = made.Block(), torch.randn(5, 6)

    def run():
        wrapped = caesura.wrap(module)
        for _ in range(4):
            wrapped(x)

    assert traced(run) > 0
    assert (made.CALLS, made.LAST) == (0 if kept else 4, "forward" if kept else None)
    assert (traced(run) == 0) == kept and made.CALLS == (0 if kept else 8)
    if kept:
        made.LAST = "another's"  # the kept call does not match this state
        assert traced(run) == 1 and made.LAST == "forward"


class Counts(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.net, self.kind, self.calls, self.seen = Net(), kind, 0, []

    def forward(self, x):
        y = self.net(x)
        if self.kind == "attribute":
            self.calls += 1
        elif self.kind == "list":
            self.seen.append(1)
        elif self.kind == "tensor":
            self.calls = y.detach().sum()
        elif self.kind == "argument":
            return x, y
        elif self.kind == "break":
            torch._dynamo.graph_break()
            y = y * 2
        elif self.kind == "value":
            return y * y.sum().item()
        elif self.kind == "held":
            return y, self.seen
        return y


@pytest.mark.parametrize("kind", ["attribute", "list", "tensor", "argument", "break", "value", "held"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_does_more_than_one_graph_is_traced_each_time(kind):
    x = torch.randn(5, 6)
    for _ in range(2):
        caesura.reports.reset()
        module = Counts(kind)
        plain, seen = copy.deepcopy(module), []

        def run():
            wrapped = caesura.wrap(copy.deepcopy(module))
            for _ in range(3):
                agree(wrapped, plain, x)
            seen.append((wrapped.calls, wrapped.seen))

        assert traced(run) > 0
        torch.testing.assert_close(seen, [(plain.calls, plain.seen)])


def test_the_switch(folder, monkeypatch):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", "off")
    assert [hit(Net(), torch.randn(5, 6)) for _ in range(2)] == [False, False] and not folder.exists()


def test_a_wrapped_module_goes_away():
    module, x = Structured("dataclass"), torch.randn(5, 6)
    hit(module, x)

    def run():
        held = caesura.wrap(copy.deepcopy(module))
        held(x).loss.backward()
        gone = weakref.ref(held.net)
        del held
        gc.collect()
        assert gone() is None

    assert traced(run) == 0


# --- the files ---

def file_of_the_module(folder):
    """Returns the key of the only file of a module's call."""
    (found,) = [f.name for f in folder.iterdir() if "module" in disk.load(f.name)[0]]
    return found


@pytest.mark.parametrize("forge", [
    lambda f: f.clear(), lambda f: f.update(call="0" * 64), lambda f: f.update(places=f["places"][1:]),
    lambda f: f.update(places=[*f["places"], f["places"][0]]), lambda f: f.update(places=["net.nothing", *f["places"][1:]]),
    lambda f: f.update(places=[("args", 7) if isinstance(p, tuple) else p for p in f["places"]]),
    lambda f: f.update(results=("tensor", 1 << 40)), lambda f: f.update(results=("tensor", -1)),
    lambda f: f.update(results=("object", ("os", "_Environ"), None, [("x", ("tensor", 0))])),
    lambda f: f.update(results=("object", ("torch", "Tensor"), None, [("x", ("tensor", 0))])),
    lambda f: f.update(results=("eval", "1")), lambda f: f.update(results=None), lambda f: f.update(results=7),
], ids=range(13))
def test_facts_that_do_not_fit_are_told_of(folder, forge):
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)
    key = file_of_the_module(folder)
    facts, content = disk.load(key)
    forged = graph_calls.unpacked(facts["module"], content)
    forge(forged)
    disk.store(key, {"module": graph_calls.packed(forged, bytearray())}, b"")

    def run():
        agree(caesura.wrap(copy.deepcopy(module)), copy.deepcopy(module), x)

    if forged.get("call") == "0" * 64:  # as if it had been removed to make room
        assert traced(run) == 1
    else:
        with pytest.warns(RuntimeWarning, match="damaged and not used"):
            assert traced(run) == 1
    assert traced(run) == 0


def test_a_graph_that_is_gone_is_made_anew(folder):
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)
    file_of_the_graph(folder).unlink()
    assert [hit(module, x) for _ in range(2)] == [False, True]


def test_numbers_that_do_not_fit_harm_nothing(folder):
    """A changed number gives a warning, an error, or another result, but never a crash, as in call_cache_test.py."""
    choose, module, x = random.Random(0), Structured("dataclass"), torch.randn(5, 6)
    hit(module, x, more=[{"value": torch.randn(4)}])
    key = file_of_the_module(folder)
    facts, content = disk.load(key)
    text, refused = json.dumps(facts), 0
    for _ in range(300 if os.environ.get("CAESURA_LONG") else 40):
        forged = json.loads(text)
        where, at = choose.choice(numbers_in(forged))
        where[at] = choose.choice([-2, -1, 0, 1, 2, 7, 40, 1 << 20, (1 << 62) + 1])
        disk.store(key, forged, content)
        torch._dynamo.reset()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                caesura.wrap(copy.deepcopy(module))(x, more=[{"value": torch.randn(4)}]).loss.backward()
            except Exception:  # any error is allowed; the process must survive
                refused += 1
            refused += any("damaged" in str(w.message) for w in told)
    assert refused > 10


def test_places_that_are_others_are_an_error(folder):
    module, x = Structured("tensor"), torch.randn(5, 6)
    hit(module, x)
    key = file_of_the_module(folder)
    forged = graph_calls.unpacked(disk.load(key)[0]["module"], b"")
    forged["places"] = [("args", 0)] * len(forged["places"])
    disk.store(key, {"module": graph_calls.packed(forged, bytearray())}, b"")
    with pytest.raises(RuntimeError, match="expected float32"):
        caesura.wrap(module)(x)


PROCESS = """
import torch, caesura
from caesura.frontends import wrap as wrapping
from wrap_test import Net, gradients
torch.manual_seed(0)
count, original = [], wrapping.torch_backend
wrapping.torch_backend = lambda *a, **k: count.append(1) or original(*a, **k)
net, x = caesura.wrap(Net()), torch.randn(5, 6)
print([gradients(net, x)[0].item() for _ in range(2)], len(count))
"""


def test_another_process_traces_nothing(folder):
    first = Program(PROCESS).result()
    assert first.stdout.endswith(" 1\n") and not first.stderr
    assert run_anew(PROCESS) == first.stdout.replace("] 1", "] 0")
