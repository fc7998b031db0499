#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0, torch.compile: a PackedSequence made by _replace() is empty after a graph break.
#
# `packed._replace(data=table(packed.data))` is the usual way to embed packed words. Where Dynamo hands such a tuple to the code
# after a graph break, or to a function that it does not trace (every recurrent layer of packed sequences is one), the tuple has
# no fields: "not enough values to unpack (expected 4, got 0)" or "list index out of range". The class's constructor is safe.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat > "$folder/replaced.py" <<'PY'
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

print("PyTorch", torch.__version__)


def by_replace(packed):
    packed = packed._replace(data=packed.data * 2)
    torch._dynamo.graph_break()
    return packed.data.sum()


def by_constructor(packed):
    packed = PackedSequence(packed.data * 2, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    torch._dynamo.graph_break()
    return packed.data.sum()


packed = pack_padded_sequence(torch.ones(3, 2), torch.tensor([3, 1]))
print("eager:", by_replace(packed).item())
print("compiled, by the constructor:", torch.compile(by_constructor, backend="eager")(packed).item())
try:
    print("compiled, by _replace:", torch.compile(by_replace, backend="eager")(packed).item())
    raise SystemExit("changed: the fields are there now")
except IndexError as error:
    print("compiled, by _replace:", str(error).splitlines()[0])
PY
"$folder/venv/bin/python" "$folder/replaced.py"
# Output seen, 2026-11-30:
#   PyTorch 2.13.0+cpu
#   eager: 8.0
#   compiled, by the constructor: 8.0
#   compiled, by _replace: list index out of range
