# SPDX-License-Identifier: Apache-2.0
"""Stops training steps before their nodes, saves them, takes them up in another session, and ends both: the same bits.

    python benchmarks/snapshots.py                          tiny-mlp, digits-cnn, chargpt, llama; 12 places each
    python benchmarks/snapshots.py --workload llama --places 0

A row is a model: nodes of the step, how many of the places agree in loss, parameters and optimizer state, bytes of
parameters and optimizer state, of the step's arena, and of the snapshot beyond a checkpoint; then the times to save (to
the disk, synced) and to restore, medians with the slowest, beside those of a checkpoint, in milliseconds.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np
import torch

import caesura
from caesura.bench.workloads import find


def export(workload, folder):
    x, y = (torch.from_numpy(array) for array in workload.batches()[0])
    module = workload.module()
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters(), lr=3e-4))
    caesura.export_step(folder, step, x, y)


def timed(call):
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def milliseconds(times):
    return f"{statistics.median(times):.1f} ({max(times):.1f})"


def measure(name, places, folder):
    workload = find(name)
    export(workload, f"{folder}/step")
    first, second = (caesura.open_step(f"{folder}/step", seed=1) for _ in range(2))
    names = [value.name for value in caesura.InferenceSession(f"{folder}/step/model.onnx").get_inputs()]
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
        losses = [second.resume_step(), second.step(batches[1])]
        second.save(f"{folder}/found")
        same += losses == expected and np.array_equal(np.fromfile(f"{folder}/found", np.uint8), after)
    mega = 1 / 2**20
    print(f"| {name} | {nodes} | {same} of {len(stops)} | {state * mega:.2f} | {arena * mega:.2f} | "
          f"{statistics.median(sizes) * mega:.2f} ({max(sizes) * mega:.2f}) | {milliseconds(saves)} | {milliseconds(plain)} | "
          f"{milliseconds(restores)} | {milliseconds(plain_restore)} |", flush=True)
    return same == len(stops)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", default=["tiny-mlp", "digits-cnn", "chargpt", "llama"],
                        help="of python -m caesura.bench --help")
    parser.add_argument("--places", type=int, default=12, help="where each step is stopped; 0: before every node (12)")
    arguments = parser.parse_args()
    print("| model | nodes | the same bits | state MiB | arena MiB | step MiB (most) | save ms | checkpoint | restore ms | checkpoint |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    good = True
    for name in arguments.workload:
        with tempfile.TemporaryDirectory() as folder:
            good &= measure(name, arguments.places, folder)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
