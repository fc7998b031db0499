# SPDX-License-Identifier: Apache-2.0
"""compile_step of small modules that write to memory in unusual ways: all that a step leaves is eager's, in float64."""

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from program_cache_test import folder  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


def make(forward, dtype=torch.float64, norm=nn.BatchNorm1d):
    """A module with that forward, the same at each call."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.n = nn.Linear(3, 3), nn.Linear(3, 3), norm(3)
            self.register_buffer("kept", torch.ones(3))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            return forward(self, x)

    return Net().to(dtype)


def eager_step(module, optimizer, x, target, loss_fn=F.mse_loss):
    optimizer.zero_grad()
    loss = loss_fn(module(x), target)
    loss.backward()
    optimizer.step()
    return loss.detach()


def data(count, dtype=torch.float64):
    return torch.randn(count, 2, 4, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))


def steps_as_eager(forward, dtype=torch.float64, change=lambda module, i: None, **options):
    """change: called before step i, on the module and on its copy."""
    plain, ours = make(forward, dtype, **options), make(forward, dtype, **options)
    # The decay moves parameters that get a gradient of zeros in place of none.
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1) for m in (plain, ours)]
    step = caesura.compile_step(ours, F.mse_loss, optimizers[1])
    close = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for i, (x, target) in enumerate(data(3, dtype)):
        change(plain, i)
        change(ours, i)
        expected = eager_step(plain, optimizers[0], x, target)
        torch.testing.assert_close(step(x, target), expected, **close)
        for (name, a), b in zip(plain.state_dict().items(), ours.state_dict().values()):
            torch.testing.assert_close(b, a, **close, msg=lambda m: f"{name}, step {i}: {m}")


# --- running statistics that a forward writes to more than once ----------------------------------------------------

def no_grad_first(m, x):
    with torch.no_grad():
        seen = m.n(x)
    return m.n(m.a(x)) + seen


def written_before(m, x):
    with torch.no_grad():
        m.n.running_mean.mul_(0.5)
    return m.n(m.a(x))


def one_written_after(m, x):
    y = m.n(m.a(x))
    return m.b(y) + m.n.running_mean


def in_evaluation_after(m, x):
    y = m.n(m.a(x))
    return y + F.batch_norm(x, m.n.running_mean, m.n.running_var, m.n.weight, m.n.bias, False)


def under_another_norm(m, x):
    y = m.n(m.a(x))
    return y + F.batch_norm(x, m.n.running_mean, m.kept, training=True)


def counted_by_threes(m, x):
    m.calls.add_(1, alpha=3)
    return m.a(x)


STATISTICS = {
    "twice": lambda m, x: m.n(m.a(x)) + m.n(x * 2),
    "three times, chained": lambda m, x: m.n(m.a(m.n(m.n(x)))),
    "no_grad first": no_grad_first,
    "written before": written_before,
    "read after": one_written_after,
    "in evaluation after": in_evaluation_after,
    "of two norms": under_another_norm,
    "a count": counted_by_threes,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["", "float32"])
@pytest.mark.parametrize("forward", STATISTICS.values(), ids=STATISTICS)
def test_statistics_are_written_more_than_once(forward, dtype):
    steps_as_eager(forward, dtype)


# --- hooks that come and go between calls ----------------------------------------------------------------------------

def triple(module, given, out):
    return out * 3


def of_tanh(module, given, out=None):
    return None if not isinstance(module, nn.Tanh) else (given[0] * 2,) if out is None else out * 2


hooks_of_all = nn.modules.module
HOOKS = {
    "of the module": lambda m, loss: [m.register_forward_hook(triple)],
    "before the module": lambda m, loss: [m.register_forward_pre_hook(lambda module, given: (given[0] * 3,))],
    "of a part": lambda m, loss: [m[0].register_forward_hook(triple)],
    "before a part": lambda m, loss: [m[1].register_forward_pre_hook(lambda module, given: (given[0] * 3,))],
    "of the loss": lambda m, loss: [loss.register_forward_hook(triple)],
    "of every module": lambda m, loss: [hooks_of_all.register_module_forward_hook(of_tanh)],
    "before every module": lambda m, loss: [hooks_of_all.register_module_forward_pre_hook(of_tanh)],
}
BACKWARD_HOOKS = {
    "of a part": lambda m, loss: m[0].register_full_backward_hook(lambda module, dx, dy: None),
    "before a part": lambda m, loss: m[0].register_full_backward_pre_hook(lambda module, dy: None),
    "of the loss": lambda m, loss: loss.register_full_backward_hook(lambda module, dx, dy: None),
    "of every module": lambda m, loss: hooks_of_all.register_module_full_backward_hook(lambda module, dx, dy: None),
    "before every module": lambda m, loss: hooks_of_all.register_module_full_backward_pre_hook(lambda module, dy: None),
}


def hookable():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double(), nn.MSELoss()


def follow_hooks(register, hooked):
    """Steps beside eager; hooked: the steps that run with the hook."""
    (plain, loss), (ours, own_loss) = hookable(), hookable()
    first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, ours))
    step = caesura.compile_step(ours, own_loss, second)
    for i, (x, target) in enumerate(data(4)):
        results = []
        for ask_ours in (False, True):
            hooks = register(*((ours, own_loss) if ask_ours else (plain, loss))) if i in hooked else []
            results.append(step(x, target) if ask_ours else eager_step(plain, first, x, target, loss))
            for hook in hooks:
                hook.remove()
        torch.testing.assert_close(*results, msg=lambda m: f"step {i}: {m}")


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_hooks_come_and_go(register, folder):
    follow_hooks(register, {2})
    torch._dynamo.reset()
    follow_hooks(register, {0, 1})  # programs are on disk


@pytest.mark.parametrize("register", BACKWARD_HOOKS.values(), ids=BACKWARD_HOOKS)
def test_hooks_around_the_backward_are_refused(register):
    module, loss_fn = hookable()
    step = caesura.compile_step(module, loss_fn, torch.optim.SGD(module.parameters(), lr=0.1))
    x, target = data(1)[0]
    step(x, target)
    before = [p.clone() for p in module.parameters()]
    hook = register(module, loss_fn)
    try:
        with pytest.raises(caesura.StepRefused, match="gradient hooks are not called by a step: .* has backward hooks"):
            step(x, target)
    finally:
        hook.remove()
    assert all(map(torch.equal, before, module.parameters()))
    step(x, target)
