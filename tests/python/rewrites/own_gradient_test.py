# SPDX-License-Identifier: Apache-2.0
"""autograd.Functions in compiled steps use the gradients that they define, as in eager."""

import copy

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from compile_step_test import Net, batches, eager, fresh, same  # noqa: E402, F401


class Tenfold(torch.autograd.Function):
    """Returns its input; its gradient is ten times the identity's."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy * 10


class Scaled(torch.autograd.Function):
    """Has several results, some without a gradient, number arguments, and saves results and inputs."""

    @staticmethod
    def forward(ctx, x, w, n, unused=None):
        y = (x * w).tanh() / n
        places = (y > 0).long()
        ctx.save_for_backward(x, w, y, places)
        ctx.n = n
        ctx.mark_non_differentiable(places)
        return y, places, x.mean()

    @staticmethod
    def backward(ctx, dy, dplaces, dmean):
        x, w, y, places = ctx.saved_tensors
        dy = dy * (1 - (y * ctx.n).square()) / ctx.n * (1 + places)
        dw = (dy * x).sum(0) if ctx.needs_input_grad[1] else None
        return dy * w + dmean / 7, dw, None, None


class Sorted(torch.autograd.Function):
    """Its backward calls an op without an ONNX equivalent, and uses its own table."""

    @staticmethod
    def forward(ctx, x):
        values, order = x.sort(-1)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx, dy):
        (order,) = ctx.saved_tensors
        weights = torch.tensor([1.0, 2.0, 0.5, 3.0]).to(dy)
        return torch.zeros_like(dy).scatter(-1, order, dy * weights) + 0 * dy.sort(-1).values


class Signs(torch.autograd.Function):
    """Uses setup_context. The gradient of a sum over the batch is repeated for each row."""

    @staticmethod
    def forward(x, bias):
        return x.sign() + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * (x.abs() < 1), dy.sum(0)


class Uses(Net):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.use(super().forward(x))


class UsesTenfold(Uses):
    def use(self, y):
        return Tenfold.apply(y) + Tenfold.apply(y * self.scale).detach() * y


class UsesScaled(Uses):
    def use(self, y):
        y, places, mean = Scaled.apply(y, self.scale, 3)
        return y * (2 - places) + mean * Scaled.apply(y, torch.ones(4).to(y), 2.5)[0]


class UsesSorted(Uses):
    def use(self, y):
        return Sorted.apply(y) * self.scale


class UsesSigns(Uses):
    def use(self, y):
        return Signs.apply(y, self.scale) * y


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        signs = x.sign()
        ctx.mark_non_differentiable(signs)
        return x * 2, signs

    @staticmethod
    def backward(ctx, dy, dsigns):
        return dy * 3


class WritesFixed(Uses):
    """Writes to a Function's result that has no gradient."""

    def use(self, y):
        z, signs = Marked.apply(y)
        row = signs[0]
        row.zero_()
        return z * self.scale + signs


class GivesNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x * w

    @staticmethod
    def backward(ctx, dz):
        return dz * 2, None


class UsesGivesNone(Uses):
    """A parameter that gets no gradient, and so no decay."""

    def use(self, y):
        return GivesNone.apply(y, self.scale)


class Unread(Uses):
    """Has a result without a gradient, and one that nothing reads."""

    def use(self, y):
        return y + Scaled.apply(y.detach(), self.scale.detach(), 3)[0] + Scaled.apply(y, self.scale, 1)[2]


class Hooked(Uses):
    """Has hooks on tensors: one changes the gradient by a value of the forward, one only reads it, one is on a checkpoint's result."""

    def use(self, y):
        scale = self.scale.mean()
        y.register_hook(lambda dy: (dy * scale).clamp(-0.05, 0.05))
        y.register_hook(lambda dy: None)

        def part(y):
            z = y * self.scale
            z.register_hook(lambda dz: dz * 3)
            return z
        made = torch.utils.checkpoint.checkpoint(part, y, use_reentrant=False)
        made.register_hook(lambda dy: dy * 2)
        return made * self.scale


class HookedLate(Uses):
    """Has hooks on a tensor that was written to, and read, and viewed; the second one gets what the first one gives."""

    def use(self, y):
        y.mul_(0.5)
        z, row = y.sin(), y[0]
        y.register_hook(lambda dy: dy * 2)
        y.register_hook(lambda dy: dy.clamp(-0.05, 0.05) + 0.01)
        return z + row * self.scale + y


class HookedTwice(Uses):
    """Has hooks on a tensor before and after a write to it: each one gets the gradient of the values that it was registered on."""

    def use(self, y):
        y.register_hook(lambda dy: dy * 2)
        y[y > 0.5] = 0.5
        y.register_hook(lambda dy: dy.clamp(-0.05, 0.05))
        return y * self.scale


class HookedThenWritten(Uses):
    """Writes to a part of a tensor that has a hook, and does not record it: the hook gets the gradient of the whole tensor."""

    def use(self, y):
        y.register_hook(lambda dy: dy * 2)
        with torch.no_grad():
            y[:1].zero_()
        return y * self.scale


class HookedPastWrites(Uses):
    """Has hooks on a tensor before and after writes that autograd does not record, and one that it does: the first two get the gradient
    of all that reads the tensor until the recorded write."""

    def use(self, y):
        read = (y * 3).sin() * self.scale
        y.register_hook(lambda dy: dy * 2)
        with torch.no_grad():
            y[:1].zero_()
            torch._foreach_mul_([y, y[:, 1:]], 0.5)
        with torch.inference_mode():
            y[:, :1].add_(1)
            y.register_hook(lambda dy: dy.clamp(-0.05, 0.05))
        z = (y * 2).sin()
        y[1:] += self.scale
        y.register_hook(lambda dy: dy * 3)
        y.data[:1].mul_(2)
        return read + z + y


class HookedInInference(Uses):
    """Has a hook that inference mode registers, after it computes what the hook reads."""

    def use(self, y):
        with torch.inference_mode():
            scale = self.scale.mean() * 2
            y.register_hook(lambda dy: dy * scale)
        return y * self.scale


class HookedShapes(Uses):
    """Has hooks that tell rows from columns, before and after the tensor is transposed in place."""

    def use(self, y):
        weights = torch.arange(y.numel()).view(y.shape).to(y)
        y = y * self.scale
        y.t_()
        y.register_hook(lambda dy: dy * weights.t())
        return y.t()


class KeepsCopies(Uses):
    """Writes, by a view and without recording, to a tensor with memory that it shared: its own values and gradients stay one tensor's."""

    def use(self, y):
        own = y.detach().requires_grad_()
        with torch.no_grad():
            own[:1].mul_(3)
        return own.sin() * self.scale + y


class Stopped(Uses):
    """Stops a gradient within a checkpoint."""

    def use(self, y):
        def part(y):
            with torch.no_grad():
                means = (y * self.scale).mean(0)
            return y * self.scale - means
        return torch.utils.checkpoint.checkpoint(part, y, use_reentrant=False)


class Checkpointed(UsesScaled):
    def use(self, y):
        return torch.utils.checkpoint.checkpoint(super().use, y, use_reentrant=False)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [UsesTenfold, UsesScaled, UsesSorted, UsesSigns, UsesGivesNone, WritesFixed, Unread,
                                  Checkpointed, Hooked, HookedLate, HookedTwice, HookedThenWritten, KeepsCopies,
                                  HookedPastWrites, HookedInInference, HookedShapes, Stopped])
@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_like_eager(make, dynamic):
    module = make().double()
    other, data = copy.deepcopy(module), [(x.double(), y) for x, y in batches(3) + batches(2, 7)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other)]
    expected = eager(module, optimizers[0], data)
    step = caesura.compile_step(other, F.cross_entropy, optimizers[1], dynamic=dynamic or None)
    assert [step(*batch).item() for batch in data] == pytest.approx(expected, rel=1e-9)
    same(module, other)


def hooks_a_parameter(module, y):
    module.scale.register_hook(lambda d: d * 2)


def reads_a_later_value(module, y):
    z = y * 2
    k = z.mean()
    y.register_hook(lambda d: d * k)


def writes_to_a_part(module, y):
    row = y[0]
    row.register_hook(lambda d: d * 2)
    row.mul_(2)


def writes_to_a_view(module, y):
    module.flat = y.view(-1)
    module.flat.register_hook(lambda d: d * 2)
    with torch.no_grad():
        module.flat.mul_(2)


def changes_the_shape_between(module, y):
    z = y * 2
    z.register_hook(lambda d: d * 2)
    z.t_()
    z.register_hook(lambda d: d * 3)


@pytest.mark.parametrize("use, told", [
    (hooks_a_parameter, "a hook on a parameter"), (reads_a_later_value, "reads what is computed after"),
    (writes_to_a_part, "shares memory with others and is written to"),
    (writes_to_a_view, r"register it on a clone\(\) of the tensor"),
    (changes_the_shape_between, "shape was changed in place")], ids=lambda v: getattr(v, "__name__", ""))
def test_hooks_that_a_step_refuses(use, told):
    class Used(Uses):
        def use(self, y):
            use(self, y)
            return y * self.scale

    module = Used()
    with pytest.raises(caesura.StepRefused, match=told):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.05))(*batches(1)[0])


def test_a_hook_where_there_is_no_gradient():
    class Used(Uses):
        def use(self, y):
            y.detach().register_hook(lambda d: d)
            return y

    module = Used()
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.05))(*batches(1)[0])


def test_a_hooked_tensor_that_autograd_saved_is_written_to():
    class Used(Uses):
        def use(self, y):
            y.register_hook(lambda d: d * 2)
            return y.copy_(y.sin()) * self.scale

    module = Used()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.05))(*batches(1)[0])


def test_is_not_what_autograd_would_do():
    """The step uses the Function's gradient, not the derivative of its forward."""
    module = UsesTenfold()
    plain = Net()
    plain.load_state_dict(module.state_dict(), strict=False)
    losses = {}
    for m in (module, plain):
        step = caesura.compile_step(m, F.cross_entropy, torch.optim.SGD(m.parameters(), lr=0.05))
        torch.manual_seed(3)
        losses[m] = [step(*batch).item() for batch in batches(2)]
    assert losses[module][1] != pytest.approx(losses[plain][1], rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_precision_and_budget(precision):
    """The gradients hold with products in bfloat16, and with values recomputed in the backward."""
    module = UsesScaled()
    other, data = copy.deepcopy(module), batches(4)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other)]
    expected = eager(module, optimizers[0], data)
    step = caesura.compile_step(other, F.cross_entropy, optimizers[1], precision=precision, memory_budget=3200)
    losses = [step(*batch).item() for batch in data]
    assert losses == pytest.approx(expected, rel=1e-5 if precision == "fp32" else 2e-2)


def test_exported(tmp_path):
    module, data = UsesScaled(), batches(3)
    other = copy.deepcopy(module)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (module, other)]
    expected = eager(module, optimizers[0], data)
    caesura.compile_step(other, F.cross_entropy, optimizers[1]).export(tmp_path, *data[0])
    session = caesura.TrainingSession.open(tmp_path)
    assert [session.step({"x": x.numpy(), "target": y.numpy()}) for x, y in data] == pytest.approx(expected, rel=1e-5)


class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        ctx.also = x
        return y

    @staticmethod
    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        return 2 * x * dy + 0 * y


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("write", [lambda x, y: x.mul_(2), lambda x, y: x.detach().mul_(2), lambda x, y: y.view(-1).mul_(2)],
                         ids=["argument", "detached", "result"])
def test_a_write_to_what_is_saved_is_eagers_error(write):
    class Late(Uses):
        def use(self, y):
            x = y * 1
            z = Squares.apply(x)
            write(x, z)
            return z

    module, (x, target) = Late(), batches(1)[0]
    for late in (module, caesura.wrap(copy.deepcopy(module))):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            F.cross_entropy(late(x), target).backward()
    with pytest.raises(caesura.StepRefused, match="writes to what an autograd.Function has saved"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))(x, target)


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


class Turns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1j

    @staticmethod
    def backward(ctx, dy):
        return dy * -1j


class UsesWrites(Uses):
    def use(self, y):
        return Writes.apply(y * 1)


class UsesTurns(Uses):
    def use(self, y):
        return Turns.apply(torch.complex(y, y)).real


@pytest.mark.parametrize("make, match", [(UsesWrites, "writes to its inputs"), (UsesTurns, "of complex numbers")])
def test_refusals(make, match):
    module = make()
    before = copy.deepcopy(module.state_dict())
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=f"an autograd.Function .*{match}"):
        step(*batches(1)[0])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))
