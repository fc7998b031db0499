# SPDX-License-Identifier: Apache-2.0
"""CTC losses in captured graphs have eager's values and gradients (caesura/capture/ops/ctc.py)."""

import copy

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def ours_alone():
    with caesura.strict():
        yield


class Net(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = torch.nn.Linear(6, 5), options

    def forward(self, x, *labels):
        loss = F.ctc_loss(self.layer(x).log_softmax(-1), *labels, **self.options)
        return loss if loss.dim() == 0 else loss @ torch.arange(1.0, 4.0, dtype=loss.dtype)


LABELS = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [4, 4, 1, 0]])
BATCH = (torch.tensor([10, 4, 8]), torch.tensor([4, 2, 3]))
CASES = {
    "mean": (10, LABELS, *BATCH, {}),
    "sum": (10, LABELS.int(), *BATCH, {"reduction": "sum"}),
    "one by one": (10, LABELS, *BATCH, {"reduction": "none"}),
    "targets in a row": (10, torch.tensor([1, 2, 2, 4, 3, 1, 4, 4, 1]), *BATCH, {}),
    "another blank": (10, LABELS.where(LABELS < 4, 3), *BATCH, {"blank": 4}),
    "lengths in lists": (10, LABELS, *(length.tolist() for length in BATCH), {}),
    "too short": (10, LABELS, torch.tensor([4, 1, 8]), BATCH[1], {"zero_infinity": True}),
    "no batch": (None, LABELS[0], torch.tensor(10), torch.tensor(4), {}),
    "no batch, numbers": (None, LABELS[0], (10,), (4,), {}),
}


@pytest.mark.parametrize("through", ["wrap", "compile_step"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_trains_as_in_eager(case, through):
    torch._dynamo.reset()
    batch, *labels, options = case
    net = Net(**options).double()
    other = copy.deepcopy(net)
    x = torch.randn(10, *([] if batch is None else [3]), 6, dtype=torch.float64)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (net, other)]
    run = caesura.wrap(other) if through == "wrap" else caesura.compile_step(other, None, optimizers[1])
    for _ in range(3):
        optimizers[0].zero_grad()
        expected = net(x, *labels)
        expected.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss = run(x, *labels)
        if through == "wrap":
            loss.backward()
            optimizers[1].step()
        torch.testing.assert_close(loss.detach(), expected.detach())
    for a, b in zip(net.parameters(), other.parameters()):
        torch.testing.assert_close(b, a)


def test_is_one_graph():
    torch._dynamo.reset()
    caesura.wrap(Net())(torch.randn(10, 3, 6), LABELS, *BATCH).backward()
    told = [cause for cause in str(caesura.stats()).splitlines() if "graph break" in cause and __file__ in cause]
    assert told == []


def test_other_compilers_are_left_alone():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(Net(), backend="eager", fullgraph=True)(torch.randn(10, 3, 6), LABELS, *BATCH)
