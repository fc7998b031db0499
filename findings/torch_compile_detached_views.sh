#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0 (2.14.1 and 2.15.0 gave the same), torch.compile with its default backend: a forward returns a view and the
# view's detach(), as one does to keep features for a log. The detached result is another view of the same memory:
#   a square matrix that was transposed comes back untransposed, without an error or a warning;
#   a slice ends in an AssertionError in each call.
# backend="eager" (Dynamo alone) is right; "aot_eager" is wrong as the default is. AOTAutograd makes such results anew from the
# tensor that they are views of, and its record of the detached one holds no views.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PY' || { tail -n 5 "$folder/errors" >&2; exit 1; }
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(3, 3)


def transposed(x):
    y = layer(x).t()
    return y, y.detach()


def sliced(x):
    y = layer(x)[1:]
    return y, y.detach()


print("PyTorch", torch.__version__)
x, right = torch.randn(3, 3), {}
for backend in ("eager", "aot_eager", "inductor"):
    torch._dynamo.reset()
    y, detached = torch.compile(transposed, backend=backend)(x)
    right[backend] = torch.equal(y, detached)
    print(f"{backend}: the detached result equals the result: {right[backend]}; equals its transpose: {torch.equal(y.t(), detached)}")
try:
    torch.compile(sliced, backend="aot_eager")(x)
    ended = "no error"
except AssertionError as error:
    ended = f"AssertionError: {error}"
print("a slice:", ended)
assert right == {"eager": True, "aot_eager": False, "inductor": False}, "changed: the values"
assert "incorrect out shape" in ended, "changed: the slice"
PY
