#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the executor's time per node, caesura and ONNX Runtime in turns.

    . build/activate && cmake/setup.sh --peers && python benchmarks/executor_overhead.py

Both run chains of N and 1,000 distinct Add calls on 1-element values, on one thread, without graph optimisations. The
slope is (time of 1,000 nodes - time of N nodes) / (1,000 - N), so it excludes constant costs. Every round measures each
runtime once, in turns. It prints medians over the rounds, with the quartiles.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMALL, LARGE = 200, 1000
# Runs in its own interpreter on the peers' folder, because ONNX Runtime is not part of our environment.
PEER = r"""
import json, sys, time
import numpy as np
import onnxruntime as ort

def session(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

sessions = [session(path) for path in sys.argv[1:]]
feeds = {"x": np.array([0.5], np.float32)}
print(json.dumps({"version": ort.__version__}), flush=True)
for line in sys.stdin:  # one round a line
    times = []
    for s in sessions:
        for _ in range(20):
            s.run(None, feeds)
        runs = []
        for _ in range(200):
            began = time.perf_counter_ns()
            s.run(None, feeds)
            runs.append(time.perf_counter_ns() - began)
        runs.sort()
        times.append(runs[len(runs) // 2])
    print(json.dumps(times), flush=True)
"""


def write_chain(nodes, path):
    import onnx
    from onnx import TensorProto, helper

    values = ["x"] + [f"v{i}" for i in range(nodes)]
    chain = [helper.make_node("Add", [values[i], "x"], [values[i + 1]]) for i in range(nodes)]
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])
    graph = helper.make_graph(chain, "chain", [info("x")], [info(values[-1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)


class Peer:
    """ONNX Runtime in a process of its own; one call a round."""

    def __init__(self, folder, models):
        env = dict(os.environ, PYTHONPATH=str(folder), OMP_NUM_THREADS="1")
        self.process = subprocess.Popen([sys.executable, "-c", PEER, *models], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=env)
        self.version = json.loads(self.process.stdout.readline())["version"]

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(program):
    """One round of our program: ns of a run by benchmark name."""
    command = [program, "--benchmark_format=json", "--benchmark_min_time=0.05"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return {b["name"]: b for b in json.loads(out.stdout)["benchmarks"]}


def line(name, values, unit, target=""):
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    print(f"{name:<44} {statistics.median(values):>9.1f} {unit:<3} [{quartiles[0]:.1f}, {quartiles[2]:.1f}]  {target}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--program", default=str(ROOT / "build/bin/executor_overhead"))
    parser.add_argument("--peers", type=pathlib.Path, help="folder of the other runtimes (cmake/setup.sh --peers)",
                        default=pathlib.Path(os.environ.get("CAESURA_PREFIX", "~/.cache/caesura")).expanduser()
                        / "peers/onnxruntime")
    args = parser.parse_args()
    peer = None
    with tempfile.TemporaryDirectory() as folder:
        models = [f"{folder}/chain{n}.onnx" for n in (SMALL, LARGE)]
        for n, path in zip((SMALL, LARGE), models):
            write_chain(n, path)
        if args.peers.is_dir():
            peer = Peer(args.peers, models)
        else:
            print(f"no other runtime in {args.peers}: cmake/setup.sh --peers", file=sys.stderr)
        node, empty, resume, resume_large, theirs = [], [], [], [], []
        for _ in range(args.rounds):
            b = ours(args.program)
            slope = lambda name, low: (b[f"{name}/{LARGE}"]["real_time"] - b[f"{name}/{low}"]["real_time"]) / (LARGE - low)
            node.append(slope("BM_ChainOfAdds", SMALL))
            empty.append(slope("BM_EmptyKernels", 1))
            resume.append(b["BM_YieldResume/1"]["per_yield"] * 1e9)
            resume_large.append(b["BM_YieldResume/4096"]["per_yield"] * 1e9)
            if peer:
                small, large = peer.round()
                theirs.append((large - small) / (LARGE - SMALL))
        if peer:
            peer.close()
    print(f"medians of {args.rounds} rounds [quartiles]; {LARGE} distinct Add calls on 1-element values, one thread")
    line("caesura, a node", node, "ns", "target <= 60")
    line("caesura, a node whose kernel does nothing", empty, "ns")
    if theirs:
        line(f"ONNX Runtime {peer.version}, optimisations off, a node", theirs, "ns")
        print(f"{'ratio':<44} {statistics.median(theirs) / statistics.median(node):>9.1f} x")
    line("caesura, suspend + resume, 1 element", resume, "ns", "target <= 1000")
    line("caesura, suspend + resume, 4,096 elements", resume_large, "ns", "target <= 1000")


if __name__ == "__main__":
    main()
