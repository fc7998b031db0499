# SPDX-License-Identifier: Apache-2.0
"""Outputs of a wrapped module that are views of one tensor, of an input or of a parameter share its memory, as in eager."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402

VIEWS = {
    "split": lambda y: y.split(2, 1), "split by sizes": lambda y: y.split([1, 3], 1), "chunk": lambda y: y.chunk(2, 1),
    "unbind": lambda y: y.unbind(0), "tensor_split": lambda y: y.tensor_split(3, 1), "unsafe_split": lambda y: torch.unsafe_split(y, 2, 1),
    "views of parts": lambda y: [part.t()[:1] for part in y.split(2, 1)], "one part": lambda y: y.split(2, 1)[1:],
    "parts of views": lambda y: y.t()[1:].unbind(1), "diagonal": lambda y: [y.diagonal()], "unfold": lambda y: [y.unfold(1, 2, 1)],
    "as_strided": lambda y: [y.as_strided((2, 2), (1, 1)), y.as_strided((12,), (1,))], "slice": lambda y: [y[1:, ::2], y[0]],
    "reshape": lambda y: [y.flatten(), y.view(2, 6), y.expand(2, 3, 4)], "bits": lambda y: [y.detach().view(torch.int32)],
}
BASES = {"result": lambda self, x: torch.tanh(self.last(x)), "argument": lambda self, x: x, "parameter": lambda self, x: self.table,
         "channels last": lambda self, x: self.conv(x.view(1, 2, 2, 3).to(memory_format=torch.channels_last))}


class Viewing(nn.Module):
    """Returns views of one tensor for each kind of view, with that tensor before or after them, or without it."""

    def __init__(self, base, views):
        super().__init__()
        torch.manual_seed(0)
        self.base, self.views = base, views
        self.last, self.conv, self.table = nn.Linear(4, 4), nn.Conv2d(2, 2, 1), nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        results = []
        for i, view in enumerate(self.views):
            y = self.base(self, x)
            y = y * (i + 1) if self.base is BASES["result"] else y
            results += [[y, *view(y)], [*view(y * 1), y], list(view(y + 1))][i % 3]
        return results


def seen(module, mode):
    x = torch.linspace(-1, 1, 12).view(3, 4)
    with mode():
        ys = module(x)
    tensors = [*ys, x, *module.parameters()]
    shared = [(i, j, a.data_ptr() - b.data_ptr()) for i, a in enumerate(tensors) for j, b in enumerate(tensors[:i])
              if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()]
    taking = [y for y in ys if y.grad_fn is not None]
    torch.autograd.backward(taking, [torch.linspace(1, 2, y.numel()).view(y.shape) for y in taking])
    strides = [[step for step, size in zip(y.stride(), y.shape) if size > 1] for y in ys]
    values = [y.detach() for y in ys if y.is_floating_point()]
    return shared, strides, [y.requires_grad for y in ys], values, [p.grad for p in module.parameters()]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad], ids=["grad", "no_grad"])
@pytest.mark.parametrize("base", BASES)
def test_outputs_share_memory_as_in_eager(base, mode):
    views = [lambda y: [y[:, 1], y.permute(0, 2, 3, 1), y[..., 0]], lambda y: y.unbind(1)] if base == "channels last" else VIEWS.values()
    module = Viewing(BASES[base], list(views))
    wrapped = caesura.wrap(copy.deepcopy(module))
    with caesura.strict():
        expected, found = seen(module, mode), seen(wrapped, mode)
    assert found[:3] == expected[:3]
    torch.testing.assert_close(found[3:], expected[3:])


def test_gradients_that_no_result_taken_reaches_are_none():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.last(x)
            return self.first(x), y, y.view(-1)

    for taken in range(3):
        module = caesura.wrap(Two())
        module(torch.ones(3, 4))[taken].sum().backward()
        assert [p.grad is None for p in module.parameters()] == [taken > 0] * 2 + [taken == 0] * 2


def test_gradients_past_arguments_that_are_written_to_are_none():
    class Writes(nn.Module):
        def forward(self, x, y, w, v):
            x.add_(w)
            y.add_(v)
            return x if self.training else None

    for training in (True, False):
        x, y, w, v = (torch.ones(3, requires_grad=True) for _ in range(4))
        x, y = x * 2, y * 2
        caesura.wrap(Writes().train(training))(x, y, w, v)
        x.sum().backward()
        assert w.grad.tolist() == [1.0] * 3 and v.grad is None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return dy


@pytest.mark.parametrize("given", [lambda x: x * 2, lambda x: Same.apply(x * 2)], ids=["tensor", "view of a Function"])
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.filterwarnings("ignore:left to PyTorch. a graph .* writes through .data to a view:caesura.FallbackWarning")
def test_autograd_does_not_notice_a_write_through_data(given, reads):
    class Writes(nn.Module):
        def forward(self, x, y):
            x.data.add_(1)
            return y.sin() + (x if reads else 0)

    def run(module):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        doubled = given(x)
        squared = doubled.square()  # whose backward reads what is written
        (module(doubled, y) + squared).sum().backward()
        return x.grad, y.grad

    for found, expected in zip(run(caesura.wrap(Writes())), run(Writes()), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("handed", [lambda y: (y,), lambda y: (y.view(-1),), lambda y: (y, y.view(-1))], ids=["it", "view", "both"])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.filterwarnings("ignore:left to PyTorch. a graph .* hands out a view of what it writes to:caesura.FallbackWarning")
def test_an_argument_written_to_under_no_grad_keeps_its_gradient(handed, recorded):
    class Writes(nn.Module):
        def forward(self, x, y):
            with torch.no_grad():
                y.mul_(x.mean())
            return handed(y)

    def run(module):
        y = torch.ones(3, requires_grad=True)
        with torch.set_grad_enabled(recorded):
            results = module(torch.full((3,), 2.0), y)
        sum(result.sum() for result in results).backward()
        return [result is y for result in results], [result.requires_grad for result in results], y.tolist(), str(y.grad)

    assert run(caesura.wrap(Writes())) == run(Writes())


def test_a_hook_is_called_only_where_eager_calls_it():
    class Two(nn.Module):
        def __init__(self, views):
            super().__init__()
            self.views, self.first, self.last = views, nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.first(x)
            return self.last(x), y, *([y.view(-1)] if self.views else [])

    for views in (False, True):
        caesura.reports.reset()
        module, given = caesura.wrap(Two(views)), []
        module.first.weight.register_hook(given.append)
        with pytest.warns(caesura.FallbackWarning, match="a hook is on"):
            for taken in (0, 1):
                module(torch.ones(3, 4))[taken].sum().backward()
        assert len(given) == 1 and given[0] is not None


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_results_lie_as_those_of_eagers_kernels():
    class Normalizes(nn.Module):
        def forward(self, x):
            y = nn.functional.batch_norm(x, None, None, None, None, True)
            return y, y * 2, nn.functional.logsigmoid(x) * 2, nn.functional.rrelu(x) * 2

    base = torch.randn(2, 3, 4, 5)
    for axes in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2), (1, 0, 2, 3)):
        x = base.permute(*axes)
        assert [y.stride() for y in caesura.wrap(Normalizes())(x)] == [y.stride() for y in Normalizes()(x)], axes


def written_to_transposed(x):
    y = (x * 2).data
    y.t_()
    y.masked_fill_(y > 0, 0.5)
    z = x.cumsum(0).detach()
    return y, z.as_strided((12,), (1,)), z


@pytest.mark.parametrize("makes", [lambda x: (written_to_transposed(x)[0],), lambda x: written_to_transposed(x)[1:], written_to_transposed])
def test_results_that_were_written_to_lie_as_in_eager(makes):
    class Makes(nn.Module):
        def forward(self, x):
            return makes(x)

    def seen(module):
        ys = module(torch.ones(3, 4))
        return [y.stride() for y in ys], [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in ys for b in ys]

    assert seen(caesura.wrap(Makes())) == seen(Makes())


def test_a_view_of_what_was_detached_before_a_write_gave_it_a_gradient():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 4)

        def forward(self, x):
            y = torch.zeros(3, 4).detach()
            y[0] = self.last(x)[0]
            return y[::2], y

    module = Writes()
    with pytest.warns(caesura.FallbackWarning, match="PyTorch makes another view of a result"):
        ys = caesura.wrap(module)(torch.ones(3, 4))
    assert all(y.requires_grad for y in ys)
    ys[0].sum().backward()
    assert module.last.bias.grad.tolist() == [1] * 4


def test_a_caller_may_write_to_a_transposed_result_beside_views():
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3))

        def forward(self, x):
            return x.t() * self.weight.t().t(), x[0]

    module = caesura.wrap(Transposed())
    y, _ = module(torch.ones(3, 4))
    y.mul_(2).sum().backward()
    assert not y.is_contiguous() and module.weight.grad.eq(2).all()


def test_transposed_results_keep_their_layout_where_sizes_are_symbols():
    class Transposed(nn.Module):
        def forward(self, x):
            y = x.permute(2, 0, 1) * 2
            return y, y.sin() + 1, y[0]

    wrapped = caesura.wrap(Transposed(), dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 3, 4)
        assert [y.stride() for y in wrapped(x)] == [y.stride() for y in Transposed()(x)]


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_complex_outputs_share_memory():
    class Complex(nn.Module):
        def forward(self, x):
            y, z = x + 1, torch.complex(x, x * 2)
            return y, torch.view_as_complex(y.view(3, 2, 2)), z, z.real, z.imag, z[1]

    def shared(module):
        with torch.no_grad():
            ys = module(torch.ones(3, 4))
        return [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in ys] for b in ys], ys

    expected, found = shared(Complex()), shared(caesura.wrap(Complex()))
    assert found[0] == expected[0]
    torch.testing.assert_close(found[1], expected[1])


DETACHED = {"transposed": lambda y: (y.t(), y.t().detach()), "detached first": lambda y: (y.t().detach(), y.t()),
            "sliced": lambda y: (y[1:], y[1:].detach()), "of a view": lambda y: (y.view(-1), y.t()[1:].detach())}


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
@pytest.mark.parametrize("views", DETACHED.values(), ids=DETACHED)
def test_detached_views_have_their_values(views):
    """AOT autograd makes other views of these (findings/torch_compile_detached_views.sh)."""
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return views(self.layer(x))

    module, x = Detached(), torch.randn(3, 3)
    for found, expected in zip(caesura.wrap(module)(x), module(x), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
