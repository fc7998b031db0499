# SPDX-License-Identifier: Apache-2.0
"""PyTorch functions that read values can be captured (caesura/capture/polyfills.py; CTC losses: ctc_test.py)."""

import copy
import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402

MASK = torch.nn.Transformer.generate_square_subsequent_mask(6)
MASKS = {"causal": MASK, "another": MASK.masked_fill(torch.ones(6, 6).tril(-4) > 0, -torch.inf)}


class Masked(torch.nn.Module):
    """Both parts of nn.Transformer, with masks and without is_causal."""

    def __init__(self):
        super().__init__()
        self.transformer = torch.nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)

    def forward(self, source, target, mask):
        return self.transformer(source, target, src_mask=mask, tgt_mask=mask)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_of_transformers(mask):
    torch._dynamo.reset()
    module = Masked().double()
    other, third = copy.deepcopy(module), copy.deepcopy(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, other)]
    inputs = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    weights = torch.randn(3, 6, 8, dtype=torch.float64)
    mask = mask.double()
    step = caesura.compile_step(other, lambda out, weights: (out * weights).sum(), optimizers[1])
    with caesura.strict():
        torch.testing.assert_close(caesura.wrap(third)(*inputs, mask), module(*inputs, mask), rtol=1e-8, atol=1e-8)
    for _ in range(3):
        optimizers[0].zero_grad()
        loss = (module(*inputs, mask) * weights).sum()
        loss.backward()
        optimizers[0].step()
        assert step(*inputs, mask, weights).item() == pytest.approx(loss.item(), rel=1e-8)


class Dropping(torch.nn.Module):
    """Drops layers at random, as transformers does."""

    def __init__(self, probability):
        super().__init__()
        self.layers, self.probability = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3)), probability

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand([]) < self.probability:
                continue
            x = layer(x).tanh()
        return x.square().mean()


def test_layers_dropped_with_probability_0_are_no_branch():
    torch._dynamo.reset()
    module = Dropping(0.0)
    other, optimizer = copy.deepcopy(module), torch.optim.SGD(module.parameters(), lr=0.1)
    step, x = caesura.compile_step(other, None, torch.optim.SGD(other.parameters(), lr=0.1)), torch.randn(3, 4)
    with caesura.strict():
        assert caesura.wrap(copy.deepcopy(module))(x).item() == pytest.approx(module(x).item(), rel=1e-6)
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(x)
        loss.backward()
        optimizer.step()
        assert step(x).item() == pytest.approx(loss.item(), rel=1e-6)
    dropping = Dropping(0.5)
    with pytest.raises(caesura.StepRefused, match="a Python branch over a tensor's value"):
        caesura.compile_step(dropping, None, torch.optim.SGD(dropping.parameters(), lr=0.1))(x)
    with pytest.warns(caesura.FallbackWarning, match="graph break"):
        caesura.wrap(dropping)(x)


class Product(torch.autograd.Function):
    """(a b) (c d), element by element, with a gradient written out, as PEFT's LoHa has it."""

    @staticmethod
    def forward(ctx, a, b, c, d, scale=torch.tensor(1)):  # noqa: B008
        ctx.save_for_backward(a, b, c, d, scale)
        return (a @ b) * (c @ d) * scale

    @staticmethod
    def backward(ctx, dy):
        a, b, c, d, scale = ctx.saved_tensors
        dy = dy * scale
        first, second = dy * (c @ d), dy * (a @ b)
        return first @ b.T, a.T @ first, second @ d.T, c.T @ second, None


class Hadamard(torch.nn.Module):
    """A frozen layer and a product beside it, which is dropped at random: PEFT's LoHa."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.base, self.dropout = torch.nn.Linear(4, 6).requires_grad_(False), dropout
        self.factors = torch.nn.ParameterList(torch.randn(shape) / 2 for shape in ((6, 2), (2, 4)) * 2)

    def forward(self, x):
        y = self.base(x)
        if (not self.training) or (self.training and torch.rand(1) > self.dropout):
            y = y + torch.nn.functional.linear(x, Product.apply(*self.factors, torch.tensor(0.5)))
        return y.square().mean()


class Decomposed(torch.nn.Module):
    """A frozen layer whose rows have a learned length, and a product beside it: PEFT's DoRA."""

    def __init__(self):
        super().__init__()
        self.base, self.known = torch.nn.Linear(4, 6).requires_grad_(False), {}
        self.a, self.b = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 6, bias=False)
        self.length = torch.nn.Parameter(torch.linalg.norm(self.base.weight, dim=1) * 1.5)

    def forward(self, x):
        self.known.clear()
        if type(self.base.weight).__module__.startswith("torchao.") or type(self.base.weight).__name__.upper() != "PARAMETER":
            raise NotImplementedError
        added = self.b(self.a(torch.eye(4))).T
        norm = torch.linalg.norm(self.base.weight + 2 * added.detach(), dim=1).detach()
        scale = (self.length / norm).view(1, -1)
        y = self.base(x)
        return (y + (scale - 1) * (y - self.base.bias) + scale * self.b(self.a(x)) * 2).square().mean()


@pytest.mark.parametrize("make", [Hadamard, Decomposed])
def test_adapters_as_peft_has_them(make):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4)
    other, wrapped, trained = copy.deepcopy(module), copy.deepcopy(module), [p for p in module.parameters() if p.requires_grad]
    first, second = (torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=0.05) for m in (module, other))
    step = caesura.compile_step(other, None, second)
    with caesura.strict():
        caesura.wrap(wrapped)(x).backward()
    losses = []
    for turn in range(3):
        first.zero_grad()
        loss = module(x)
        loss.backward()
        if turn == 0:
            torch.testing.assert_close([p.grad for p in wrapped.parameters() if p.requires_grad], [p.grad for p in trained])
        first.step()
        losses.append(loss.item())
    with caesura.strict():
        torch.testing.assert_close([step(x).item() for _ in range(3)], losses, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(other.parameters(), module.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_adapters_that_are_dropped_at_random_are_a_branch():
    torch._dynamo.reset()
    module = Hadamard(dropout=0.5)
    with pytest.raises(caesura.StepRefused, match=r"a Python branch over a tensor's value.*\n.*torch\.rand\(1\) > self\.dropout"):
        caesura.compile_step(module, None, torch.optim.SGD(module.factors.parameters(), lr=0.1))(torch.randn(3, 4))


def test_several_draws_are_no_decision():
    class Several(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).sum() if torch.rand(2) > 0.0 else x.sum()

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="ambiguous"):
        caesura.wrap(Several(4, 4))(torch.ones(2, 4))


def test_lists_of_constants():
    class Overlap(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv2d(1, 2, 3)

        def forward(self, x):
            y = self.layer(x).sigmoid()
            return y.mean(dim=torch.arange(2, y.dim()).tolist()).square().sum()

    torch._dynamo.reset()
    module, x = Overlap(), torch.randn(2, 1, 5, 5)
    expected = module(x).item()
    with caesura.strict():
        assert caesura.wrap(copy.deepcopy(module))(x).item() == pytest.approx(expected, rel=1e-6)
        step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
        assert step(x).item() == pytest.approx(expected, rel=1e-6)


def test_what_only_tells_people_something():
    class Talking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, x, y):
            warnings.warn("said once more")
            print("a batch of", x.shape[0])
            return torch.nn.functional.mse_loss(self.layer(x), y)

    torch._dynamo.reset()
    module = Talking()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    x = torch.randn(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = module(x, x[:, :1]).item()
        assert step(x, x[:, :1]).item() == pytest.approx(expected, rel=1e-6)


def aggregate(data, owners, *, average=True, num_owner=None):
    """Rows by owner; which is as long as the last owner that appears tells, unless num_owner says it."""
    count = torch.bincount(owners)
    count = count.where(count != 0, count.new_ones(1))
    if num_owner is not None and count.shape[0] != num_owner:
        count = torch.cat([count, count.new_ones(num_owner - count.shape[0])])
    output = data.new_zeros([count.shape[0], data.shape[1]]).index_add_(0, owners, data)
    return (output.T / count).T if average else output


def test_sums_of_chgnet(monkeypatch):
    """Its own sums are captured if these are what the package's module holds."""
    class Sums(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, owners):
            y = aggregate(self.layer(x), owners, num_owner=len(x))
            return y + aggregate(y, owners, average=False, num_owner=len(x)).tanh(), aggregate(y, owners)

    monkeypatch.setitem(sys.modules, "chgnet.model.functions", types.SimpleNamespace(aggregate=aggregate))
    torch._dynamo.reset()
    module = Sums()
    wrapped = caesura.wrap(copy.deepcopy(module))
    with caesura.strict(), warnings.catch_warnings():
        warnings.simplefilter("error", caesura.FallbackWarning)
        for owners in ([0, 1, 1, 2, 0], [3, 1, 1, 3, 0], [4, 4, 0, 1, 2]):
            x, owners = torch.randn(5, 4), torch.tensor(owners)
            for actual, expected in zip(wrapped(x, owners), module(x, owners), strict=True):
                torch.testing.assert_close(actual, expected)


def test_hooks_of_transformers_are_installed_while_it_is_traced():
    transformers = pytest.importorskip("transformers")
    torch._dynamo.reset()
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2))
    other, tokens = copy.deepcopy(module), torch.randint(0, 32, (2, 7))
    with caesura.strict():
        given = caesura.wrap(module)(input_ids=tokens, output_hidden_states=True)
    expected = other(input_ids=tokens, output_hidden_states=True)
    torch.testing.assert_close(given.hidden_states, expected.hidden_states, rtol=1e-4, atol=1e-5)


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.last, self.options = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), {} if reentrant is None else {
            "use_reentrant": reentrant}

    def forward(self, x, more=None):
        h = torch.utils.checkpoint.checkpoint(lambda x, more: self.first(x).tanh(), x, more, **self.options)
        return self.last(h).mean()


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint")
@pytest.mark.parametrize("reentrant", [True, False, None])
@pytest.mark.parametrize("route", ["wrap", "step"])
def test_checkpoints_of_inputs_without_gradients(route, reentrant):
    torch._dynamo.reset()
    module, x = Checkpointed(reentrant), torch.randn(3, 4)
    other, more = copy.deepcopy(module), torch.ones(3, 4, requires_grad=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module(x).backward()
    eager = [str(w.message) for w in told if "Gradients will be None" in str(w.message)]
    assert bool(eager) == (reentrant is not False) == (module.first.weight.grad is None)
    with warnings.catch_warnings(record=True) as told, caesura.strict():
        warnings.simplefilter("always")
        if route == "wrap":
            wrapped = caesura.wrap(other)
            wrapped(x).backward()
        else:
            optimizer = torch.optim.SGD(other.parameters(), lr=1.0, weight_decay=0.5)
            caesura.compile_step(other, None, optimizer)(x)
    assert [str(w.message) for w in told if "Gradients will be None" in str(w.message)] == eager
    if route == "step":
        torch.optim.SGD(module.parameters(), lr=1.0, weight_decay=0.5).step()
        for ours, theirs in zip(other.parameters(), module.parameters()):
            torch.testing.assert_close(ours, theirs)
        return
    for ours, theirs in zip(other.parameters(), module.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for given in ((x.clone().requires_grad_(), None), (x, more)):  # with gradients of the parameters, too
        for net in (module, wrapped):
            net.zero_grad()
            net(*given).backward()
        for ours, theirs in zip(other.parameters(), module.parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_powers_of_bools():
    class Powers(torch.nn.Module):
        def forward(self, x):
            b = x > 0
            return b ** True, b ** False, b ** 2, (b ** True).sum(), x ** True

    torch._dynamo.reset()
    x = torch.tensor([-1.0, 2.0])
    for dynamic in (None, True):
        torch.testing.assert_close(caesura.wrap(Powers(), dynamic=dynamic)(x), Powers()(x))
