# SPDX-License-Identifier: Apache-2.0
"""Batch norms keep eager's running statistics in a second process, whose calls come from disk."""

from fork_server import Program
from program_cache_test import folder  # noqa: F401

NORMS = """
import copy, torch, caesura
from caesura.capture import frames
from caesura.frontends import wrap as wrapping
count, original, counts = [], wrapping.torch_backend, []
def counting(*a, **k):
    count.append(1)
    return original(*a, **k)
frames.watch(counting, runs_eager=True)  # as the backend is
wrapping.torch_backend = counting
for momentum in (None, 0.3):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4, momentum=momentum), torch.nn.Linear(4, 3))
    wrapped = caesura.wrap(copy.deepcopy(plain))
    for _ in range(4):
        x = torch.randn(5, 6)
        torch.testing.assert_close(wrapped(x), plain(x))
        for expected, actual in zip(plain.state_dict().values(), wrapped.state_dict().values(), strict=True):
            torch.testing.assert_close(actual, expected)
    counts.append(len(count))
    count.clear()
print(counts)
"""


def test_another_process_keeps_the_statistics(folder):  # noqa: F811
    """Cumulative averages need a new trace; a batch norm with its own momentum is recalled."""
    ended = [Program(NORMS).result() for _ in range(2)]
    assert [(done.stdout, done.stderr) for done in ended] == [("[1, 1]\n", ""), ("[1, 0]\n", "")]
