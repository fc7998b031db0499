# SPDX-License-Identifier: Apache-2.0
"""Trainers and Accelerators on two ranks, by compile_step: logs, parameters and checkpoints of the loops without it."""

import functools
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402


class Model(nn.Module):
    """Its loss is a mean over the labels that are not -100, of all ranks and batches of an update where the Trainer tells how many."""

    accepts_loss_kwargs = True

    def __init__(self, branches=False):
        super().__init__()
        torch.manual_seed(0)
        self.branches, self.table, self.head = branches, nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, ids, labels, num_items_in_batch=None):
        scores = self.head(self.table(ids).cumsum(1))
        if self.branches and scores.sum() > 1e9:
            scores = scores * 2
        if num_items_in_batch is None:
            return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())}
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / num_items_in_batch}


def rows():
    ids = torch.randint(32, (32, 6), generator=torch.Generator().manual_seed(0))
    return [{"ids": row, "labels": torch.where(torch.arange(6) < i % 5, -100, row)} for i, row in enumerate(ids)]


def equal(ours, plain, tolerance):
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance / 10)
    same_on_all_ranks(ours.parameters())


def trainer(rank, folder):
    import transformers
    from safetensors.torch import load_file

    from caesura.integrations.transformers import CaesuraTrainer

    def train(kind, branches=False, **options):
        given = {"max_steps": 4, "gradient_accumulation_steps": 2, "logging_steps": 1, "max_grad_norm": 0.5, "save_steps": 2}
        arguments = transformers.TrainingArguments(f"{folder}/{kind.__name__}", per_device_train_batch_size=2, learning_rate=1e-2,
                                                   report_to=[], use_cpu=True, ddp_backend="gloo", disable_tqdm=True, seed=0,
                                                   **given | options)
        made = kind(model=Model(branches), args=arguments, train_dataset=rows())
        made.train()
        names = "loss", "grad_norm", "learning_rate"
        return made, [[entry[name] for name in names] for entry in made.state.log_history if "loss" in entry]

    for options in ({}, {"average_tokens_across_devices": False, "gradient_accumulation_steps": 1}, {"bf16": True}):
        plain, expected = train(transformers.Trainer, **options)
        ours, logged = train(CaesuraTrainer, **options)
        assert ours.refused is None and len(expected) == 4
        assert logged == [pytest.approx(one, rel=1e-2 if "bf16" in options else 1e-4) for one in expected]
        equal(ours.model, plain.model, 0.1 if "bf16" in options else 1e-3)
        if not options:  # transformers itself does not load an optimizer on several ranks of CPUs: it maps it to "cpu:0"
            saved = [f"{folder}/{kind}/checkpoint-2/" for kind in ("CaesuraTrainer", "Trainer")]
            files = [[load_file(f"{at}model.safetensors"), torch.load(f"{at}optimizer.pt", weights_only=True)] for at in saved]
            torch.testing.assert_close(*files, rtol=1e-3, atol=1e-4)
            first = expected
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours, logged = train(CaesuraTrainer, branches=True)
    assert "one program" in ours.refused and any("compile_step in CaesuraTrainer is not used" in str(w.message) for w in told)
    assert logged == [pytest.approx(one, rel=1e-4) for one in first]
    return True


def accelerator(rank, folder):
    import accelerate

    from caesura.integrations.accelerate import compile_step

    loss_fn = nn.functional.cross_entropy

    def train(ours, save=None, resume=None, stop=8, **options):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3, **options)
        make = torch.Generator().manual_seed(0)
        data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=make), torch.randint(3, (64,), generator=make))
        model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2),
                                                       torch.utils.data.DataLoader(data, batch_size=4))
        step = compile_step(accelerator, model, loss_fn, optimizer, clip_norm=0.5) if ours else None
        losses = []
        if resume:
            accelerator.load_state(folder)
        for x, y in accelerator.skip_first_batches(loader, resume or 0):
            if ours:
                loss = step(x, target=y)
            else:
                with accelerator.accumulate(model):
                    loss = loss_fn(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
            if len(losses) == save:
                accelerator.save_state(folder)
            if len(losses) + (resume or 0) == stop:
                break
        assert step is None or step.refused is None, step.refused
        return losses, net

    for options in ({}, {"mixed_precision": "bf16"}):
        accelerate.state.AcceleratorState._reset_state()
        train_with = functools.partial(train, **options)
        (expected, plain), (losses, ours) = train_with(False), train_with(True)
        tolerance = 1e-2 if options else 1e-4
        assert len(expected) == 8 and losses == pytest.approx(expected, rel=tolerance)
        equal(ours, plain, 0.1 if options else 1e-3)
        if not options:
            for done, after in ((4, True), (6, False)):  # within an update, and after one
                first, _ = train(True, save=done, stop=done)
                second, _ = train(after, resume=done)
                assert first + second == pytest.approx(expected, rel=1e-4)
    return True


@pytest.mark.parametrize("body, library", ((trainer, "transformers"), (accelerator, "accelerate")))
def test_two_ranks(body, library, tmp_path):
    pytest.importorskip(library)
    run_ranks(2, body, str(tmp_path))
