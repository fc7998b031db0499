#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0: the sum of two contiguous tensors is not contiguous. One is a column that was transposed and got a leading
# dimension: of shape (1, 1, 3), with strides (1, 1, 1). is_contiguous() says True, as strides of extent 1 do not count, and
# contiguous() gives it back as it is. But the sum with a (3, 1) column has strides (1, 1, 3): eager orders the dimensions of a
# result by all strides of its operands. A fresh tensor of the same shape and values gives (9, 3, 1).
# The meta device, and so FakeTensor and torch.compile, foretell (9, 3, 1) for both: a view() of the sum that eager allows is
# refused while torch.compile captures.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PY' || { tail -n 5 "$folder/errors" >&2; exit 1; }
import torch

turned, fresh, column = torch.ones(3, 1).mT.unsqueeze(0), torch.ones(1, 1, 3), torch.ones(3, 1)


def flat_columns(a, b):
    return (a + b).mT.view(-1)


def outcome(call):
    try:
        call(turned, column)
        return "runs"
    except Exception:
        return "raises"


print("PyTorch", torch.__version__)
print("contiguous:", turned.is_contiguous(), column.is_contiguous(), "the sum:", (turned + column).is_contiguous())
seen = {"turned": (turned + column).stride(), "made contiguous": (turned.contiguous() + column).stride(),
        "fresh": (fresh + column).stride(), "meta": (turned.to("meta") + column.to("meta")).stride()}
for name, strides in seen.items():
    print(f"strides of the sum, {name}: {strides}")
views = outcome(flat_columns), outcome(torch.compile(flat_columns, backend="eager"))
print(f"a view of the sum's columns: eager {views[0]}, torch.compile {views[1]}")
assert turned.is_contiguous() and column.is_contiguous() and not (turned + column).is_contiguous()
assert seen == {"turned": (1, 1, 3), "made contiguous": (1, 1, 3), "fresh": (9, 3, 1), "meta": (9, 3, 1)}, seen
assert views == ("runs", "raises"), views
PY
# Seen:
#   PyTorch 2.13.0+cpu
#   contiguous: True True the sum: False
#   strides of the sum, turned: (1, 1, 3)
#   strides of the sum, made contiguous: (1, 1, 3)
#   strides of the sum, fresh: (9, 3, 1)
#   strides of the sum, meta: (9, 3, 1)
#   a view of the sum's columns: eager runs, torch.compile raises
