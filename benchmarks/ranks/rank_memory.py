# SPDX-License-Identifier: Apache-2.0
"""Measures the peak memory of a rank: compile_step with divided state beside PyTorch's fully_shard (FSDP2) and DDP.

    python benchmarks/ranks/rank_memory.py --layers 8 --width 512 --batch 4

Two ranks on Gloo, processes of one thread each, train transformer layers with AdamW for each variant in new processes:
eager modules in DDP; eager modules with fully_shard of each layer and the whole; compile_step with shard=0, 1 and 2.
It prints the peak of the resident memory of rank 0 in later steps, and what it exceeds that before the module was made by.
The first steps are left out: PyTorch captures the module in them. Linux only (/proc).
"""

import argparse
import multiprocessing
import os
import pathlib
import socket

VARIANTS = ("DDP", "FSDP2", "compile_step", "compile_step, shard=1", "compile_step, shard=2")


def resident(peak=False):
    """MiB of this process, now or at most since the last reset."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:" if peak else "VmRSS:")[1].split()[0]) / 1024


def measure(rank, port, variant, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    import torch
    import torch.distributed as dist
    from torch import nn

    import caesura

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    x = torch.randn(options.batch, options.time, options.width)
    y = torch.randint(0, 10, (options.batch,))
    before = resident()

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.TransformerEncoderLayer(options.width, 8, 4 * options.width, dropout=0.0,
                                                                   batch_first=True) for _ in range(options.layers))
            self.head = nn.Linear(options.width, 10)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x.mean(1))

    module = Layers()
    parameters = sum(p.numel() for p in module.parameters())
    loss_of = nn.functional.cross_entropy
    if variant.startswith("compile_step"):
        ranks = caesura.Ranks(shard=int(variant[-1]) if "shard" in variant else 0)
        step = caesura.compile_step(module, loss_of, torch.optim.AdamW(module.parameters()), ranks=ranks, threads=1)
    else:
        if variant == "FSDP2":
            from torch.distributed.fsdp import fully_shard

            mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
            for layer in module.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(module, mesh=mesh)
        else:
            module = nn.parallel.DistributedDataParallel(module)
        optimizer = torch.optim.AdamW(module.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss_of(module(x), y).backward()
            optimizer.step()

    for number in range(options.steps + 2):
        if number == 2:
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        step(x, y)
    if rank == 0:
        peak = resident(peak=True)
        print(f"  {variant:24} {peak:7.0f} MiB, {peak - before:6.0f} above the {before:.0f} before the module", flush=True)
        if variant == VARIANTS[0]:
            print(f"  ({parameters / 1e6:.1f} M parameters, {parameters * 4 / 2**20:.0f} MiB)")
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 8, "width": 512, "batch": 4, "time": 128, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", CAESURA_NUM_THREADS="1")
    for variant in VARIANTS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [multiprocessing.get_context("spawn").Process(target=measure, args=(rank, port, variant, options))
                     for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"the ranks ended with {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    main()
