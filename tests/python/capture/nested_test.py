# SPDX-License-Identifier: Apache-2.0
"""compile_step of forwards that make jagged nested tensors: they train as in eager."""

import pytest

torch = pytest.importorskip("torch")

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
