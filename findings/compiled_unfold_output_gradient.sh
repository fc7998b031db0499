#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, torch.compile: the gradient of an unfold() that is an output is wrong where windows overlap.
#
# Eager adds up what arrives at overlapping elements. Compiled, with backend "aot_eager" (Inductor, too, in 2.13.0), the incoming
# gradient is laid out with the output's overlapping strides first, so that windows overwrite one another. No warning. The same
# with aot_eager in 2.14.1 and 2.15.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

print("PyTorch", torch.__version__)


def windows(w):
    return (w * 1).unfold(0, 2, 1)


def gradient(function):
    w = torch.arange(4.0, dtype=torch.float64, requires_grad=True)
    function(w).backward(torch.tensor([[1.0, 2], [3, 4], [5, 6]], dtype=torch.float64))
    return w.grad.tolist()


eager, compiled = gradient(windows), gradient(torch.compile(windows, backend="aot_eager"))
print("eager:    ", eager)
print("compiled: ", compiled)
assert eager == [1, 2 + 3, 4 + 5, 6], "eager's gradient is not the sum over windows"
assert compiled != eager, "changed: the compiled gradient is right now"
PY
# Output seen, 2026-11-28:
#   PyTorch 2.13.0+cpu
#   eager:     [1.0, 5.0, 9.0, 6.0]
#   compiled:  [1.0, 6.0, 10.0, 6.0]
