# SPDX-License-Identifier: Apache-2.0
"""PyTorch gives the same outputs and gradients for every case of the gradient checks.

The C++ tests write out the cases of tests/gradients, so that none is repeated here.
"""

import os
import shutil
import subprocess

import gradients_beside_pytorch_graph as reference
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import caesura

# PyTorch computes in float64, and so do we unless ONNX's schemas have no double. Roundings of 2^-53 grow in sums of up
# to some hundred terms and in functions with errors of a few units in the last place: 1e-12 of the largest entry would
# suffice for most. Kernels in float32 round to 2^-24 instead.
TOLERANCE = {"float64": 1e-10, "float32": 2e-5}

# The scale of scores is a float32 in ONNX's function body and in our kernel's product: an error of 2^-24.
FLOAT32_INSIDE = {"Attention": 1e-7}

# Ops that the installed PyTorch lacks.
NOT_IN_PYTORCH = {
    "CtcLoss": "PyTorch's has no second output of slopes; ctc_test.py compares it",
    "DeformConv": "torchvision's",
    "MaxRoiPool": "torchvision's",
    "RoiAlign": "torchvision's",
}
# Cases that PyTorch does not support, although it has the op.
NOT_SO_IN_PYTORCH = {
    "ResizeAntialias": "PyTorch leaves out the taps that lie outside; ResizeAntialiasInside does so too",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    program = shutil.which("caesura_tests")
    assert program, "the C++ tests are not on the path: . build/activate"
    folder = tmp_path_factory.mktemp("cases")
    subprocess.run([program, "--gtest_filter=GradientSweep.CasesSurviveTheModelFormat"], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "CAESURA_GRADIENT_CASES": str(folder)})
    found = sorted(folder.glob("*.onnx"))
    assert len(found) > 350
    return found


def load(path):
    """Returns (model without its feeds, feeds). A case stores its feeds as defaults of its inputs."""
    model = onnx.load(path)
    names = {i.name for i in model.graph.input}
    feeds = {p.name: numpy_helper.to_array(p) for p in model.graph.initializer if p.name in names}
    weights = [p for p in model.graph.initializer if p.name not in names]
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    return model, feeds


def ours(model, feeds, wanted):
    module = caesura.SplitModule(model.SerializeToString(), inputs=wanted, frozen=["*"], training=False)
    run = module.forward(feeds)
    # Gradients of outputs: numbers that are neither equal nor round.
    dys = {name: np.cos(np.arange(y.size) + 1).reshape(y.shape).astype(y.dtype) for name, y in run.outputs.items()}
    constant = set(module.unreachable) == set(wanted)
    return run.outputs, dys, run.backward({} if constant else dys)


def theirs(model, feeds, wanted, dys, y):
    xs = {name: reference.wide(array) for name, array in feeds.items()}
    for name in wanted:
        xs[name].requires_grad_()
    outputs = reference.run_graph(model.graph, {**xs, "ours": reference.wide(y)})
    joined = [(v, reference.wide(dy)) for v, dy in zip(outputs, dys.values()) if v.requires_grad]
    if joined:
        torch.autograd.backward([v for v, _ in joined], [dy for _, dy in joined])
    gradients = {}
    for name in wanted:
        gradients[name] = np.zeros_like(feeds[name]) if xs[name].grad is None else xs[name].grad.numpy()
    return [v.detach().numpy() for v in outputs], gradients


def distance(found, expected):
    assert found.shape == expected.shape, f"shape {found.shape}, PyTorch's is {expected.shape}"
    if found.size == 0:
        return 0.0
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def compare(path, ops):
    model, feeds = load(path)
    tolerance = {kind: max([value, *(FLOAT32_INSIDE.get(op, 0) for op in ops)]) for kind, value in TOLERANCE.items()}
    wanted = [name for name, array in feeds.items() if array.dtype.kind == "f"]
    outputs, dys, gradients = ours(model, feeds, wanted)
    expected, expected_gradients = theirs(model, feeds, wanted, dys, next(iter(outputs.values())))
    for (name, y), reference_y in zip(outputs.items(), expected):
        error = distance(y, reference_y)
        assert error <= tolerance[y.dtype.name], f"{name}: {error} of the largest entry from PyTorch's"
    for name in wanted:
        error = distance(gradients[name], expected_gradients[name])
        assert error <= tolerance[feeds[name].dtype.name], f"d{name}: {error} of the largest entry from PyTorch's"


def test_gradients_beside_pytorch(cases):
    compared, left_out, failures = {}, {}, []
    for path in cases:
        model, _ = load(path)
        ops = reference.ops_of(model.graph)
        missing = ops & set(NOT_IN_PYTORCH) or {path.stem} & set(NOT_SO_IN_PYTORCH)
        if missing:
            for op in missing:
                left_out[op] = left_out.get(op, 0) + 1
            continue
        unknown = ops - set(reference.OPS) - reference.CONTROL_FLOW
        if unknown:
            failures.append(f"{path.stem}: {unknown} is neither in the table nor in NOT_IN_PYTORCH")
            continue
        try:
            compare(path, ops)
        except Exception as error:  # all of them at once
            failures.append(f"{path.stem}: {type(error).__name__}: {error}")
            continue
        for op in ops:
            compared[op] = compared.get(op, 0) + 1
    count = len(cases) - sum(left_out.values()) - len(failures)
    print(f"\n{len(compared)} ops compared with PyTorch in {count} cases; left out: {left_out}")
    assert not failures, f"{len(failures)} cases:\n" + "\n".join(failures)
    assert set(left_out) == {*NOT_IN_PYTORCH, *NOT_SO_IN_PYTORCH}, "listed without a case"
