#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, eager: a tensor's hook is not called, without a word, if the tensor is a view and a detached alias of it was
# written to before the backward. A view makes its node anew once its memory has changed, and the hook stays at the old one.
#
# nn.Linear returns a view for an input of one dimension, and a tensor of its own for a batch. So the same module with the same
# hook has different gradients for inputs with and without a batch dimension.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

print("PyTorch", torch.__version__)
seen = {}
for shape in ((3,), (1, 3)):
    for written in (False, True):
        linear, calls = torch.nn.Linear(3, 3), []
        y = linear(torch.ones(shape))
        y.register_hook(lambda g: calls.append(g) or g * 2)
        if written:
            y.detach().mul_(2)  # which this gradient does not read
        y.sum().backward()
        seen[shape, written] = len(calls), linear.bias.grad.tolist()
        print(f"input {shape}, {'written to' if written else 'left alone'}: {len(calls)} calls, "
              f"gradient of the bias {linear.bias.grad.tolist()}")
assert seen[(3,), False] == seen[(1, 3), False] == seen[(1, 3), True] == (1, [2.0] * 3), "changed"
assert seen[(3,), True] == (0, [1.0] * 3), "changed: the hook is called"
PY
