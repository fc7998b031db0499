# SPDX-License-Identifier: Apache-2.0
"""A user's mistake raises eager's error (type and first line), before and after a call that works."""

import linecache
import warnings

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura.frontends import compile_step, dynamo_backend  # noqa: E402

F, nn = torch.nn.functional, torch.nn
IS_2_14 = torch.__version__ >= "2.14"  # traces more of Python, and raises in place of some graph breaks


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer, self.table = nn.Linear(4, 4), nn.Embedding(5, 4)
        self.norm, self.conv = nn.BatchNorm1d(4), nn.Conv2d(3, 4, 3)

    def forward(self, x, bad):
        if not bad:
            return self.layer(x)
        return self.function(self, x)


def _raises(error):
    def function(m, x):
        raise error
    return function


def _checks(m, x):
    assert x.shape[0] == 99, "a batch of 99"
    return x


def _unpacks(m, x):
    a, b, c = x.shape
    return x


class _Own(Exception):
    pass


def _reraises(m, x):
    try:
        return m.layer(x[:, :3])
    except RuntimeError as error:
        raise ValueError("three columns") from error


# x is [3, 4].
CASES = {
    "a layer's width": lambda m, x: m.layer(x[:, :3]),
    "an index": lambda m, x: m.layer(x)[:, 7],
    "an index of a row": lambda m, x: x[9],
    "an axis": lambda m, x: x.sum(5),
    "floats as places": lambda m, x: m.table(x),
    "no attribute": lambda m, x: m.nothing(x),
    "no method": lambda m, x: x.nothing(),
    "no key": lambda m, x: {}["key"],
    "a list's index": lambda m, x: [x][3],
    "a view": lambda m, x: x.view(7, 7),
    "a reshape": lambda m, x: x.reshape(5, -1),
    "an expand": lambda m, x: x.expand(3, 5),
    "a concatenation's ranks": lambda m, x: torch.cat([x, x.sum()]),
    "a concatenation's sizes": lambda m, x: torch.cat([x, x[:, :2]]),
    "a stack": lambda m, x: torch.stack([x, x[:2]]),
    "a sum of shapes": lambda m, x: x + x[:, :3],
    "a product of shapes": lambda m, x: x @ x,
    "a string as an operand": lambda m, x: x + "s",
    "None as an operand": lambda m, x: x * None,
    "a missing argument": lambda m, x: F.linear(x),
    "an argument too many": lambda m, x: m.layer(x, x),
    "an unknown keyword": lambda m, x: x.sum(axes=1),
    "None for a tensor": lambda m, x: m.layer(None),
    "a list for a tensor": lambda m, x: m.layer([1, 2]),
    "a ValueError": _raises(ValueError("the user's")),
    "a KeyError": _raises(KeyError("the user's")),
    "a RuntimeError": _raises(RuntimeError("the user's")),
    "an error of the user's": _raises(_Own("the user's")),
    "an assertion": _checks,
    "too few to unpack": _unpacks,
    "an error out of another": _reraises,
    "a division by zero": lambda m, x: x * (1 / 0),
    "a norm's channels": lambda m, x: m.norm(x[:, :3]),
    "a norm's rank": lambda m, x: m.norm(x[None, None]),
    "a picture's channels": lambda m, x: m.conv(torch.ones(1, 2, 5, 5)),
    "a kernel larger than the picture": lambda m, x: m.conv(torch.ones(1, 3, 2, 2)),
    "the classes' dtype": lambda m, x: F.cross_entropy(x, torch.zeros(3)),
    "the classes' count": lambda m, x: F.cross_entropy(x, torch.zeros(5, dtype=torch.long)),
    "a loss's shapes": lambda m, x: F.binary_cross_entropy(x.sigmoid(), x[:, :3]),
    "places' dtype": lambda m, x: x.gather(1, x),
    "a permutation": lambda m, x: x.permute(0, 0),
    "a split": lambda m, x: x.split([1, 1]),
    "a write in place": lambda m, x: x.add_(torch.ones(5, 3, 4)),
}


def _wrap(net):
    return caesura.wrap(net)


def _compile(net):
    return torch.compile(net, backend="caesura")


def _step(net):
    step = caesura.compile_step(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    return step


def _error_of(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("there is no error")


def _lines(error):
    return str(error).splitlines()


class Loss(nn.Module):
    """A module that gives its loss."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, bad):
        return self.net(x, bad).sum()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    caesura.reports.reset()


@pytest.mark.parametrize("route", (_wrap, _compile, _step), ids=("wrap", "compile", "step"))
@pytest.mark.parametrize("name", CASES)
def test_an_error_is_eagers(name, route, capfd):
    plain, x = Loss(Net(CASES[name])), torch.linspace(-1, 1, 12).view(3, 4)
    expected = _error_of(lambda: plain(x, True))
    module = route(Loss(Net(CASES[name])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in (True, False, True, False):
            if not bad:
                module(x, False)
                continue
            error = _error_of(lambda: module(x, True))
            assert type(error) is type(expected)
            assert _lines(error)[:1] == _lines(expected)[:1]
            assert len(_lines(error)) <= len(_lines(expected))
            assert error.__cause__ is None or type(error.__cause__) is type(expected.__cause__)
    assert not caesura.stats().fallbacks and caesura.stats().kernel_calls == 2
    assert capfd.readouterr().err == ""


# PyTorch's trace does not notice these mistakes. No kernel takes the call, and PyTorch's own call raises the error.
LATE = {"a layer's dtype": lambda m, x: m.layer(x.double()), "an axis of softmax": lambda m, x: F.softmax(x, 3)}


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("route", (_wrap, _compile), ids=("wrap", "compile"))
@pytest.mark.parametrize("name", LATE)
def test_an_error_that_shows_in_the_run_is_eagers(name, route):
    plain, x = Net(LATE[name]), torch.ones(3, 4)
    expected = _error_of(lambda: plain(x, True))
    module = route(plain)
    for bad in (True, False, True):
        if bad:
            error = _error_of(lambda: module(x, True))
            assert (type(error), _lines(error)) == (type(expected), _lines(expected))
        else:
            torch.testing.assert_close(module(x, False), plain(x, False))


class Catches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, x):
        try:
            return self.layer(x)
        except RuntimeError:
            return self.other(x)


def test_what_a_forward_catches_it_catches():
    net = Catches()
    wrapped, x = caesura.wrap(net), torch.randn(5, 3)
    step = caesura.compile_step(net, F.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    if IS_2_14:
        with caesura.strict():
            for given in (x, torch.ones(5, 4)):
                expected = net(given)
                torch.testing.assert_close(wrapped(given), expected)
                torch.testing.assert_close(step(given, torch.ones(5, 2)), F.mse_loss(expected, torch.ones(5, 2)))
        return
    with pytest.warns(caesura.FallbackWarning, match=r"a call at .*user_errors_test.py:\d+ in forward: its capture fails"):
        torch.testing.assert_close(wrapped(x), net(x))
    assert caesura.stats().eager_calls == 1
    with caesura.strict(), pytest.raises(caesura.StrictError, match="its capture fails"):
        wrapped(x)
    with caesura.strict():
        torch.testing.assert_close(wrapped(torch.ones(5, 4)), net(torch.ones(5, 4)))
    with pytest.raises(caesura.StepRefused, match=r"user_errors_test.py:\d+ in forward\)\n +return self.layer\(x\)$"):
        step(x, torch.ones(5, 2))
    step(torch.ones(5, 4), torch.ones(5, 2))


def test_a_capture_that_fails_leaves_the_call_to_pytorch(monkeypatch):
    """A failure in the backend warns, is counted, and is an error under strict(). Retries are limited."""
    tries = []

    def fails(*arguments):
        tries.append(1)
        raise ZeroDivisionError("of ours")
    monkeypatch.setattr("caesura.frontends.dynamo_backend.aot_autograd", lambda **options: fails)
    net = nn.Linear(4, 2)
    for made in (caesura.wrap(net), torch.compile(nn.Sequential(net), backend="caesura")):
        tries.clear(), caesura.reports.reset()
        with pytest.warns(caesura.FallbackWarning, match="its capture fails: ZeroDivisionError: of ours") as told:
            for _ in range(5):
                torch.testing.assert_close(made(torch.ones(3, 4)), net(torch.ones(3, 4)))
        assert len(tries) == 3 and len(told) == 1 and told[0].filename == __file__
        with caesura.strict(), pytest.raises(Exception, match="this would be left to PyTorch"):
            made(torch.ones(3, 4))


def test_captured_too_often_is_told():
    net = nn.Linear(4, 2)
    wrapped = caesura.wrap(net)
    calls = type(wrapped)._calls
    function = dynamo_backend.apart(calls.compiled._torchdynamo_orig_callable)
    calls.compiled = torch.compile(function, backend="caesura", recompile_limit=1)
    wrapped(torch.ones(3, 4))
    with pytest.warns(caesura.FallbackWarning, match="captured too often"):
        wrapped(torch.ones(1, 3, 4))
    with caesura.strict(), pytest.raises(caesura.StrictError, match="captured too often"):
        wrapped(torch.ones(1, 1, 3, 4))
    with caesura.strict():
        wrapped(torch.ones(3, 4))


def test_warnings_point_at_the_users_line():
    with pytest.warns(caesura.FallbackWarning) as told:
        caesura.wrap(Maxima())(torch.ones(3, 4))
    assert [(w.filename, w.lineno) for w in told] == [(__file__, Maxima.forward.__code__.co_firstlineno + 1)]


class Maxima(nn.Module):
    def forward(self, x):
        return torch.cummax(x, 0)[0]


def test_a_report_is_a_snapshot_and_counts_steps():
    net = nn.Linear(4, 2)
    step = caesura.compile_step(net, F.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1))
    before = caesura.stats()
    for _ in range(4):
        step(torch.ones(3, 4), torch.ones(3, 2))
    after = caesura.stats()
    assert before.kernel_calls == 0 and after.kernel_calls == 4 and after.kernel_seconds > 0


@pytest.mark.parametrize("name, value, told", [
    ("clip_norm", -1, "clip_norm is a norm, 0 or more .*, got -1"),
    ("accumulation_steps", 0, "accumulation_steps is a number of 1 or more, got 0"),
    ("accumulation_steps", 1.5, "accumulation_steps is a number of 1 or more, got 1.5"),
    ("memory_budget", -1, "memory_budget is a number of 0 or more, got -1"),
    ("threads", -2, "threads is a number of 0 or more, got -2"),
    ("precision", "fp8", "precision is one of fp32, bf16, fp16, got 'fp8'"),
])
def test_arguments_of_compile_step(name, value, told):
    net = nn.Linear(4, 2)
    with pytest.raises(ValueError, match=told):
        caesura.compile_step(net, F.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1), **{name: value})


def _branches(m, x):
    if x.sum() > 0:
        return m.layer(x)
    return x


def _loops(m, x):
    for _ in range(int(x.sum().item())):
        x = m.layer(x)
    return x


def _unpacks(m, x):
    padded, _ = nn.utils.rnn.pad_packed_sequence(nn.utils.rnn.PackedSequence(m.layer(x), torch.ones(3, dtype=torch.int64)))
    return padded


def _scales(m, x):
    return m.layer(x) * 2


def _breaks(m, x):
    torch._dynamo.graph_break()
    return m.layer(x)


def _assigns(m, x):
    m.layer.weight.data = m.layer.weight.data * 2
    return m.layer(x)


def _reads(m, x):
    return m.layer(x) * sum(x.sum(0).tolist())


def _is_opaque(m, x):
    return torch.ops.user_errors_test.opaque(m.layer(x))


_LIBRARY = torch.library.Library("user_errors_test", "FRAGMENT")
_LIBRARY.define("opaque(Tensor x) -> Tensor")  # without an implementation for traces
_LIBRARY.impl("opaque", lambda x: x * 2, "CPU")

# The forward, the lines that the message names (counted from its first), and the message's beginning.
REFUSED = [
    (_branches, (1,), "a Python branch over a tensor's value: write torch.where or torch.cond"),
    (_loops, (1,), "a Python loop, branch or size that depends on a tensor's value: write it in tensors"),
    (_unpacks, (1,), "packed sequences that the forward did not pack: hand it the padded tensor and the lengths, and pack them in it"),
    (_breaks, (1,), "Call to `torch._dynamo.graph_break()`: User-inserted graph break"),
    (_assigns, (1,) if IS_2_14 else (1, 1), ""),
    (_reads, (1,), "numbers are read off a tensor: compute with the tensor"),
    (_is_opaque, (1,), "Operator does not support running with fake tensors: unsupported operator: user_errors_test.opaque.default"),
]


@pytest.mark.parametrize("function, lines, told", REFUSED, ids=[f.__name__ for f, _, _ in REFUSED])
def test_a_refusal_is_a_sentence_with_the_users_line(function, lines, told):
    net = Loss(Net(function))
    step = caesura.compile_step(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused) as refused:
        step(torch.ones(3, 4), True)
    first = function.__code__.co_firstlineno
    source = linecache.getlines(__file__)
    shown = str(refused.value).splitlines()
    assert shown[0] == "the step cannot be one program:" and len(shown) == 1 + 2 * len(lines)
    for why, quoted, line in zip(shown[1::2], shown[2::2], lines):
        assert why.startswith("  " + told) and why.endswith(f" (at {__file__}:{first + line} in {function.__name__})")
        assert quoted == "    " + source[first + line - 1].strip()
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_an_error_that_nobody_foresaw_is_the_cause_of_the_refusal(monkeypatch):
    def failing(*given):
        raise KeyError("of the package")

    monkeypatch.setattr(compile_step, "drop_meshes", failing)
    net = Loss(Net(_scales))
    step = caesura.compile_step(net, None, torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=rf"KeyError: 'of the package' \(at {__file__}:\d+ in ") as refused:
        step(torch.ones(3, 4), True)
    assert isinstance(refused.value.__cause__, KeyError)


class Odd(tuple):
    """A tuple without a length, as in some packages."""

    def __len__(self):
        raise NotImplementedError


class _Scaled(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx, x, axis=-1, scale=2.0):
        return x * scale

    @classmethod
    def backward(cls, ctx, dy):
        return dy * 2, None, None


class Untraced(nn.Module):
    """torch.compile fails on it, with an internal error or because it mistakes legal code for an error."""

    def __init__(self, by_object):
        super().__init__()
        self.layer, self.sizes, self.by_object = nn.Linear(4, 4), [Odd((1, 2))], by_object

    def forward(self, x):
        y = self.layer(x)
        return y * self.sizes[0][0] if self.by_object else _Scaled.apply(y, -1, 2.0)


def test_where_torch_compile_fails_the_call_is_eagers(capfd):
    net, x = Untraced(by_object=True), torch.linspace(-1, 1, 12).view(3, 4)
    expected = net(x)
    expected.sum().backward()
    gradient, net.layer.weight.grad = net.layer.weight.grad, None
    wrapped = caesura.wrap(net)
    with pytest.warns(caesura.FallbackWarning, match=r"a call at .*user_errors_test.py:\d+ in \S+: its capture fails") as told:
        given = [wrapped(x) for _ in range(3)]
    assert len(told) == 1 and told[0].filename == __file__
    given[0].sum().backward()
    assert all(torch.equal(y, expected) for y in given) and torch.equal(net.layer.weight.grad, gradient)
    assert caesura.stats().eager_calls == 3 and caesura.stats().kernel_calls == 0
    with caesura.strict(), pytest.raises(caesura.StrictError, match="its capture fails"):
        wrapped(x)
    assert capfd.readouterr().err == ""


def test_what_eager_goes_on_with_is_a_graph_break_from_then_on():
    net, x = Untraced(by_object=False), torch.linspace(-1, 1, 12).view(3, 4)
    wrapped = caesura.wrap(net)
    with pytest.warns(caesura.FallbackWarning) as told:
        results = []
        for module in (net, wrapped, wrapped, wrapped):
            net.zero_grad()
            y = module(x)
            y.sum().backward()
            results.append((y.detach(), net.layer.weight.grad))
    fails = ["its capture fails" in str(w.message) for w in told]
    assert fails == ([True, False, True] if IS_2_14 else [True, False]) and "a graph break" in str(told[1].message)
    for y, gradient in results[1:]:
        torch.testing.assert_close(y, results[0][0])
        torch.testing.assert_close(gradient, results[0][1])
    if IS_2_14:  # has no place to go on from: all calls are eager's
        assert caesura.stats().eager_calls == 3 and caesura.stats().kernel_calls == 0
    else:
        assert caesura.stats().eager_calls == 1 and caesura.stats().kernel_calls >= 4
    torch._dynamo.reset()
    with caesura.strict(), pytest.raises(caesura.StrictError, match="a graph break"):
        caesura.wrap(net)(x)


class _Unnoticed(torch.autograd.Function):
    """Writes without autograd's version count, and returns its input, as torchdiffeq's Runge-Kutta steps do."""

    @staticmethod
    def forward(ctx, scratch, value, i):
        ctx.i = i
        scratch.data[..., i] = value
        return scratch

    @staticmethod
    def backward(ctx, dy):
        return dy, dy[..., ctx.i], None


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        k = torch.empty(*x.shape, 3)
        k = _Unnoticed.apply(k, self.layer(x), 0)
        for i in range(1, 3):
            k = _Unnoticed.apply(k, torch.tanh(self.layer(x + k[..., :i].sum(-1))), i)
        return k.sum(-1)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("route", (_wrap, _compile), ids=("wrap", "compile"))
def test_writes_that_autograd_does_not_notice_are_not_noticed(route):
    net, x = Steps(), torch.linspace(-1, 1, 12).view(3, 4)
    results = []
    for module in (net, route(net), route(net)):
        net.zero_grad()
        y = module(x)
        y.square().sum().backward()
        results.append([y.detach(), *(p.grad for p in net.parameters())])
    for found in results[1:]:
        for expected, actual in zip(results[0], found, strict=True):
            torch.testing.assert_close(actual, expected)
    assert caesura.stats().kernel_calls > 0
