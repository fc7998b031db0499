#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, eager: a batch norm in training mode overwrites its running statistics without counting a version.
#
# An evaluation-mode batch norm saves the running variance for its backward. If a training-mode call updates the same
# statistics before that backward (a frozen pass and a normal pass of one layer in one step), the gradient is computed with
# the new variance. Any other in-place write would raise "modified by an inplace operation"; here nothing is said, and the
# gradient is that of a forward which was never computed. Seen alike with 2.14.1 and 2.15.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch
import torch.nn.functional as F

print("PyTorch", torch.__version__)


def gradient(update):
    torch.manual_seed(0)
    x = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    mean, variance = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    y = F.batch_norm(x, mean, variance, training=False)
    before = variance._version
    update(x.detach(), mean, variance)
    versions = variance._version - before
    y.square().sum().backward()
    return x.grad, versions


right, _ = gradient(lambda x, mean, variance: None)
wrong, versions = gradient(lambda x, mean, variance: F.batch_norm(3 * x + 1, mean, variance, training=True, momentum=0.9))
distance = (right - wrong).abs().max().item()
print("versions counted by the training-mode call:", versions)
print(f"largest difference of the gradient: {distance:.4f}, largest gradient: {right.abs().max().item():.4f}")
try:
    gradient(lambda x, mean, variance: variance.mul_(2))
    raise SystemExit("changed: mul_ on the statistics no longer raises")
except RuntimeError as error:
    print("mul_ on the same tensor raises:", str(error)[:75])
assert versions == 0 and distance > 0.1, "changed: the update is noticed now"
PY
# Output seen, 2026-11-28:
#   PyTorch 2.13.0+cpu
#   versions counted by the training-mode call: 0
#   largest difference of the gradient: 3.1934, largest gradient: 4.6208
#   mul_ on the same tensor raises: one of the variables needed for gradient computation has been modified by a
