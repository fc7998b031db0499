# SPDX-License-Identifier: Apache-2.0
"""Second derivatives through wrapped modules are those of eager, and take no call of PyTorch's that its first derivatives do not."""

import copy
import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import grad, gradgradcheck  # noqa: E402

import caesura  # noqa: E402

F, nn = torch.nn.functional, torch.nn
_INDEX = torch.tensor([0, 2, 1, 2, 0])


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


class Of(nn.Module):
    """A function of parameters of given shapes and x."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x):
        return self.function(x, *self.weights)


def mlp(activation, last=2):
    return nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, last))


def attention(x, q, k, v):
    weights = (x @ q @ (x @ k).transpose(-1, -2) / 2).softmax(-1)
    return weights @ (x @ v)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * dy  # not the derivative: the user's own


# name: (module, shape of x); x is tame, away from kinks and poles
CASES = {
    "tanh": (lambda: mlp(nn.Tanh()), (4, 3)),
    "softplus": (lambda: mlp(nn.Softplus()), (4, 3)),
    "silu": (lambda: mlp(nn.SiLU()), (4, 3)),
    "gelu": (lambda: mlp(nn.GELU()), (4, 3)),
    "gelu, tanh": (lambda: mlp(nn.GELU("tanh")), (4, 3)),
    "sigmoid": (lambda: mlp(nn.Sigmoid()), (4, 3)),
    "elu": (lambda: mlp(nn.ELU()), (4, 3)),
    "leaky relu": (lambda: nn.Sequential(mlp(nn.LeakyReLU(0.2)), nn.Tanh()), (4, 3)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1)), (4, 3)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(3, 5), nn.RMSNorm(5), nn.Tanh()), (4, 3)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh()), (2, 4, 3)),
    "batch norm, training": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)), (5, 3)),
    "batch norm, evaluation": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).eval(), (5, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 1, 2)), (2, 2, 5, 5)),
    "convolution, transposed": (lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Tanh()), (2, 2, 4)),
    "average pooling": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.AvgPool2d(2)), (1, 1, 5, 5)),
    "max pooling": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.MaxPool2d(2)), (1, 1, 5, 5)),
    "attention": (lambda: Of(attention, (3, 2), (3, 2), (3, 2)), (2, 4, 3)),
    "scaled_dot_product_attention": (lambda: Of(lambda x, q, k: F.scaled_dot_product_attention(x @ q, x @ k, x), (3, 3), (3, 3)),
                                     (1, 2, 4, 3)),
    "index": (lambda: Of(lambda x, w: (x[_INDEX] * w).sin(), (5, 3)), (4, 3)),
    "gather": (lambda: Of(lambda x, w: x.gather(1, _INDEX[:4, None]).sin() * w, (4, 1)), (4, 3)),
    "index_add": (lambda: Of(lambda x, w: (torch.zeros(3, 3, dtype=x.dtype).index_add(0, _INDEX, x * w)).tanh(), (5, 3)), (5, 3)),
    "scatter_add": (lambda: Of(lambda x, w: torch.zeros(4, 3, dtype=x.dtype).scatter_add(0, _INDEX[:, None].expand(5, 3), x.square() * w),
                               (5, 3)), (5, 3)),
    "scatter_reduce": (lambda: Of(lambda x, w: torch.zeros(4, 3, dtype=x.dtype).scatter_reduce(
        0, _INDEX[:, None].expand(5, 3), x.square() * w, "sum"), (5, 3)), (5, 3)),
    "einsum": (lambda: Of(lambda x, w: torch.einsum("bi,ijk,bj->bk", x, w, x), (3, 3, 2)), (4, 3)),
    "norm": (lambda: Of(lambda x, w: torch.linalg.vector_norm(x @ w, dim=1), (3, 4)), (4, 3)),
    "distances": (lambda: Of(lambda x, w: ((x @ w)[:, None] - (x @ w)[None]).square().sum(-1).add(0.1).sqrt(), (3, 3)), (4, 3)),
    "softmax": (lambda: Of(lambda x, w: (x @ w).softmax(1), (3, 4)), (4, 3)),
    "log_softmax": (lambda: Of(lambda x, w: (x @ w).log_softmax(1), (3, 4)), (4, 3)),
    "logsumexp": (lambda: Of(lambda x, w: (x @ w).logsumexp(1), (3, 4)), (4, 3)),
    "cross_entropy": (lambda: Of(lambda x, w: F.cross_entropy(x @ w, _INDEX[:4]), (3, 4)), (4, 3)),
    "cumsum": (lambda: Of(lambda x, w: (x * w).cumsum(1).sin(), (3,)), (4, 3)),
    "cumprod": (lambda: Of(lambda x, w: (x * w).cumprod(1), (3,)), (4, 3)),
    "exp, log, pow": (lambda: Of(lambda x, w: (x.square() + 1).log() * (x * 0.3).exp() * w + (x.abs() + 1) ** 1.5, (3,)), (4, 3)),
    "trigonometry": (lambda: Of(lambda x, w: x.sin() * (x * w).cos() + torch.atan2(x, x.square() + w.square() + 1), (3,)), (4, 3)),
    "erf": (lambda: Of(lambda x, w: (x * w).erf() + (x * 0.2).erfc(), (3,)), (4, 3)),
    "division": (lambda: Of(lambda x, w: w / (x.square() + 1), (3,)), (4, 3)),
    "where, clamp": (lambda: Of(lambda x, w: torch.where(x > 10, x, x.square() * w).clamp(-50, 50), (3,)), (4, 3)),
    "maximum": (lambda: Of(lambda x, w: torch.maximum(x.square(), w - 9) + torch.minimum(x.square(), w + 30), (3,)), (4, 3)),
    "shapes": (lambda: Of(lambda x, w: torch.cat([x.t().reshape(2, -1) * w, x.flip(1).unfold(1, 2, 1).permute(2, 0, 1).flatten(1)[:, :6]],
                                                 1).sin(), (2, 6)), (4, 3)),
    "stack, pad, roll": (lambda: Of(lambda x, w: F.pad(torch.stack([x * w, x.roll(1, 0)]), (1, 1)).sin().sum(0), (3,)), (4, 3)),
    "expand, repeat": (lambda: Of(lambda x, w: (x[:, None].expand(4, 2, 3) * w).repeat(1, 2, 1).square(), (2, 3)), (4, 3)),
    "mean, var": (lambda: Of(lambda x, w: (x * w).var(1) * (x * w).mean(1) + (x * w).std(0).sum(), (3,)), (4, 3)),
    "prod, amax": (lambda: Of(lambda x, w: (x * w).prod(1) + (x * w).square().amax(1), (3,)), (4, 3)),
    "embedding": (lambda: Of(lambda x, w: (F.embedding(_INDEX[:4], w) * x).sin(), (4, 3)), (4, 3)),
    "bmm, baddbmm": (lambda: Of(lambda x, w: torch.baddbmm(w, x, x.transpose(1, 2).sin()), (2, 4, 4)), (2, 4, 3)),
    "tril, diagonal": (lambda: Of(lambda x, w: (x @ w).tril().sin().sum(1) + (x @ w).diagonal().exp(), (4, 4)), (4, 4)),
    "detach": (lambda: Of(lambda x, w: (x * w).sin() * (x * w).detach() + x.square(), (3,)), (4, 3)),
    "a Function's own backward": (lambda: Of(lambda x, w: Square.apply(x * w).sin(), (3,)), (4, 3)),
    "bilinear": (lambda: Of(lambda x, w: F.bilinear(x, x.sin(), w), (2, 3, 3)), (4, 3)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), (4, 3)),
    "complex numbers": (lambda: Of(lambda x, w: (torch.complex(x * w, x.sin()) * torch.complex(x, w)).real, (3,)), (4, 3)),
    "a view": (lambda: Of(lambda x, w: (x * w).tanh().view(-1), (3,)), (4, 3)),
    "gru cell": (lambda: nn.GRUCell(3, 3), (4, 3)),
}
# Numerical derivatives are others: of what is detached, of what the user says, and (in eager, too) of two parametrized weights.
_NOT_NUMERICAL = {"detach", "a Function's own backward", "weight norm"}
# Eager has no second derivative on the CPU.
_NOT_IN_EAGER = {"scaled_dot_product_attention"}
# PyTorch makes calls of these: of all but the complex numbers (`_neg_view`) in the first derivatives, too.
_IN_PYTORCH = {"complex numbers", "cumprod", "trigonometry", "erf", "prod, amax"}


@pytest.mark.parametrize("name", CASES)
def test_against_eager_and_numerical_derivatives(name):
    make, shape = CASES[name]
    module = make().double()
    wrapped = caesura.wrap(copy.deepcopy(module))
    x = torch.randn(shape, dtype=torch.float64)
    found = []
    with caesura.strict(name not in _IN_PYTORCH), warnings.catch_warnings():
        warnings.simplefilter("ignore", caesura.FallbackWarning)
        for net in (wrapped, module):
            if name in _NOT_IN_EAGER and net is module:
                with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                    found.append(second(net, x))
                continue
            found.append(second(net, x))
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        if name not in _NOT_NUMERICAL:
            parameters = list(wrapped.parameters())
            assert gradgradcheck(lambda x, *_: wrapped(x), (x.requires_grad_(), *parameters), atol=1e-5)
    assert not any("create_graph" in op for op, _ in caesura.stats().fallbacks)


def second(net, x):
    """A loss's gradients through those of all outputs, by x and by all inputs in turn."""
    x, parameters = x.clone().requires_grad_(), list(net.parameters())
    y = net(x)
    dy = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape).requires_grad_()
    by_x = grad(y, x, dy, create_graph=True)
    by_all = grad(y, [x, *parameters], dy, create_graph=True, allow_unused=True)
    loss = sum(g.square().sum() for g in (*by_x, *by_all) if g is not None)
    return [loss.detach(), *grad(loss, [x, dy, *parameters], allow_unused=True, materialize_grads=True)]


# --- training ---------------------------------------------------------------------------------------------------

def penalised(net, x):
    """WGAN-GP."""
    between = (0.3 * x + 0.7 * x.flip(0)).requires_grad_()
    (slope,) = grad(net(between).sum(), between, create_graph=True)
    return net(x).mean() - net(-x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def burgers(net, x):
    """A physics-informed net: u_t + u u_x = u_xx / 100 pi."""
    t, x = (column[:, None].requires_grad_() for column in x[:, :2].unbind(1))
    u = net(torch.cat([t, x, t * x], 1))[:, :1]
    by_t, by_x = grad(u.sum(), (t, x), create_graph=True)
    (by_xx,) = grad(by_x.sum(), x, create_graph=True)
    return (by_t + u * by_x - by_xx / 314.159).square().mean() + (u - x.sin()).square().mean()


def third(net, x):
    """Beam bending has a fourth derivative; three are taken here, the loss's own backward is the fourth."""
    x = x.requires_grad_()
    u = net(x).sum()
    for _ in range(3):
        (slope,) = grad(u, x, create_graph=True)
        u = slope.square().sum()
    return u


def inner_loop(net, x):
    """MAML: a step of SGD, whose parameters depend on the ones that are trained."""
    parameters = dict(net.named_parameters())
    for _ in range(2):
        loss = (torch.func.functional_call(net, parameters, (x[:3],)) - 1).square().mean()
        slopes = grad(loss, list(parameters.values()), create_graph=True)
        parameters = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), slopes)}
    return (torch.func.functional_call(net, parameters, (x[3:],)) + 1).square().mean()


def curvature(net, x):
    loss = net(x).square().mean()
    parameters = list(net.parameters())
    slopes = grad(loss, parameters, create_graph=True)
    product = grad(sum((g * 0.5).sum() for g in slopes), parameters, create_graph=True)
    return loss + sum(p.square().sum() for p in product)


def with_create_graph(net, x):
    """The gradients of the loss are differentiable, too: what is left of them is the second call's."""
    loss = net(x).square().mean()
    loss.backward(create_graph=True)
    return sum(p.grad.square().sum() for p in net.parameters())


class InTwo(nn.Module):
    """A graph break."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.last(h)


class Atoms(nn.Module):
    """The energy of atoms by distances, with as many pairs as come."""

    def __init__(self):
        super().__init__()
        self.net, self.kinds = mlp(nn.Softplus(), 1), nn.Embedding(4, 3)

    def forward(self, positions, pairs):
        distances = (positions[pairs[0]] - positions[pairs[1]]).norm(dim=1, keepdim=True)
        spread = (-(distances - torch.tensor([0.5, 1.0, 2.0], dtype=distances.dtype)).square()).exp()
        atoms = torch.zeros(len(positions), 3, dtype=distances.dtype).index_add(0, pairs[1], spread * self.kinds(pairs[0] % 4))
        return self.net(atoms).sum()


def forces(net, x):
    count = 4 + int(x[0, 0].abs() * 10) % 3  # molecules of other sizes
    positions = torch.cat([x, x.sin() + 2])[:count].requires_grad_()
    pairs = torch.combinations(torch.arange(count)).t()
    energy = net(positions, torch.cat([pairs, pairs.flip(0)], 1))
    (slope,) = grad(energy, positions, create_graph=True)
    return (energy - 1).square() + (slope + x[0]).square().sum()


LOSSES = {
    "gradient penalty": (lambda: mlp(nn.SiLU(), 1), penalised),
    "gradient penalty, batch norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)), penalised),
    "gradient penalty, dropout": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1)), penalised),
    "Burgers": (lambda: nn.Sequential(mlp(nn.Tanh(), 6), nn.Tanh(), nn.Linear(6, 1)), burgers),
    "third derivatives": (lambda: mlp(nn.Tanh(), 1), third),
    "forces": (Atoms, forces),
    "MAML": (lambda: mlp(nn.Tanh(), 1), inner_loop),
    "curvature": (lambda: mlp(nn.SiLU()), curvature),
    "backward(create_graph=True)": (lambda: mlp(nn.SiLU()), with_create_graph),
    "graph break": (lambda: InTwo(mlp(nn.Tanh(), 4), nn.Sequential(nn.SiLU(), nn.Linear(4, 1))), penalised),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_twenty_steps(name):
    make, loss_of = LOSSES[name]
    module = make().double()
    found = []
    for net in (caesura.wrap(copy.deepcopy(module)), module):
        torch.manual_seed(1)
        optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.02), []
        with caesura.strict(name not in ("graph break", "MAML")), warnings.catch_warnings():
            warnings.simplefilter("ignore", caesura.FallbackWarning)
            for _ in range(20):
                optimizer.zero_grad()
                loss = loss_of(net, torch.randn(6, 3, dtype=torch.float64))
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        found.append([torch.stack(losses), *net.state_dict().values()])
    for actual, expected in zip(*found):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert not any("create_graph" in op for op, _ in caesura.stats().fallbacks)


# --- what autograd promises -------------------------------------------------------------------------------------

def test_several_results_whose_gradients_meet():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 4).double()

        def forward(self, x):
            h = self.first(x).tanh()
            return h * self.last(h), h.exp()

    module, found = Two(), []
    data = torch.randn(5, 3, dtype=torch.float64)
    for net in (caesura.wrap(copy.deepcopy(module)), module):
        x = data.clone().requires_grad_()
        y, z = net(x)
        (by_y,), (by_z,) = (grad(part.sum(), x, create_graph=True) for part in (y, z))
        found.append(grad((by_y * by_z).sum() + y.sum(), [x, *net.parameters()]))
    for actual, expected in zip(*found):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert not caesura.stats().fallbacks


def test_a_gradient_that_nothing_reaches_is_none():
    module = mlp(nn.Tanh(), 1).double()
    for net in (caesura.wrap(copy.deepcopy(module)), module):
        x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        (slope,) = grad(net(x).sum(), x, create_graph=True)
        found = grad(slope.square().sum(), list(net.parameters()), allow_unused=True)
        assert [g is None for g in found] == [False, False, False, True]  # the last bias


def test_results_that_are_kept_and_changed():
    wrapped = caesura.wrap(mlp(nn.Tanh(), 1))
    x = torch.randn(4, 3, requires_grad=True)
    y = wrapped(x)
    (slope,) = grad(y.sum(), x, create_graph=True)
    loss = slope.square().sum()
    first = grad(loss, x, retain_graph=True)
    torch.testing.assert_close(grad(loss, x, retain_graph=True), first, rtol=0, atol=0)
    grad(loss, x)
    with pytest.raises(RuntimeError, match="a second time"):
        grad(loss, x)
    (slope,) = grad(wrapped(x).sum(), x, create_graph=True)
    with torch.no_grad():
        wrapped[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(slope.square().sum(), x)


def test_many_gradients_of_one_call():
    """The rows of a Hessian, each with a graph: after sixteen of them they have nodes of their own."""
    module = mlp(nn.Tanh(), 1).double()
    rows = []
    for net in (caesura.wrap(copy.deepcopy(module)), module):
        x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(10, 3).requires_grad_()
        (slope,) = grad(net(x).square().sum(), x, create_graph=True)
        found = [grad(g, x, create_graph=True)[0] for g in slope.flatten()]
        rows.append([torch.stack(found).detach(), grad(torch.stack(found).square().sum(), x)[0]])
    torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-9)


def test_hooks_and_graphs_end():
    wrapped = caesura.wrap(mlp(nn.Tanh(), 1))
    x, seen = torch.randn(4, 3, requires_grad=True), []
    y = wrapped(x)
    dy = torch.ones_like(y)
    (slope,) = grad(y, x, dy, create_graph=True)
    slope.register_hook(seen.append)
    slope.square().sum().backward(retain_graph=True)
    torch.testing.assert_close(seen[0], 2 * slope.detach())
    gone = [weakref.ref(slope), weakref.ref(dy)]
    del slope, y, dy
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


class On(torch.autograd.Function):
    """Its backward has modes of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            factor = 2 * x
        return factor * dy


@pytest.mark.parametrize("function, match", [
    (On.apply, "switches autograd on"),
    (lambda x: torch.utils.checkpoint.checkpoint(Square.apply, x, use_reentrant=False), "within a checkpoint"),
], ids=["enable_grad", "checkpoint"])
def test_functions_whose_derivatives_would_be_wrong_are_refused(function, match):
    wrapped = caesura.wrap(Of(lambda x, w: function(x * w).sin(), (3,)))
    x = torch.randn(4, 3, requires_grad=True)
    y = wrapped(x)
    grad(y.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match=match):
        grad(y.sum(), x, create_graph=True)
