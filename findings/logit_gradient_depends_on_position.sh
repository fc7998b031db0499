#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, eager, CPU: the gradient of torch.logit() at NaN and at -0.0 depends on where in the tensor the element is.
#
# All elements below are equal, yet gradients differ. The vectorized loop and the loop over the elements that are left at the end
# compute different functions: at NaN with an eps, the first gives 0 and the second NaN; at -0.0 without an eps, the first gives
# -inf and the second inf. So most NaNs of a large tensor get a gradient of 0, which hides them, and the same number alone in a
# tensor gets NaN. The forward is alike everywhere. The same in 2.14.1 and 2.15.0, in float32 and float64.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

print("PyTorch", torch.__version__, torch.backends.cpu.get_cpu_capability())


def gradients(value, eps, size):
    x = torch.full((size,), value, requires_grad=True)
    y = torch.logit(x, eps=eps)
    y.sum().backward()
    assert len(set(map(str, y.tolist()))) == 1, "the forward differs between elements"
    return [str(number) for number in x.grad.tolist()]


for value, eps, vectorized, rest in ((float("nan"), 1e-6, "0.0", "nan"), (-0.0, None, "-inf", "inf")):
    alone, many = gradients(value, eps, 1), gradients(value, eps, 1025)
    counts = {number: many.count(number) for number in sorted(set(many))}
    print(f"x = {value}, eps = {eps}: alone {alone[0]}; of 1025: first {many[0]}, last {many[-1]}, counts {counts}")
    assert alone == [rest] and many == [vectorized] * 1024 + [rest], "changed: gradients of equal elements"
PY
# Output seen, 2026-11-29:
#   PyTorch 2.13.0+cpu AVX512
#   x = nan, eps = 1e-06: alone nan; of 1025: first 0.0, last nan, counts {'0.0': 1024, 'nan': 1}
#   x = -0.0, eps = None: alone inf; of 1025: first -inf, last inf, counts {'-inf': 1024, 'inf': 1}
