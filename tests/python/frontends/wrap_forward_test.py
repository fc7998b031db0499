# SPDX-License-Identifier: Apache-2.0
"""A wrapped module's forward runs here through `.forward`, functional_call and other modules around it."""

import copy
import inspect
import types

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x, scale=1.0):
        return self.net(x).tanh() * scale


class Net(Base):
    def forward(self, x, scale=1.0):
        return super().forward(x, scale) + 1

    def training_step(self, x):
        return self.forward(x).sum()

    def step_by_call(self, x):
        return self(x).sum()


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()
    with caesura.strict():
        yield


def ran(run) -> int:
    """Counts our programs that run() ran."""
    before = caesura.stats().kernel_calls
    run()
    return caesura.stats().kernel_calls - before


def test_forward_is_ours():
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(2, 4)
    for scale in (1.0, 2.0, 1.0):
        expected = module.forward(x, scale)
        assert ran(lambda: torch.testing.assert_close(wrapped.forward(x, scale=scale), expected)) == 1
    assert ran(lambda: wrapped.forward(x).sum().backward()) == 2
    assert ran(lambda: wrapped.training_step(x).backward()) == 2 and ran(lambda: wrapped.step_by_call(x).backward()) == 2
    assert ran(lambda: module.forward(x)) == 0  # the original runs in PyTorch
    assert ran(lambda: nn.Module.__call__(wrapped, x)) == 1
    assert ran(lambda: torch.testing.assert_close(nn.Sequential(wrapped)(x), module(x))) == 1


def test_forward_breaks_loudly():
    class Breaks(Net):
        def forward(self, x, scale=1.0):
            y = super().forward(x, scale)
            torch._dynamo.graph_break()
            return y * 2

    wrapped = caesura.wrap(Breaks())
    with pytest.raises(caesura.StrictError, match="graph break"):
        wrapped.forward(torch.randn(2, 4))
    with caesura.strict(False), pytest.warns(caesura.FallbackWarning, match="graph break"):
        for _ in range(2):
            torch.testing.assert_close(wrapped.forward(torch.ones(2, 4)), type(wrapped)._calls.module.forward(torch.ones(2, 4)))


def test_forward_calls_no_hooks():
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(2, 4)
    module.register_forward_hook(lambda module, inputs, output: output * 2)
    for _ in range(2):
        torch.testing.assert_close(wrapped.forward(x), module.forward(x))
        torch.testing.assert_close(wrapped(x), module(x))


def test_what_forward_says_of_itself():
    wrapped = caesura.wrap(Net())
    assert list(inspect.signature(wrapped.forward).parameters) == ["x", "scale"]
    assert type(wrapped).forward is Net.forward and list(inspect.signature(type(wrapped).forward).parameters)[0] == "self"
    assert wrapped.forward == wrapped.forward and wrapped.forward.__self__ is wrapped


def test_a_forward_that_is_replaced():
    """A replaced forward is used until it is restored, as with Accelerate's casts around the forward."""
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(2, 4)
    expected, plain = module(x), wrapped.forward

    def around(function):
        def run(*args, **kwargs):
            return function(*args, **kwargs) * 3
        run.__wrapped__ = function
        return run

    for replacement in (around(plain), types.MethodType(around(plain.__func__), wrapped)):
        wrapped.forward = replacement
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), expected * 3)
            torch.testing.assert_close(wrapped.forward(x), expected * 3)
        del wrapped.forward
        torch.testing.assert_close(wrapped(x), expected)
        torch.testing.assert_close(wrapped.forward(x), expected)
    wrapped.forward = types.MethodType(plain.__func__.__wrapped__, wrapped)
    torch.testing.assert_close(wrapped(x), expected)
    module.forward = lambda x: x * 5
    torch.testing.assert_close(wrapped.forward(x), x * 5)
    torch.testing.assert_close(wrapped(x), x * 5)


def test_copies_and_other_compilers():
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(2, 4)
    wrapped.forward(x)
    again = copy.deepcopy(wrapped)
    assert ran(lambda: torch.testing.assert_close(again.forward(x), module(x))) == 1
    outer = torch.compile(lambda v: wrapped.forward(v) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), module(x) + 1)


def test_functional_calls():
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(2, 4)
    for factor in (2.0, 3.0):
        state = {name: value.detach() * factor for name, value in module.named_parameters()}
        expected = torch.func.functional_call(module, state, (x,))
        assert ran(lambda: torch.testing.assert_close(torch.func.functional_call(wrapped, state, (x,)), expected)) == 1
    torch.testing.assert_close(wrapped(x), module(x))


def test_calls_of_a_parallel_module():
    class Parallel(nn.Module):  # as DistributedDataParallel calls its module
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *inputs, **kwargs):
            return self.module(*inputs, **kwargs)

    module = Net()
    wrapped, x = Parallel(caesura.wrap(module)), torch.randn(2, 4)
    assert ran(lambda: torch.testing.assert_close(wrapped(x), module(x))) == 1
    assert ran(lambda: torch.testing.assert_close(wrapped.forward(x), module(x))) == 1
