# SPDX-License-Identifier: Apache-2.0
"""compile_step of forwards with torch.cond and while_loop, and of calls that PyTorch traces otherwise without gradients."""

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from compile_step_edges_test import data, make, steps_as_eager  # noqa: E402

F, nn = torch.nn.functional, torch.nn
pytestmark = pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def nested(m, x):
    def inner(a):
        return torch.cond(a.sum() > 1, lambda c: m.a(c), lambda c: m.b(c).detach(), (a,))
    return torch.cond(x.sum() > 0, inner, lambda a: m.b(a).detach() * a, (x,))


def two_results(m, x):
    u, v = torch.cond(m.a(x).sum() > 0, lambda a, b: (a @ m.b.weight, b + 1), lambda a, b: (a.exp(), b * a.sum(0)),
                      (m.a(x), m.b.bias))
    return u + v


def without_gradients(m, x):
    with torch.no_grad():
        h = torch.cond(x.sum() > 0, m.a, lambda a: m.b(a) * 2, (x,))
    return h + m.b(x)


def written_after(m, x):
    h = torch.cond(x.sum() > 0, lambda a: m.a(a), lambda a: m.b(a) * 2, (x,))
    h += m.b(x)
    return h


def loop(m, x):
    start = torch.tensor(0.0, dtype=x.dtype), m.b(x)
    return torch.while_loop(lambda i, y: i < x[0, 0].abs() + 2, lambda i, y: (i + 1, m.a(y).tanh()), start)[1]


def filled_in_another_layout(m, x):
    return m.a(x).t().index_fill(0, torch.tensor([1]), 0.5).t()


OFFSETS = [0, 2, 4, 5]
CASES = {
    "cond": lambda m, x: torch.cond(x.sum() > 0, lambda a: m.a(a), lambda a: m.b(a) * 2, (x,)),
    "cond of a computed value": lambda m, x: m.b(torch.cond(m.a(x).sum() > 0, torch.sin, torch.cos, (m.a(x),))),
    "nested": nested, "two results": two_results, "without gradients": without_gradients, "written after": written_after, "loop": loop,
    "filled in another layout": filled_in_another_layout,
    "bags": lambda m, x: F.embedding_bag(torch.tensor([[0, 1], [1, 2], [2, 2], [0, 0]]), m.a(x)),
    "bags by offsets": lambda m, x: F.embedding_bag(torch.tensor([0, 1, 1, 2, 2, 2, 0]), m.a(x), torch.tensor(OFFSETS), mode="max"),
}


@pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
def test_trains_as_eager(forward):
    steps_as_eager(forward)


def test_attributes_after_a_loop_are_kept():
    def forward(m, x):
        m.steps += 1
        y = torch.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * 0.5), (torch.tensor(0), x.clone()))[1]
        m.seen = y.clone()
        return m.a(x) + m.seen

    module, (x, target) = make(forward), data(1)[0]
    module.register_buffer("steps", torch.tensor(0))
    caesura.compile_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1))(x, target)
    torch.testing.assert_close(module.seen, x * 0.25)
    assert module.steps == 1


def mapped(m, x):
    from torch._higher_order_ops.map import map as map_
    return map_(lambda row: m.a(row).sin(), x)


def scanned(m, x):
    from torch._higher_order_ops.scan import scan
    return scan(lambda c, row: (c + row, (c * row).clone()), torch.zeros(3, dtype=x.dtype), m.a(x))[1]


def written_windows(m, x):
    y = m.a(x).clone()
    y.unfold(0, 2, 1).mul_(2)
    return y


def written_row_of_windows(m, x):
    def inner(x):
        y = m.a(x).clone()
        y.as_strided((2, 4), (1, 1))[1].add_(1)
        return y
    return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)


def looped(y):
    if not torch.compiler.is_dynamo_compiling():
        return y * 0.25
    return torch.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * 0.5), (torch.tensor(0), y))[1]


def written_view_of_a_loop(m, x):
    y = looped(m.a(x))
    y[..., -1:] += 1
    return y


def loop_then_checkpoint(m, x):
    return torch.utils.checkpoint.checkpoint(torch.sin, looped(m.a.bias.sin()), use_reentrant=False) + m.a(x)


def strided_loop(m, x):
    return m.a(x) + looped(x[:3].diagonal())


def written_transposed_layer(m, x):
    y = m.a(x.view(2, 2, 3)).transpose(0, -1)
    y.masked_fill_(y > 0, 0.5)
    return y.transpose(0, -1).reshape(4, 3)


@pytest.mark.parametrize("forward, why", [
    (mapped, r"map_impl: no equivalent in ONNX ops \(at .*branches_test.py"),
    (scanned, r"scan: no equivalent in ONNX ops \(at .*branches_test.py"),
    (strided_loop, r"to have same metadata but found: \(at .*branches_test.py"),
    (written_windows, r"elements share memory, as those of unfold\(\) do: clone it first \(at .*branches_test.py"),
    (written_row_of_windows, r"elements share memory, as those of unfold\(\) do: clone it first \(at .*branches_test.py"),
    (written_view_of_a_loop, r"a view of what an autograd.Function or a loop gives: clone that first \(at .*branches_test.py"),
    (loop_then_checkpoint, r"whose strides no trace knows: call it outside of the checkpoint \(at .*branches_test.py"),
    (written_transposed_layer, r"a view whose memory lies in another order: write to a copy of it, by clone\(\) \(at .*branches_test.py"),
], ids=["map", "scan", "strided loop", "unfold", "as_strided", "view of a loop", "loop then checkpoint", "transposed"])
def test_is_refused_by_name(forward, why):
    module, (x, target) = make(forward), data(1)[0]
    with pytest.raises(caesura.StepRefused, match=why) as refused:
        caesura.compile_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1))(x, target)
    assert refused.value.__cause__ is None  # PyTorch's error says no more


def test_a_hook_of_all_modules_that_fails_on_a_branch_is_named():
    module = make(lambda m, x: torch.cond(x.mean() < 0, lambda t, w: t * w, lambda t, w: t + w, (x, m.a.bias)))
    step = caesura.compile_step(module, F.mse_loss, torch.optim.SGD(module.parameters(), lr=0.1), dynamic=True)
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, given: tuple(t.detach() for t in given))
    try:
        with pytest.raises(caesura.StepRefused, match="the hooks of all modules for the graphs within a graph.*branches_test.py"):
            step(*data(1)[0])
    finally:
        handle.remove()
