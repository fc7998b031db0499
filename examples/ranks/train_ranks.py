# SPDX-License-Identifier: Apache-2.0
"""Trains the digits on several ranks: each compiles the whole step, which exchanges the gradients itself.

    torchrun --nproc-per-node 2 train_ranks.py
"""

import os
import pathlib
import sys

import torch
import torch.distributed as dist

import caesura

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import digits  # noqa: E402

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
images, labels, test_images, test_labels = digits.load()
model = digits.net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer)
torch.manual_seed(0)  # all ranks shuffle alike, and each takes its part of every batch
for x, y in digits.batches(images, labels, epochs=10):
    loss = step(x.chunk(size)[rank], y.chunk(size)[rank])
if rank == 0:
    with torch.no_grad():
        print(f"{size} ranks: loss {loss:.4f}, accuracy {digits.accuracy(model(test_images), test_labels):.3f}", flush=True)
dist.barrier()
os._exit(0)  # Gloo's threads may end badly in the interpreter's finalization (docs/troubleshooting.md)
