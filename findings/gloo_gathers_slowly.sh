#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch 2.13.0 with Gloo: all_gather_single takes about twice as long as all_to_all_single with the same tensor for every rank,
# which sends the same bytes and gives the same output. Code that replaces an all-reduce by reduce-scatter and all-gather, as ZeRO
# does, is slower for that, although the bytes on the link are the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/rank.py" <<'PY'
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ELEMENTS, ROUNDS = 4 << 20, 15
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/ranks", rank=int(sys.argv[1]), world_size=2)
own = torch.full((ELEMENTS,), 1.0 + dist.get_rank())
repeated, outputs = own.repeat(2), [torch.zeros(2 * ELEMENTS) for _ in range(2)]
ways = (lambda: dist.all_gather_single(outputs[0], own), lambda: dist.all_to_all_single(outputs[1], repeated))
times = [[], []]
for _ in range(ROUNDS):
    for way, taken in zip(ways, times, strict=True):
        dist.barrier()
        began = time.perf_counter()
        way()
        taken.append(time.perf_counter() - began)
assert torch.equal(*outputs)
ratio = statistics.median(times[0]) / statistics.median(times[1])
if dist.get_rank() == 0:
    print("PyTorch", torch.__version__)
    print(f"16 MiB of each rank: all_gather_single takes {ratio:.2f} of all_to_all_single's time")
dist.barrier()
sys.stdout.flush()
os._exit(0 if ratio > 1.3 else 1)
PY
"$folder/venv/bin/python" "$folder/rank.py" 1 "$folder" 2>/dev/null &
"$folder/venv/bin/python" "$folder/rank.py" 0 "$folder" 2>"$folder/errors" || { tail -n 5 "$folder/errors" >&2; exit 1; }
wait $!
# Output seen, 2026-11-30 (two ranks of one thread each on two cores, which other work shared):
#   PyTorch 2.13.0+cpu
#   16 MiB of each rank: all_gather_single takes 2.70 of all_to_all_single's time
