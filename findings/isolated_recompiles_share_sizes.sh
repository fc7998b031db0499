#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0: torch.compile(..., isolate_recompiles=True) gives each call of torch.compile caches of its own, but not a memory
# of its own for sizes that vary. Automatic dynamic shapes are remembered by code object for the whole process. So the second
# torch.compile of a function, which has seen one size only, captures it as a symbol at once if the first one has seen two. What the
# second one captures depends on what else the process has run: a forward that two models share, the folds of a validation.
# Ranks that compare what they have captured differ where only one of them has trained before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/errors" <<'PY' || { tail -n 5 "$folder/errors" >&2; exit 1; }
import torch


def noting(graphs):
    def backend(graph, inputs):
        graphs.append(any(isinstance(value, torch.SymInt) for value in inputs))
        return graph.forward
    return backend


def wave(x):
    return x.sin() + 1


print("PyTorch", torch.__version__)
found = {}
for isolated in (False, True):
    torch._dynamo.reset()
    first, second = [], []
    compiled = torch.compile(wave, backend=noting(first), isolate_recompiles=isolated)
    compiled(torch.ones(3, 2))
    compiled(torch.ones(4, 2))
    torch.compile(wave, backend=noting(second), isolate_recompiles=isolated)(torch.ones(5, 2))
    found[isolated] = first, second
    print(f"isolate_recompiles={isolated}: graphs with symbols: the first {first}, the second, at its first call {second}")
assert found == dict.fromkeys((False, True), ([False, True], [True])), found
PY
# Seen:
#   PyTorch 2.13.0+cpu
#   isolate_recompiles=False: graphs with symbols: the first [False, True], the second, at its first call [True]
#   isolate_recompiles=True: graphs with symbols: the first [False, True], the second, at its first call [True]
