# SPDX-License-Identifier: Apache-2.0
"""Runs the bodies of our ops in ONNX's operators in onnxruntime and in ONNX's reference evaluator.

    python benchmarks/bodies.py [FOLDER]

It takes an environment with both, and build/bin/caesura_tests. The cases are those of
tests/graph_transforms/standard_ops_test.cc, with what our kernels gave. It prints for each runtime how many agree, each
output to 1e-4 of its largest element (2e-2 for halves); how many are wrong, and which; and what a runtime does not run,
with its own words.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.reference

TESTS = pathlib.Path(__file__).resolve().parents[1] / "build" / "bin" / "caesura_tests"


def in_onnxruntime(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {})


RUNTIMES = {"onnxruntime": in_onnxruntime,
            "reference evaluator": lambda path: onnx.reference.ReferenceEvaluator(path).run(None, {})}


def far(found, expected):
    """The largest distance, as a share of the largest element; 0 for equal values that are no numbers."""
    found, expected = (np.asarray(value, np.float64) for value in (found, expected))
    if found.shape != expected.shape:
        return np.inf
    known = np.isfinite(expected)
    if not np.array_equal(found[~known], expected[~known], equal_nan=True):
        return np.inf
    if not known.any():
        return 0.0
    most = max(np.abs(expected[known]).max(), 1e-3)
    return float(np.nan_to_num(np.abs(found[known] - expected[known]), nan=np.inf).max() / most)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    subprocess.run([TESTS, "--gtest_filter=StandardOps.*"], check=True, capture_output=True, env=os.environ | {"CAESURA_BODIES": folder})
    cases = sorted(pathlib.Path(folder).glob("*.onnx"), key=lambda path: int(path.stem))
    for path in cases:
        onnx.checker.check_model(onnx.load(path), full_check=True)
    for name, run in RUNTIMES.items():
        agree, wrong, left = 0, [], []
        for path in cases:
            try:
                values = run(str(path))
            except Exception as error:
                left.append(f"{path.name}: {' '.join(str(error).split())[:200]}")
                continue
            half = len(values) // 2
            limits = [2e-2 if value.dtype == np.float16 else 1e-4 for value in values[:half]]
            worst = max(far(a, b) / limit for a, b, limit in zip(values[:half], values[half:], limits))
            if worst <= 1:
                agree += 1
            else:
                wrong.append(f"{path.name}: {worst:.1e} times the limit")
        print(f"{name}: {agree} of {len(cases)} cases agree, {len(wrong)} wrong, {len(left)} not run")
        print(*(f"  {line}" for line in wrong + left), sep="\n")


if __name__ == "__main__":
    main()
