# SPDX-License-Identifier: Apache-2.0
"""Small random programs of autograd's states through caesura.wrap and caesura.compile_step, beside eager PyTorch.

    python benchmarks/programs.py --seeds 0:2000 [--route wrap|step|both] [--jobs N] [--features REGEX] [--list]
    python benchmarks/programs.py --print SEED           the program of a seed, as Python
    python benchmarks/programs.py --file PROGRAM.py      runs such a file, which you may have changed

A program is a module of 4 to 12 statements: views, writes in place, detach, no_grad, .data, foreach, buffers, norms that
are called several times, cond, autograd.Functions, tied weights, draws. Between its three calls hooks come and go, and
parameters, buffers and modes change. generators/program_features.py holds the table of statements; to add one is to add a function.
Sizes are 1 to 4. Rules that begin at some size (how many bytes of gradients are handed out at a time, how many captures are
kept) are forced for a part of the programs.

Of each call, results (values, dtypes, strides, requires_grad, the memory that they share), gradients (None if eager gives
None), parameters, buffers, inputs and the random state must equal eager's; of each of three steps, the loss and all but the
results. The tolerance is operators.TOLERANCE; a larger distance, to 1e-2, is rounding if it is at most ten times eager's own,
beside eager in float64, or if float64 has no difference. A program is left out if eager with inputs changed by rounding is as far
from eager as ours. NaN equals NaN. A program that fails in eager must fail at the same point.

Outcomes: silent (it differs), failed (an error that eager has not), refused (StepRefused), left to PyTorch (with a warning),
partly ours, ours, as eager fails, left out. Silent and failed programs are made smaller, statement by statement, and printed.
It ends with counts by feature, and exits with 1 if a program was silent or failed.
"""

import argparse
import collections
import gc
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import resource
import sys
import time
import traceback
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CAESURA_NUM_THREADS", "1")

import torch  # noqa: E402
from generators.program_draw import smaller  # noqa: E402
from generators.program_runs import BAD, OUTCOMES, ROUTES, check, drawn  # noqa: E402

import caesura  # noqa: E402

CHUNK = 200          # programs of a process, at most
HANGS = 120          # seconds that a program may take
DRAWN = "drawn"      # a process sends it when the program has run in eager


def kind_of(reason):
    """A reason without the program's own names and numbers."""
    return re.sub(r"\d[\d.e+-]*", "N", reason.splitlines()[0] if reason else "")[:120]


def family_of(reason):
    """The kind of difference from eager, by a word of its reason. A smaller program must differ in the same kind."""
    return next((word for word in ("random state", "memory shared", "strides", "requires_grad", "gradient", "no error", "loss", "Error",
                                   "buffer", "output") if word in reason), "")


def shrunken(program, route, outcome, reason, seconds):
    """The smallest program found that has such an outcome, too, and its reason."""
    family, end, at = family_of(reason), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for i, candidate in enumerate(smaller(program)):
            if i < at:
                continue
            try:
                found = check(route, candidate.source(), f"smaller_{program.seed}.py")
            except Exception:
                continue
            if found.outcome == outcome and family_of(found.reason) == family:
                program, reason, at = candidate, found.reason, i
                break
            if time.monotonic() > end:
                break
        else:
            if at == 0:
                break
            at = 0
    return program, reason


def run_seeds(seeds, options, send):
    """The body of a process: sends (seed, route, outcome, reason, features, text, CPU seconds) of each program and route."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # all that PyTorch has made until here: the collector would look through it again and again
    gc.set_threshold(50_000, 10, 10)
    for seed in seeds:
        send.send((seed, None))
        program = drawn(seed, options.features)
        send.send((seed, DRAWN))
        for route in options.routes:
            began, text = time.process_time(), program.source()
            try:
                found = check(route, text, f"program_{seed}.py")
                outcome, reason = found.outcome, found.reason
            except Exception as error:
                outcome, reason = "failed", f"the comparison: {type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
            spent = time.process_time() - began
            if outcome in BAD and options.shrink:
                small, reason = shrunken(program, route, outcome, reason, options.shrink)
                text = small.source()
            send.send((seed, (route, outcome, reason, sorted(program.features()), text, spent)))
    send.close()


def all_results(seeds, options):
    """Yields (seed, (route, outcome, reason, features, text, spent)), from processes that are forks of this one."""
    fork = multiprocessing.get_context("fork")
    size = min(options.chunk, -(-len(seeds) // options.jobs))
    chunks = [seeds[i:i + size] for i in range(0, len(seeds), size)]
    running = {}
    while chunks or running:
        while chunks and len(running) < options.jobs:
            chunk = chunks.pop(0)
            receive, send = fork.Pipe(duplex=False)
            process = fork.Process(target=run_seeds, args=(chunk, options, send))
            process.start()
            send.close()
            running[receive] = [process, chunk, None, time.monotonic(), None]
        for receive in multiprocessing.connection.wait(list(running), 1):
            state = running[receive]
            try:
                seed, found = receive.recv()
            except EOFError:
                process, chunk, seed, _, last = running.pop(receive)
                process.join()
                if process.exitcode:
                    outcome = "left out" if last is None else "failed"  # eager alone ended it
                    yield seed, ("both", outcome, f"the process ended with status {process.exitcode}", [], "", 0.0)
                    rest = chunk[chunk.index(seed) + 1:]
                    chunks[:0] = [rest] if rest else []
                continue
            state[2:] = seed, time.monotonic(), found
            if found not in (None, DRAWN):
                yield seed, found
        for process, _, _, since, _ in running.values():
            if time.monotonic() - since > HANGS + options.shrink:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:200", help="the first seed, and the one past the last")
    parser.add_argument("--route", default="both", choices=["both", *ROUTES])
    parser.add_argument("--features", help="every other statement is one whose feature contains this regular expression")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="programs of a process")
    parser.add_argument("--shrink", type=float, default=40, help="seconds for making one program smaller; 0 does not")
    parser.add_argument("--first", action="store_true", help="end at the first silent or failed program")
    parser.add_argument("--list", action="store_true", help="also the reasons of programs that are refused or left to PyTorch")
    parser.add_argument("--print", type=int, metavar="SEED", dest="printed")
    parser.add_argument("--file", help="a program to run")
    parser.add_argument("--json", help="a file that gets a line for each result")
    options = parser.parse_args()
    options.routes = ROUTES if options.route == "both" else (options.route,)
    if options.printed is not None:
        print(drawn(options.printed, options.features).source())
        return
    if options.file:
        warnings.filterwarnings("ignore")
        with open(options.file) as file:
            source = file.read()
        outcomes = {route: check(route, source, options.file) for route in options.routes}
        for route, found in outcomes.items():
            print(f"{route}: {found.outcome} {found.reason}")
        sys.exit(any(found.outcome in BAD for found in outcomes.values()))
    prepare()
    first, last = map(int, options.seeds.split(":"))
    sys.exit(run(list(range(first, last)), options))


def prepare():
    """A first capture, which takes a second more than later ones. The processes are forks of this one."""
    with torch.no_grad():
        caesura.wrap(torch.nn.Linear(1, 1))(torch.ones(1, 1))


def run(seeds, options):
    began, counted, by_feature = time.monotonic(), *(collections.defaultdict(collections.Counter) for _ in range(2))
    reasons, spent, log = collections.Counter(), 0.0, open(options.json, "w") if options.json else None
    for seed, (route, outcome, reason, features, text, seconds) in all_results(seeds, options):
        counted[route][outcome] += 1
        spent += seconds
        for name in features:
            by_feature[name][outcome] += 1
        if log:
            print(json.dumps([seed, route, outcome, reason, features, text, seconds]), file=log, flush=True)
        if outcome in BAD:
            print(f"\n== seed {seed}, {route}: {outcome}: {reason}\n{body_of(text)}", flush=True)
            if options.first:
                print(f"found at seed {seed} after {time.monotonic() - began:.0f} s")
                os._exit(1)
        elif outcome in ("refused", "left to PyTorch", "partly ours"):
            reasons[route, outcome, kind_of(reason)] += 1
    if options.list:
        for (route, outcome, reason), n in reasons.most_common():
            print(f"  {n:5} {route} {outcome}: {reason}")
    print(f"{'feature':34}" + "".join(f"{outcome:>16}" for outcome in OUTCOMES))
    for name, of in sorted(by_feature.items()):
        print(f"{name[:33]:34}" + "".join(f"{of[outcome] or '':>16}" for outcome in OUTCOMES))
    for route, of in counted.items():
        checked = sum(of.values()) - of["left out"]
        print(f"{route}: {', '.join(f'{of[outcome]} {outcome}' for outcome in OUTCOMES if of[outcome])}; of {checked}: "
              f"refused {(of['refused'] + of['left to PyTorch']) / max(checked, 1):.1%}, "
              f"ours {(of['ours'] + of['as eager fails']) / max(checked, 1):.1%}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(seeds)} programs in {time.monotonic() - began:.0f} s, {spent / max(len(seeds), 1):.2f} CPU-s each without shrinking, "
          f"{used.ru_utime + used.ru_stime:.0f} CPU-s in all")
    return any(of[outcome] for of in counted.values() for outcome in BAD)


def body_of(text):
    """A printed program without the lines that all programs have."""
    text = text.partition("to(DTYPE)\n")[2].strip("\n")
    return re.sub(r"\n\ndef (before|after)\(.*\):\n    pass\n?", "", text)


if __name__ == "__main__":
    main()
