#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts passed ONNX node tests by op, for caesura and for ONNX Runtime.

    . build/activate && cmake/setup.sh --peers && python benchmarks/node_tests.py

ONNX Runtime runs in its own interpreter, from the peers' folder. It is not installed in caesura's interpreter.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile

from caesura import conformance


def make_onnxruntime(model: bytes):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def peer_results(name_filter: str) -> dict:
    prefix = os.environ.get("CAESURA_PREFIX", os.path.expanduser("~/.cache/caesura"))
    paths = [os.path.join(prefix, "peers", "onnxruntime"), os.environ.get("PYTHONPATH", "")]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        subprocess.run([sys.executable, "-W", "ignore", __file__, "--filter", name_filter, "--peer", file.name], check=True,
                       env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)))
        return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--peer", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = conformance.collect(arguments.filter)
    if arguments.peer:
        with open(arguments.peer, "w", encoding="utf-8") as file:
            json.dump(conformance.run_all(cases, arguments.filter, make_onnxruntime), file)
        return
    ours, theirs = conformance.run_all(cases, arguments.filter), peer_results(arguments.filter)
    rows = collections.defaultdict(lambda: [0, 0, 0])
    for case in cases:
        for key in ({node.op_type for node in case.model.graph.node} if len(case.model.graph.node) == 1 else {"(several)"}):
            rows[key][0] += 1
            rows[key][1] += not ours[case.name]
            rows[key][2] += not theirs[case.name]
    print(f"{'op':<28} {'cases':>6} {'caesura':>8} {'onnxruntime':>12}")
    for op, (total, own, other) in sorted(rows.items()):
        print(f"{op:<28} {total:>6} {own:>8} {other:>12}")
    print(f"{'all':<28} {len(cases):>6} {sum(not r for r in ours.values()):>8} {sum(not r for r in theirs.values()):>12}")


if __name__ == "__main__":
    main()
