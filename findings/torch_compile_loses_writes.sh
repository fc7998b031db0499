#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, torch.compile: three writes that it loses, or reads too early, without an error or a warning.
#
# 1. An attribute that a module stores after torch.while_loop stays what it was, if the module has stored another one before
#    the loop. backend="eager": no compiler is part of it.
# 2. A size that is read after an in-place transpose is the one from before it, so a result that is multiplied by the size is
#    wrong. backend="eager".
# 3. An in-place write to a zero-dimensional float64 tensor whose value nothing reads in the graph is left out.
#    backend="aot_eager".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PY' || { cat "$folder/errors" >&2; exit 1; }
import torch

print("PyTorch", torch.__version__)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.seen = 0, None

    def forward(self, x):
        self.calls += 1
        y = torch.while_loop(lambda v: v.sum() < 10, lambda v: (v + 1,), (x,))[0]
        self.seen = 7
        return y


module = Counter()
torch.compile(module, backend="eager")(torch.ones(2))
print("an attribute stored after while_loop:", module.seen, "- stored before it:", module.calls)
stored = module.seen


def shape_after(x):
    y = x * 2
    y.t_()
    return y.sum() * y.shape[0]


x = torch.ones(2, 3)
eager, compiled = shape_after(x).item(), torch.compile(shape_after, backend="eager")(x).item()
print("a size read after t_(): eager", eager, "- compiled", compiled)

total = torch.tensor(0.25, dtype=torch.float64)


def add(x):
    total.add_(2.0)
    return x * 2


torch.compile(add, backend="aot_eager")(x)
print("0.25 in float64 after add_(2.0) under aot_eager:", total.item())
assert stored is None and module.calls == 1, "changed: the attribute is stored"
assert (eager, compiled) == (36.0, 24.0), "changed: the size is that after the transpose"
assert total.item() == 0.25, "changed: the write is there"
PY
# Output seen, 2026-11-29:
#   PyTorch 2.13.0+cpu
#   an attribute stored after while_loop: None - stored before it: 1
#   a size read after t_(): eager 36.0 - compiled 24.0
#   0.25 in float64 after add_(2.0) under aot_eager: 0.25
