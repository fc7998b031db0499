# SPDX-License-Identifier: Apache-2.0
"""Call arguments that depend on a changing size: as attributes of ops, as operands, and those that no capture takes."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.lowering import TABLE  # noqa: E402
from caesura.lowering.importer import Importer  # noqa: E402
from caesura.lowering.onnx_builder import Scalar, number  # noqa: E402

F = torch.nn.functional


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, torch.nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x):
        return self.function(x * self.weight, x.shape[0])


# These run in our kernels only; x is [n, 6].
OURS = {
    "elu": lambda x, n: F.elu(x, n),
    "celu": lambda x, n: F.celu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n / 20),
    "threshold": lambda x, n: F.threshold(x, n / 10, n),
    "softplus": lambda x, n: F.softplus(x, beta=n),
    "hardshrink": lambda x, n: F.hardshrink(x, n / 20),
    "clamp": lambda x, n: x.clamp(-n / 10, n / 20),
    "power": lambda x, n: x.abs() ** (1 / n),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "quotient": lambda x, n: x / n**0.5,
    "lerp": lambda x, n: torch.lerp(x, x * 2, n / 10),
    "remainder": lambda x, n: torch.remainder(x, n / 7),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "full": lambda x, n: x + torch.full((6,), n / 2),
    "scatter": lambda x, n: x.scatter(0, torch.zeros(1, 6, dtype=torch.long), n),
    "pad": lambda x, n: F.pad(x, (n, 1), value=n),
    "select": lambda x, n: x[n - 1],
    "narrow": lambda x, n: x.narrow(0, 1, n - 1),
    "roll": lambda x, n: x.roll(n - 1, 1),
    "triu": lambda x, n: x.triu(n - 3),
    "diagonal": lambda x, n: x.diagonal(n - 3),
    "unfold": lambda x, n: x.unfold(0, n - 1, 1),
    "topk": lambda x, n: x.topk(n - 1, dim=0)[0],
    "repeat": lambda x, n: x.repeat(n, 1),
    "variance": lambda x, n: x.var(0, correction=n - 2),
    "conv1d's padding": lambda x, n: F.conv1d(x.t()[:, None], torch.ones(2, 1, 2), padding=n),
    "conv1d's dilation": lambda x, n: F.conv1d(x.t()[:, None], torch.ones(2, 1, 2), dilation=n - 1),
    "conv1d's stride": lambda x, n: F.conv1d(x.t()[:, None], torch.ones(2, 1, 2), stride=n - 2),
    "avg_pool2d": lambda x, n: F.avg_pool2d(x[None], (n, 2)),
    "max_pool2d": lambda x, n: F.max_pool2d(x[None], (n - 1, 2), stride=1),
    "group_norm": lambda x, n: F.group_norm(x[None], n),
    "layer_norm": lambda x, n: F.layer_norm(x, (6,), eps=n * 1e-3),
    "cross_entropy": lambda x, n: F.cross_entropy(x, torch.arange(n) % 6, ignore_index=n - 3),
    "label smoothing": lambda x, n: F.cross_entropy(x, torch.arange(n) % 6, label_smoothing=1 / n),
    "embedding": lambda x, n: F.embedding(torch.arange(4), x, padding_idx=n - 2),
    "huber_loss": lambda x, n: F.huber_loss(x, x * 0, delta=n / 10),
    "smooth_l1_loss": lambda x, n: F.smooth_l1_loss(x, x * 0, beta=n / 10),
}
# These run in PyTorch, partly or wholly.
PYTORCHS = {
    "arange of floats": lambda x, n: x.sum() + torch.arange(0, n, 0.5),
    "norm": lambda x, n: x.norm(n, dim=1),
    "a truth value": lambda x, n: x * (n > 4),
    "interpolate": lambda x, n: F.interpolate(x[None], size=n + 3),
}
# PyTorch 2.14 traces this one.
(OURS if torch.__version__ >= "2.14" else PYTORCHS)["a power"] = lambda x, n: x.abs() ** n


def _agrees(function, allowed):
    net = Net(function)
    wrapped = caesura.wrap(net)
    for n in (4, 5, 7, 5):
        x = torch.linspace(-2, 2, n * 6).view(n, 6)
        expected = net(x)
        (gradient,) = torch.autograd.grad(expected.sum(), net.weight)
        with allowed():
            actual = wrapped(x)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(torch.autograd.grad(actual.sum(), net.weight), (gradient,))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    caesura.reports.reset()


@pytest.mark.parametrize("name", OURS)
def test_a_call_takes_a_number_that_changes(name):
    _agrees(OURS[name], caesura.strict)
    assert not caesura.stats().fallbacks


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("name", PYTORCHS)
def test_what_our_ops_do_not_take_is_pytorchs_loudly(name):
    _agrees(PYTORCHS[name], contextlib.nullcontext)
    assert caesura.stats().fallbacks


@pytest.mark.parametrize("name", ("elu", "cross_entropy", "conv1d's padding", "scatter", "hardtanh", "lerp", "full",
                                  "threshold", "huber_loss", "smooth_l1_loss", "leaky_relu", "celu", "clamp", "quotient"))
def test_a_step_takes_them(name):
    losses = []
    for compiled in (False, True):
        net = Net(OURS[name])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        loss_of = lambda y, scale: (y * scale).mean()  # noqa: E731
        step = caesura.compile_step(net, loss_of, optimizer) if compiled else None
        for n in (4, 5, 7, 5):
            x, scale = torch.linspace(-2, 2, n * 6).view(n, 6), torch.ones(())
            if compiled:
                losses.append(step(x, scale))
                continue
            optimizer.zero_grad()
            loss = loss_of(net(x), scale)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[4:], losses[:4])


# --- the mechanism ------------------------------------------------------------------------------------------------

def _symbol(value):
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
    from torch._dynamo.source import ConstantSource
    environment = ShapeEnv()
    source = ConstantSource("n")
    symbol = environment.create_symbol(value, source, DimDynamic.DYNAMIC)
    return environment.create_symintnode(symbol, hint=value, source=source)


def test_a_symbol_is_a_number_where_a_rule_takes_one_only_under_a_guard():
    symbol = _symbol(7)
    scalar = Scalar("n", symbol)
    with pytest.raises(caesura.lowering.Refused, match="a number that changes"):
        int(scalar)  # outside of a capture nothing would check a guard
    environment = symbol.node.shape_env
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        assert [int(scalar), scalar + 1, 10 - scalar, scalar // 2, -scalar, list(range(scalar))[-1], number([scalar, 2])] == [
            7, 8, 3, 3, -7, 6, [7, 2]]
    assert [str(guard.expr) for guard in environment.guards] == [f"Eq({next(iter(environment.guards)).expr.lhs}, 7)"]


def test_a_comparison_is_guarded_as_such():
    symbol = _symbol(7)
    scalar = Scalar("n", symbol)
    assert scalar != 2 and scalar > 3
    assert not symbol.node.expr.is_number and len(symbol.node.shape_env.guards) == 2


def test_a_rule_that_fails_is_refused():
    def fails(w, node, x):
        raise TypeError("two\nlines")
    module = torch.fx.symbolic_trace(lambda x: torch.neg(x))
    importer = Importer()
    node = next(n for n in module.graph.nodes if n.op == "call_function")
    importer.function = lambda node: fails
    importer.values[node.args[0]] = None
    with pytest.raises(caesura.lowering.Refused, match="its rule fails, TypeError: two lines"):
        importer.write(node)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_no_rule_that_fails_ends_a_call(monkeypatch):
    """If a rule fails, PyTorch runs the call. Each rule fails in turn."""
    for target in (torch.ops.aten.mul.Tensor, torch.ops.aten.tanh.default, torch.ops.aten.tanh_backward.default):
        torch._dynamo.reset(), caesura.reports.reset()
        monkeypatch.setitem(TABLE, target, lambda *arguments: [][0])
        _agrees(lambda x, n: torch.tanh(x), contextlib.nullcontext)
        assert any(op == str(target) and "IndexError" in why for op, why in caesura.stats().fallbacks)
        monkeypatch.undo()


def test_question_answering_at_several_lengths():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
    module = transformers.BertForQuestionAnswering(transformers.BertConfig(**sizes)).eval()
    wrapped = caesura.wrap(module)
    for length in (8, 11, 14, 9):
        ids, starts, ends = torch.randint(0, 50, (2, length)), torch.tensor([1, length + 3]), torch.tensor([4, 5])
        found = []
        for net in (module, wrapped):
            with caesura.strict():
                loss = net(ids, start_positions=starts.clone(), end_positions=ends.clone()).loss
            found.append((loss, *torch.autograd.grad(loss, module.parameters(), allow_unused=True)))
        for expected, actual in zip(*found, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert len(type(wrapped)._calls.captures) == 2  # the second one takes the length as an input
