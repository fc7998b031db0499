# SPDX-License-Identifier: Apache-2.0
"""Code that Dynamo does not capture runs in eager, with one warning that names its line. strict() forbids it."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    caesura.reports.reset()


class Prints(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        y = self.first(x)
        if y.sum().item() > 1e9:  # the break
            return y
        return self.last(y)


class Loops(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            x = self.layer(x)
            torch._dynamo.graph_break()
        return x


class Branches(Prints):
    def forward(self, x):
        y = self.first(x)
        if y.sum() > 1e9:
            return y
        return self.last(y)


class Checks(Prints):
    """Looks at the numbers it is given, as losses for CTC do."""

    def forward(self, x):
        lengths = x.sum(1).long()
        if (lengths > 99).any():
            raise ValueError("longer than the batch")
        return self.last(self.first(x))


class Unused(torch.nn.Module):
    """No result depends on the part after the break."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.last(x).sum() + y.sum(1).long().sum()


class AnotherLine(Unused):
    def forward(self, x):
        return self.another_line(x)

    def another_line(self, x):
        y = self.first(x)
        torch._dynamo.graph_break()
        return self.last(y)


ROUTES = {"wrap": caesura.wrap, "compile": lambda module: torch.compile(module, backend="caesura")}
CASES = [(Prints, "Tensor.item"), (Loops, "graph break in loop"),
         (Branches, "a Python branch over a tensor's value: write torch.where or torch.cond, or decide outside of the module"),
         (Checks, "a Python branch over a tensor's value: write torch.where")]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind, cause", CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_it_is_told_once_with_its_line(kind, cause, route):
    module = kind()
    x = torch.linspace(-1, 1, 12).view(3, 4)
    expected = module(x)
    with pytest.warns(caesura.FallbackWarning, match=rf"graph break at .*graph_break_test.py:\d+ in forward: .*{cause}"):
        given = ROUTES[route](module)(x)
    torch.testing.assert_close(given, expected)
    assert any(cause in reason for _, reason in caesura.stats().fallbacks)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", caesura.FallbackWarning)
        ROUTES[route](module)(x)


@pytest.mark.parametrize("kind, cause", CASES, ids=[kind.__name__ for kind, _ in CASES])
def test_it_can_be_forbidden(kind, cause):
    x = torch.ones(3, 4)
    for _ in range(2):  # a refused capture leaves no state
        with caesura.strict(), pytest.raises(caesura.StrictError, match=r"graph_break_test.py:\d+"):
            caesura.wrap(kind())(x)
    with caesura.strict(), pytest.raises(Exception, match="this would be left to PyTorch"):
        torch.compile(kind(), backend="caesura")(x)


def test_other_backends_are_left_alone():
    with caesura.strict(), warnings.catch_warnings():
        warnings.simplefilter("error", caesura.FallbackWarning)
        torch.compile(Prints(), backend="eager")(torch.ones(3, 4))
    assert not caesura.stats().fallbacks


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_what_no_gradient_comes_to_has_none(route):
    module = Unused()
    ROUTES[route](module)(torch.randn(3, 4)).backward()
    assert module.first.weight.grad is None
    assert module.last.weight.grad is not None


class WrittenLater(torch.nn.Module):
    """Views that are made before a break have the gradients of what is written to them behind it."""

    def __init__(self, whole):
        super().__init__()
        self.scale, self.whole = torch.nn.Parameter(torch.ones(2)), whole

    def forward(self, x):
        y = x * 2
        a, b = y.t(), y.view(-1)
        torch._dynamo.graph_break()
        b.mul_(self.scale.sum())
        return (a * 3, y * 2) if self.whole else (a * 3,)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("route", ROUTES)
def test_views_keep_their_tie_past_it(route, whole):
    module, other = WrittenLater(whole), WrittenLater(whole)
    for a, b in zip(module(torch.ones(2, 2)), ROUTES[route](other)(torch.ones(2, 2)), strict=True):
        assert torch.equal(a, b) and b.requires_grad
        a.sum().backward(retain_graph=True)
        b.sum().backward(retain_graph=True)
        assert torch.equal(module.scale.grad, other.scale.grad)


class Drops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


class MakesForTwo(torch.nn.Module):
    """A Function's result is an input of a graph, and only one of the graph's two results depends on it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = torch.compiler.disable(Drops.apply)(x)
        return y * 2, self.scale.sin()


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("route", ROUTES)
def test_functions_before_it_get_no_zeros(route):
    for taken in (0, 1):
        x = torch.ones(2, requires_grad=True)
        ROUTES[route](MakesForTwo())(x)[taken].sum().backward()
        assert (x.grad is None) == (taken == 1)


def test_each_line_is_told():
    x = torch.linspace(-1, 1, 12).view(3, 4)
    for kind in (Unused, Loops):
        with pytest.warns(caesura.FallbackWarning, match="graph break"):
            caesura.wrap(kind())(x)
    with pytest.warns(caesura.FallbackWarning, match="in another_line"):
        caesura.wrap(AnotherLine())(x)


class Assigns(torch.nn.Module):
    """A layer whose first call sets its scale from the data."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.scale.data = x.std(0)
                self.shift.data = -x.mean(0)
                self.shift.data = self.shift.data * 2
                self.calls.data = self.calls + 1
        return ((x * self.scale + self.shift) ** 2).sum()


@pytest.mark.parametrize("route", ROUTES)
def test_data_that_the_forward_assigns(route):
    x, plain, other = torch.randn(5, 4), Assigns(), Assigns()
    module = ROUTES[route](other)
    told = r"a graph at .*graph_break_test.py:\d+ in forward: it assigns the data"
    with pytest.warns(caesura.FallbackWarning, match=told):
        given = module(x)
    for expected, again in ((plain(x), given), (plain(x + 1), module(x + 1))):
        torch.testing.assert_close(again, expected)
        expected.backward()
        again.backward()
    for a, b in zip([*other.parameters(), *other.buffers()], [*plain.parameters(), *plain.buffers()]):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a.grad, b.grad)
    plain.eval(), other.eval()
    with caesura.strict():
        torch.testing.assert_close(module(x), plain(x))
    torch._dynamo.reset()
    with caesura.strict(), pytest.raises(Exception, match="it assigns the data"):
        ROUTES[route](Assigns())(x)
