# SPDX-License-Identifier: Apache-2.0
"""Stops training steps before their nodes, saves them, takes them up in another session, and ends both: the same bits.

    python benchmarks/snapshots.py                          tiny-mlp, digits-cnn, chargpt, llama; 12 places each
    python benchmarks/snapshots.py --workload llama --places 0
    python benchmarks/snapshots.py --costs                  tiny-mlp and chargpt: what a step pays without a failure

A row is a model: nodes of the step, how many of the places agree in loss, parameters and optimizer state, bytes of
parameters and optimizer state, of the step's arena, and of the snapshot beyond a checkpoint; then the times to save (to
the disk, synced) and to restore, medians with the slowest, beside those of a checkpoint, in milliseconds.

With --costs, a row is a model: the CPU time of its step with late commit, with early commit, and with early commit and
an undo, medians of rounds in which the three take turns; then the median (and the quartiles) of the rounds' ratios, of
late over early commit and of the undo over early commit; and the bytes that the undo copies in a step.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np
import torch

import caesura
from caesura import onnxruntime
from caesura.bench.workloads import find

THREADS = 1  # with --costs, where CPU time is measured


def export(workload, folder):
    x, y = (torch.from_numpy(array) for array in workload.batches()[0])
    module = workload.module()
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters(), lr=3e-4))
    step.export(folder, x, y)


def timed(call, clock=time.perf_counter):
    began = clock()
    call()
    return 1e3 * (clock() - began)


def milliseconds(times):
    return f"{statistics.median(times):.1f} ({max(times):.1f})"


def measure(name, places, folder):
    workload = find(name)
    export(workload, f"{folder}/step")
    first, second = (caesura.TrainingSession.open(f"{folder}/step", seed=1) for _ in range(2))
    names = [value.name for value in onnxruntime.InferenceSession(f"{folder}/step/model.onnx").get_inputs()]
    batches = [dict(zip(names, batch)) for batch in workload.batches()[:2]]
    text, arena = first.plan(batches[0])
    nodes = int(text.split(" ", 1)[0])
    first.save(f"{folder}/initial")
    expected = [first.step(batch) for batch in batches]
    first.save(f"{folder}/expected")
    after = np.fromfile(f"{folder}/expected", np.uint8)
    plain = [timed(lambda: first.save(f"{folder}/plain")) for _ in range(5)]
    plain_restore = [timed(lambda: first.restore(f"{folder}/plain")) for _ in range(5)]
    state = os.path.getsize(f"{folder}/initial")
    saves, restores, sizes, same = [], [], [], 0
    stops = range(0, nodes, max(1, nodes // places) if places else 1)
    for at in stops:
        first.restore(f"{folder}/initial")
        first.suspend_at(at)
        try:
            first.step(batches[0])
        except caesura.Suspended:
            pass
        saves.append(timed(lambda: first.save(f"{folder}/snapshot")))
        sizes.append(os.path.getsize(f"{folder}/snapshot") - state)
        restores.append(timed(lambda: second.restore(f"{folder}/snapshot")))
        losses = [second.resume(), second.step(batches[1])]
        second.save(f"{folder}/found")
        same += losses == expected and np.array_equal(np.fromfile(f"{folder}/found", np.uint8), after)
    mega = 1 / 2**20
    print(f"| {name} | {nodes} | {same} of {len(stops)} | {state * mega:.2f} | {arena * mega:.2f} | "
          f"{statistics.median(sizes) * mega:.2f} ({max(sizes) * mega:.2f}) | {milliseconds(saves)} | {milliseconds(plain)} | "
          f"{milliseconds(restores)} | {milliseconds(plain_restore)} |", flush=True)
    return same == len(stops)


def costs(name, rounds, folder):
    workload = find(name)
    export(workload, f"{folder}/step")
    commits = {"late": {}, "early": {"commit": "eager-consume"}, "undo": {"commit": "eager-consume", "undo": True}}
    sessions = {kind: caesura.TrainingSession(f"{folder}/step/model.onnx", loss="output", prediction="loss",
                                              optimizer=caesura.optim.AdamW(lr=3e-4), threads=THREADS, **options)
                for kind, options in commits.items()}
    names = [value.name for value in onnxruntime.InferenceSession(f"{folder}/step/model.onnx").get_inputs()]
    batch = dict(zip(names, workload.batches()[0]))
    sessions["undo"].save(f"{folder}/state")
    one = min(timed(lambda: sessions["late"].step(batch)) for _ in range(5))
    calls = max(1, round(20 / one))  # a round of a kind lasts 20 ms or a step
    times = {kind: [] for kind in sessions}
    for n in range(rounds + 2):
        order = list(sessions)
        for kind in order[n % 3:] + order[:n % 3]:
            took = timed(lambda: [sessions[kind].step(batch) for _ in range(calls)], time.process_time) / calls
            if n >= 2:
                times[kind].append(took)

    def ratio(kind):
        low, middle, high = statistics.quantiles([a / b for a, b in zip(times[kind], times["early"])], n=4)
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"

    late, early, undo = (f"{statistics.median(times[kind]):.3g}" for kind in sessions)
    print(f"| {name} | {late} | {early} | {undo} | {ratio('late')} | {ratio('undo')} | "
          f"{os.path.getsize(f'{folder}/state') / 2**20:.3g} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", default=None,
                        help="of python -m caesura.bench --help (tiny-mlp, digits-cnn, chargpt, llama)")
    parser.add_argument("--places", type=int, default=12, help="where each step is stopped; 0: before every node (12)")
    parser.add_argument("--costs", action="store_true", help="of a step without a failure, in place of snapshots")
    parser.add_argument("--rounds", type=int, default=150, help="with --costs (150)")
    arguments = parser.parse_args()
    if arguments.costs:
        print("| model | late ms | early ms | with undo ms | late/early | undo/early | copied MiB |\n|---|---|---|---|---|---|---|")
        for name in ["tiny-mlp", "chargpt"] if arguments.workload is None else arguments.workload:
            with tempfile.TemporaryDirectory() as folder:
                costs(name, arguments.rounds, folder)
        return
    print("| model | nodes | the same bits | state MiB | arena MiB | step MiB (most) | save ms | checkpoint | restore ms | checkpoint |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    good = True
    for name in arguments.workload or ["tiny-mlp", "digits-cnn", "chargpt", "llama"]:
        with tempfile.TemporaryDirectory() as folder:
            good &= measure(name, arguments.places, folder)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
