# SPDX-License-Identifier: Apache-2.0
"""Measures what two ranks add to a step, beside what DistributedDataParallel (DDP) adds to eager's.

    python benchmarks/ranks/rank_additions.py --rounds 20

Two ranks on Gloo, processes of one thread each on this machine. In each round all variants of a model take turns, with
SGD and momentum, which has one moment to divide; each rank has a batch of its own:

- eager, and eager in DDP;
- compile_step of each rank by itself (Ranks("alone")), of both ranks, and with shard=1;
- wrap, and DDP(wrap);
- the all-reduce of as many bytes as the gradients have: about the least that a large step adds where ranks have all cores.

Steps of one rank also run on both ranks at once, so that they share the machine as the others do. It prints medians and
quartiles of the slower rank's milliseconds; what two ranks add in a round, ours over DDP's; and the ratios of shard=1 to
shard=0, of DDP(wrap) to DDP and of compile_step to DDP, with their quartiles over the rounds.
"""

import argparse
import multiprocessing
import os
import socket
import statistics

from rank_overlap import in_turns, quartiles

RATE = {"lr": 1e-3, "momentum": 0.9}


def cases(torch, rank):
    """(name, how to make the module, the batches) of each model; batches take turns."""
    from torch import nn

    generator = torch.Generator().manual_seed(rank)

    def rows(*shape):
        return [(torch.randn(*shape, generator=generator), torch.randint(0, 10, (shape[0],), generator=generator))]

    def mlp(*widths):
        pairs = list(zip(widths, widths[1:]))
        return nn.Sequential(*(part for i, o in pairs for part in (nn.Linear(i, o), nn.ReLU())), nn.Linear(widths[-1], 10))

    def convolutions():
        return nn.Sequential(*(part for i, o in ((3, 32), (32, 64), (64, 64)) for part in (
            nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))), nn.Flatten(), nn.Linear(64 * 16, 10))

    class Layers(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=dropout, batch_first=True)
            self.layers, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(256, 10)

        def forward(self, x):
            return self.head(self.layers(x).mean(1))

    lengths = [rows(4, 24 + 8 * ((rank + i) % 3), 256)[0] for i in range(3)]
    return [("MLP of 30 MiB", lambda: mlp(784, 1600, 1600, 1600, 800), rows(32, 784)),
            ("convolutions", convolutions, rows(16, 3, 32, 32)),
            ("tiny MLP", lambda: mlp(32, 32), rows(16, 32)),
            ("transformer layers", lambda: Layers(0.0), rows(4, 32, 256)),
            ("transformer layers, dropout", lambda: Layers(0.1), rows(4, 32, 256)),
            ("transformer layers, lengths by rank", lambda: Layers(0.0), lengths)]


def variants(torch, make, batches, repeats):
    """Runs of some steps each, by name."""
    from torch.nn.parallel import DistributedDataParallel

    import caesura

    loss_of = torch.nn.functional.cross_entropy

    def eager(around):
        torch.manual_seed(0)
        module = around(make())
        optimizer = torch.optim.SGD(module.parameters(), **RATE)

        def run():
            for _ in range(repeats):
                for x, y in batches:
                    optimizer.zero_grad()
                    loss_of(module(x), y).backward()
                    optimizer.step()
        return run

    def compiled(ranks):
        torch.manual_seed(0)
        module = make()
        step = caesura.compile_step(module, loss_of, torch.optim.SGD(module.parameters(), **RATE), ranks=ranks, threads=1)

        def run():
            for _ in range(repeats):
                for x, y in batches:
                    step(x, y)
        return run

    gradients = torch.zeros(sum(p.numel() for p in make().parameters()))

    def all_reduce():
        for _ in range(repeats * len(batches)):
            torch.distributed.all_reduce(gradients)

    return {"all-reduce alone": all_reduce,
            "eager": eager(lambda module: module), "DDP": eager(DistributedDataParallel),
            "compile_step, one rank": compiled(caesura.Ranks("alone")), "compile_step": compiled(caesura.Ranks()),
            "compile_step, shard=1": compiled(caesura.Ranks(shard=1)),
            "wrap": eager(caesura.wrap), "DDP(wrap)": eager(lambda module: DistributedDataParallel(caesura.wrap(module)))}


def ratio(above, below):
    """The ratio of the medians, and the quartiles of the rounds' own."""
    low, _, high = statistics.quantiles([a / b for a, b in zip(above, below)], n=4, method="inclusive")
    return f"{statistics.median(above) / statistics.median(below):6.2f} ({low:.2f} to {high:.2f})"


def measure(rank, port, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, make, batches in cases(torch, rank):
        if options.case and options.case not in name:
            continue
        repeats = 20 if name.startswith("tiny") else 1
        times = in_turns(variants(torch, make, batches, repeats), options.rounds, skipped=3)
        times = {variant: [t / repeats / len(batches) for t in taken] for variant, taken in times.items()}
        added = [[two - one for two, one in zip(times[of], times[alone])]
                 for of, alone in (("compile_step", "compile_step, one rank"), ("DDP", "eager"))]
        if rank == 0:
            print(name)
            for variant, taken in times.items():
                print(f"  {variant:24} {quartiles(taken, digits=2)}")
            print(f"  {'what two ranks add':24} {quartiles(added[0], digits=2)}, DDP {quartiles(added[1], digits=2)}")
            ours, ddp = map(statistics.median, added)
            least = statistics.median(times["all-reduce alone"])
            print(f"  added over what DDP adds {ours / ddp:6.2f}; the all-reduce alone {least / ddp:6.2f}")
            print(f"  shard=1 over shard=0     {ratio(times['compile_step, shard=1'], times['compile_step'])}")
            print(f"  DDP(wrap) over DDP       {ratio(times['DDP(wrap)'], times['DDP'])}")
            print(f"  compile_step over DDP    {ratio(times['compile_step'], times['DDP'])}", flush=True)
    if rank == 0:
        print(f"{options.rounds} rounds; the machine's load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--case", help="only models whose names have this in them")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", CAESURA_NUM_THREADS="1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [multiprocessing.get_context("spawn").Process(target=measure, args=(rank, port, options)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit(f"the ranks ended with {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    main()
