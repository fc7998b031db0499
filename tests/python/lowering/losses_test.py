# SPDX-License-Identifier: Apache-2.0
"""Losses and layers without a usable decomposition in PyTorch, or that read values, still run in our kernels."""

import copy

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402

LABELS = torch.tensor([[2, 0, -1, 1], [3, 3, 1, 0], [-1, 0, 1, 2]])
CASES = {
    "gaussian": lambda a, b: F.gaussian_nll_loss(a, b.detach(), b * b), "gaussian, full": lambda a, b: F.gaussian_nll_loss(
        a, b.detach(), (b * b)[:, :1], full=True, reduction="sum"),
    "gaussian, small": lambda a, b: F.gaussian_nll_loss(a, b.detach(), b * b * 1e-8, reduction="none").sum(),
    "labels": lambda a, b: F.multilabel_margin_loss(a * b, LABELS), "a row of labels": lambda a, b: F.multilabel_margin_loss(
        (a * b)[0], LABELS[0], reduction="sum"), "labels, each": lambda a, b: F.multilabel_margin_loss(
        a * b, LABELS, reduction="none") @ torch.arange(1.0, 4.0),
    "one row of classes": lambda a, b: F.cross_entropy((a * b)[0], LABELS[0, 0], reduction="none") * a[1, 1],
    "one row of classes, weights": lambda a, b: F.nll_loss((a * b)[0], LABELS[0, 0], torch.arange(1.0, 5.0)),
    "bilinear": lambda a, b: F.bilinear(a, b, torch.arange(32.0).view(2, 4, 4) / 32, torch.ones(2)).square().mean(),
    "huber": lambda a, b: F.huber_loss(a * 3, b, delta=0.7), "smooth": lambda a, b: F.smooth_l1_loss(a * 3, b, beta=0.7, reduction="sum"),
    "smooth, no knee": lambda a, b: F.smooth_l1_loss(a, b, beta=0.0),
    "softmax of a scalar": lambda a, b: (a * b).sum() * F.softmax(a.sum(), 0) + F.log_softmax(b.sum(), -1),
}
if hasattr(F, "linear_cross_entropy"):  # since PyTorch 2.13
    CASES |= {
        "linear, in chunks of rows": lambda a, b: F.linear_cross_entropy(
            a, b, torch.tensor([2, 0, 1]), ignore_index=1, options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)),
        "linear, in chunks by their shape": lambda a, b: F.linear_cross_entropy(
            a, b, torch.tensor([2, 0, 1]), reduction="none", options=torch.nn.LinearCrossEntropyOptions(chunking_method="aspect_ratio:2")
        ) @ torch.arange(1.0, 4.0),
    }


class Loss(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.a, self.b = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))

    def forward(self):
        return self.function(self.a, self.b)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_as_eager(function):
    plain = Loss(function)
    wrapped, trained = copy.deepcopy(plain), copy.deepcopy(plain)
    expected = plain()
    expected.backward()
    with caesura.strict():
        given = caesura.wrap(wrapped)()
        given.backward()
        loss = caesura.compile_step(trained, None, torch.optim.SGD(trained.parameters(), lr=1.0))()
    torch.testing.assert_close(torch.stack([given.detach(), loss]), expected.detach().expand(2))
    for before, other, stepped in zip(plain.parameters(), wrapped.parameters(), trained.parameters()):
        torch.testing.assert_close(other.grad, before.grad, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(before - stepped, before.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("route", ["wrap", "compile_step"])
def test_a_negative_variance_is_an_error(route):
    module = Loss(lambda a, b: F.gaussian_nll_loss(a, b, b))
    before = copy.deepcopy(module.state_dict())
    run = caesura.wrap(module) if route == "wrap" else caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1.0))
    with pytest.raises(RuntimeError if route == "wrap" else ValueError, match="var has negative entry/entries"):
        run()
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))


@pytest.mark.parametrize("route", ["wrap", "compile_step"])
def test_ctc_labels_that_are_none_are_an_error(route):
    class Ctc(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = torch.nn.Parameter(torch.randn(5, 1, 3))

        def forward(self, labels):
            return F.ctc_loss(self.scores.log_softmax(-1), labels, (5,), (2,))

    module = Ctc()
    run = caesura.wrap(module) if route == "wrap" else caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1.0))
    with pytest.raises(RuntimeError if route == "wrap" else ValueError, match="sample 0: labels from 0 to 2 expected, got 3"):
        run(torch.tensor([[1, 3]]))
