# SPDX-License-Identifier: Apache-2.0
"""Calls of wrapped modules: values that the autograd node saves and frees, and calls that bypass Dynamo's callback."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from wrap_test import Net, gradients  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()
    with caesura.strict():
        yield


def test_the_backward_is_the_operators():
    wrapped = caesura.wrap(Net())
    y = wrapped(torch.randn(3, 6))
    y.sum().backward()
    assert caesura.stats().kernel_calls == 2 and not caesura.stats().eager_calls
    assert "Caesura" in y.grad_fn.name()


def test_a_second_backward_needs_the_graph_kept():
    y = caesura.wrap(Net())(torch.randn(3, 6)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("act", [torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.ReLU()], ids=str)
def test_an_output_that_the_backward_reads_must_not_be_changed(act):
    wrapped = caesura.wrap(torch.nn.Sequential(torch.nn.Linear(6, 4), act))
    y = wrapped(torch.randn(3, 6))
    loss = (y * 2).sum()
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_output_changed_under_autograd():
    module = Net()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(3, 6)
    change = lambda y: y.mul_(3).square().sum()  # noqa: E731
    _, expected = gradients(module, x, loss=change)
    _, actual = gradients(wrapped, x, loss=change)
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-5)


def test_a_weight_changed_before_the_backward_is_an_error():
    wrapped = caesura.wrap(Net())
    y = wrapped(torch.randn(3, 6)).sum()
    with torch.no_grad():
        wrapped.last.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_several_outputs_some_of_them_unused_or_without_gradients():
    class Many(Net):
        def forward(self, x):
            y = super().forward(x)
            return y, y.argmax(-1), y.transpose(0, 1) * 2, x.detach() + 1

    module = Many()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(3, 6)
    for pick in (lambda out: out[0].square().sum(), lambda out: out[2].square().sum(), lambda out: out[0].sum() + out[2].sum()):
        expected, actual = gradients(module, x, loss=pick), gradients(wrapped, x, loss=pick)
        for name, gradient in expected[1].items():
            torch.testing.assert_close(actual[1][name], gradient, rtol=1e-4, atol=1e-5)
    out = wrapped(x)
    assert [o.requires_grad for o in out] == [True, False, True, False]
    assert torch.equal(out[1], module(x)[1])


def test_each_output_has_parameters_of_its_own():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

        def forward(self, x):
            return self.first(x).tanh(), self.second(x).tanh()

    module, x = Two(), torch.randn(4, 3)
    wrapped = caesura.wrap(module)
    for chosen, other in (1, module.first), (0, module.second):
        module.zero_grad()
        wrapped(x)[chosen].sum().backward()
        found = {name: p.grad for name, p in module.named_parameters()}
        assert other.weight.grad is None and other.bias.grad is None
        module.zero_grad()
        module(x)[chosen].sum().backward()
        for name, p in module.named_parameters():
            assert (p.grad is None) == (found[name] is None), name
            assert p.grad is None or torch.allclose(p.grad, found[name], atol=1e-6), name


def test_saved_tensors_go_through_the_users_hooks():
    module = Net()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(3, 6)
    _, expected = gradients(module, x)
    packed = []

    def pack(tensor):
        packed.append(tensor.numel())
        return tensor.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        _, actual = gradients(wrapped, x)
    assert packed
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_way_past_dynamos_callback_is_taken_and_left():
    class Scaled(Net):
        factor = 1.0

        def forward(self, x, twice=False):
            self.seen = getattr(self, "seen", 0) + 1
            y = super().forward(x) * self.factor
            return y * 2 if twice else y

    module = Scaled()
    wrapped = caesura.wrap(module)
    calls = type(wrapped)._calls
    x = torch.randn(3, 6)
    for turn in range(6):
        module.factor = 1.0 + (turn > 2)
        for twice in (False, True):
            torch.testing.assert_close(wrapped(x, twice=twice), Net.forward(module, x) * module.factor * (1 + twice))
    assert module.seen == 12 and len(calls.captures) >= 2
    torch._dynamo.reset()
    torch.testing.assert_close(wrapped(x), Net.forward(module, x) * 2)
    with torch.no_grad():
        assert not wrapped(x).requires_grad
    with torch.compiler.set_stance("force_eager"):
        before = caesura.stats().kernel_calls
        wrapped(x)
        assert caesura.stats().kernel_calls == before


def test_inside_of_another_compiled_function():
    module = Net()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(3, 6)
    outer = torch.compile(lambda v: wrapped(v) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), module(x) + 1, rtol=1e-4, atol=1e-5)


def test_a_graph_break_in_the_middle():
    class Breaks(Net):
        def forward(self, x):
            y = self.act(self.first(x))
            torch._dynamo.graph_break()
            return self.last(self.norm(y))

    module = Breaks()
    wrapped, x = caesura.wrap(copy.deepcopy(module)), torch.randn(3, 6)
    with caesura.strict(False), pytest.warns(caesura.FallbackWarning, match="graph break"):
        for _ in range(3):
            expected, actual = gradients(module, x), gradients(wrapped, x)
            for name, gradient in expected[1].items():
                torch.testing.assert_close(actual[1][name], gradient, rtol=1e-4, atol=1e-5)
    assert caesura.stats().kernel_calls == 12  # two parts, forward and backward, three times


def test_forward_mode_derivatives_are_refused():
    wrapped, x = caesura.wrap(Net()), torch.randn(3, 6)
    wrapped(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(3, 6))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            wrapped(dual)


def test_backwards_in_another_thread():
    wrapped, x = caesura.wrap(Net()), torch.randn(3, 6)
    _, expected = gradients(wrapped, x)
    wrapped.zero_grad()
    loss = wrapped(x).float().square().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    for name, p in wrapped.named_parameters():
        torch.testing.assert_close(p.grad, expected[name])


@pytest.mark.parametrize("call, x", [
    (lambda x: x @ x, torch.arange(9, dtype=torch.int8).view(3, 3)),            # ONNX's MatMul does not take it
    (lambda x: x.amax(0), torch.arange(6, dtype=torch.int16).view(2, 3)),
    (lambda x: x.scatter_add(0, torch.zeros(1, 3, dtype=torch.int64), x), torch.ones(2, 3, dtype=torch.bool)),  # no kernel
    (lambda x: torch.cat([x, x]), torch.ones(2, 2).to(torch.float8_e4m3fn)),    # we have no such tensor
], ids=["matmul", "amax", "scatter", "float8"])
def test_calls_on_dtypes_without_a_kernel_stay_with_pytorch(call, x):
    def function(x, y):
        return call(x), y.sin() * 2

    y = torch.randn(3)
    caesura.reports.reset()
    with caesura.strict(False), pytest.warns(caesura.FallbackWarning):
        ours = torch.compile(function, backend="caesura")(x, y)
    theirs = function(x, y)
    assert ours[0].dtype == theirs[0].dtype and torch.equal(ours[0].float(), theirs[0].float())
    torch.testing.assert_close(ours[1], theirs[1])
    assert caesura.stats().kernel_calls == 1 and caesura.stats().eager_calls == 1 and len(caesura.stats().fallbacks) == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="strict: this would be left to PyTorch"):
        torch.compile(function, backend="caesura")(x, y)


class Attention(torch.nn.Module):
    """Queries, keys and values are transposed parts of one product; the values are also an output."""

    def __init__(self, separate):
        super().__init__()
        self.qkv, self.out, self.separate = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16), separate

    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], 4, 4).transpose(1, 2) for part in self.qkv(x).split(16, dim=-1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(x.shape))
        return (y, v) if self.separate else y


@pytest.mark.parametrize("separate", [False, True])
def test_parts_of_a_product_are_not_copied_for_the_backward(separate):
    module, x, made = Attention(separate), torch.randn(2, 8, 16, requires_grad=True), []
    wrapped = caesura.wrap(module)

    for net in (module, wrapped, wrapped):
        module.zero_grad()
        x.grad = None
        ys = net(x) if separate else [net(x)]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.autograd.backward(ys, [torch.full_like(y, 0.5) for y in ys])
        made.append(({e.key for e in profile.key_averages()}, [x.grad, *(p.grad for p in module.parameters())]))
    for actual, expected in zip(made[2][1], made[0][1]):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert "CaesuraBackward" in made[2][0]
    if not separate:  # else the gradient of the values is strided
        assert not {"aten::clone", "aten::copy_"} & made[2][0]


def test_pytorchs_profiler_shows_the_ops():
    module, x = Attention(False), torch.randn(2, 8, 16)
    wrapped = caesura.wrap(module)
    wrapped(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        wrapped(x).sum().backward()
    calls = {e.key: e.count for e in profile.key_averages()}
    assert calls["caesura::AttentionTraining"] == calls["caesura::AttentionGrad"] == 1
    spans = {e.name: e.time_range for e in profile.events()}
    outer, inner = spans["CaesuraBackward"], spans["caesura::AttentionGrad"]
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_part_that_is_handed_out_and_changed():
    """The gradient stays right, or backward raises an error."""
    module, x = Attention(True), torch.randn(2, 8, 16)
    _, expected = gradients(module, x, loss=lambda ys: ys[0].square().sum())
    module.zero_grad()
    y, v = caesura.wrap(module)(x)
    loss = y.square().sum()
    with torch.no_grad():
        v.mul_(2)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)
