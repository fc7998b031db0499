# SPDX-License-Identifier: Apache-2.0
"""Forwards that take gradients themselves (torch.autograd.grad, torch.func), in steps and wrapped, beside eager."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from compile_step_test import fresh, same  # noqa: E402, F401

grad = torch.autograd.grad
pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


def net(activations=(nn.Tanh, nn.Tanh), of=2, to=1):
    hidden = [layer for activation in activations for layer in (activation(), nn.Linear(16, 16))]
    return nn.Sequential(nn.Linear(of, 16), *hidden[:-1], nn.Linear(16, to))


class Net(nn.Module):
    """loss(self, x) is the forward."""

    def __init__(self, loss, **parts):
        super().__init__()
        self.loss = loss
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs):
        return self.loss(self, *inputs)


def agrees(module, *shapes, rate=0.05, count=4):
    data = [[torch.randn(shape) if isinstance(shape, tuple) else shape for shape in shapes] for _ in range(count)]
    other, wrapped = copy.deepcopy(module), copy.deepcopy(module)
    expected = trained(module, module, data, rate)
    step = caesura.compile_step(other, None, torch.optim.SGD(other.parameters(), lr=rate))
    assert [step(*batch).item() for batch in data] == pytest.approx(expected, rel=2e-5)
    same(module, other)
    assert trained(caesura.wrap(wrapped), wrapped, data, rate) == pytest.approx(expected, rel=2e-5)
    same(module, wrapped)
    assert "create_graph" not in str(caesura.stats())


def trained(call, module, data, rate):
    """Returns the losses of steps in which PyTorch takes the gradients of a call."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=rate), []  # Adam would hide the gradients' scale
    for batch in data:
        optimizer.zero_grad()
        loss = call(*(t.clone() for t in batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- torch.autograd.grad ----------------------------------------------------------------------------------------

def heat(self, x, leaf=lambda x: x.detach().requires_grad_(True)):
    x = leaf(x)
    u = self.net(x)
    first, = grad(u.sum(), x, create_graph=True)
    second, = grad(first[:, 0].sum(), x, create_graph=True)
    return (first[:, 1] - 0.1 * second[:, 0]).square().mean() + u.square().mean()


def test_a_capture_traces_no_gradient_of_the_loss(monkeypatch):
    """Our rules differentiate the step. AOTAutograd would do so first, in a trace many times as long, if its results had gradients."""
    @functools.wraps(grad)  # its name tells a graph's gradients
    def spy(*args, **kwargs):
        allowed.append(kwargs.get("allow_unused"))
        return grad(*args, **kwargs)

    allowed, module = [], Net(heat, net=net())
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.05))
    monkeypatch.setattr(torch.autograd, "grad", spy)
    step(torch.randn(6, 2))
    assert allowed and True not in allowed  # heat() allows no unused inputs, AOTAutograd does


ACTIVATIONS = [(nn.SiLU, nn.GELU, nn.Softplus), (nn.Sigmoid, nn.ELU, nn.Mish), (nn.ReLU, nn.Tanh)]


@pytest.mark.parametrize("activations", ACTIVATIONS, ids=lambda several: "-".join(a.__name__ for a in several))
def test_second_derivatives(activations):
    agrees(Net(heat, net=net(activations)), (6, 2))


LEAVES = {"of the input": lambda x: x.requires_grad_(True), "of a copy": lambda x: x.clone().requires_grad_(True)}


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
def test_leaves(leaf):
    agrees(Net(lambda self, x: heat(self, x, leaf), net=net()), (6, 2))


def test_what_is_asked_of_an_input_of_the_callers_does_not_change_it():
    module = Net(lambda self, x: heat(self, x, LEAVES["of the input"]), net=net())
    x = torch.randn(6, 2)
    caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))(x)
    assert not x.requires_grad


def adapted(self, x, **kwargs):
    parameters = dict(self.net.named_parameters())
    gradients = grad(self.net(x).square().mean(), list(parameters.values()), **kwargs)
    parameters = {name: p - 0.5 * g for (name, p), g in zip(parameters.items(), gradients)}
    return (torch.func.functional_call(self.net, parameters, (x + 1,)) - 1).square().mean()


@pytest.mark.parametrize("kwargs", [{"create_graph": True}, {}], ids=["MAML", "first order"])
def test_of_parameters(kwargs):
    agrees(Net(lambda self, x: adapted(self, x, **kwargs), net=net()), (6, 2))


def penalised(self, real):
    fake = real.flip(0) * 0.5 + 0.1
    share = torch.linspace(0, 1, len(real)).view(-1, 1, 1, 1)
    x = (share * real + (1 - share) * fake).requires_grad_(True)
    score = self.net(x)
    slope, = grad(score, x, torch.ones_like(score), create_graph=True)
    return self.net(fake).mean() - self.net(real).mean() + (slope.flatten(1).norm(2, dim=1) - 1).square().mean()


CONVOLUTIONS = {
    "strided": lambda: [nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Conv2d(4, 8, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(32, 1)],
    "pooled": lambda: [nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(),
                       nn.Linear(16, 1)],
    "group norm": lambda: [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(144, 1)],
    "transposed": lambda: [nn.ConvTranspose2d(1, 2, 2), nn.Tanh(), nn.Upsample(scale_factor=2), nn.Flatten(), nn.Linear(648, 1)],
}


@pytest.mark.parametrize("make", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_gradient_penalty(make):
    agrees(Net(penalised, net=nn.Sequential(*make())), (4, 1, 8, 8))


def force(self, x):
    x = x.detach().requires_grad_(True)
    energy = self.net(x).square().sum()
    slope, = grad(energy, x, create_graph=True)
    return (slope + x).square().mean() + 1e-2 * energy


NORMS = {"layer": lambda: nn.LayerNorm(16), "batch": lambda: nn.BatchNorm1d(16), "rms": lambda: nn.RMSNorm(16),
         "softmax": lambda: nn.Softmax(-1), "log softmax": lambda: nn.LogSoftmax(-1)}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_norms(norm):
    agrees(Net(force, net=nn.Sequential(nn.Linear(4, 16), norm(), nn.SiLU(), nn.Linear(16, 2))), (6, 4), rate=0.01)


def beside(self, x):
    """Gradients of numbers, and layers that see numbers only: autograd follows the layers by their parameters."""
    other = x.detach().requires_grad_(True)
    slope, = grad((other * other).sin().sum(), other, create_graph=True)
    return (self.net(x) * slope).sum()


@pytest.mark.parametrize("layers", [lambda: [nn.BatchNorm1d(4).eval()]], ids=["fixed batch norm"])
def test_layers_beside(layers):
    agrees(Net(beside, net=nn.Sequential(*layers())), (6, 4))


def looked_up(self, x):
    h = F.linear(x, self.table.weight) + self.table(torch.tensor([1]))
    slope, = grad(h.sin().sum(), h)
    return (h * slope).square().mean()


def test_of_a_table_whose_gradient_is_sparse():
    ours, plain = (Net(looked_up, table=nn.Embedding(4, 4, sparse=True)) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    data = [[torch.randn(3, 4)] for _ in range(2)]
    step = caesura.compile_step(ours, None, torch.optim.SGD(ours.parameters(), lr=0.05))
    assert [step(*batch).item() for batch in data] == pytest.approx(trained(plain, plain, data, 0.05), rel=2e-5)


def test_batch_norm_counts_its_batches_once():
    module = Net(force, net=nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=1e-2))
    for _ in range(3):
        step(torch.randn(6, 4))
    assert module.net[1].num_batches_tracked == 3


def from_the_middle(self, x):
    """Makes a leaf from parameters: no gradient flows back through it."""
    h = self.first(x)
    leaf = h.detach().requires_grad_(True)
    slope, = grad(self.second(leaf).sum(), leaf, create_graph=True)
    return (slope * h).sum() + self.second(h).mean() + slope.square().sum()


def attacked(self, x):
    shift = torch.zeros_like(x).requires_grad_(True)
    slope, = grad(self.net(x + shift).square().sum(), shift)
    return self.net((x + 0.1 * slope.sign()).detach()).square().mean()


def partly_stopped(self, x):
    x = x.detach().requires_grad_(True)
    with torch.no_grad():
        weight = self.net(x).sigmoid()
    slope, = grad((self.net(x) * weight * self.net(x).tanh().detach()).sum(), x, create_graph=True)
    return slope.square().sum()


def constant(self, x):
    x = x.detach().requires_grad_(True)
    slope, = grad(self.net(x).sum(), x)
    return self.net(x * slope.abs() + 1).square().mean()


def recurrent(self, x):
    x = x[:, None].detach().requires_grad_(True)
    slope, = grad(self.net(x)[0].square().sum(), x, create_graph=True)
    return slope.square().sum()


def test_where_nothing_flows():
    agrees(Net(from_the_middle, first=net(to=4), second=net(of=4)), (6, 2))
    agrees(Net(attacked, net=net()), (6, 2))
    agrees(Net(partly_stopped, net=net()), (6, 2))
    agrees(Net(constant, net=net()), (6, 2))


def test_recurrent_layers():
    agrees(Net(recurrent, net=nn.LSTM(2, 8)), (6, 2))


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * ctx.saved_tensors[0] * dy


def test_functions_of_the_users_are_refused():
    module = Net(lambda self, x: heat(self, Square.apply(x)) + Square.apply(self.net(x)).sum(), net=net())
    with pytest.raises(caesura.StepRefused, match="an autograd.Function, or a hook, in a forward that takes gradients"):
        caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))(torch.randn(6, 2))


# --- torch.func -------------------------------------------------------------------------------------------------

func, vmap = torch.func, torch.vmap


def u(self, x):
    return self.net(x).squeeze(-1)


def held(self, x):
    with torch.no_grad():
        scale = self.net(x) * 2
    return (self.net(x) * scale * self.net(x).tanh().detach()).sum()


def by_parameters(self, x):
    gradients = func.grad(lambda p: func.functional_call(self.net, p, (x,)).square().mean())(dict(self.net.named_parameters()))
    return sum(g.square().sum() for g in gradients.values())


def by_vjp(self, x):
    y, back = func.vjp(self.net, x)
    return back(torch.ones_like(y))[0].square().sum() + y.mean()


def by_jvp(self, x):
    y, tangent = func.jvp(self.net, (x,), (torch.ones_like(x),))
    return tangent.square().sum() + y.mean()


def with_value(self, x):
    slope, value = func.grad_and_value(lambda p: u(self, p).square().sum())(x)
    return slope.square().sum() + value


TRANSFORMS = {
    "grad": lambda self, x: func.grad(lambda p: u(self, p).sum())(x).square().sum(),
    "vmap of grad": lambda self, x: vmap(func.grad(lambda p: u(self, p)))(x).square().sum() + u(self, x).mean(),
    "grad_and_value": with_value,
    "jacrev": lambda self, x: vmap(func.jacrev(self.net))(x).square().sum(),
    "jacfwd": lambda self, x: vmap(func.jacfwd(self.net))(x).square().sum(),
    "hessian": lambda self, x: vmap(func.hessian(lambda p: u(self, p)))(x).diagonal(dim1=1, dim2=2).sum(1).square().mean(),
    "jacrev twice": lambda self, x: vmap(func.jacrev(func.jacrev(lambda p: u(self, p))))(x).square().mean(),
    "vjp": by_vjp,
    "jvp": by_jvp,
    "no_grad within": lambda self, x: func.grad(lambda p: held(self, p))(x).square().sum(),
    "of parameters": by_parameters,
}


@pytest.mark.parametrize("loss", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms(loss):
    agrees(Net(loss, net=net()), (6, 2))
