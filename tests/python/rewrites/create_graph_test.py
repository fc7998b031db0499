# SPDX-License-Identifier: Apache-2.0
"""Derivatives of derivatives through wrapped modules are captured calls; those that are none are eager PyTorch's own, with a warning."""

import copy
import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.utils import counters  # noqa: E402

F = torch.nn.functional

import caesura  # noqa: E402
from caesura.runtime import autograd_call  # noqa: E402
from wrap_test import Net  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", caesura.FallbackWarning)
        yield


def penalty(module, x):
    """Returns a critic's gradient penalty: (its value, gradients of the parameters and of the input)."""
    x = x.detach().requires_grad_()
    (dx,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    value = (dx.flatten(1).norm(dim=1) - 1).square().mean()
    return value.detach(), torch.autograd.grad(value, [x, *module.parameters()], allow_unused=True)


def same(actual, expected):
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-6)
    for a, b in zip(actual[1], expected[1]):
        if b is None:
            assert a is None or not a.any()
        else:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_a_gradient_penalty():
    module = Net(torch.nn.Tanh())
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 6)
    for _ in range(3):
        same(penalty(wrapped, x), penalty(module, x))


def test_the_graph_is_kept_and_first_derivatives_go_on():
    module = Net()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 6)
    for net in (wrapped, module):
        net.zero_grad()
        loss = net(x).square().sum()
        torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        loss.backward()
    for a, b in zip(wrapped.parameters(), module.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_the_node_calls_what_is_captured_itself(monkeypatch):
    """Python is asked once for each kind of derivatives and each size, and again for batches, which are not captured."""
    asked, differentiate = [], autograd_call.differentiate
    monkeypatch.setattr(autograd_call, "differentiate", lambda *given: asked.append(given) or differentiate(*given))
    module, few, many = Net(torch.nn.Tanh()), torch.randn(5, 6), torch.randn(7, 6)
    wrapped = caesura.wrap(copy.deepcopy(module))

    def compare(x, batched=False):
        found = []
        for net in (wrapped, module):
            x = x.detach().requires_grad_()
            y = net(x)
            (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            found.append(torch.autograd.grad(dx.square().sum(), [x, *net.parameters()], allow_unused=True, retain_graph=batched))
            if batched:
                found[-1] += torch.autograd.grad(y, x, torch.eye(20).view(20, 5, 4), is_grads_batched=True)
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)

    for x in (few, many, few):
        compare(x)
    known = len(asked)
    for x in (few, many):
        compare(x)
    assert known and len(asked) == known
    compare(few, batched=True)
    assert len(asked) == known + 1


def test_hessian_of_the_input():
    module = Net(torch.nn.Tanh())
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(1, 6)
    hessians = [torch.autograd.functional.hessian(lambda v, net=net: net(v).square().sum(), x) for net in (wrapped, module)]
    torch.testing.assert_close(hessians[0], hessians[1], rtol=1e-3, atol=1e-5)


def test_third_derivatives():
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(4, 3)

    def third(net):
        v = x.detach().requires_grad_()
        y = net(v).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(y, v, create_graph=True)
            y = g.square().sum()
        return y.detach()

    torch.testing.assert_close(third(wrapped), third(module), rtol=1e-3, atol=1e-6)


def test_statistics_are_written_once():
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(7, 6)
    for _ in range(2):
        same(penalty(wrapped, x), penalty(module, x))
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(dict(wrapped.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)


def test_the_forwards_own_dropout_mask():
    """The first derivatives use the dropout mask of their forward, with create_graph and without."""
    wrapped = caesura.wrap(torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.5), torch.nn.Tanh(),
                                               torch.nn.Dropout(0.3), torch.nn.Linear(64, 2)))
    x = torch.randn(5, 6, requires_grad=True)
    y = wrapped(x).square().sum()
    before = torch.get_rng_state()
    (plain,) = torch.autograd.grad(y, x, retain_graph=True)
    (differentiable,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(differentiable.detach(), plain, rtol=1e-4, atol=1e-6)
    assert differentiable.requires_grad and torch.equal(torch.get_rng_state(), before)


def test_detached_parts_stay_constant():
    class Detached(Net):
        def forward(self, x):
            y = super().forward(x)
            return y * y.detach() + y.sigmoid()

    module = Detached(torch.nn.Tanh())
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 6)
    same(penalty(wrapped, x), penalty(module, x))


def test_changing_shapes_and_frozen_parameters():
    module = Net(torch.nn.Tanh())
    module.first.weight.requires_grad_(False)
    wrapped = caesura.wrap(copy.deepcopy(module))

    def both(rows):
        x = torch.randn(rows, 6)
        results = []
        for net in (wrapped, module):
            v = x.detach().requires_grad_()
            (dx,) = torch.autograd.grad(net(v).square().sum(), v, create_graph=True)
            trained = [p for p in net.parameters() if p.requires_grad]
            results.append(torch.autograd.grad(dx.square().sum(), trained, allow_unused=True))
        same((torch.zeros(()), results[0]), (torch.zeros(()), results[1]))

    for rows in (5, 3, 8, 2):
        both(rows)


def test_autocast_is_the_forwards():
    module = Net(torch.nn.Tanh())
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = wrapped(x)
    (plain,) = torch.autograd.grad(y.float().sum(), x, retain_graph=True)
    (again,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    torch.testing.assert_close(again.detach(), plain, rtol=5e-2, atol=1e-2)  # bfloat16 has 8 bits
    assert again.requires_grad


def test_what_stays_in_eager_is_told_once_and_forbidden_by_strict():
    wrapped, x = caesura.wrap(Net(torch.nn.Tanh())), torch.randn(5, 6, requires_grad=True)

    def jacobian():
        y = wrapped(x)
        return torch.autograd.grad(y, x, torch.eye(y.numel()).reshape(-1, *y.shape), create_graph=True, is_grads_batched=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        jacobian()
        jacobian()
    assert sum("create_graph" in str(w.message) for w in told) == 1
    ((op, reason), places), = caesura.stats().fallbacks.items()
    assert "create_graph" in op and "eager" in reason and any("create_graph_test.py" in place for place in places)
    with caesura.strict(), pytest.raises(caesura.StrictError, match="create_graph"):
        jacobian()


def test_an_input_that_was_changed_is_an_error():
    wrapped, x = caesura.wrap(Net(torch.nn.Tanh())), torch.randn(5, 6)
    y = wrapped(x).sum()
    with torch.no_grad():
        wrapped.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, list(wrapped.parameters()), create_graph=True)


def test_buffers_that_outputs_depend_on_are_refused():
    class Counts(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return super().forward(x) * self.count

    module = Counts()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 6, requires_grad=True)
    y, z = (net(x).sum() for net in (wrapped, module))
    torch.testing.assert_close(torch.autograd.grad(y, x, retain_graph=True), torch.autograd.grad(z, x))
    with pytest.raises(RuntimeError, match="depend on a buffer|double backward"):
        torch.autograd.grad(torch.autograd.grad(y, x, create_graph=True)[0].sum(), x)


def test_a_buffer_that_only_other_results_depend_on():
    class Counts(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1  # which makes it a result of the graph
            return super().forward(x)

    module, x = Counts(), torch.randn(5, 6)
    wrapped = caesura.wrap(copy.deepcopy(module))
    same(penalty(wrapped, x), penalty(module, x))
    assert wrapped.count == 1


class Shares(torch.nn.Module):
    """Returns results that share memory with each other, with a value that is no result, and with an input."""

    def __init__(self, *last):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Sequential(torch.nn.Tanh(), *last)

    def forward(self, x):
        h = self.last(self.first(x))
        hidden = h * h.sigmoid()
        return h, h.t(), hidden.view(-1, 2), hidden[:, 1:3], x.view(-1)


@pytest.mark.parametrize("last", [(), (torch.nn.BatchNorm1d(8),), (torch.nn.Dropout(0.5),)], ids=["plain", "buffers", "drawn"])
def test_results_that_share_their_elements(last):
    module = Shares(*last)
    wrapped = caesura.wrap(copy.deepcopy(module))

    def second(net, rows):
        torch.manual_seed(1)
        x = torch.randn(rows, 6, requires_grad=True)
        results = net(x)
        weights = [torch.linspace(-1, 1, y.numel()).view_as(y) for y in results]
        value = sum((w * y).sum() for w, y in zip(weights, results))
        (plain,) = torch.autograd.grad(value, x, retain_graph=True)
        (dx,) = torch.autograd.grad(value, x, create_graph=True)
        torch.testing.assert_close(plain, dx.detach(), rtol=1e-4, atol=1e-6)
        return plain, torch.autograd.grad(dx.square().sum(), [x, *net.parameters()], allow_unused=True)

    for rows in (4, 4, 6):
        same(second(wrapped, rows), second(module, rows))
    assert caesura.stats().kernel_calls > 0
    drawn = "Dropout" in str(module)  # AOT autograd's own node does not hand out the masks that it has saved
    assert any("create_graph" in op and "random" in reason for op, reason in caesura.stats().fallbacks) == drawn


def test_results_that_share_and_an_input_that_was_changed():
    wrapped, x = caesura.wrap(Shares()), torch.randn(4, 6, requires_grad=True)
    value = sum(y.sum() for y in wrapped(x))
    with torch.no_grad():
        wrapped.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(value, x, create_graph=True)


@pytest.mark.parametrize("make", [Net, Shares])
def test_an_input_that_depends_on_another(make):
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make(torch.nn.Tanh())

        def forward(self, x, y):
            results = self.net(x)
            first = results if isinstance(results, torch.Tensor) else results[0]
            return (first.sum(1) * y.sum(1),) if first is results else (first.sum(1) * y.sum(1), *results)

    module = Two()
    wrapped = caesura.wrap(copy.deepcopy(module))
    values = torch.randn(4, 6)

    def second(net):
        x = values.clone().requires_grad_()
        value = sum(y.square().sum() for y in net(x, x.sin()))
        (dx,) = torch.autograd.grad(value, x, create_graph=True)
        return dx.detach(), torch.autograd.grad(dx.square().sum(), [x, *net.parameters()], allow_unused=True)

    same(second(wrapped), second(module))


def test_the_module_may_be_gone():
    wrapped, x = caesura.wrap(Net(torch.nn.Tanh())), torch.randn(5, 6, requires_grad=True)
    y = wrapped(x).sum()
    gone = weakref.ref(wrapped)
    del wrapped
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None
    (dx,) = torch.autograd.grad(y, x, create_graph=True)
    assert dx.requires_grad


def test_a_batch_of_gradients():
    module, x = Net(torch.nn.Tanh()), torch.randn(2, 6, requires_grad=True)
    wrapped = caesura.wrap(copy.deepcopy(module))
    found = []
    for net in (wrapped, module):
        y = net(x)
        rows = torch.eye(y.numel()).reshape(-1, *y.shape)
        found.append(torch.autograd.grad(y, x, rows, is_grads_batched=True)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert not found[0].requires_grad
    jacobians = [torch.autograd.functional.jacobian(net, x, vectorize=True) for net in (wrapped, module)]
    torch.testing.assert_close(*jacobians, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("breaks", [False, True])
def test_within_the_forward(breaks):
    """Gradients that can be differentiated, of graphs whose outputs are views of each other, before graph breaks."""
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            y = torch.tanh(self.layer(x))
            v = y.view(-1)
            if breaks:
                torch._dynamo.graph_break()
            energy = (y * 2).sum() + v.square().sum()
            if breaks:
                torch._dynamo.graph_break()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    module, x = Inner(), torch.randn(3, 4, requires_grad=True)
    wrapped = caesura.wrap(copy.deepcopy(module))
    before, found = counters["stats"]["unique_graphs"], []
    for net in (wrapped, module):
        dx = net(x)
        found.append((dx, torch.autograd.grad(dx.square().sum(), [x, *net.parameters()])))
    same(*found)
    # A graph that is run again is not captured: each capture would lead to the next one, up to the limit of 64.
    assert counters["stats"]["unique_graphs"] - before < 8


def test_calls_with_side_effects_that_are_kept_in_order():
    """The check of a factorisation is one. Results also lie in memory as eager's do."""
    class Rotation(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(4, 4), orthogonal_map="cayley")
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return self.layer(x), x.t() * 2

    module, x = Rotation(), torch.randn(3, 4, requires_grad=True)
    wrapped = caesura.wrap(copy.deepcopy(module))
    found = []
    for net in (wrapped, module):
        y, z = net(x)
        assert z.stride() == (1, 4) and net.calls == 1
        (dx,) = torch.autograd.grad(y.square().sum() + z.pow(3).sum(), x, create_graph=True)
        found.append((dx.detach(), torch.autograd.grad(dx.square().sum(), [x, *net.parameters()])))
    same(*found)
