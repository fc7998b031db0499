# SPDX-License-Identifier: Apache-2.0
"""nn.LSTM, nn.GRU and nn.RNN in wrapped modules, compiled steps and exported ones, beside eager."""

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from caesura.capture.ops import recurrent  # noqa: E402
from compile_step_test import fresh  # noqa: E402, F401


class Net(nn.Module):
    """Reads the sequence and the last states."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layers = kind(8, 16, **options)
        width = options.get("proj_size", 16) * (2 if options.get("bidirectional") else 1)
        self.last = nn.Linear(width, 4)

    def forward(self, x, states=None):
        y, states = self.layers(x, states)
        states = states if isinstance(states, tuple) else (states,)
        return self.last(y).mean((0, 1)) + sum((i + 1) * s.square().mean() for i, s in enumerate(states))


CASES = [
    (nn.LSTM, {}), (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}), (nn.LSTM, {"bias": False}),
    (nn.LSTM, {"num_layers": 2, "dropout": 0.3}), (nn.LSTM, {"proj_size": 5}), (nn.GRU, {}), (nn.GRU, {"bias": False}),
    (nn.GRU, {"num_layers": 3, "bidirectional": True}), (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "batch_first": True, "bidirectional": True}),
]
NAMES = [kind.__name__ + "".join(f" {key}" for key in options) for kind, options in CASES]


def agree(module, other, *inputs, seed=0, rtol=1e-4):
    """Returns results, and gradients of parameters and inputs."""
    given = [[t.clone().requires_grad_() for t in inputs] for _ in range(2)]
    results = []
    for m, tensors in zip((module, other), given):
        torch.manual_seed(seed)
        results.append(m(*tensors))
        results[-1].float().square().sum().backward()
    torch.testing.assert_close(results[1], results[0], rtol=rtol, atol=rtol * 0.1)
    for expected, actual in zip([*module.parameters(), *given[0]], [*other.parameters(), *given[1]], strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, rtol=rtol, atol=rtol * 0.1)
        expected.grad = actual.grad = None


@pytest.mark.parametrize("kind, options", CASES, ids=NAMES)
def test_wrapped_modules_agree_over_changing_lengths(kind, options):
    module = Net(kind, **options)
    wrapped = caesura.wrap(copy.deepcopy(module))
    with caesura.strict() if not options.get("dropout") else contextlib.nullcontext():
        for steps, batch in ((5, 3), (7, 3), (9, 2), (5, 3)):
            x = torch.randn(batch, steps, 8) if options.get("batch_first") else torch.randn(steps, batch, 8)
            agree(module, wrapped, x)
    assert not any("break" in op for op, _ in caesura.stats().fallbacks)
    if not options.get("dropout"):
        assert caesura.stats().kernel_share == 1


@pytest.mark.parametrize("kind, options", [case for case in CASES if not case[1].get("dropout")],
                         ids=[name for name in NAMES if "dropout" not in name])
def test_compiled_steps_agree(kind, options):
    module = Net(kind, **options)
    other = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step = caesura.compile_step(other, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1))
    target = torch.tensor(2)
    for _ in range(4):
        x = torch.randn(6, 6, 8)
        loss = F.cross_entropy(module(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert step(x, target).item() == pytest.approx(loss.item(), rel=1e-5)
    for a, b in zip(module.parameters(), other.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_an_exported_step_holds_onnx_layers(tmp_path):
    import onnx
    module = Net(nn.LSTM, num_layers=2, bidirectional=True)
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.AdamW(module.parameters()), dynamic=True)
    x, target = torch.randn(5, 3, 8), torch.tensor(1)
    step.export(tmp_path, x, target)
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert [n.op_type for n in nodes].count("LSTM") == 4
    session = caesura.TrainingSession.open(tmp_path)
    assert [session.step({"x": x.numpy(), "target": target.numpy()}) for _ in range(3)] == pytest.approx(
        [step(x, target).item() for _ in range(3)], rel=1e-5)


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-9), (torch.bfloat16, 3e-2)], ids=["float64", "bfloat16"])
def test_other_types(dtype, rtol):
    module = Net(nn.GRU, bidirectional=True).to(dtype)
    agree(module, caesura.wrap(copy.deepcopy(module)), torch.randn(5, 3, 8, dtype=dtype), rtol=rtol)


def test_given_states_have_gradients():
    module = Net(nn.LSTM)
    wrapped, states = caesura.wrap(copy.deepcopy(module)), [torch.randn(1, 3, 16) for _ in range(2)]

    class Given(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x, h, c):
            return self.net(x, (h, c))

    agree(Given(module), caesura.wrap(Given(type(wrapped)._calls.module)), torch.randn(5, 3, 8), *states)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_without_gradients_and_within_autocast(kind):
    module = Net(kind, num_layers=2)
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(5, 3, 8)
    with torch.no_grad(), caesura.strict():
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        try:
            expected = module(x)
        except RuntimeError as error:  # PyTorch's LSTM on chips without AVX-512
            assert "could not create a primitive descriptor" in str(error)
            return
        given = wrapped(x)
    assert given.dtype == expected.dtype
    torch.testing.assert_close(given, expected, rtol=3e-2, atol=3e-2)  # eager also rounds to bfloat16 within the layers


def test_torch_compile_captures_them():
    """Frames of torch.compile(backend="caesura") are traced with Dynamo's allow_rnn."""
    module, x = Net(nn.LSTM), torch.randn(5, 3, 8)
    with caesura.strict():
        agree(module, torch.compile(copy.deepcopy(module), backend="caesura"), x)


def test_derivatives_of_derivatives():
    module, x = Net(nn.GRU), torch.randn(5, 3, 8)
    wrapped, found = caesura.wrap(copy.deepcopy(module)), []
    with caesura.strict():
        for m in (module, wrapped):
            given = x.clone().requires_grad_()
            (dx,) = torch.autograd.grad(m(given).sum(), given, create_graph=True)
            found.append(torch.autograd.grad(dx.square().sum(), list(m.parameters()), allow_unused=True))
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", recurrent.KINDS)
def test_the_operators_alone(kind):
    """The operators in PyTorch, for calls that no program runs, have correct gradients and schemas."""
    gates, _, has_cell = recurrent.KINDS[kind]
    x, *others = (torch.randn(*shape, dtype=torch.float64, requires_grad=True)
                  for shape in ((4, 2, 3), (gates * 5, 3), (gates * 5, 5), (gates * 5,), (gates * 5,), (2, 5), (2, 5)))
    if not has_cell:
        others[-1] = None

    def call(*tensors):
        return torch.ops.caesura.recurrent(kind, *tensors, reverse)[:3 if has_cell else 2]

    for reverse in (False, True):
        assert torch.autograd.gradcheck(call, [x, *others])
    torch.library.opcheck(torch.ops.caesura.recurrent.default, (kind, x, *others, True),
                          test_utils=("test_schema", "test_faketensor"))
