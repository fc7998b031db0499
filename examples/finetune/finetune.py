# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT-2 of transformers on Python's own sources, through caesura.wrap, in four kinds of training loop.

    python examples/finetune/finetune.py                      transformers.Trainer
    python examples/finetune/finetune.py --loop accelerate    or accelerate, lightning, plain
    python examples/finetune/finetune.py --eager              the same in PyTorch only, to compare with

Only the line that wraps the model differs between the two. Characters are the tokens and the weights begin at random,
so nothing has to be downloaded.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import caesura

LENGTH, BATCH = 64, 8


class Text(torch.utils.data.Dataset):
    """Pieces of the standard library's sources. Every item is a dict, as transformers' models take it."""

    def __init__(self, pieces=4096):
        folder = pathlib.Path(os.__file__).parent
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:60])
        text = bytes(min(b, 127) for b in text)
        starts = torch.randint(0, len(text) - LENGTH, (pieces,), generator=torch.Generator().manual_seed(0))
        self.items = [torch.tensor(list(text[s:s + LENGTH])) for s in starts.tolist()]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {"input_ids": self.items[i], "labels": self.items[i]}


def make_model():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    return transformers.GPT2LMHeadModel(config)


def batches(data, steps):
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2,
                                         generator=torch.Generator().manual_seed(0))
    return [batch for batch, _ in zip(loader, range(steps))]


def plain(model, data, steps):
    """Trains in a plain PyTorch loop; returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses = []
    for batch in batches(data, steps):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_trainer(model, data, steps):
    arguments = transformers.TrainingArguments(
        output_dir="/tmp/caesura-finetune", max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3,
        logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=not sys.stderr.isatty(), seed=0)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def with_accelerate(model, data, steps):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    losses = []
    for batch, _ in zip(loader, range(steps)):
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_lightning(model, data, steps):
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = model, []

        def training_step(self, batch, index):
            loss = self.model(**batch).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    task = Task()
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(0))
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=sys.stderr.isatty(), enable_model_summary=False)
    trainer.fit(task, loader)
    return task.losses


LOOPS = {"trainer": with_trainer, "accelerate": with_accelerate, "lightning": with_lightning, "plain": plain}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", choices=LOOPS, default="trainer", help="whose loop (default: trainer)")
    parser.add_argument("--steps", type=int, default=100, help="updates (default: 100)")
    parser.add_argument("--eager", action="store_true", help="without caesura")
    options = parser.parse_args()
    model = make_model()
    if not options.eager:
        model = caesura.wrap(model)
    began = time.time()
    losses = LOOPS[options.loop](model, Text(), options.steps)
    print(f"{options.loop}, {'PyTorch alone' if options.eager else 'through caesura'}: loss {losses[0]:.3f} -> "
          f"{sum(losses[-5:]) / len(losses[-5:]):.3f} in {len(losses)} steps, {time.time() - began:.1f} s")
    if not options.eager:
        print(caesura.stats())


if __name__ == "__main__":
    main()
