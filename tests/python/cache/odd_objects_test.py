# SPDX-License-Identifier: Apache-2.0
"""Modules may hold any objects: a call never fails because it has no key, and never finds a wrong program."""

import collections
import copy
import ctypes
import datetime
import decimal
import itertools
import queue
import re
import threading
import types
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.cache import compiled_steps, module_calls  # noqa: E402
from caesura.cache.fingerprint import Unkeyed, traced  # noqa: E402
from program_cache_test import folder  # noqa: E402, F401


class Slots:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1


class SlotsAndDict:
    __slots__ = ("a", "__dict__")


class Failing:
    """Raises an error at each access."""

    def __getattr__(self, name):
        raise RuntimeError("no attributes")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __bool__(self):
        raise RuntimeError("no truth")

    def __repr__(self):
        raise RuntimeError("no text")

    __hash__ = object.__hash__


class Hidden:
    def __getattribute__(self, name):
        raise RuntimeError("nothing to see")


class WithProperty:
    @property
    def value(self):
        raise RuntimeError("not yet")


class Pretender:
    """Pretends to be a tensor."""
    __class__ = property(lambda self: torch.Tensor)


class DictWithProperty(dict):
    @property
    def __dict__(self):
        raise RuntimeError("none")


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__len__", "answer"):
            raise RuntimeError("a class of its own mind")
        return super().__getattribute__(name)


class OfMeta(metaclass=Meta):
    pass


class Lines(list):
    pass


class Default(collections.defaultdict):
    pass


def _cycle():
    cycle = {"parts": []}
    cycle["parts"].append(cycle)
    return cycle


def _deep():
    nest = []
    for _ in range(5000):
        nest = [nest]
    return nest


def _linked():
    node = None
    for _ in range(5000):
        before, node = node, types.SimpleNamespace()
        node.before = before
    return node


HELD = {
    "defaultdict": lambda m: collections.defaultdict(list), "its subclass": lambda m: Default(list),
    "defaultdict of modules": lambda m: collections.defaultdict(list, {"m": [m.linear]}),
    "optimizer": lambda m: torch.optim.Adam(m.parameters()),
    "scheduler": lambda m: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(m.parameters(), lr=0.1), 1),
    "plateau": lambda m: torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(m.parameters(), lr=0.1)),
    "scaler": lambda m: torch.amp.GradScaler("cpu"), "averaged": lambda m: torch.optim.swa_utils.AveragedModel(m.linear),
    "slots": lambda m: Slots(), "slots and a dict": lambda m: SlotsAndDict(), "failing": lambda m: Failing(),
    "hidden": lambda m: Hidden(), "property": lambda m: WithProperty(), "pretender": lambda m: Pretender(),
    "dict with a property": lambda m: DictWithProperty(a=1), "class of a metaclass": lambda m: OfMeta,
    "object of a metaclass": lambda m: OfMeta(), "list": lambda m: Lines([1]), "deque": lambda m: collections.deque([1], 5),
    "counter": lambda m: collections.Counter("abc"), "chain": lambda m: collections.ChainMap({}), "cycle": lambda m: _cycle(),
    "deep": lambda m: _deep(), "linked": lambda m: _linked(), "failing key": lambda m: {Failing(): 1},
    "failing in a set": lambda m: {Failing()}, "itself": lambda m: [m], "weak": lambda m: weakref.ref(m),
    "proxy": lambda m: weakref.proxy(m.linear), "weak dict": lambda m: weakref.WeakValueDictionary({1: m.linear}),
    "lock": lambda m: threading.Lock(), "local": lambda m: threading.local(), "queue": lambda m: queue.Queue(),
    "generator": lambda m: (i for i in range(3)), "iterator": lambda m: iter([1]), "count": lambda m: itertools.count(),
    "array": lambda m: np.ones(3), "number": lambda m: np.float32(1), "random": lambda m: np.random.default_rng(0),
    "torch's generator": lambda m: torch.Generator(), "pattern": lambda m: re.compile("a"), "file": lambda m: open("/dev/null"),
    "exception": lambda m: ValueError("x"), "date": lambda m: datetime.date(2000, 1, 1), "decimal": lambda m: decimal.Decimal(1),
    "ctypes": lambda m: (ctypes.c_int * 3)(), "module": lambda m: torch, "namespace": lambda m: types.SimpleNamespace(a=1),
    "proxy of a dict": lambda m: types.MappingProxyType({"a": 1}), "view": lambda m: {"a": 1}.keys(),
    "memory": lambda m: memoryview(b"abc"), "code": lambda m: _cycle.__code__, "type": lambda m: dict,
    "distribution": lambda m: torch.distributions.Normal(0.0, 1.0), "loader": lambda m: torch.utils.data.DataLoader([1, 2]),
    "storage": lambda m: torch.zeros(2).untyped_storage(), "sparse": lambda m: torch.eye(2).to_sparse(),
    "meta": lambda m: torch.empty(2, device="meta"), "script": lambda m: [torch.jit.script(torch.nn.Linear(2, 2))],
    "writer": lambda m: print, "stream": lambda m: __import__("sys").stdout, "event": lambda m: threading.Event(),
}


class Holding(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.__dict__["held"] = make(self)

    def forward(self, x):
        return self.linear(x).mean()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_key_holds_it_or_says_that_it_does_not(folder):
    args, kept = (torch.randn(2, 4),), []
    for name, make in HELD.items():
        module = Holding(make)
        step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
        for key in (lambda: module_calls.CallKey(module, None, args, {}), lambda: compiled_steps.StepKey(step, args, {})):
            try:
                key()
                kept.append(name)
            except Unkeyed as error:
                assert str(error)
            except Exception as error:
                raise AssertionError(f"a module that holds '{name}': {error!r}") from error
    assert set(kept) == {
        "averaged", "chain", "class of a metaclass", "counter", "cycle", "distribution", "failing", "failing key", "itself", "loader",
        "module", "object of a metaclass", "pretender", "property", "type", "writer"}  # others hide their state


@pytest.mark.parametrize("route", ["wrap", "step"])
@pytest.mark.parametrize("name", ["defaultdict", "optimizer", "scheduler", "scaler", "failing", "deep"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_module_may_hold_anything(name, route, folder):
    module, x = Holding(HELD[name]), torch.randn(2, 4)
    plain = copy.deepcopy(module.linear)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    wrapped = caesura.wrap(module)
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(3):
        loss = plain(x).mean()
        torch.testing.assert_close((wrapped if route == "wrap" else step)(x).detach(), loss.detach())
        if route == "step":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class KeepsParts(types.ModuleType):
    """Makes its parts when they are first asked for, as the root of transformers does."""

    def __getattr__(self, name):
        if name != "factor":
            raise AttributeError(name)
        setattr(self, name, 2.0)
        return 2.0


class MakesParts(types.ModuleType):
    def __getattr__(self, name):
        if name != "factor":
            raise AttributeError(name)
        return 2.0


lazy = KeepsParts("lazy")


class Scaled(Holding):
    def forward(self, x):
        return self.linear(x).mean() * lazy.factor


def test_parts_that_an_imported_module_makes(monkeypatch):
    def text():
        return module_calls.CallKey(Scaled(lambda m: None), None, (torch.randn(2, 4),), {}).follow(traced([Scaled.forward.__code__]))

    before = text()
    assert lazy.factor == 2.0
    made = text()
    lazy.factor = 3.0
    assert len({before, made, text(), ""}) == 4
    monkeypatch.setitem(globals(), "lazy", MakesParts("lazy"))
    assert text() == ""
