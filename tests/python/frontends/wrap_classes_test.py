# SPDX-License-Identifier: Apache-2.0
"""Modules of all kinds of classes are wrapped, also in place, and copies of a wrapped module are wrapped as it is."""

import abc
import copy
import pickle
import types
import typing

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402
from caesura.integrations.in_place import wrap_in_place  # noqa: E402

T = typing.TypeVar("T")


class Mixin:
    pass


class Slots:
    __slots__ = ()


class Protocol(typing.Protocol):
    pass


BASES = [(abc.ABC, nn.Module), (nn.Module, abc.ABC), (nn.Module, typing.Generic[T]), (typing.Generic[T], nn.Module), (Mixin, nn.Module),
         (Slots, nn.Module), (nn.Module, Protocol), (Protocol, nn.Module)]


def test_whatever_the_order_of_the_bases():
    for bases in BASES:
        def make(namespace):
            namespace["forward"] = lambda self, x: self.layer(x)

        module = types.new_class("Net", bases, exec_body=make)()
        module.layer = nn.Linear(4, 4)
        wrap_in_place(module)
        module(torch.ones(2, 4)).sum().backward()
        assert module.layer.weight.grad is not None and isinstance(module, nn.Module), bases
        assert caesura.wrap(module) is module, bases


def dynamic_of(wrapped):
    return type(wrapped)._calls.dynamic


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_copies_keep_dynamic(dynamic):
    wrapped = caesura.wrap(nn.Linear(4, 4), dynamic=dynamic)
    copies = [copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]
    assert [dynamic_of(c) for c in copies] == [dynamic] * 2
    for other in copies:
        torch.testing.assert_close(other(torch.ones(2, 4)), wrapped(torch.ones(2, 4)))


def test_a_wrapped_module_is_wrapped_anew_for_another_dynamic():
    wrapped = caesura.wrap(nn.Linear(4, 4))
    again = caesura.wrap(wrapped, dynamic=True)
    assert dynamic_of(again) is True and dynamic_of(wrapped) is None and again.weight is wrapped.weight
    assert caesura.wrap(again) is again and caesura.wrap(again, dynamic=True) is again


@pytest.mark.parametrize("compiler", [caesura.wrap, lambda module: torch.compile(module, backend="caesura")], ids=["wrap", "compile"])
def test_hooks_that_come_later(compiler):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    ours = compiler(module)
    ours(x)
    for register in (lambda: module[0].register_forward_hook(lambda m, a, y: y * 2),
                     lambda: module[1].register_forward_pre_hook(lambda m, a: a[0] + 1),
                     lambda: module.register_forward_hook(lambda m, a, y: y - 1)):
        hook = register()
        torch.testing.assert_close(ours(x), module(x))
        hook.remove()
    torch.testing.assert_close(ours(x), module(x))


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.weight * x


def test_methods_that_are_replaced_between_calls(monkeypatch):
    wrapped, x = caesura.wrap(nn.Sequential(Scales())), torch.ones(2, 3)
    for method, expected in ((Scales.forward, x), (lambda self, x: self.weight * x * 2, x * 2),
                             (lambda self, x: self.weight - 4 * x, -3 * x)):
        monkeypatch.setattr(Scales, "forward", method)
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), expected)
