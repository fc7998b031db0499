#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the time of a session call from Python, unbound and bound: caesura and ONNX Runtime in turns.

    . build/activate && cmake/setup.sh --peers && python benchmarks/io_binding.py

Each runtime is its own process, pinned to the same cores. Both run the same lines, in which only the module `runtime`
differs. A round times every case once in each runtime, in alternating order. A figure is the median over the rounds. A
ratio is the median of ours / theirs in each round, with the sign test's 95% interval. An interval below 1.05 counts as
not slower, one below 1 as faster.

Cases: an Add of a few elements (nearly only the call), MLPs of several widths, and one token of a decoder whose caches
are inputs and outputs.
  run      session.run(None, {name: array}), and its NumPy arrays
  buffers  run_with_iobinding, outputs in the caller's memory
  fresh    run_with_iobinding, outputs bound to the device only, and get_outputs()
  growing  run, of the decoder, with another cache length in each call: more lengths than kept plans
  decode   200 steps of the decoder, each bound to the previous step's caches, without copies
"""

import argparse
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np

MODES = ("run", "buffers", "fresh", "growing", "decode")
STEPS = 200  # of a decode


def make(nodes, inputs, outputs, weights=()):
    from onnx import TensorProto, helper, numpy_helper

    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(*node[:3], **(node[3] if len(node) > 3 else {})) for node in nodes], "g",
                              [info(name) for name in inputs], [info(name) for name in outputs],
                              [numpy_helper.from_array(array, name) for name, array in weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def cases(rng):
    """name -> (model, feeds)"""
    array = lambda *shape: rng.standard_normal(shape, np.float32)
    out = {"add, 4 elements": (make([("Add", ["x", "x"], ["y"])], ["x"], ["y"]), {"x": array(4)})}
    for width, batch in ((16, 1), (64, 16), (256, 16), (1024, 16), (1024, 256)):
        weights = [(f"w{i}", array(width, width) / np.float32(width**0.5)) for i in range(3)]
        nodes = [("MatMul", ["x", "w0"], ["a"]), ("Relu", ["a"], ["b"]), ("MatMul", ["b", "w1"], ["c"]), ("Relu", ["c"], ["d"]),
                 ("MatMul", ["d", "w2"], ["y"])]
        out[f"MLP, width {width}, batch {batch}"] = (make(nodes, ["x"], ["y"], weights), {"x": array(batch, width)})
    for layers, length in ((2, 32), (8, 256)):
        out[f"decoder, {layers} layers, {length} tokens"] = decoder(layers, length, array)
    return out


def decoder(layers, length, array, heads=4, size=32):
    """Builds attention of one token over caches that each grow by one; each layer has a single projection."""
    width = heads * size
    nodes, weights, last = [], [], "x"
    for i in range(layers):
        weights.append((f"w{i}", array(size, size) / np.float32(size**0.5)))
        nodes += [("MatMul", [last, f"w{i}"], [f"q{i}"]),
                  ("Concat", [f"k{i}", f"q{i}"], [f"nk{i}"], {"axis": 2}), ("Concat", [f"v{i}", last], [f"nv{i}"], {"axis": 2}),
                  ("Transpose", [f"nk{i}"], [f"t{i}"], {"perm": [0, 1, 3, 2]}), ("MatMul", [f"q{i}", f"t{i}"], [f"s{i}"]),
                  ("Softmax", [f"s{i}"], [f"p{i}"]), ("MatMul", [f"p{i}", f"nv{i}"], [f"o{i}"]), ("Add", [f"o{i}", last], [f"x{i}"])]
        last = f"x{i}"
    caches = [f"{part}{i}" for i in range(layers) for part in "kv"]
    feeds = {"x": array(1, heads, 1, width // heads)} | {name: array(1, heads, length, size) for name in caches}
    return make(nodes, list(feeds), [last, *(f"n{name}" for name in caches)], weights), feeds


def calls_of(runtime, model, feeds, threads):
    """Returns a dict from mode to a call without arguments."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(None, feeds)
    buffers, fresh = session.io_binding(), session.io_binding()
    kept = [runtime.OrtValue.ortvalue_from_numpy(np.empty_like(value)) for value in values]
    for name, array in feeds.items():
        buffers.bind_cpu_input(name, array)
        fresh.bind_cpu_input(name, array)
    for name, value in zip(names, kept):
        buffers.bind_ortvalue_output(name, value)
        fresh.bind_output(name)

    def run_fresh():
        session.run_with_iobinding(fresh)
        return fresh.get_outputs()

    modes = {"run": lambda: session.run(None, feeds), "buffers": lambda: session.run_with_iobinding(buffers),
             "fresh": run_fresh}
    if "k0" in feeds:
        longer = itertools.cycle([{name: array if name == "x" else np.pad(array, ((0, 0), (0, 0), (0, more), (0, 0)))
                                   for name, array in feeds.items()} for more in range(1, 41)])
        modes["growing"] = lambda: session.run(None, next(longer))
        modes["decode"] = decode(runtime, session, names, feeds)
    return modes, values


def decode(runtime, session, names, feeds):
    """Runs one step per call, and starts again after STEPS of them."""
    binding, outputs = session.io_binding(), names[1:]
    binding.bind_cpu_input("x", feeds["x"])
    inputs = [name[1:] for name in outputs]  # nk0 is the next k0
    start = [runtime.OrtValue.ortvalue_from_numpy(feeds[name]) for name in inputs]
    caches, steps = start, itertools.cycle(range(STEPS))

    def step():
        nonlocal caches
        if next(steps) == 0:
            caches = start
        for name, value in zip(inputs, caches):
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        _, *caches = binding.get_outputs()

    return step


def work(name, threads, milliseconds):
    """Times one case for each line of stdin, with enough calls to fill the milliseconds."""
    runtime = importlib.import_module(name)
    calls, sums = {}, {}
    for case, (model, feeds) in cases(np.random.default_rng(0)).items():
        modes, values = calls_of(runtime, model, feeds, threads)
        sums[case] = [float(np.abs(value).sum()) for value in values]
        calls.update({(case, mode): call for mode, call in modes.items()})
    print(json.dumps({"version": runtime.__version__, "sums": sums}), flush=True)
    counts = {}
    for line in sys.stdin:
        call = calls[tuple(json.loads(line))]
        if line not in counts:
            began = time.perf_counter()
            for _ in range(20):
                call()
            counts[line] = max(5, int(20 * milliseconds / 1e3 / (time.perf_counter() - began)))
        call()  # warms the caches after the other runtime's turn
        began = time.perf_counter()
        for _ in range(counts[line]):
            call()
        print((time.perf_counter() - began) / counts[line] * 1e6, flush=True)


class Worker:
    def __init__(self, arguments, name, path):
        environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS=str(arguments.threads), OMP_WAIT_POLICY="passive")
        self.process = subprocess.Popen([sys.executable, __file__, "--worker", name, "--threads", str(arguments.threads),
                                         "--milliseconds", str(arguments.milliseconds)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)
        self.about = json.loads(self.process.stdout.readline())

    def microseconds(self, case, mode):
        self.process.stdin.write(json.dumps([case, mode]) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def report(times, peer):
    from caesura.bench.statistics import ratio, spread

    print(f"\n{'case':<30} {'mode':<8} {'caesura us':>22} {peer + ' us':>28} {'ratio':>22}")
    slower = []
    for (case, mode), (ours, theirs) in times.items():
        a, b, r = spread(ours), spread(theirs), ratio(ours, theirs)
        if r.low is None or r.high > 1.05:
            slower.append(f"{case} ({mode})")
        interval = "" if r.low is None else f"[{r.low:.2f}, {r.high:.2f}]"
        print(f"{case:<30} {mode:<8} {a.median:>8.1f} [{a.low:.1f}, {a.high:.1f}]".ljust(62) +
              f"{b.median:>12.1f} [{b.low:.1f}, {b.high:.1f}]".ljust(32) + f"{r.median:>6.2f} {interval}")
    print("\nnot slower in any case" if not slower else f"\nnot shown to be as fast: {', '.join(slower)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1, help="of a kernel")
    parser.add_argument("--milliseconds", type=float, default=10, help="of one case in one round")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.threads, arguments.milliseconds)
    prefix = pathlib.Path(os.environ.get("CAESURA_PREFIX", "~/.cache/caesura")).expanduser()
    folder = prefix / "peers" / "onnxruntime"
    if not folder.is_dir():
        sys.exit(f"no other runtime in {folder}: cmake/setup.sh --peers")
    path = os.environ.get("PYTHONPATH", "")
    workers = [Worker(arguments, "caesura", path), Worker(arguments, "onnxruntime", os.pathsep.join([str(folder), path]))]
    ours, theirs = (worker.about for worker in workers)
    names = [name for name in ours["sums"] if arguments.filter in name]
    for name in names:
        np.testing.assert_allclose(ours["sums"][name], theirs["sums"][name], rtol=1e-4)  # the same model, the same numbers
    times = {(name, mode): ([], []) for name in names for mode in MODES if mode not in ("growing", "decode") or name.startswith("decoder")}
    for round_ in range(arguments.rounds):
        for key, rows in times.items():
            for i in (0, 1) if round_ % 2 == 0 else (1, 0):
                rows[i].append(workers[i].microseconds(*key))
    for worker in workers:
        worker.close()
    print(f"caesura {ours['version']} beside onnxruntime {theirs['version']}, {arguments.threads} thread(s), "
          f"{arguments.rounds} rounds: medians [quartiles], median of ratios [95% interval]")
    report(times, "onnxruntime")


if __name__ == "__main__":
    main()
