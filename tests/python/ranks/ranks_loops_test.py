# SPDX-License-Identifier: Apache-2.0
"""Other people's loops on two ranks, around models of more than 25 MiB: losses of eager's, all of it in our kernels."""

import copy
import os

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import caesura  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from ranks_test import Net  # noqa: E402


class Ours:
    """A profile of what ran: kernels of ours, and no fallback."""

    def __enter__(self):
        caesura.reports.reset()
        self.strict = caesura.strict()
        self.strict.__enter__()
        self.profile = torch.profiler.profile()
        self.profile.__enter__()

    def __exit__(self, *error):
        self.profile.__exit__(*error)
        self.strict.__exit__(*error)
        if error[0] is None:
            report = caesura.stats()
            assert report.kernel_calls > 0 and report.eager_calls == 0 and not report.fallbacks
            assert any(e.key.startswith("caesura::") for e in self.profile.key_averages())


def _batches():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(1024, generator=generator), torch.randint(0, 8, (), generator=generator)) for _ in range(24)]


def _net():
    net = Net()
    net.spare = nn.Identity()
    return net


def _same_parameters(eager, ours):
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    same_on_all_ranks(ours.parameters())


def trainer(rank, folder):
    import transformers
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=2048, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=0))
    assert sum(p.nbytes for p in plain.parameters()) > 25 << 20
    ours = caesura.wrap(copy.deepcopy(plain))
    rows = torch.randint(1, 512, (32, 16), generator=torch.Generator().manual_seed(0))
    losses = []

    def train(model):
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1,
            report_to=[], use_cpu=True, ddp_backend="gloo", disable_tqdm=True, seed=0, save_strategy="no",
            lr_scheduler_type="constant")
        trained = transformers.Trainer(model=model, args=arguments, train_dataset=[{"input_ids": r, "labels": r} for r in rows])
        trained.train()
        losses.append([float(entry["loss"]) for entry in trained.state.log_history if "loss" in entry])

    train(plain)
    with Ours():
        train(ours)
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], rel=2e-3)  # the log has three digits or four
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):  # Adam's first steps are of size 1, whatever the gradient
        assert (b - a).abs().mean() < 2e-5
    same_on_all_ranks(ours.parameters())
    return True


def accelerate(rank, folder):
    import accelerate as library

    def train(net):
        accelerator = library.Accelerator(cpu=True, gradient_accumulation_steps=2)
        loader = torch.utils.data.DataLoader(_batches(), batch_size=3)
        model, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05), loader)
        losses = []
        for x, target in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), target)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain, ours = _net(), caesura.wrap(_net())
    expected = train(plain)
    with Ours():
        losses = train(ours)
    assert len(losses) == 4 and losses == pytest.approx(expected, rel=1e-4)
    _same_parameters(plain, ours)
    return True


def lightning(rank, folder):
    import lightning as library

    class Task(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = _net(), []

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    def train(task, callbacks):
        library.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", callbacks=callbacks, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        use_distributed_sampler=False).fit(task, torch.utils.data.DataLoader(_batches()[rank::2], batch_size=3))
        return task

    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0"}  # as torchrun sets them
    plain = train(Task(), [])
    with Ours():
        ours = train(Task(), [caesura.integrations.lightning.CaesuraCallback()])
    assert len(ours.losses) == 4 and ours.losses == pytest.approx(plain.losses, rel=1e-4)
    _same_parameters(plain, ours)
    return True


@pytest.mark.parametrize("body, library", ((trainer, "transformers"), (accelerate, "accelerate"), (lightning, "lightning")))
def test_two_ranks(body, library, tmp_path):
    pytest.importorskip(library)
    run_ranks(2, body, str(tmp_path))
