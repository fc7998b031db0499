# SPDX-License-Identifier: Apache-2.0
"""A captured graph's backward gives gradients, and None, for the same tensors as eager, by every route."""

import copy

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from module_cache_test import traced  # noqa: E402
from program_cache_test import folder  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


class Twice(torch.autograd.Function):
    """Its backward cannot run a second time."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return None if dy is None else dy * 2 + 0 * ctx.saved_tensors[0]


class OneOfTwo(torch.autograd.Function):
    """A gradient for its first argument only."""

    @staticmethod
    def forward(ctx, x, t):
        return x * t

    @staticmethod
    def backward(ctx, dy):
        return dy * 3, None


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.second, self.unused = kind, nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.recurrent = nn.BatchNorm1d(4), nn.GRU(4, 4) if kind == "recurrent" else None

    def forward(self, x, t):
        h = self.first(x)
        if self.kind == "break":
            torch._dynamo.graph_break()
        return FORWARDS[self.kind](self, h, t)


def without_gradients(self, h, t):
    with torch.no_grad():
        weights = t.softmax(-1)
        logged = self.second(h).square()
    return (h * weights).sum(), logged


FORWARDS = {
    "detached": lambda self, h, t: F.mse_loss(h, t.detach()),
    "break": lambda self, h, t: F.mse_loss(self.second(h), t.detach()),
    "data": lambda self, h, t: (h * t.data).sum(),
    "no_grad": without_gradients,
    "compared": lambda self, h, t: torch.where(t > 0, h, -h).sum(),
    "indices": lambda self, h, t: h.gather(1, t.argmax(1, keepdim=True)).sum(),
    "shape": lambda self, h, t: (h + torch.zeros_like(t)).sum(),
    "rounded": lambda self, h, t: (h * t.sign()).sum(),
    "function": lambda self, h, t: OneOfTwo.apply(h, t).sum(),
    "target": lambda self, h, t: F.cross_entropy(h, t.detach().softmax(-1)),
    "recurrent": lambda self, h, t: self.recurrent(h, t[:1].detach())[0].sum(),
    "statistics": lambda self, h, t: (self.norm(h).square().sum(), self.norm(t.detach()).sum()),
    "both": lambda self, h, t: (h.square().sum(), self.second(t).square().sum()),
    "together": lambda self, h, t: (h.sum(), self.second(h * t).sum(), t.detach() + 1, h.argmax()),
    "constant": lambda self, h, t: (h.sign().sum() + 0 * h.sum(), (t.sign() + self.second(t)).sum()),
}


# Cases in which the teacher's own backward may have run already, without gradients. The outputs of one call share one
# backward, and eager also runs the nodes before an autograd.Function that returns None.
TOGETHER = {"function", "both", "together", "constant"}


def outcome(module, call, rows, pick):
    """Returns results, their requires_grad, every gradient, and True if the teacher's own backward can still run."""
    torch.manual_seed(rows)
    student, teacher = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    module.zero_grad()
    t = Twice.apply(teacher(torch.randn(rows, 4).double()))
    results = call(student(torch.randn(rows, 4).double()), t)
    results = results if isinstance(results, tuple) else (results,)
    results[pick if results[pick:] and results[pick].requires_grad else 0].backward()
    gradients = [p.grad for net in (student, module, teacher) for p in net.parameters()]
    try:
        t.sum().backward()
        again = True
    except RuntimeError:
        again = False
    flags = [r.requires_grad for r in results] + [g is None for g in gradients]
    return [*results, *gradients], flags + [again and module.kind not in TOGETHER]


def check(kind, route):
    torch.manual_seed(0)
    plain = Net(kind).double()
    ours = copy.deepcopy(plain)
    call = caesura.wrap(ours) if route == "wrap" else torch.compile(ours, backend="caesura")
    for rows in (3, 5, 7, 3):
        for pick in (0, 1):
            expected, actual = outcome(plain, plain, rows, pick), outcome(ours, call, rows, pick)
            assert actual[1] == expected[1], (rows, pick)
            for a, b in zip(actual[0], expected[0]):
                if b is not None:
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("route", ["wrap", "compile"])
@pytest.mark.parametrize("kind", FORWARDS)
def test_gradients_come_where_eager_has_them(kind, route):
    torch._dynamo.reset()
    check(kind, route)


@pytest.mark.parametrize("kind", ["detached", "compared", "both", "together"])
def test_gradients_of_calls_from_disk(kind, folder):
    torch.manual_seed(0)
    plain = Net(kind).double()

    def run():
        ours = copy.deepcopy(plain)
        call = caesura.wrap(ours)
        for pick in (0, 1, 0):
            expected, actual = outcome(plain, plain, 3, pick), outcome(ours, call, 3, pick)
            assert actual[1] == expected[1]

    assert [traced(run) > 0 for _ in range(2)] == [True, False]
    for _ in range(2):
        torch._dynamo.reset()
        check(kind, "compile")


@pytest.mark.parametrize("route", ["wrap", "compile"])
def test_derivatives_of_derivatives_pass_what_is_detached(route):
    torch._dynamo.reset()
    plain = Net("both").double()
    ours = copy.deepcopy(plain)
    call = caesura.wrap(ours) if route == "wrap" else torch.compile(ours, backend="caesura")
    for _ in range(2):
        found = []
        for net in (plain, call):
            torch.manual_seed(1)
            x, t = torch.randn(2, 3, 4, dtype=torch.float64).requires_grad_()
            found.append(torch.autograd.grad(net(x, t)[0], [x, t], create_graph=True, allow_unused=True))
        torch.testing.assert_close(found[1][0], found[0][0])
        assert found[0][1] is None and found[1][1] is None


class Truncated(nn.Module):
    """Keeps its state in the module, and detaches it when it reads it."""

    def __init__(self):
        super().__init__()
        self.cell, self.state = nn.GRUCell(4, 4), None

    def forward(self, x):
        before = torch.zeros(len(x), 4) if self.state is None else self.state.detach()
        self.state = self.cell(x, before)
        return self.state.square().mean()


@pytest.mark.parametrize("route", ["wrap", "compile"])
def test_truncated_back_propagation_through_time(route):
    torch._dynamo.reset()
    losses = []
    for ours in (False, True):
        torch.manual_seed(0)
        module = Truncated()
        call = module if not ours else caesura.wrap(module) if route == "wrap" else torch.compile(module, backend="caesura")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        for _ in range(4):
            optimizer.zero_grad()
            loss = call(torch.ones(3, 4))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[4:] == pytest.approx(losses[:4], rel=1e-5)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, real, fake, own):
        return (self.net(fake).mean() if own else self.net(fake.detach()).mean() - self.net(real).mean())


def test_a_critic_and_a_generator_take_turns():
    torch._dynamo.reset()
    losses = []
    for wrap in (lambda module: module, caesura.wrap):
        torch.manual_seed(0)
        generator, critic = nn.Linear(4, 4), Critic()
        call = wrap(critic)
        optimizer = torch.optim.AdamW([*generator.parameters(), *critic.parameters()], lr=0.05, weight_decay=0.5)
        for _ in range(3):
            fake = generator(torch.ones(3, 4)).tanh()
            for own in (False, True):
                loss = call(torch.ones(3, 4), fake, own)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                fake = generator(torch.ones(3, 4)).tanh() if not own else fake
    assert losses[6:] == pytest.approx(losses[:6], rel=1e-4)


class Clamping(nn.Module):
    """A Wasserstein critic whose weights are kept small by each call (arXiv:1701.07875)."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        for p in self.parameters():
            p.data.clamp_(-0.05, 0.05)
        return self.net(x)


@pytest.mark.parametrize("route", ["wrap", "compile"])
def test_a_critic_clamps_its_weights_in_each_call(route):
    torch._dynamo.reset()
    trained = []
    for ours in (False, True):
        torch.manual_seed(0)
        critic = Clamping()
        call = critic if not ours else caesura.wrap(critic) if route == "wrap" else torch.compile(critic, backend="caesura")
        optimizer, losses = torch.optim.SGD(critic.parameters(), lr=0.2), []
        for _ in range(3):
            loss = call(torch.randn(5, 4)).mean() - call(torch.randn(5, 4) + 1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        trained.append([*losses, *critic.parameters()])
    assert max(p.abs().max() for p in trained[0][3:]) > 0.05  # before the next call clamps them
    for expected, actual in zip(*trained, strict=True):
        torch.testing.assert_close(actual, expected)


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = Clamping()

    def forward(self, fake, real):
        return self.critic(fake).mean() - self.critic(real).mean()


def test_a_step_refuses_a_critic_that_clamps_its_weights_past_the_gradients():
    module = Distance()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.2))
    told = r"clamp_ writes, past the gradients, to what depends on a parameter \(at .*gradient_flow_test.py:\d+ in forward\)"
    with pytest.raises(caesura.StepRefused, match=told):
        step(torch.randn(5, 4), torch.randn(5, 4))
