# SPDX-License-Identifier: Apache-2.0
"""A call whose tensors share memory, one of which the forward writes to, gives eager's results."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import caesura  # noqa: E402
from caesura.rewrites.aliasing import share_memory  # noqa: E402


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.ones(6, 4))


class WritesToAnArgument(Writing):
    def forward(self, x, y):
        x.add_(1.0)
        return (self.layer(x) * y).mean()


class WritesToABuffer(Writing):
    def forward(self, x, y):
        self.seen.add_(1.0)
        return (self.layer(x) * self.seen[:4] * y).mean()


def apart(module):
    return torch.ones(4, 4), torch.ones(4, 4)


def overlapping_arguments(module):
    base = torch.ones(6, 4)
    return base[:4], base[2:]


def part_of_the_buffer(module):
    return module.seen[2:], torch.ones(4, 4)


CASES = [(WritesToAnArgument, overlapping_arguments), (WritesToABuffer, part_of_the_buffer)]


@pytest.mark.parametrize("kind, overlapping", CASES)
@pytest.mark.parametrize("order", ["overlapping first", "apart first"])
@pytest.mark.parametrize("compiler", [caesura.wrap, lambda module: torch.compile(module, backend="caesura")])
def test_a_call_is_as_in_eager(kind, overlapping, order, compiler):
    eager = kind()
    ours = copy.deepcopy(eager)
    wrapped = compiler(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", caesura.FallbackWarning)  # each cause warns once in a process
        for make in (overlapping, apart) if order == "overlapping first" else (apart, apart, apart, overlapping, apart):
            torch.testing.assert_close(wrapped(*make(ours)), eager(*make(eager)))
            torch.testing.assert_close(ours.seen, eager.seen)


def test_memory_is_shared_up_to_the_last_element():
    base = torch.zeros(9)
    for a, b in (base[:4], base[3:]), (base[:7:3], base[6:]), (base.view(3, 3).t(), base[8:]):
        assert share_memory(a, b) and share_memory(b, a)
    assert not share_memory(base[:4], base[4:]) and not share_memory(base[:7:3], base[7:])


@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_step_refuses_a_part_of_a_buffer_that_it_writes_to(calls_before):
    module = WritesToABuffer()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(calls_before):
        step(*apart(module))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(caesura.StepRefused, match="share|lies in the memory of 'seen'"):
        step(*part_of_the_buffer(module))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))


OVERLAPPING = {
    "result": lambda self, x: (self.layer(x).clone(), (3, 3), (1, 1)), "argument": lambda self, x: (x, (3, 3), (1, 1)),
    "buffer": lambda self, x: (self.seen, (3, 2), (1, 1)), "zeros": lambda self, x: (torch.zeros(6), (4, 3), (1, 1)),
}


def call(function):
    return function()


def checkpointed(function):
    return torch.utils.checkpoint.checkpoint(function, use_reentrant=False)


@pytest.mark.parametrize("write", [lambda v: v[0].__setitem__(1, 5.0), lambda v: v.add_(1.0)], ids=["part", "whole"])
@pytest.mark.parametrize("base, within", [*((base, call) for base in OVERLAPPING), ("result", checkpointed)])
def test_writes_to_a_tensor_whose_elements_share_memory(base, within, write):
    class Overlapping(Writing):
        def forward(self, x):
            def inner():
                y, size, stride = OVERLAPPING[base](self, x)
                write(y.as_strided(size, stride))
                return y * 1, self.layer(x) + y.as_strided((3, 1), (1, 1))[:, :1].sum()
            return within(inner)

    torch._dynamo.reset()
    caesura.reports.reset()  # each cause is told once
    eager, arguments = Overlapping(), [torch.arange(16.0).view(4, 4) for _ in range(2)]
    ours = copy.deepcopy(eager)
    with pytest.warns(caesura.FallbackWarning, match="whose elements share memory"):
        found = caesura.wrap(ours)(arguments[0])
    torch.testing.assert_close([*found, arguments[0], ours.seen], [*eager(arguments[1]), arguments[1], eager.seen])


def test_a_step_refuses_data_that_is_assigned():
    class Momentum(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for p, q in zip(self.query.parameters(), self.key.parameters()):
                    q.data = q.data * 0.9 + p.data * 0.1
            return (self.query(x) - self.key(x)).square().mean()

    module = Momentum()
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match="it assigns the data of a tensor.*overlaps_test.py"):
        step(torch.ones(2, 4))


def test_an_optimizer_around_another():
    """An optimizer made without Optimizer.__init__, so PyTorch steps it."""
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, base):
            self.base, self.param_groups, self.state, self.calls = base, base.param_groups, base.state, 0
            self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]

        def zero_grad(self, set_to_none=True):
            self.base.zero_grad(set_to_none)

        @torch.no_grad()
        def step(self, closure=None):
            self.base.step()
            self.calls += 1
            if self.calls % 2 == 0:
                for slow, p in zip(self.slow, (p for group in self.param_groups for p in group["params"])):
                    p.copy_(slow.lerp_(p, 0.5))

    torch.manual_seed(0)
    modules = [nn.Linear(4, 4)]
    modules.append(copy.deepcopy(modules[0]))
    optimizers = [Lookahead(torch.optim.SGD(m.parameters(), lr=0.1)) for m in modules]
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    with pytest.warns(caesura.FallbackWarning, match="Lookahead"):
        step = caesura.compile_step(modules[1], nn.functional.mse_loss, optimizers[1])
    for _ in range(4):
        optimizers[0].zero_grad()
        nn.functional.mse_loss(modules[0](x), y).backward()
        optimizers[0].step()
        step(x, y)
    for a, b in zip(modules[0].parameters(), modules[1].parameters()):
        torch.testing.assert_close(b, a)
