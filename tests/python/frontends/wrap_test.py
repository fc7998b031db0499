# SPDX-License-Identifier: Apache-2.0
"""caesura.wrap and the torch.compile backend beside eager PyTorch."""

import copy
import dataclasses
import gc
import threading

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()
    with caesura.strict():
        yield


def gradients(module, *args, loss=lambda y: y.float().square().sum(), **kwargs):
    """(loss, gradients by name) of one forward and backward."""
    module.zero_grad()
    value = loss(module(*args, **kwargs))
    value.backward()
    return value.detach(), {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def check(module, *args, rtol=1e-4, **kwargs):
    """Loss and gradients of a wrapped copy equal those of the module; gives the wrapped copy."""
    wrapped = caesura.wrap(copy.deepcopy(module))
    loss, expected = gradients(module, *args, **kwargs)
    given, actual = gradients(wrapped, *args, **kwargs)
    torch.testing.assert_close(given, loss, rtol=rtol, atol=1e-6)
    largest = max((g.abs().max().item() for g in expected.values() if g is not None), default=0)
    for name, gradient in expected.items():
        if gradient is None:
            assert actual[name] is None, name
        else:
            torch.testing.assert_close(actual[name], gradient, rtol=rtol, atol=1e-6 * max(1.0, largest), msg=lambda m: f"{name}: {m}")
    return wrapped


class Net(torch.nn.Module):
    def __init__(self, act=torch.nn.GELU()):
        super().__init__()
        self.first, self.act = torch.nn.Linear(6, 16), act
        self.norm, self.last = torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.norm(self.act(self.first(x))))


@pytest.mark.parametrize("act", [torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.ReLU(), torch.nn.SiLU(), torch.nn.Tanh(),
                                 torch.nn.Sigmoid(), torch.nn.ELU(), torch.nn.LeakyReLU(), torch.nn.Hardswish(),
                                 torch.nn.Softplus(), torch.nn.Mish(), torch.nn.ReLU6(), torch.nn.Hardsigmoid()], ids=str)
def test_activations(act):
    check(Net(act), torch.randn(5, 6))


def test_slopes_that_are_drawn_in_training_alone():
    net, x = Net(torch.nn.RReLU()).eval(), torch.randn(5, 6)
    with caesura.strict():
        torch.testing.assert_close(caesura.wrap(copy.deepcopy(net))(x), net(x))


def test_three_axes():
    check(Net(), torch.randn(2, 5, 6))


def test_float64():
    check(Net().double(), torch.randn(5, 6, dtype=torch.float64), rtol=1e-10)


@pytest.mark.parametrize("kwargs", [{}, {"groups": 2}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"bias": False}], ids=str)
def test_convolution(kwargs):
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 6, 3, **kwargs), torch.nn.ReLU(), torch.nn.AvgPool2d(2))
    check(module, torch.randn(2, 4, 10, 10))


def test_transposed_convolution():
    check(torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), torch.randn(2, 4, 5, 5))


def test_max_pool():
    check(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(3, 2, 1)), torch.randn(2, 3, 9, 9))


def test_batch_norm_writes_its_statistics():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    wrapped = check(module, torch.randn(2, 3, 6, 6))
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(dict(wrapped.named_buffers())[name], buffer)
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(wrapped.eval()(x), module.eval()(x), rtol=1e-4, atol=1e-5)


def test_attention():
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

        def forward(self, x, causal=True, mask=None):
            q, k, v = self.qkv(x).view(2, 7, 3, 4, 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            return self.out(y.transpose(1, 2).reshape(2, 7, 16))

    x = torch.randn(2, 7, 16)
    check(Attention(), x)
    check(Attention(), x, causal=False)
    check(Attention(), x, causal=False, mask=torch.randn(2, 1, 7, 7))
    check(Attention(), x, causal=False, mask=torch.rand(2, 4, 7, 7) > 0.3)


def test_embedding_and_cross_entropy():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(11, 8, padding_idx=3), torch.nn.Linear(8, 11)

        def forward(self, ids, targets):
            return F.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), targets.flatten())

    ids, targets = torch.randint(0, 11, (3, 5)), torch.randint(0, 11, (3, 5))
    targets[0, :3] = -100
    check(Model(), ids, targets, loss=lambda loss: loss)


# --- what a module is to its users ----------------------------------------------------------------------------

@dataclasses.dataclass
class Output:
    scores: torch.Tensor
    rest: dict


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, pair, *, scale=None, flag=True):
        y = self.net(pair[0]) + (pair[1]["b"] if flag else 0)
        return Output(y if scale is None else y * scale, {"sum": y.sum(), "text": "as it is"})


def test_nested_optional_and_keyword_arguments():
    module = Nested()
    pair = (torch.randn(3, 6), {"b": torch.randn(4)})
    for kwargs in ({}, {"scale": torch.tensor(2.0)}, {"scale": 0.5}, {"flag": False}):
        wrapped = check(module, pair, loss=lambda out: out.scores.square().sum() + out.rest["sum"], **kwargs)
    assert isinstance(wrapped(pair), Output) and wrapped(pair).rest["text"] == "as it is"


def test_a_wrapped_module_is_its_original():
    module = Net()
    wrapped = caesura.wrap(module)
    assert isinstance(wrapped, Net) and isinstance(wrapped, torch.nn.Module)
    assert list(wrapped.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(wrapped.parameters(), module.parameters()))
    assert not wrapped.eval().training and not module.training
    assert caesura.wrap(wrapped) is wrapped
    x = torch.randn(2, 6)
    with torch.no_grad():
        module.last.weight.zero_()
    torch.testing.assert_close(wrapped(x), module(x))


def test_state_dict_goes_through_a_file(tmp_path):
    wrapped = caesura.wrap(Net())
    torch.save(wrapped.state_dict(), tmp_path / "net.pt")
    other = Net()
    other.load_state_dict(torch.load(tmp_path / "net.pt"))
    x = torch.randn(2, 6)
    torch.testing.assert_close(other(x), wrapped(x), rtol=1e-4, atol=1e-6)


def test_deepcopy_is_wrapped_and_apart():
    wrapped = caesura.wrap(Net())
    other = copy.deepcopy(wrapped)
    with torch.no_grad():
        other.last.bias.add_(1)
    x = torch.randn(2, 6)
    torch.testing.assert_close(other(x), wrapped(x) + 1)
    assert caesura.stats().kernel_calls == 2


def test_frozen_and_tied_parameters():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9, bias=False)
            self.head.weight = self.embed.weight
            self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)

        def forward(self, ids):
            return self.head(self.frozen(self.embed(ids)))

    wrapped = check(Tied(), torch.randint(0, 9, (2, 4)))
    assert wrapped.frozen.weight.grad is None and wrapped.head.weight is wrapped.embed.weight


def test_gradients_of_inputs():
    module = Net()
    wrapped = caesura.wrap(module)
    x = torch.randn(3, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(module(x).square().sum(), x)
    (actual,) = torch.autograd.grad(wrapped(x).square().sum(), x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_hooks_run():
    wrapped, seen = caesura.wrap(Net()), []
    wrapped.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    wrapped(torch.randn(2, 6))
    assert seen == [(2, 4)]


def test_train_and_eval_are_noticed():
    module = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Dropout(0.5))
    wrapped = caesura.wrap(module)
    x = torch.randn(4, 6)
    torch.testing.assert_close(wrapped.eval()(x), module(x), rtol=1e-4, atol=1e-6)


def test_changed_attributes_are_noticed():
    class Scaled(torch.nn.Module):
        factor = 1.0

        def forward(self, x):
            return x * self.factor

    wrapped, x = caesura.wrap(Scaled()), torch.ones(3)
    assert wrapped(x).tolist() == [1, 1, 1]
    wrapped.factor = 3.0
    assert wrapped(x).tolist() == [3, 3, 3]


def test_shapes_and_dtypes_change():
    module = Net()
    wrapped = caesura.wrap(module)
    for rows in (2, 3, 7, 2, 1):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-4, atol=1e-5)
    x = torch.randn(2, 6, dtype=torch.float64)
    torch.testing.assert_close(wrapped.double()(x), module(x))


def test_no_grad():
    wrapped = caesura.wrap(Net())
    with torch.no_grad():
        assert not wrapped(torch.randn(2, 6)).requires_grad
    assert wrapped(torch.randn(2, 6)).requires_grad


# --- autograd ---------------------------------------------------------------------------------------------------

def test_several_forwards_before_the_backwards():
    module = Net()
    wrapped = caesura.wrap(module)
    xs = [torch.randn(n, 6) for n in (2, 3, 4)]
    expected = [torch.autograd.grad(module(x).square().sum(), list(module.parameters())) for x in xs]
    outputs = [wrapped(x).square().sum() for x in xs]
    for output, want in reversed(list(zip(outputs, expected))):
        for actual, gradient in zip(torch.autograd.grad(output, list(wrapped.parameters())), want):
            torch.testing.assert_close(actual, gradient, rtol=1e-4, atol=1e-5)


def test_retain_graph_gives_the_same_bits():
    wrapped = caesura.wrap(Net())
    loss = wrapped(torch.randn(3, 6)).square().sum()
    first = torch.autograd.grad(loss, list(wrapped.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(wrapped.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_gradients_accumulate():
    module = Net()
    wrapped = caesura.wrap(copy.deepcopy(module))
    for net in (module, wrapped):
        for seed in range(3):
            torch.manual_seed(seed)
            net(torch.randn(2, 6)).square().sum().backward()
    for a, b in zip(wrapped.parameters(), module.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_an_output_overwritten_before_the_backward():
    module, wrapped = Net(), None
    wrapped = caesura.wrap(copy.deepcopy(module))
    x = torch.randn(3, 6)
    def step(net):
        y = net(x)
        loss = (y * 2).sum()
        y.detach().zero_()
        loss.backward()
        return [p.grad for p in net.parameters()]
    for a, b in zip(step(wrapped), step(module)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_autograd_function_of_the_users_own():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy * 10  # the user's own gradient, not the derivative

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return Double.apply(self.net(x))

    check(Module(), torch.randn(3, 6))


def test_activation_checkpointing():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)

    check(Module(), torch.randn(3, 6))


def test_autocast_to_bfloat16():
    module = Net()
    wrapped = caesura.wrap(module)
    x = torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        expected, actual = module(x), wrapped(x)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits


def test_dropout_repeats_under_a_seed():
    with_dropout = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.5))
    wrapped = caesura.wrap(with_dropout)
    x = torch.randn(8, 6)
    wrapped(x)
    torch.manual_seed(5)
    first, second = wrapped(x), wrapped(x)
    torch.manual_seed(5)
    again = wrapped(x)
    assert torch.equal(first, again) and not torch.equal(first, second)




# --- weights that others change without a notice ----------------------------------------------------------------

@pytest.mark.parametrize("write", [
    lambda p: p.data.mul_(0.5),
    lambda p: p.detach().numpy().__imul__(0.5),
    lambda p: torch.from_dlpack(p.detach()).mul_(0.5),
    lambda p: torch.optim.AdamW([p], lr=0.1, fused=True).step(),
    lambda p: torch.optim.SGD([p], lr=0.1, foreach=True).step(),
], ids=["data", "numpy", "dlpack", "fused", "foreach"])
def test_no_stale_weights(write):
    module = Net()
    wrapped, x = caesura.wrap(module), torch.randn(3, 6)
    for _ in range(3):
        gradients(wrapped, x)
        for p in module.parameters():
            write(p)
        torch.testing.assert_close(wrapped(x), module(x), rtol=1e-4, atol=1e-5)


# --- calls that stay with PyTorch -------------------------------------------------------------------------------

class Cummax(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x).cummax(0).values * 2


def test_fallback_is_loud_once_and_right():
    with caesura.strict(False):
        with pytest.warns(caesura.FallbackWarning, match="cummax"):
            check(Cummax(), torch.randn(5, 6))
    (op, reason), = [key for key in caesura.stats().fallbacks if "cummax" in key[0]]
    assert "no equivalent" in reason and caesura.stats().eager_calls > 0
    assert 0 < caesura.stats().kernel_share < 1


def test_strict_forbids_fallback():
    with pytest.raises(Exception, match="cummax.*wrap_test.py"):
        caesura.wrap(Cummax())(torch.randn(5, 6))


def test_backend_by_name():
    module = Net()
    compiled, x = torch.compile(module, backend="caesura"), torch.randn(3, 6)
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-6)
    assert caesura.stats().kernel_calls > 0


def test_backend_that_is_the_default():
    module, x = Net(), torch.randn(3, 6)
    torch.compiler.set_default_backend("caesura")
    try:
        compiled = torch.compile(module)
    finally:
        torch.compiler.set_default_backend(None)
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-6)
    assert caesura.stats().kernel_calls > 0


def test_wrap_takes_modules_alone():
    with pytest.raises(TypeError, match="torch.nn.Module, got function"):
        caesura.wrap(lambda x: x)


# --- lifetimes --------------------------------------------------------------------------------------------------

def test_outputs_outlive_their_module():
    wrapped = caesura.wrap(Net())
    y = wrapped(torch.randn(3, 6))
    kept = y.detach().clone()
    del wrapped
    torch._dynamo.reset()
    gc.collect()
    assert torch.equal(y.detach(), kept)
    y.sum().backward()


def test_an_exception_between_forward_and_backward():
    wrapped, x = caesura.wrap(Net()), torch.randn(3, 6)
    _, expected = gradients(wrapped, x)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="mid-step"):
            wrapped(x)
            raise RuntimeError("mid-step")
    _, actual = gradients(wrapped, x)
    assert all(torch.equal(actual[n], expected[n]) for n in expected)


def test_two_threads_train_two_modules():
    modules = [Net(), Net()]
    wrapped = [caesura.wrap(copy.deepcopy(m)) for m in modules]
    x = torch.randn(4, 6)
    expected = [gradients(m, x)[1] for m in modules]
    for w in wrapped:
        w(x)  # captured one after the other; dynamo has one lock
    results, errors = [None, None], []

    def train(i):
        try:
            for _ in range(20):
                results[i] = gradients(wrapped[i], x)[1]
        except Exception as error:  # noqa: BLE001 - carried to the main thread
            errors.append(error)

    threads = [threading.Thread(target=train, args=(i,)) for i in (0, 1)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not errors
    for result, want in zip(results, expected):
        for name in want:
            torch.testing.assert_close(result[name], want[name], rtol=1e-4, atol=1e-5)


def test_no_tensor_is_left_behind():
    wrapped, x = caesura.wrap(Net()), torch.randn(3, 6)
    def live():
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
    for _ in range(3):
        gradients(wrapped, x)
    before = live()
    for _ in range(20):
        gradients(wrapped, x)
    assert live() <= before  # leftovers of the capture may be freed meanwhile


def test_ortmodule_by_another_import():
    from caesura.ortmodule import ORTModule

    module = Net()
    x = torch.randn(3, 6)
    torch.testing.assert_close(ORTModule(module)(x), module(x), rtol=1e-4, atol=1e-6)
