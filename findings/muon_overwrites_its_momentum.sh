#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0: torch.optim.Muon(nesterov=False) scales its own momentum to a norm of 1 if parameters are bfloat16.
#
# Muon makes its update from a bfloat16 copy of the momentum and divides that copy by its norm in place. `momentum.bfloat16()`
# makes no copy of a bfloat16 tensor, so the division reaches the optimizer's state: each step leaves a momentum buffer of norm 1.
# Gradients much smaller than that hardly count afterwards: the optimizer keeps the direction of its first gradient for ever.
# float32 parameters, and nesterov=True (the default, whose update is a new tensor), are right. No warning. The same in 2.14.1;
# 2.15.0 keeps the momentum.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

print("PyTorch", torch.__version__)


def steps(dtype, nesterov):
    """One step with a small gradient, then 60 with its opposite: the buffer's norm over the right one, how far weights went."""
    torch.manual_seed(0)
    gradient = (torch.randn(8, 8) / 1024).to(dtype)
    weight = torch.nn.Parameter(torch.zeros(8, 8, dtype=dtype))
    muon = torch.optim.Muon([weight], lr=0.01, weight_decay=0.0, momentum=0.95, nesterov=nesterov)
    weight.grad = gradient
    muon.step()
    buffer = muon.state[weight]["momentum_buffer"]
    ratio = (buffer.float().norm() / (0.05 * gradient.float().norm())).item()
    weight.grad = -gradient
    for _ in range(60):
        muon.step()
    # Positive: the weights went against the 60 gradients, downhill.
    return ratio, (weight.detach().float() * gradient.float()).sum().item() / gradient.float().norm().item()


seen = {}
for dtype in (torch.float32, torch.bfloat16):
    for nesterov in (True, False):
        seen[dtype, nesterov] = ratio, way = steps(dtype, nesterov)
        print(f"{dtype}, nesterov={nesterov}: momentum's norm / right norm {ratio:.2f}, distance downhill {way:+.2f}")
wrong = seen.pop((torch.bfloat16, False))
assert all(abs(ratio - 1) < 0.02 and way > 0.5 for ratio, way in seen.values()), "the other three are not right"
assert wrong[0] > 10 and wrong[1] < -0.5, "changed: the momentum is kept now"
PY
# Output seen, 2026-11-29:
#   PyTorch 2.13.0+cpu
#   torch.float32, nesterov=True: momentum's norm / right norm 1.00, distance downhill +1.34
#   torch.float32, nesterov=False: momentum's norm / right norm 1.00, distance downhill +1.34
#   torch.bfloat16, nesterov=True: momentum's norm / right norm 1.00, distance downhill +1.36
#   torch.bfloat16, nesterov=False: momentum's norm / right norm 2449.04, distance downhill -1.39
