# SPDX-License-Identifier: Apache-2.0
"""Processes that are ranks of one run on Gloo, for tests."""

import datetime
import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist
from fork_server import PRELOADED, context

_SECONDS = 400  # enough for a busy machine


def _rank(rank, world, port, seconds, body, arguments):
    assert all(name in sys.modules for name in PRELOADED), "the server that ranks are forked from has not imported what it should"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), CAESURA_PROGRAM_CACHE="off")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=datetime.timedelta(seconds=seconds))
    if body(rank, *arguments) is not None:  # the others may be gone
        dist.barrier()
    # The rank ends without the interpreter's finalization. A thread of Gloo takes the GIL to release a tensor that Python
    # made. If that happens during the finalization, Python ends the thread in a destructor, and the process aborts
    # (PyTorch's issue 190489; eager modules only do the same). destroy_process_group() does not end these threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def same_on_all_ranks(tensors):
    for tensor in tensors:
        others = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(others, tensor.detach().contiguous())
        assert all(torch.equal(tensor, other) for other in others)


def run_ranks(world, body, *arguments, seconds=_SECONDS, lost=()):
    """Runs body(rank, *arguments), a function of a module, on each of `world` ranks. It returns True where all ranks come
    to its end. seconds: the group's time-out. lost: ranks that end by a signal. The ranks are forks of a process that has
    imported what takes seconds to import: environment variables are those of the first call."""
    context()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = torch.multiprocessing.start_processes(_rank, args=(world, port, seconds, body, arguments), nprocs=world,
                                                  join=False, start_method="forkserver")
    try:
        for process in (p for rank, p in enumerate(ranks.processes) if rank not in lost):
            process.join(_SECONDS)
        for rank in lost:  # it may be stopped
            ranks.processes[rank].kill()
            ranks.processes[rank].join()
        codes = [process.exitcode for process in ranks.processes]
        if None in codes:
            pytest.fail(f"the ranks took more than {_SECONDS} s: {codes}")
        if any((code != 0) != (rank in lost) for rank, code in enumerate(codes)):
            ranks.join(timeout=1)  # raises with the rank's own words
            pytest.fail(f"the ranks ended with {codes}")
    finally:
        for process in ranks.processes:
            process.kill()
