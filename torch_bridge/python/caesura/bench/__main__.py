# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of caesura beside those of other systems.

Every system trains the same model, from the same initial weights, on the same batches, in a process of its own. The
processes take turns, round by round, each beginning with another one and in the other direction, so that what else the
machine does meets all of them alike and none follows itself. Shown are medians; a ratio is that of times in the same round.
"""

import argparse
import json
import os
import pathlib
import platform
import sys

from caesura import _core

from . import report, workloads
from .measure import run_workload
from .systems import SYSTEMS

EXAMPLES = """\
examples
  python -m caesura.bench                                     everything: an hour or so, best on an idle machine
  python -m caesura.bench --workload tiny-mlp mlp --rounds 6  a quick look
  python -m caesura.bench --workload chargpt --systems caesura eager-fused bound
  python -m caesura.bench --workload chargpt --perturbed --json ratios.json --plot ratios.png
  cmake/setup.sh --peers                                      installs the peers: jax, onnxruntime-training

columns
"""


def _arguments() -> argparse.Namespace:
    known = [*workloads.standard(), *workloads.perturbed()]
    lists = ["workloads"] + [f"  {w.name:<18} {w.about}" for w in known]
    lists += ["", "systems"] + [f"  {name:<18} {s.about}" for name, s in SYSTEMS.items()]
    parser = argparse.ArgumentParser(prog="python -m caesura.bench", description=__doc__,
                                     epilog="\n".join(lists) + "\n\n" + EXAMPLES + report.LEGEND,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", metavar="NAME", choices=[w.name for w in known + workloads.small()],
                        help="what to train; all of the standard ones if left out")
    parser.add_argument("--perturbed", action="store_true", help="also the perturbed variants of chargpt")
    parser.add_argument("--systems", nargs="+", metavar="NAME", choices=list(SYSTEMS), default=list(SYSTEMS),
                        help="which to compare; all if left out")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each system (20); below 6, no intervals")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of each system, also the cores that it may run on (all)")
    parser.add_argument("--compile-cache", metavar="FOLDER", default="",
                        help="keep what torch.compile and compile_step make; if left out, each run compiles anew")
    parser.add_argument("--json", metavar="FILE", help="write all figures, those of single rounds too")
    parser.add_argument("--plot", metavar="FILE", help="draw the ratios (PNG, SVG, PDF)")
    return parser.parse_args()


def _machine(threads: int) -> dict:
    facts = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = {name: [line.split(":", 1)[1].strip() for line in facts if line.startswith(name)] for name in ("model name", "cpu family")}
    # Virtual machines give short names: the family says which generation it is.
    name = ", family ".join(values[0] for values in cpu.values() if values) or platform.machine()
    return {"cpu": name, "cores": os.cpu_count(), "threads": threads,
            "load_at_start": os.getloadavg()[0], "python": platform.python_version(), "asserts": _core.has_asserts}


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> int:
    arguments = _arguments()
    chosen = [workloads.find(name) for name in arguments.workload or [w.name for w in workloads.standard()]]
    chosen += workloads.perturbed() if arguments.perturbed else []
    results = {"machine": _machine(arguments.threads), "rounds": arguments.rounds, "workloads": []}
    machine = results["machine"]
    print(f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, load {machine['load_at_start']:.1f};"
          f" medians of {arguments.rounds} rounds in turns\n")
    if machine["asserts"]:
        print("This build of caesura has asserts: a release is faster.\n")
    for workload in chosen:
        result = run_workload(workload, arguments.systems, arguments.rounds, arguments.threads, arguments.compile_cache,
                              _progress)
        results["workloads"].append(result)
        print(report.table(result) + "\n", flush=True)
        if arguments.json:  # after each workload: a run that is broken off keeps what it has
            pathlib.Path(arguments.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(report.LEGEND)
    if arguments.plot:
        report.picture(results, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
