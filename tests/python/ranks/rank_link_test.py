# SPDX-License-Identifier: Apache-2.0
"""The link between two ranks is cut, or becomes slow, while they train: a step that fails has changed nothing. Each rank is in
a network namespace of its own, which needs root."""

import argparse
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
TOP = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "benchmarks" / "ranks"))

import rank_link  # noqa: E402
import torch.distributed as dist  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")

_TIME_OUT = 5  # seconds
_CHANGES = {"cut": "ip link set dev wire down", "slow": "tc qdisc replace dev wire root tbf rate 100kbit burst 10kb latency 10s"}


def _train(rank, change):
    """Two steps, then one over the changed link. Its gradients have 1 MiB, which takes the slow link 84 s."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512), torch.nn.Linear(512, 4))
    optimizer = torch.optim.AdamW(module.parameters())
    batch = torch.randn(8, 512), torch.randint(4, (8,))
    # Alone first: on a busy machine one rank may take longer than the time-out to import and to capture.
    caesura.compile_step(module, torch.nn.functional.cross_entropy, optimizer)(*batch)
    dist.init_process_group("gloo")
    group = dist.new_group(timeout=datetime.timedelta(seconds=_TIME_OUT))
    dist.barrier()
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, optimizer, ranks=caesura.Ranks(group))
    for _ in range(2):
        step(*batch)
    dist.barrier()
    subprocess.run(_CHANGES[change].split(), check=True)
    state = (*module.parameters(), *module.buffers(), *(v for s in optimizer.state.values() for v in s.values()))
    before, began = [t.detach().clone() for t in state], time.monotonic()
    with pytest.raises(caesura.RankFailure):
        step(*batch)
    print(f"rank {rank}, {change}: an error after {time.monotonic() - began:.2f} s, time-out {_TIME_OUT} s", flush=True)
    assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))


@pytest.mark.parametrize("change", _CHANGES)
def test_a_step_over_a_changed_link_happens_on_no_rank(change):
    try:
        with rank_link.namespaces():
            rank_link.run_ranks(__file__, ["--change", change])
    except rank_link.NoNamespaces as error:
        pytest.skip(str(error))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--change")
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()
    signal.alarm(240)  # a rank that hangs ends
    _train(options.rank, options.change)
    # Gloo's threads may still hold tensors (rank_processes.py).
    sys.stdout.flush()
    os._exit(0)
