# SPDX-License-Identifier: Apache-2.0
"""compile_step of forwards that make jagged nested tensors: they train as in eager."""

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from compile_step_edges_test import steps_as_eager  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of nested tensors, which PyTorch calls a prototype


def jagged(x):
    return torch.nested.as_nested_tensor([x[:1], x[1:]], layout=torch.jagged)


def partly_detached(m, x):
    rows = m.a(jagged(x))
    return (m.b(rows.detach()) * rows).values()


def product(m, x):
    rows = jagged(x)
    return (m.a(rows) * m.b(rows)).values()


CASES = {
    "two layers": lambda m, x: m.b(torch.relu(m.a(jagged(x)))).values(),
    "softmax": lambda m, x: torch.softmax(m.a(jagged(x)), -1).values() * m.b(x),
    "a product": product,
    "padded": lambda m, x: torch.nested.to_padded_tensor(m.a(jagged(x)), -1.5)[:, 1:].sum((0, 1)) * m.b(x),
    "partly detached": partly_detached,
}


@pytest.mark.parametrize("forward", CASES.values(), ids=CASES)
def test_trains_as_eager(forward):
    torch._dynamo.reset()
    steps_as_eager(forward)


def attention(m, rows):
    y = m.a(rows).unflatten(-1, (2, 2)).transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(y, y, y).transpose(1, 2).flatten(-2).values()


def layer_norm(m, rows):
    return torch.nn.functional.layer_norm(m.a(rows), (4,)).values()


def normed_values(m, rows):
    rows = m.a(rows)
    return m.b(torch.nested.nested_tensor_from_jagged(torch.nn.functional.layer_norm(rows.values(), (3,)), rows.offsets())).values()


@pytest.mark.parametrize("forward, made, told", [
    (attention, True, "attention over jagged nested tensors: pad them by torch.nested.to_padded_tensor"),
    (layer_norm, True, "layer_norm.. of a jagged nested tensor x: make the tensor anew of its values"),
    (lambda m, rows: m.a(rows).values(), False, r"given a NestedTensor, .* hand over its values.. and offsets..")])
def test_refused_by_name(forward, made, told):
    """With the user's line, and what to write."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4)

        def forward(self, x):
            return forward(self, jagged(x) if made else x)

    torch._dynamo.reset()
    net, x = Net(), torch.randn(3, 4)
    step = caesura.compile_step(net, lambda y, _: y.square().mean(), torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(caesura.StepRefused, match=rf"{told}.* \(at {__file__}:\d+ in"):
        step(x if made else jagged(x), None)


def test_what_the_refusals_say_to_write():
    """In float32: a model file has layer_norm's epsilon as such a number."""
    def forward(m, x):
        made = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 4]))
        return normed_values(m, jagged(x)) + m.a(made).values()

    torch._dynamo.reset()
    steps_as_eager(forward, torch.float32)
