# SPDX-License-Identifier: Apache-2.0
"""A compiled step has the verbs of a TrainingSession: step, evaluate, plan, memory, learning_rate, updates, export, ..."""

import copy
import inspect

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import caesura  # noqa: E402

JOINABLE = ("join_hook", "join_device", "join_process_group")  # which PyTorch's Join asks for
VERBS = ["step", "evaluate", "plan", "memory", "save", "restore", "report", "export", "export_training", "suspend", "suspend_on",
         "suspend_after", "suspend_at", "suspended", "step_differences", "resume", "drop", "regroup", "learning_rate", "updates",
         "gradient_norm"]


def make(**options):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW([{"params": module[:2].parameters(), "lr": 0.1}, {"params": module[3].parameters()}], lr=0.01)
    return module, optimizer, caesura.compile_step(module, nn.functional.cross_entropy, optimizer, **options)


BATCH = torch.randn(6, 4), torch.randint(3, (6,))


def test_steps_and_sessions_have_the_same_verbs():
    for verb in VERBS:
        ours, theirs = getattr(caesura.CompiledStep, verb), getattr(caesura.TrainingSession, verb)
        assert isinstance(ours, property) == isinstance(theirs, property), verb
        if not isinstance(ours, property):
            of_inputs = ("args", "kwargs", "feeds", "title", "outputs")  # how each names a batch, and what only a session takes
            names = [[p for p in inspect.signature(f).parameters if p not in of_inputs] for f in (ours, theirs)]
            assert [n.replace("folder", "path") for n in names[0]] == names[1], verb
    public = {name for name in dir(caesura.CompiledStep) if not name.startswith("_")}
    assert public == {*VERBS, *JOINABLE, "gather_state", "micro_steps", "update_next"}


def test_what_a_step_tells_of_itself():
    module, optimizer, step = make(accumulation_steps=2)
    before, random = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    assert repr(step) == "CompiledStep(Sequential, AdamW: 0 programs, 0 updates)"
    text, arena_bytes = plan = step.plan(*BATCH)
    assert str(plan) == text and f"arena {arena_bytes} bytes" in text and arena_bytes > 0
    parameters = sum(p.numel() * 4 for p in module.parameters())
    memory = step.memory(*BATCH)
    assert memory.optimizer_state == 2 * parameters and memory.gradients == 2 * parameters  # of a batch, and their sum over two
    assert memory.arena == arena_bytes and memory.parameters == parameters + 2 * 8 * 4  # and the norm's statistics
    kept = memory.parameters + memory.optimizer_state + parameters + arena_bytes + sum(t.nbytes for t in BATCH)
    assert kept <= memory.peak <= kept + 256  # the loss, the rate, the seed
    assert str(memory).splitlines()[-1].split() == ["peak", f"{memory.peak / 1e6:.3f}", "MB"]
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))
    assert torch.equal(random, torch.get_rng_state()) and step.updates == 0
    losses = [step.step(*BATCH) for _ in range(4)]
    assert step.updates == 2 and all(loss.shape == () for loss in losses)
    assert repr(step) == "CompiledStep(Sequential, AdamW: 1 programs, 2 updates)"
    step.learning_rate = 0.2
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.02]) and step.learning_rate == 0.2
    before = copy.deepcopy(module.state_dict())
    loss, scores = step.evaluate(*BATCH)
    assert module.training and module[2].training and not loss.requires_grad and step.updates == 2
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))
    expected = copy.deepcopy(module).eval()(BATCH[0])
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(expected, BATCH[1]))


def test_the_loss_of_a_module_that_returns_it():
    class WithLoss(nn.Linear):
        def forward(self, x, target):
            return {"loss": nn.functional.mse_loss(super().forward(x), target)}

    module = WithLoss(4, 2)
    step = caesura.compile_step(module, None, torch.optim.SGD(module.parameters(), lr=0.1))
    loss, output = step.evaluate(BATCH[0], target=torch.zeros(6, 2))
    assert loss is output["loss"]


@pytest.mark.parametrize("option", [{"precision": "int8"}, {"accumulation_steps": 0}, {"memory_budget": -1}, {"threads": 1.5},
                                    {"clip_norm": -1}, {"dynamic": "yes"}], ids=lambda option: next(iter(option)))
def test_options_are_checked_when_given(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is .*got {next(iter(option.values()))!r}"):
        make(**option)


@pytest.mark.parametrize("option", [{"group": "own"}, {"shard": 3}, {"mean_over": "words"}, {"exchange_dtype": "fp8"}, {"bucket_bytes": 0},
                                    {"logical_shards": -1}], ids=lambda option: next(iter(option)))
def test_options_of_ranks_are_checked_when_given(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} is .*got {next(iter(option.values()))!r}"):
        caesura.Ranks(**option)
