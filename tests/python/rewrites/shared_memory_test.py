# SPDX-License-Identifier: Apache-2.0
"""compile_step of writes to tensors that share memory and not gradients (detach, .data, no_grad): all that a step leaves is
eager's, in float64."""

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from compile_step_edges_test import data, eager_step, make, steps_as_eager  # noqa: E402

F = torch.nn.functional
CASES = {}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def case(forward):
    CASES[forward.__name__.replace("_", " ")] = forward


@case
def adapter_on_detached(m, x):
    h = m.a(x).detach()
    h += m.b(x)
    return h


@case
def adapter_on_frozen(m, x):
    with torch.no_grad():
        h = m.a(x)
    h += m.b(x)
    return h


@case
def detached_copy(m, x):
    y = m.a(x)
    y.detach().copy_(x * m.b.weight[0])
    return y


@case
def data_copy(m, x):
    y = m.a(x)
    y.data.copy_(x * m.b.weight[0])
    return m.b(y)


@case
def detached_row(m, x):
    y = m.a(x)
    y.detach()[0] = m.b(x)[1]
    return y * 2


@case
def new_and_detached(m, x):
    z = torch.zeros_like(x)
    d = z.detach()
    d.copy_(m.a(x))
    return d + z * m.b(x)


@case
def detached_before_the_write(m, x):
    z = torch.zeros_like(x)
    d = z.detach()
    z.copy_(m.a(x))
    return d * m.b(x) + z


@case
def scaled_data(m, x):
    y = m.a(x)
    y.data.mul_(2)
    return m.b(y)


@case
def two_detached(m, x):
    y = m.a(x)
    b, c = y.detach(), y.data
    b.add_(1)
    c[0] = m.b(x)[0]
    return m.b(y) + b + c


@case
def detached_twice(m, x):
    y = m.a(x)
    b = y.detach()
    c = b.detach()
    c.add_(m.b(x))
    return y + b + c


@case
def detached_view(m, x):
    y = m.a(x)
    v = y[1:3]
    b = v.detach()
    b.mul_(3)
    return m.b(y) + v.sum(0) + b.sum(0)


@case
def view_of_detached(m, x):
    y = m.a(x)
    b = y.detach().t()
    b[0].copy_(m.b(x)[:, 1])
    return y + b.t() * m.b(x)


@case
def part_of_data(m, x):
    y = torch.cat([m.a(x), m.b(x)])
    p, q = y.data.chunk(2)
    p.add_(1)
    return y[:4] * q


@case
def detached_buffer(m, x):
    k = m.kept.detach()
    m.kept.detach().copy_(m.a(x).mean(0))
    return m.b(x) * m.kept + k


@case
def data_of_a_buffer(m, x):
    m.kept.data.mul_(0.5)
    return m.b(x) * m.kept


@case
def lists(m, x):
    a, b = torch.zeros_like(x), m.a(x).detach()
    torch._foreach_add_([a, b], [m.a(x), m.b(x)])
    torch._foreach_mul_([a, b], 2)
    return a * b


@case
def lists_of_each_other(m, x):
    a, b = m.a(x), x.sin()
    torch._foreach_add_([a, b], [b, a])
    torch._foreach_lerp_([a], [b], 0.5)
    return torch._foreach_mul([a, m.b(a) * b], [2.0, 3.0])[1]


@case
def out(m, x):
    o = torch.empty_like(x)
    with torch.no_grad():
        torch.mul(m.a(x), 2, out=o)
    return m.b(o)


@case
def masks(m, x):
    h = m.a(x).detach()
    before = h * 2
    h[x > 0] = 1
    h.masked_fill_(x < -1, 0.0)
    return m.b(h) + before


@case
def in_place_detach(m, x):
    h = m.a(x).detach_()
    h += m.b(x)
    return h


@case
def in_place_detach_of_what_is_read(m, x):
    y = m.a(x)
    z, h = y * 2, y.sin()
    before = h * 3
    h.detach_()
    after = h * 4
    h[0] = z.mean()
    return before + after + h


@case
def views_under_no_grad_of_what_was_written(m, x):
    y = x.sin()
    y.copy_(m.a(x))
    with torch.no_grad():
        v = y.view_as(y)
    return v.reshape(-1)[:3] * 2 + y


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


@case
def a_leaf_of_what_was_written(m, x):
    y = torch.ones_like(x)
    y[0] = m.b(x)[0]  # no gradient reaches it, and no decay
    return y.detach().requires_grad_() + Twice.apply(m.a(x))


@case
def gradients_within_no_grad(m, x):
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            h += m.b(x)
        g = h * 2
    return h + g


@case
def rows(m, x):
    h = m.a(x).detach()
    for i in range(4):
        h[i].mul_(i)
        h[i] += m.b(x)[i]
    return h


@case
def views_under_no_grad(m, x):
    y = m.a(x)
    with torch.no_grad():
        v, w = y.view(-1)[:3], m.a.weight.t()
    return y + v * m.b(x) + x @ w


@case
def shapes(m, x):
    y = m.a(x)
    y.unsqueeze_(0)
    z = y * y.shape[0] + y.dim()
    y.squeeze_(0).t_()
    return z[0] + y.mT * y.shape[0] * torch.linspace(0, 1, y.shape[1])[:, None]


@case
def scaled_under_no_grad(m, x):
    y = m.a(x)
    with torch.no_grad():
        y.mul_(0.5)
    return m.b(y)


@case
def a_row_under_no_grad(m, x):
    y = m.a(x)
    v = y[1:]
    with torch.no_grad():
        y[0].mul_(2)
        v[0] = m.b(x)[1]
        y[x > 0] = 1
    return m.b(y) * 2 + v.sum(0)


@case
def views_under_no_grad_that_are_written(m, x):
    y = m.a(x)
    z = y * 3
    with torch.no_grad():
        v = y.t()[1]
        before = v * 2
        v.mul_(0.5)
        after = v.sin() + v.view(-1)
    return y * z + before.sum() + after.sum()


@case
def lists_under_no_grad(m, x):
    y, z = m.a(x), m.b(x)
    with torch.no_grad():
        torch._foreach_add_([y, z], [z, y])
    return y + z.t().mean()


@case
def a_detached_tensor_after_no_grad(m, x):
    y = m.a(x)
    d = y.detach()
    with torch.no_grad():
        y.add_(1)
        d[0] = 2
    return m.b(y) + d


@case
def an_alias_is_transposed_in_place(m, x):
    y = m.a(x)
    y.detach().t_()
    y.data[None].squeeze_(0).unsqueeze_(0)
    return y * y


@case
def a_part_that_is_detached_after_another_was_written(m, x):
    y = m.a(x)
    first, last = y.tensor_split(2)
    first.mul_(2)
    last.detach()
    return torch.cat([first, last * m.b.weight[0, 0]])


@case
def a_view_whose_part_is_written_before_its_data(m, x):
    y = m.a(x[None])
    y[:, :1].zero_()
    y.data.mul_(2)
    return y[0]


@case
def detached_after_a_checkpoint(m, x):
    d = torch.utils.checkpoint.checkpoint(lambda t: t.sin(), m.a(x), use_reentrant=False).detach()  # m.a has no gradient
    d.add_(m.b(x))
    return d


@case
def scaled_by_a_parameter_under_no_grad(m, x):
    y = Twice.apply(m.a(x))
    with torch.no_grad():
        y.mul_(m.b(x))  # m.b has no gradient
    return y


@case
def detached_in_place_under_another_name(m, x):
    y = m.a(x)
    z = y.mul_(2)
    y.detach_()
    return z + m.b(x)


@case
def recorded_in_inference_mode(m, x):
    with torch.inference_mode(), torch.enable_grad():
        y = m.a(x)
    return m.b(x) + y


@case
def recorded_in_inference_mode_beside_a_write(m, x):
    with torch.inference_mode(), torch.enable_grad():
        y = m.a(x)
    return (m.b(x) + y).mul_(2)


@case
def scaled_by_a_parameter(m, x):
    y = Twice.apply(m.a(x))
    y.mul_(m.b(x))
    return y


@pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
def test_writes_reach_what_shares_the_memory(forward):
    steps_as_eager(forward)


class Overwritten(torch.nn.Module):
    """Infinite derivatives, of values that nothing reads any more: eager multiplies them by zeros."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Parameter(torch.zeros(2)) for _ in range(4))

    def forward(self, x):
        y, z, v, w = (p.log() for p in (self.a, self.b, self.c, self.d))
        y.copy_(x)
        z.zero_()
        v[...] = x * 2
        w.add_(1)
        w.normal_()
        return y + z + v + w


def test_overwritten_values_get_a_gradient_of_zeros():
    plain, ours = Overwritten(), Overwritten()
    torch.manual_seed(0)
    plain(torch.ones(2)).sum().backward()
    step = caesura.compile_step(ours, lambda y, _: y.sum(), torch.optim.SGD(ours.parameters(), lr=1.0))
    torch.manual_seed(0)
    step(torch.ones(2), torch.ones(2))
    for p, q in zip(plain.parameters(), ours.parameters(), strict=True):
        assert p.grad.isnan().all() and q.isnan().all()


def test_overwritten_values_in_a_forward_that_takes_gradients_are_refused():
    def forward(m, x):
        y = m.a(x)
        y.zero_()
        return y + torch.autograd.grad((m.b(x) ** 2).sum(), m.b.weight, create_graph=True)[0].sum()

    module = make(forward)
    step = caesura.compile_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=r"zero_ replaces values that get a gradient of zeros.* in forward\)"):
        step(*data(1)[0])


def test_lists_of_one_tensor_in_torch_compile():
    """torch.compile has the stand-ins that wrap and compile_step have."""
    def run(x):
        y, z = x * 2, x.sin()
        torch._foreach_add_([y, y], [y, y])
        torch._foreach_add_([y, z], [z, y])
        return y, z

    x = torch.randn(3)
    for found, expected in zip(torch.compile(run, backend="caesura", fullgraph=True)(x), run(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_shape_that_changes_between_a_read_and_a_write_is_refused():
    def forward(m, x):
        y = m.a(x)
        z = y + x
        y.t_()
        z[0].zero_()
        return z

    module = make(forward)
    step = caesura.compile_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=r"add is not followed .* in forward\)"):
        step(*data(1)[0])


# --- what eager's backward refuses -----------------------------------------------------------------------------------

def written_after(m, x):
    y = m.a(x).exp()
    y.add_(1)
    return y


def written_through_detach(m, x):
    y = m.a(x).exp()
    y.detach().mul_(2)
    return y


def view_written_after(m, x):
    y = m.a(x)
    z = y[0] * y[0]
    y.add_(1)
    return y + z


@pytest.mark.parametrize("forward", [written_after, written_through_detach, view_written_after], ids=lambda f: f.__name__)
def test_raises_where_eagers_backward_does(forward):
    module, (x, target) = make(forward), data(1)[0]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    before = [p.clone() for p in module.parameters()]
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as expected:
        eager_step(module, optimizer, x, target)
    with pytest.raises(RuntimeError) as found:
        caesura.compile_step(module, F.mse_loss, optimizer)(x, target)
    said = [str(error.value).split(", which")[0] for error in (found, expected)]
    assert said[0] == said[1] and type(found.value) is type(expected.value)
    assert all(map(torch.equal, before, module.parameters()))
