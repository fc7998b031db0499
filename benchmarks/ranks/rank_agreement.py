# SPDX-License-Identifier: Apache-2.0
"""The cost of a step that happens on all ranks or on none, where nothing fails.

    python benchmarks/ranks/rank_agreement.py --rounds 12

Two ranks on Gloo, processes of one thread each on this machine, train the GPT of 10.7 M parameters of caesura.bench with
AdamW, each as two TrainingSessions. In each round these take turns:

- a step with late commit, whose updates wait until all ranks have all sums;
- a step with early commit, whose updates wait for their own bucket's sums only;
- the agreement's exchange by itself, 100 times: two int64 of each rank;
- 100 steps of a small compiled step, an MLP of two layers.

It prints medians and quartiles of the slower rank, and the exchange as a share of the step. That is what a step pays for
the agreement: late commit on a CPU writes nothing before it, so it keeps no copies to undo. AgreeToCommit's own time in a
profiled step is printed, too; the wait for the slower rank is in it.

Before an update the ranks also compare their steps. Their words are on the way during the forward, and the first
CollectiveStart waits for what is left: its time in a profiled step is printed, of the rank that comes last. What the
comparison adds to a small step shows beside a release without it.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import tempfile

from rank_overlap import in_turns, quartiles
from rank_timeline import export

EXCHANGES = 100


def measure(rank, port, folder, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    import torch
    import torch.distributed as dist

    import caesura
    from caesura.bench.models import GptSizes

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sizes, generator = GptSizes(), torch.Generator().manual_seed(rank)
    tokens, targets = (torch.randint(0, sizes.vocabulary, (options.batch, sizes.time), generator=generator) for _ in range(2))
    feeds = {"x": tokens, "target": targets.flatten()}
    late, early = (caesura.TrainingSession(folder / "gpt.onnx", optimizer=caesura.optim.AdamW(lr=1e-4), commit=commit, threads=1)
                   for commit in ("late", "eager-consume"))
    words, all_words = torch.ones(2, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    small = caesura.compile_step(mlp, torch.nn.functional.cross_entropy, torch.optim.AdamW(mlp.parameters()), threads=1)
    batch = torch.randn(16, 64, generator=generator), torch.randint(0, 8, (16,), generator=generator)

    def exchanges():
        for _ in range(EXCHANGES):
            dist.all_gather_single(all_words, words)

    def small_steps():
        for _ in range(EXCHANGES):
            small(*batch)

    runs = {"late commit": lambda: late.step(feeds), "early commit": lambda: early.step(feeds), "agreement": exchanges,
            "a small step": small_steps}
    times, agreements, comparisons = in_turns(runs, options.rounds, skipped=2), [], []
    for name in ("agreement", "a small step"):
        times[name] = [taken / EXCHANGES for taken in times[name]]
    for _ in range(5):
        trace = folder / f"trace-{rank}.json"
        late.profile_step(feeds, trace)
        events = json.loads(trace.read_text())["traceEvents"]
        of = {name: [e["dur"] for e in events if e.get("args", {}).get("op_name") == name]
              for name in ("AgreeToCommit", "CollectiveStart")}
        taken = torch.tensor([1e-3 * sum(of["AgreeToCommit"]), 1e-3 * of["CollectiveStart"][0]])
        dist.all_reduce(taken, op=dist.ReduceOp.MIN)  # of the rank that comes last
        agreements.append(taken[0].item())
        comparisons.append(taken[1].item())
    if rank == 0:
        print(f"batch {options.batch}, {options.rounds} rounds, one thread a rank")
        for name, taken in times.items():
            print(f"  {name:14} {quartiles(taken, digits=3)}")
        step, exchange = (statistics.median(times[name]) for name in ("late commit", "agreement"))
        print(f"  the agreement is {exchange / step:.3%} of the step; AgreeToCommit of the rank that comes last, profiled: "
              f"{statistics.median(agreements):.3f} ms")
        print(f"  the first CollectiveStart, which waits for the comparison, of the rank that comes last, profiled: "
              f"{statistics.median(comparisons):.3f} ms")
    dist.barrier()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a rank")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", CAESURA_NUM_THREADS="1")
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = pathlib.Path(name)
        export(folder / "gpt.onnx", options.batch)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        processes = [multiprocessing.get_context("spawn").Process(target=measure, args=(rank, port, folder, options))
                     for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"the ranks ended with {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    main()
