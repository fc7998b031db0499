# SPDX-License-Identifier: Apache-2.0
"""Trains the digits on the ranks that a launcher starts, and goes on from the last checkpoint where it starts them again.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 restart_ranks.py run.pt
    mpirun -n 2 python restart_ranks.py run.pt
    srun -n 2 python restart_ranks.py run.pt

torchrun restarts the ranks itself. Without the variable PyTorch 2.13 keeps its store, in which Gloo then finds the
addresses of the ranks before. A job of the other two launchers ends when a rank is lost, and is started again.
"""

import argparse
import os
import pathlib
import sys

import torch
import torch.distributed as dist

import caesura

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import digits  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint", type=pathlib.Path)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--every", type=int, default=20, help="updates between two checkpoints")
arguments = parser.parse_args()
for own, mpi, slurm in (("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")):
    os.environ.setdefault(own, os.environ.get(mpi, os.environ.get(slurm, "")))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # of several machines: that of rank 0
os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
images, labels, test_images, test_labels = digits.load()
model, done = digits.net(), 0
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
if arguments.checkpoint.exists():
    saved = torch.load(arguments.checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["done"]
    print(f"rank {rank} of {size} goes on after update {done}", flush=True)
step = caesura.compile_step(model, torch.nn.functional.cross_entropy, optimizer)
torch.manual_seed(0)  # all ranks shuffle alike, in each run, and each takes its part of every batch
batches = list(digits.batches(images, labels, epochs=arguments.epochs))
for number, (x, y) in list(enumerate(batches, 1))[done:]:
    step(x.chunk(size)[rank], y.chunk(size)[rank])
    if rank == 0 and (number % arguments.every == 0 or number == len(batches)):
        written = arguments.checkpoint.with_suffix(".new")  # whole before it takes the name of the last one
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": number}, written)
        os.replace(written, arguments.checkpoint)
if rank == 0:
    with torch.no_grad():
        print(f"{size} ranks: accuracy {digits.accuracy(model(test_images), test_labels):.3f}", flush=True)
dist.barrier()
os._exit(0)  # Gloo's threads may end badly in the interpreter's finalization (docs/troubleshooting.md)
