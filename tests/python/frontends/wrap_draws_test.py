# SPDX-License-Identifier: Apache-2.0
"""Wrapped modules use eager's own masks and noise by design; draws that depend on values are fallbacks."""

import copy
import re

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402

BY_DESIGN = {
    "dropout": lambda h: F.dropout(h, 0.5), "alpha dropout": lambda h: F.alpha_dropout(h, 0.5, training=True),
    "feature dropout": lambda h: F.dropout1d(h, 0.5), "rand": lambda h: h + torch.rand(3, 4),
    "randn_like": lambda h: h + torch.randn_like(h), "randint": lambda h: h + torch.randint(0, 5, (3, 4)),
    "randperm": lambda h: h[:, torch.randperm(4)], "bernoulli_": lambda h: h * torch.empty(3, 4).bernoulli_(0.5),
    "normal of numbers": lambda h: h + torch.normal(0.0, 1.0, (3, 4)), "uniform_": lambda h: h + torch.empty(3, 4).uniform_(),
    "exponential_": lambda h: h + torch.empty(3, 4).exponential_(), "gumbel_softmax": lambda h: F.gumbel_softmax(h),
    "dropped all": lambda h: F.dropout(F.dropout(h, 1.0) + h, 0.5), "dropped none": lambda h: F.dropout(F.dropout(h, 0.0) + h, 0.5),
    "dropped of none": lambda h: F.dropout(h[:0], 0.5).sum() + F.dropout(h, 0.5),
    "unread": lambda h: (torch.rand(3), torch.rand_like(h), F.dropout(h, 0.3), torch.empty(2).uniform_(), F.dropout(h, 0.5))[-1],
    "a layer that is never dropped": lambda h: h if torch.rand([]) < 0.0 else F.dropout(h, 0.5),
    "bernoulli": lambda h: h * torch.bernoulli(h.sigmoid()),  # it compares draws of a shape with values
    "bernoulli in double": lambda h: h * torch.bernoulli(h.double().sigmoid()).float(),
    "transposed bernoulli": lambda h: h * torch.bernoulli(h.t().sigmoid()).t(),
}
FALLBACKS = {
    "multinomial": lambda h: h.gather(1, torch.multinomial(h.softmax(-1), 1)),
    "normal of tensors": lambda h: h + torch.normal(h.detach(), h.detach().exp()), "poisson": lambda h: h * torch.poisson(h.detach().exp()),
    "of values, then of a shape": lambda h: h.gather(1, torch.multinomial(h.softmax(-1), 1)) + h * torch.rand_like(h),
    "binomial": lambda h: h * torch.binomial(torch.full((3, 4), 5.0), h.detach().sigmoid()),
    "rrelu": lambda h: F.rrelu(h, training=True),
}


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.net, self.draw = nn.Linear(4, 4), draw

    def forward(self, x):
        return self.draw(self.net(x))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    caesura.reports.reset()


def agree(draw):
    """Compares two calls with one seed."""
    plain = Drawing(draw)
    ours, x = copy.deepcopy(plain), torch.randn(3, 4)
    wrapped = caesura.wrap(ours)
    found = []
    for module in (plain, wrapped):
        torch.manual_seed(7)
        y = [module(x) for _ in range(2)]
        sum(y).sum().backward()
        found.append((*y, *(p.grad for p in module.parameters()), torch.rand(())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("draw", BY_DESIGN.values(), ids=BY_DESIGN)
def test_masks_and_noise_are_eagers_own(draw):
    with caesura.strict():
        agree(draw)
    assert not caesura.stats().fallbacks and caesura.stats().eager_calls > 0


def test_unread_draws_without_gradients():
    plain, x = Drawing(BY_DESIGN["unread"]), torch.randn(3, 4)
    found = []
    for module in (plain, caesura.wrap(copy.deepcopy(plain))):
        torch.manual_seed(7)
        with torch.no_grad():
            found.append((module(x), torch.rand(())))
    torch.testing.assert_close(found[1], found[0])


def test_dropout_that_drops_nothing_is_its_input():
    """Also for a write; dropping all of infinity gives NaN."""
    class Same(nn.Module):
        def forward(self, x):
            y = x + 1
            F.dropout(y, 0.5, training=False).mul_(2)
            return y, F.dropout(y, 0.5, training=False), F.dropout(x, 0.0), F.dropout(x / 0, 1.0)

    x = torch.ones(3)
    y, same, given, nan = caesura.wrap(Same())(x)
    assert same.data_ptr() == y.data_ptr() and given.data_ptr() == x.data_ptr()
    assert y.tolist() == [4.0] * 3 and nan.isnan().all()


@pytest.mark.parametrize("draw", FALLBACKS.values(), ids=FALLBACKS)
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_draws_that_depend_on_values_are_told_of(draw):
    with pytest.warns(caesura.FallbackWarning, match="random numbers depend on values"):
        agree(draw)
    assert any("depend on values" in reason for _, reason in caesura.stats().fallbacks)
    torch._dynamo.reset()
    with caesura.strict(), pytest.raises(caesura.StrictError, match="depend on values"):
        caesura.wrap(Drawing(draw))(torch.randn(3, 4))


INSTEAD = {
    "multinomial": (lambda h: h.gather(1, torch.multinomial(h.softmax(-1), 1)), "(p / torch.empty_like(p).exponential_()).argmax(-1)",
                    lambda h: h.gather(1, (h.softmax(-1) / torch.empty_like(h).exponential_()).argmax(-1, keepdim=True))),
    "normal": (lambda h: h + torch.normal(h.detach(), h.detach().exp()), "mean + std * torch.randn_like(mean)",
               lambda h: h + h.detach() + h.detach().exp() * torch.randn_like(h)),
}


@pytest.mark.parametrize("draw, told, instead", INSTEAD.values(), ids=INSTEAD)
def test_what_to_write_instead_draws_the_same(draw, told, instead):
    module, x = Drawing(draw), torch.randn(3, 4)
    torch.manual_seed(1)
    with pytest.warns(caesura.FallbackWarning, match=rf"wrap_draws_test.py:\d+ in .*: write {re.escape(told)}"):
        expected = caesura.wrap(module)(x)
    module.draw = instead
    torch.manual_seed(1)
    with caesura.strict():
        torch.testing.assert_close(caesura.wrap(module)(x), expected)


def test_a_dropout_does_not_end_a_program():
    """Its mask waits for no value, so that one program has all of the forward, also of a length that varies."""
    wrapped = caesura.wrap(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True))
    for length in (5, 7, 6):
        caesura.reports.reset()
        wrapped(torch.randn(2, length, 8))
        assert caesura.stats().kernel_calls == 1
