# SPDX-License-Identifier: Apache-2.0
"""PyTorch's optimizers on a GPU, stepped by a compiled step and by PyTorch in turn."""

import copy

import pytest
from standin_torch import DEVICE, cuda, fresh, stand_in, torch  # noqa: F401

import caesura

F = torch.nn.functional
tree_map_only = torch.utils._pytree.tree_map_only

CASES = [("AdamW", {"fused": True}), ("AdamW", {"capturable": True}), ("AdamW", {}), ("NAdam", {"capturable": True}),
         ("RMSprop", {"capturable": True})]


def eager_step(module, optimizer, x, y):
    loss = F.cross_entropy(module(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_pytorch_goes_on_where_a_compiled_step_left_off(cuda, name, options, reloads):  # noqa: F811
    make = getattr(torch.optim, name)
    eager = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(DEVICE)
    other = copy.deepcopy(eager)
    first, second = (make(m.parameters(), lr=0.01, **options) for m in (eager, other))
    x, y = torch.linspace(-1, 1, 12).view(3, 4).to(DEVICE), torch.tensor([0, 1, 1]).to(DEVICE)
    steps = [caesura.compile_step(other, F.cross_entropy, second) for _ in range(2)]
    for turn in range(3):
        for _ in range(3):
            assert float(steps[0](x, y)) == pytest.approx(eager_step(eager, first, x, y), rel=1e-5)
        assert caesura.stats().fallbacks == {}
        if reloads:
            second.load_state_dict(tree_map_only(torch.Tensor, torch.Tensor.cpu, second.state_dict()))
        assert eager_step(other, second, x, y) == pytest.approx(eager_step(eager, first, x, y), rel=1e-5)
        for p, q in zip(eager.parameters(), other.parameters(), strict=True):
            mine, pytorchs = second.state[q]["step"], first.state[p]["step"]
            assert (mine.device, mine.dtype, float(mine)) == (pytorchs.device, pytorchs.dtype, 4.0 * (turn + 1))
    # Another compiled step takes over. A call of it copies no count.
    assert float(steps[1](x, y)) == pytest.approx(eager_step(eager, first, x, y), rel=1e-5)
    steps[1](x, y)
    copies = [cuda.calls(f"cuMemcpy{way}Async") for way in ("DtoH", "HtoD")]
    steps[1](x, y)
    assert all(cuda.calls(f"cuMemcpy{way}Async") - n <= 3 for way, n in zip(("DtoH", "HtoD"), copies, strict=True))


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_updates_that_are_left_to_pytorch_find_the_counts(cuda):  # noqa: F811
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)

        def forward(self, x, both):
            return self.first(x) + self.second(x) if both else self.first(x)

    eager = Two().to(DEVICE)
    other = copy.deepcopy(eager)
    first, second = (torch.optim.AdamW(m.parameters(), lr=0.01, capturable=True) for m in (eager, other))
    step = caesura.compile_step(other, F.cross_entropy, second)
    x, y = torch.linspace(-1, 1, 12).view(3, 4).to(DEVICE), torch.tensor([0, 1, 1]).to(DEVICE)
    for both in (False, True, True, False):  # the counts are unequal after the first
        if not both and second.state:
            second.register_step_pre_hook(lambda *_: None)  # which only PyTorch's own step calls
        loss = F.cross_entropy(eager(x, both), y)
        loss.backward()
        first.step()
        first.zero_grad()
        assert float(step(x, both, y)) == pytest.approx(float(loss.detach()), rel=1e-5)
    for p, q in zip(eager.parameters(), other.parameters(), strict=True):
        assert float(second.state[q]["step"]) == float(first.state[p]["step"])
