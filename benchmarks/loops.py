# SPDX-License-Identifier: Apache-2.0
"""Training loops of other libraries, each by the library's own trainer or documented loop, beside eager and torch.compile.

    python3 -m venv loops && loops/bin/pip install -r benchmarks/loops/requirements.txt
    PYTHONPATH=build/python loops/bin/python benchmarks/loops.py [--only REGEX] [--isa avx2] [--threads 1]
                                                                 [--routes eager,again,compile,wrap,step,loop]

Each file of benchmarks/loops/ is one loop. Each route is a process of its own: "eager" with fused optimizers where
PyTorch has them, "again" (eager once more, which shows the noise), "compile" (torch.compile), "autotune" (its
max-autotune), "wrap" (with fuse), "step" (compile_step in a loop of its own) and "loop" (compile_step in the library's
loop, by caesura.integrations). The processes take turns, and each round begins with another one.

A time is the CPU time of a process between two updates. It prints the median of eager's, in ms, and of each route the
median of its ratio to eager over the rounds with an interval of 90% (percentiles of 2,000 resampled medians); the CPU
time to the end of the first step; by how much the process's peak grew; and the largest relative distance of the first
ten losses from eager's.
"""

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

from products import CAPS

FOLDER = pathlib.Path(__file__).parent / "loops"
LEAST = 0.2  # seconds of a turn
ROUTES = ("eager", "again", "compile", "autotune", "wrap", "step", "loop")


class Worker:
    """A process that runs a loop by one route."""

    def __init__(self, name, route, given):
        env = dict(os.environ, OMP_NUM_THREADS=str(given.threads), HF_HUB_OFFLINE="1", **CAPS[given.isa])
        self.route, self.log = route, open(given.logs / f"{name}-{route}.log", "w")
        self.process = subprocess.Popen([sys.executable, str(FOLDER / "turns.py"), name, "eager" if route == "again" else route], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=env, cwd=given.logs)
        self.rounds, self.first, self.losses, self.grown = [], None, [], 0

    def turn(self, steps):
        """Runs so many steps. False: the process has ended."""
        try:
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or "{}")
        except BrokenPipeError:
            answer = {}
        if not answer:
            return False
        self.times, self.losses, self.grown = answer["times"], answer["losses"], answer["grown"]
        return True

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def interval(values):
    """Median and an interval of 90% of it."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[100], medians[1900]


def measure(name, given):
    workers = []
    for route in given.routes:
        if route in ("step", "loop") and f'route == "{route}"' not in (FOLDER / f"{name}.py").read_text():
            continue
        worker = Worker(name, route, given)
        if not worker.turn(1):
            worker.end()
            print(f"{name:18} {route:9} ended: {given.logs}/{name}-{route}.log", flush=True)
            continue
        worker.first = worker.times[0]
        worker.turn(given.warmup)
        workers.append(worker)
    if not workers or workers[0].route != "eager":
        return
    steps = max(given.steps, round(LEAST / statistics.median(workers[0].times)))
    for i in range(given.rounds):
        shift = i % len(workers)
        for worker in workers[shift:] + workers[:shift]:
            if not worker.turn(steps):
                raise SystemExit(f"{name}, {worker.route}: the process ended, see its log")
            worker.rounds.append(statistics.median(worker.times))
    eager = workers[0]
    for worker in workers:
        ratios = [a / b for a, b in zip(worker.rounds, eager.rounds)]
        middle, low, high = interval(ratios)
        time = f"{statistics.median(eager.rounds) * 1e3:.2f} ms" if worker is eager else f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        apart = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(worker.losses, eager.losses))
        print(f"{name:18} {worker.route:9} {time:20} first {worker.first:6.1f} s  grown {worker.grown:5} MB  losses {apart:.1e} apart",
              flush=True)
        if worker is not eager:
            given.ratios.setdefault(worker.route, []).append(middle)
        worker.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".", help="loops by name")
    parser.add_argument("--routes", type=lambda s: s.split(","), default=["eager", "again", "compile", "wrap", "step", "loop"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5, help="in a turn, at least: a turn takes 0.2 s")
    parser.add_argument("--warmup", type=int, default=6, help="untimed steps after the first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=CAPS, default="avx2")
    parser.add_argument("--logs", type=lambda s: pathlib.Path(s).absolute(), default=pathlib.Path("loops-logs").absolute(), help="a folder")
    given = parser.parse_args()
    if unknown := set(given.routes) - set(ROUTES):
        parser.error(f"unknown routes {sorted(unknown)}; there are {', '.join(ROUTES)}")
    given.logs.mkdir(exist_ok=True)
    given.ratios = {}
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem != "turns" and re.search(given.only, path.stem):
            measure(path.stem, given)
    for route, ratios in given.ratios.items():
        print(f"geometric mean of {len(ratios)}: {route} {statistics.geometric_mean(ratios):.2f} of eager's time", flush=True)


if __name__ == "__main__":
    main()
