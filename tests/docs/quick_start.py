# SPDX-License-Identifier: Apache-2.0
"""Runs the first steps of a new user in an environment that has only the wheel (cmake/wheel.sh --check). Each also tells which
OpenMP runtime is in the process, which must be one.

    quick_start.py start    imports caesura, and tells how long it takes
    quick_start.py onnx     trains and runs an ONNX model, without PyTorch
    quick_start.py page     the Python blocks of docs/quickstart.md, unchanged
"""

import pathlib
import re
import sys
import time


def start():
    began = time.perf_counter()
    import caesura

    print(f"import caesura {caesura.__version__}: {time.perf_counter() - began:.2f} s")


def onnx():
    import numpy as np
    import onnx as onnx_package

    import caesura
    from caesura import onnxruntime

    assert "torch" not in sys.modules
    model = onnx_package.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul (x, w) }""")
    x = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    labels = (x[:, 0] > x[:, 1]).astype(np.int64)
    session = caesura.TrainingSession(model, loss="cross_entropy", target="labels", optimizer=caesura.optim.AdamW(lr=0.1))
    losses = [session.step({"x": x, "labels": labels}) for _ in range(50)]
    session.export("trained.onnx")
    scores, = onnxruntime.InferenceSession("trained.onnx").run(None, {"x": x})
    right = (scores.argmax(1) == labels).mean()
    print(f"caesura {caesura.__version__}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy {right:.2f}")
    assert losses[-1] < losses[0] / 2 and right > 0.9


def page():
    import types

    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "quickstart.md").read_text()
    module = sys.modules["page"] = types.ModuleType("page")  # Dynamo looks the globals of functions up in their module
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        exec(compile(code, "quickstart.md", "exec"), vars(module))
    print(f"the quick start's blocks have run; loss {module.loss:.3f}")


{"start": start, "onnx": onnx, "page": page}[sys.argv[1]]()
openmp = {line.split()[-1] for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
print("OpenMP:", *openmp)
assert len(openmp) == 1
