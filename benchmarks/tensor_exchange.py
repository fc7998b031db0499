# SPDX-License-Identifier: Apache-2.0
"""Measures the exchange of one tensor, in and out: nanoseconds per call, the fastest of several rounds.

    python benchmarks/tensor_exchange.py
"""

import timeit

import numpy as np
import torch

from caesura import _core


def nanoseconds(call, rounds=9, calls=20000):
    return min(timeit.repeat(call, repeat=rounds, number=calls)) / calls * 1e9


def main():
    source, parameter, array = torch.ones(64, 64), torch.nn.Parameter(torch.ones(64, 64)), np.ones((64, 64), np.float32)
    value = _core.Value.from_dlpack(source)
    take, rows = _core.Value.from_dlpack, {}
    rows["a torch tensor in"] = nanoseconds(lambda: take(source))
    rows["a torch parameter in"] = nanoseconds(lambda: take(parameter))
    rows["a torch tensor out"] = nanoseconds(value.to_torch)
    rows["the same by torch.from_dlpack"] = nanoseconds(lambda: torch.from_dlpack(value))
    rows["a NumPy array in"] = nanoseconds(lambda: take(array))
    rows["a NumPy array out"] = nanoseconds(lambda: np.from_dlpack(value))
    rows["an empty call"] = nanoseconds(lambda: value.is_tensor)
    for name, cost in rows.items():
        print(f"{name:32} {cost:6.0f} ns")


if __name__ == "__main__":
    main()
