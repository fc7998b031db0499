#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ONNX 1.16.0 to 1.21.0: the standard's own tests of QLinearMatMul in int8 ask for a wrap-around where its text says "saturate".
#
# The operator's text: "y = saturate((x / y_scale) + y_zero_point)". In test_qlinearmatmul_2D_int8_float32 one element is -236
# before it is stored. Saturated that is -128; the expected output says 20 (-236 + 256). The data came from ONNX's reference
# implementation, which casts without a clip, so that the reference agrees with the wrong test. onnxruntime follows the text, and
# therefore fails the test. 1.22.0 has -128. (All four int8 tests of QLinearMatMul are like this; those of uint8 stay in range.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" --disable-pip-version-check)
"${pip[@]}" install -q onnx==1.21.0 onnxruntime==1.32.0 numpy==2.4.6
for release in 1.16.0 1.21.0 1.22.0; do
  "${pip[@]}" download -q --no-deps --only-binary :all: --dest "$folder/wheels" "onnx==$release"
done
"$folder/venv/bin/python" - "$folder/wheels" <<'PY'
import pathlib
import sys
import zipfile

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

print("ONNX", onnx.__version__, "onnxruntime", onnxruntime.__version__)
FOLDER = "onnx/backend/test/data/node/test_qlinearmatmul_2D_int8_float32/"


def read(release):
    with zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob(f"onnx-{release}-*.whl"))) as wheel:
        model = wheel.read(FOLDER + "model.onnx")
        names = [f"input_{i}.pb" for i in range(8)] + ["output_0.pb"]
        tensors = [onnx.load_tensor_from_string(wheel.read(f"{FOLDER}test_data_set_0/{name}")) for name in names]
        *inputs, output = map(onnx.numpy_helper.to_array, tensors)
    return model, inputs, output


model, inputs, wrong = read("1.21.0")
a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (x.astype(np.float64) for x in inputs)
exact = np.rint((a - a_zero) @ (b - b_zero) * a_scale * b_scale / y_scale + y_zero)
saturated = np.clip(exact, -128, 127)
feeds = dict(zip([x.name for x in onnx.load_from_string(model).graph.input], inputs))
reference = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)[0]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
runtime = session.run(None, feeds)[0]
print("before storing:     ", exact.astype(int).tolist())
for release in ("1.16.0", "1.21.0", "1.22.0"):
    print(f"expected in {release}: ", read(release)[2].tolist())
print("reference of 1.21.0:", reference.tolist())
print("onnxruntime:        ", runtime.tolist())
assert exact.min() == -236 and np.array_equal(runtime, saturated), "onnxruntime does not saturate"
assert np.array_equal(read("1.22.0")[2], saturated), "changed: 1.22.0 does not saturate"
for output in (wrong, reference, read("1.16.0")[2]):
    assert output[1, 2] == 20 and not np.array_equal(output, saturated), "changed: the test saturates"
PY
# Output seen, 2026-11-29:
#   ONNX 1.21.0 onnxruntime 1.32.0
#   before storing:      [[41, -12, -9], [1, -75, -236]]
#   expected in 1.16.0:  [[41, -12, -9], [1, -75, 20]]
#   expected in 1.21.0:  [[41, -12, -9], [1, -75, 20]]
#   expected in 1.22.0:  [[41, -12, -9], [1, -75, -128]]
#   reference of 1.21.0: [[41, -12, -9], [1, -75, 20]]
#   onnxruntime:         [[41, -12, -9], [1, -75, -128]]
