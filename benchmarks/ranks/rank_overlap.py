# SPDX-License-Identifier: Apache-2.0
"""Overlap of the exchange of gradients with the step, over a slow link between two ranks: compile_step, whose plan
has the exchange, beside wrapped and eager modules in DistributedDataParallel (DDP).

    python benchmarks/ranks/rank_overlap.py --gbit 1 2 --rounds 8

Each rank is a process in a network namespace of its own; the link between them is limited by tbf, which costs no CPU
time. It needs root, ip and tc, and says so if it may not make namespaces. The model is the GPT of 10.8 M parameters of
caesura.bench. In each round all variants take turns, in the same processes: whole steps with AdamW, on one thread a rank.
It prints, for each link, medians and quartiles of the slower rank's milliseconds, for each variant what the exchange
adds to its own compute, and how near it comes to max(compute, all-reduce). DDP's bound has its last bucket too, which
nothing can overlap with.
"""

import argparse
import os
import statistics
import sys
import time

import rank_link

BUCKETS = (1, 4, 25)


def launch(options):
    try:
        with rank_link.namespaces():
            for gbit in options.gbit:
                rank_link.limit(gbit)
                rank_link.run_ranks(__file__, [*sys.argv[1:], "--link", str(gbit)])
    except rank_link.NoNamespaces as error:
        print(f"skipped: {error}")


def quartiles(values, digits=0):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:8.{digits}f} ms ({low:.{digits}f} to {high:.{digits}f})"


def in_turns(runs, rounds, skipped):
    """Milliseconds that the slower rank takes for each run. All runs take turns in each round; the first `skipped` rounds
    warm up."""
    import torch
    import torch.distributed as dist

    times = {name: [] for name in runs}
    for number in range(rounds + skipped):
        for name in list(runs)[::1 if number % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            runs[name]()
            taken = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if number >= skipped:
                times[name].append(1e3 * taken.item())
    return times


def measure(options):
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import caesura
    from caesura.bench.models import Gpt, GptSizes

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, sizes = dist.get_rank(), GptSizes()
    alone = [dist.new_group([r]) for r in range(2)][rank]
    generator = torch.Generator().manual_seed(rank)
    tokens, targets = (torch.randint(0, sizes.vocabulary, (options.batch, sizes.time), generator=generator) for _ in range(2))

    def loss_of(scores, targets):
        return cross_entropy(scores, targets.flatten())

    def in_pytorch(module):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

        def step():
            optimizer.zero_grad()
            loss_of(module(tokens), targets).backward()
            optimizer.step()

        return step

    def make(wrapper=lambda module: module):
        torch.manual_seed(0)
        return wrapper(Gpt(sizes))

    def compiled(group):
        module = make()
        step = caesura.compile_step(module, loss_of, torch.optim.AdamW(module.parameters(), lr=1e-4), ranks=caesura.Ranks(group))
        return lambda: step(tokens, targets)

    gradients = torch.ones(sum(p.numel() for p in Gpt(sizes).parameters()))
    runs = {"all-reduce alone": lambda: dist.all_reduce(gradients), "eager alone": in_pytorch(make()),
            "wrap alone": in_pytorch(make(caesura.wrap)), "compile_step alone": compiled(alone), "compile_step": compiled(None)}
    modules, compute = {}, {"compile_step": "compile_step alone"}
    for megabytes in BUCKETS:
        for name, own, module in (("DDP", "eager alone", make()), ("DDP(wrap)", "wrap alone", make(caesura.wrap))):
            name = f"{name}, buckets of {megabytes} MiB"
            modules[name], compute[name] = DistributedDataParallel(module, bucket_cap_mb=megabytes), own
            runs[name] = in_pytorch(modules[name])
    times = in_turns(runs, options.rounds, skipped=3)  # captured in the first, with buckets laid anew in the second
    if rank == 0:
        print(f"\n{options.link} Gbit/s, {gradients.numel() / 1e6:.1f} M parameters, batch {options.batch}, "
              f"{options.rounds} rounds, one thread a rank")
        median = {name: statistics.median(taken) for name, taken in times.items()}
        exchange = median["all-reduce alone"]
        for name, taken in times.items():
            text = f"  {name:30} {quartiles(taken)}"
            if name in compute:
                own = median[compute[name]]
                bound = max(own, exchange)
                text += f"   {median[name] - own:5.0f} ms above its compute, bound {bound:4.0f} ms: {100 * bound / median[name]:3.0f}%"
            if name in modules:
                buckets = modules[name]._get_ddp_logging_data()["rebuilt_bucket_sizes"]
                bound += exchange * int(buckets.split(",")[-1]) / gradients.nbytes
                text += f"; with the last bucket {bound:4.0f} ms: {100 * bound / median[name]:3.0f}%"
            print(text, flush=True)
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gbit", type=float, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    options = parser.parse_args()
    launch(options) if options.rank is None else measure(options)


if __name__ == "__main__":
    main()
