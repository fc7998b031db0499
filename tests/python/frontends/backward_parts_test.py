# SPDX-License-Identifier: Apache-2.0
"""A wrapped module's backward hands out gradients in parts of 1 MiB, while the rest is still to be computed."""

import copy
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import caesura  # noqa: E402
from caesura.runtime import graph_executor  # noqa: E402

WIDTH = 520  # a weight has more than 1 MiB


class Net(nn.Module):
    """Six parts: a tied weight, one that is read through a view, norms, and a scale whose gradient comes before its last
    reader."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.tied, self.turned, self.scale = (nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5) for _ in range(3))

    def forward(self, x):
        x = torch.relu(self.first(x)) @ self.tied
        x = self.norm(x) @ self.turned.t()
        x = (self.scale * x[:, None, :]).sum(-1) / WIDTH**0.5
        return self.last(torch.tanh(x @ self.tied))


def pair(make=Net):
    plain = make()
    return plain, caesura.wrap(copy.deepcopy(plain))


def batch(seed=0, requires_grad=False):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_(requires_grad)


def nodes_of(y):
    """The names of the nodes that a wrapped call's backward consists of."""
    names, node = [], y.grad_fn
    while node is not None and node.name().startswith("CaesuraBackward"):
        names.append(node.name())
        node = next((n for n, _ in reversed(node.next_functions) if n is not None), None)
    return names


def compare(expected, actual):
    for a, b in zip(expected, actual, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5)  # sums over WIDTH, in another order


def same(run, make=Net):
    """run(module) gives the same tensors for a module and its wrapped copy."""
    plain, wrapped = pair(make)
    compare(run(plain), run(wrapped))


def gradients(module):
    return [p.grad for p in module.parameters()]


def test_a_node_for_each_part():
    _, wrapped = pair()
    assert nodes_of(wrapped(batch())) == ["CaesuraBackward", *(f"CaesuraBackward{i}" for i in range(1, 6))]
    assert nodes_of(caesura.wrap(nn.Linear(8, 8))(torch.randn(2, 8))) == ["CaesuraBackward"]


def test_hooks_run_between_the_parts():
    """Kernels of the backward run after the first gradient was handed out."""
    _, wrapped = pair()
    y = wrapped(batch()).sum()

    def hook(p):
        torch.zeros(3).cumsum(0)  # an op that nobody else calls

    for p in wrapped.parameters():
        p.register_post_accumulate_grad_hook(hook)
    caesura.reports.reset()
    with torch.profiler.profile() as profile:
        y.backward()
    events = [e.name for e in sorted(profile.events(), key=lambda e: e.time_range.start)
              if e.name.startswith("caesura::") or e.name == "aten::cumsum"]
    first = events.index("aten::cumsum")
    assert 0 < first and any(name.startswith("caesura::") for name in events[first:])
    assert caesura.stats().kernel_calls == 1  # one program, in parts


def test_gradients_of_all():
    def run(module):
        x = batch(requires_grad=True)
        module(x).square().mean().backward()
        return [x.grad, *gradients(module)]

    same(run)


@pytest.mark.parametrize("trained", ["first.weight", "tied", "last.bias", "norm.weight"])
def test_gradients_of_some(trained):
    def run(module):
        for name, p in module.named_parameters():
            p.requires_grad_(name == trained)
        module(batch()).square().mean().backward()
        return gradients(module)

    same(run)


@pytest.mark.parametrize("asked", [("last.weight",), ("first.weight",), ("last.bias", "first.bias"), ()])
def test_autograd_grad_stops_at_what_is_asked_for(asked):
    def run(module):
        x = batch(requires_grad=True)
        given = [p for name, p in module.named_parameters() if name in asked] or [x]
        results = []
        for _ in range(3):
            results += torch.autograd.grad(module(x).square().mean(), given)
        return results + gradients(module)

    same(run)


def test_a_graph_that_is_kept_runs_again():
    def run(module):
        y = module(batch()).square().mean()
        y.backward(retain_graph=True)
        (some,) = torch.autograd.grad(y, [module.last.weight], retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        return [some, *gradients(module)]

    same(run)


def test_calls_in_flight():
    def run(module):
        calls = [module(batch(i)).square().mean() for i in range(3)]
        for i in (1, 0, 2):
            calls[i].backward()
        (calls[0].detach() + module(batch(3)).square().mean() + module(module(batch(4))).mean()).backward()
        return gradients(module)

    same(run)


def test_threads_share_a_graph():
    plain, wrapped = pair()
    results = []

    def run(y, module):
        for _ in range(4):
            results.append(torch.autograd.grad(y, list(module.parameters()), retain_graph=True))

    y = wrapped(batch()).square().mean()
    threads = [threading.Thread(target=run, args=(y, wrapped)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = torch.autograd.grad(plain(batch()).square().mean(), list(plain.parameters()))
    assert len(results) == 12
    for result in results:
        compare(expected, result)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    def run(module):
        x = batch(requires_grad=True)
        checkpoint(module, checkpoint(module, x, use_reentrant=reentrant), use_reentrant=reentrant).square().mean().backward()
        return [x.grad, *gradients(module)]

    same(run)


def test_no_grad():
    plain, wrapped = pair()
    with torch.no_grad():
        compare([plain(batch())], [wrapped(batch())])
    assert wrapped(batch().requires_grad_()).requires_grad


def test_derivatives_of_derivatives():
    def run(module):
        x = batch(requires_grad=True)
        parameters = list(module.parameters())
        first = torch.autograd.grad(module(x).square().mean(), [x, *parameters], create_graph=True)
        return [*first, *torch.autograd.grad(sum(g.square().sum() for g in first), [x, *parameters])]

    same(run)


def test_gradients_in_batches():
    def run(module):
        y = module(batch()).mean(0)[:3]
        return torch.autograd.grad(y, list(module.parameters()), grad_outputs=torch.eye(3), is_grads_batched=True)

    same(run)


def test_anomaly_mode():
    with torch.autograd.detect_anomaly(check_nan=True):
        same(lambda module: (module(batch()).square().mean().backward(), gradients(module))[1])


class Stop(Exception):
    pass


def test_an_error_in_the_middle():
    """A pass that fails leaves the graph as it was, and holds no memory."""
    plain, wrapped = pair()
    held = []

    def fail(gradient):
        held.append(weakref.ref(gradient))
        raise Stop

    y = wrapped(batch()).square().mean()
    for p in (wrapped.last.weight, wrapped.tied):
        hook = p.register_hook(fail)
        for _ in range(2):
            with pytest.raises(Stop):
                y.backward(retain_graph=True)
        hook.remove()
        wrapped.zero_grad()
    y.backward()
    plain(batch()).square().mean().backward()
    compare(gradients(plain), gradients(wrapped))
    assert len(held) == 4 and all(ref() is None for ref in held)


def test_a_call_that_has_no_backward_is_freed():
    _, wrapped = pair()
    x = batch(requires_grad=True) * 1  # its backward reads x
    y = wrapped(x)
    held = weakref.ref(x)
    del x
    assert held() is not None
    del y
    assert held() is None


@pytest.mark.parametrize("doubled", [False, True])
def test_hooks_may_change_gradients(doubled):
    def shift(p):
        p.grad.add_(1)

    def run(module):
        for p in module.parameters():
            if doubled:
                p.register_hook(lambda g: g * 2)
            p.register_post_accumulate_grad_hook(shift)
        module(batch()).square().mean().backward()
        return gradients(module)

    same(run)


def test_optimizers_within_the_backward():
    """A hook updates a weight once its gradient is there: nothing that is still to run reads it."""
    def run(module):
        for p in module.parameters():
            optimizer = torch.optim.SGD([p], lr=0.1)
            p.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: optimizer.step())
        losses = []
        for step in range(3):
            loss = module(batch(step)).square().mean()
            loss.backward()
            losses.append(loss.detach())
            module.zero_grad()
        return losses + [p.detach() for p in module.parameters()]

    same(run)


def test_a_hook_that_changes_what_is_still_read():
    for module in pair():
        y = module(batch()).square().mean()

        @torch.no_grad()
        def change(gradient, module=module):
            module.turned.mul_(2)

        module.last.weight.register_hook(change)
        with pytest.raises(RuntimeError, match="in-?place operation"):
            y.backward()


class Mixed(nn.Module):
    """A call without a kernel stands between two programs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        x = torch.special.bessel_j0(self.b(torch.tanh(self.a(x))).detach()) + self.b(x)
        return self.c(torch.linalg.matrix_norm(self.a(x)[None])[:, None] * x)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_parts_of_several_programs():
    def run(module):
        module(batch()).square().mean().backward()
        return gradients(module)

    same(run, Mixed)
    _, wrapped = pair(Mixed)
    assert len(nodes_of(wrapped(batch()))) > 1


class Sequences(nn.Module):
    """An embedding whose weight is the head's too, an attention with a fused weight, and a recurrent layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.attention, self.cell = nn.MultiheadAttention(8, 2, batch_first=True), nn.GRU(8, 8, batch_first=True)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(*[self.norm(x)] * 3, need_weights=False)[0]
        return self.cell(x)[0] @ self.embed.weight.t()


class Images(nn.Module):
    """A convolution with batch norm, whose output is added to later ones, and two outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.again = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        self.heads = nn.ModuleList(nn.Linear(4, n) for n in (2, 3))

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.again(x) + x).mean((2, 3))
        return torch.cat([head(x) for head in self.heads], -1)


@pytest.mark.parametrize("make, x", [(Sequences, torch.arange(12).reshape(2, 6) % 11),
                                     (Images, torch.linspace(-1, 1, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6))])
def test_optimizers_within_the_backward_of_many_parts(make, x, monkeypatch):
    """Each gradient is a part of its own, and its hook overwrites its parameter."""
    monkeypatch.setattr(graph_executor, "_PART", 1)

    def run(module):
        for p in module.parameters():
            optimizer = torch.optim.SGD([p], lr=0.1)
            p.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: optimizer.step())
        for _ in range(3):
            module(x).square().mean().backward()
            module.zero_grad()
        return [p.detach() for p in module.parameters()]

    same(run, make)
    _, wrapped = pair(make)
    assert len(nodes_of(wrapped(x))) > 4


class Sparse(nn.Module):
    """Sparse gradients, which have no memory that a fake tensor shows: one of a single lookup, one of two lookups."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.word, self.place = nn.Embedding(7, 4, sparse=True), nn.Embedding(5, 4, sparse=True)
        self.last = nn.Linear(4, 3)

    def forward(self, i):
        return self.last(torch.tanh(self.word(i) + self.place(i) * self.place(i + 1)))


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_sparse_gradients_come_when_they_are_made(size, monkeypatch):
    monkeypatch.setattr(graph_executor, "_PART", size)

    def run(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.tensor([[1, 2, 1]])).square().mean().backward()
            optimizer.step()
        return [*gradients(module), *(p.detach() for p in module.parameters())]

    same(run, Sparse)


def test_sizes_that_change():
    def run(module):
        for rows in (8, 5, 3, 8):
            module(batch()[:rows]).square().mean().backward()
        return gradients(module)

    same(run)


@pytest.mark.parametrize("precision", [torch.bfloat16])
def test_autocast(precision):
    plain, wrapped = pair()
    for module in (plain, wrapped):
        with torch.autocast("cpu", dtype=precision):
            y = module(batch())
        y.float().square().mean().backward()
    for a, b in zip(gradients(plain), gradients(wrapped), strict=True):  # bf16 has 8 bits; eager rounds at other places
        torch.testing.assert_close(b, a, rtol=0.1, atol=0.02 * a.abs().max().item())
