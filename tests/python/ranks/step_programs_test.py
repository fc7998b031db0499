# SPDX-License-Identifier: Apache-2.0
"""Programs of compiled steps on ranks, each drawn from a seed (step_programs.py): all ranks have the same bits and do what eager
training of all batches does, or refuse with words that name the difference. CAESURA_STEP_PROGRAM=n: only that program; n:m: from n
to below m. CAESURA_LONG=1: 2,500 programs on 2 to 4 ranks instead of some on 2. The ranks are processes that all programs share."""

import ast
import collections
import os
import re

import pytest

torch = pytest.importorskip("torch")

import rank_processes  # noqa: E402
from step_programs import ranks_of, run_programs  # noqa: E402

from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")
SHORT = (0, 23, 27, 45, 59, 71)  # of two ranks: heads by rank, thawing, shards, tokens, checkpoints, the disk, refusals


def test_ranks_do_what_one_process_does_or_are_refused(tmp_path, monkeypatch):
    given = os.environ.get("CAESURA_STEP_PROGRAM")
    is_long = "CAESURA_LONG" in os.environ
    if given:
        first, _, last = given.partition(":")
        seeds = range(int(first), int(last or int(first) + 1))
    else:
        seeds = range(2500) if is_long else SHORT
    monkeypatch.setattr(rank_processes, "_SECONDS", 60 * len(seeds) + 400)
    world = 4 if any(ranks_of(seed) > 2 for seed in seeds) else 2
    log = tmp_path / "log"
    try:
        rank_processes.run_ranks(world, run_programs, list(seeds), str(log), str(tmp_path), seconds=90)
    finally:
        text = "".join(path.read_text() for path in tmp_path.glob("log*"))
        for line in re.findall(r"^\d+ [A-Z]\w+: .*$", text, re.M):
            print(line)
    counts = collections.Counter()
    done = {int(seed): ast.literal_eval(of) for seed, of in re.findall(r"^(\d+) (\{.*\}|None)$", text, re.M)}
    for of in done.values():
        counts.update(of or {"to a limit": 1})
    print(f"{len(done)} programs: {dict(counts)}")
    assert len(done) == len(seeds)
