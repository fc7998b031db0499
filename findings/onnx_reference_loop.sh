#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ONNX 1.23.2: the reference evaluator runs Loop in two ways that the standard does not have.
#
# 1. A Loop's scan output has one more dim than what an iteration gives: ONNX's own shape inference says [4, 2, 3] for four
#    iterations that give [2, 3] each. The reference stacks the rows, and returns [8, 3]. One dim is right by chance, [4, 2].
# 2. The condition may be left out; the operator's text calls that a for loop over the trip count. The reference then runs no
#    iteration, and fails where there is a scan output. With a constant true condition it runs all.
# onnxruntime does what the standard says in both. Who checks a gradient through Loop against the reference finds wrong shapes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --disable-pip-version-check install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

print("ONNX", onnx.__version__, "onnxruntime", onnxruntime.__version__)
LOOP = """<ir_version: 10, opset_import: ["" : 21]>
loop (float[%(dims)s] x) => (float last, y) {
  trips = Constant<value = int64 {4}>()
  go_on = Constant<value = bool {1}>()
  start = Constant<value = float {1.0}>()
  last, y = Loop(trips, %(condition)s, start) <
      body = body (int64 i, bool before, float sum) => (bool after, float next, float[%(dims)s] y) {
    after = Identity(before)
    one = Constant<value = float {1.0}>()
    next = Add(sum, one)
    y = Mul(x, sum)
  }>
}"""


def reference(model, x):
    try:
        last, y = ReferenceEvaluator(model).run(None, {"x": x})
        return list(y.shape), float(last)
    except ValueError as error:
        return "no result,", type(error).__name__


def runtime(model, x):
    last, y = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return list(y.shape), float(last)


onnxruntime.set_default_logger_severity(3)
found = {}
for dims in ((2,), (2, 3)):
    for condition in ("go_on", ""):
        text = LOOP % {"dims": ", ".join(map(str, dims)), "condition": condition}
        model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
        inferred = [dim.dim_value or "?" for dim in model.graph.output[1].type.tensor_type.shape.dim]
        x = np.ones(dims, dtype=np.float32)
        found[dims, condition] = reference(model, x), runtime(model, x)
        print(f"{list(dims)}, {condition or 'no condition'}: inferred {inferred}; reference",
              *found[dims, condition][0], "| onnxruntime", *found[dims, condition][1])
for (dims, condition), (ours, theirs) in found.items():
    assert theirs == ([4, *dims], 5.0), "onnxruntime has another result"
    if not condition:
        assert ours[1] == "ValueError", "changed: a Loop without a condition runs"
assert found[(2,), "go_on"][0] == ([4, 2], 5.0) and found[(2, 3), "go_on"][0] == ([8, 3], 5.0), "changed: other shapes"
PY
# Output seen, 2026-11-30:
#   ONNX 1.23.2 onnxruntime 1.32.0
#   [2], go_on: inferred ['?', 2]; reference [4, 2] 5.0 | onnxruntime [4, 2] 5.0
#   [2], no condition: inferred ['?', 2]; reference no result, ValueError | onnxruntime [4, 2] 5.0
#   [2, 3], go_on: inferred ['?', 2, 3]; reference [8, 3] 5.0 | onnxruntime [4, 2, 3] 5.0
#   [2, 3], no condition: inferred ['?', 2, 3]; reference no result, ValueError | onnxruntime [4, 2, 3] 5.0
