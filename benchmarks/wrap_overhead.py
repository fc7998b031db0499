# SPDX-License-Identifier: Apache-2.0
"""Measures the parts of a call of a wrapped tiny module: forward and backward of a Linear(8, 8) on 4 rows.

    OMP_NUM_THREADS=1 python benchmarks/wrap_overhead.py

The variants take turns, several calls each. It prints CPU time in microseconds: the median over the rounds and the
minimum. A backward's time is the time of forward and backward minus that of the forward in the same round.
"""

import argparse
import gc
import os
import statistics
import time
import warnings

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

os.environ["CAESURA_PROGRAM_CACHE"] = "off"  # a call that is found on disk evaluates no Dynamo guards
import caesura  # noqa: E402


class Empty(torch.autograd.Function):
    """A Python autograd function that computes nothing."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        return x.detach()

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None


class Scale(torch.nn.Module):
    """One op of PyTorch's, with two gradients."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def ways():
    """Name to a function of x."""
    module = torch.nn.Linear(8, 8)
    wrapped = caesura.wrap(module)
    out = {
        "eager, one op": lambda x: x * module.bias,
        "caesura.wrap, of that op": caesura.wrap(Scale(module.bias)),
        "eager module": module,
        "empty autograd.Function": lambda x: Empty.apply(x, module.weight, module.bias),
        "torch.compile, eager": torch.compile(module, backend="eager"),
        "torch.compile, aot_eager": torch.compile(module, backend="aot_eager"),
        "caesura.wrap": wrapped,
    }
    wrapped(torch.randn(4, 8, requires_grad=True))
    compiled = type(wrapped)._calls.compiled
    code = compiled._torchdynamo_orig_callable
    (entry,) = _debug_get_cache_entry_list(code.__code__)
    (name,) = [n for n in entry.code.co_names if n.startswith("__compiled_fn")]
    graph = code.__globals__[name]._torchdynamo_orig_callable
    check = entry.guard_manager.root.check

    def guards(x):
        check({"args": (x,), "kwargs": {}, "module": module})
        return x

    # Inputs of the graph come in the order of their first use.
    order = [torch.randn(4, 8), module.weight, module.bias]
    for place in range(3):
        arguments = [order[1], order[2]]
        arguments.insert(place, order[0])
        try:
            graph(*arguments)
            break
        except RuntimeError:
            pass
    head, tail = arguments[:place], arguments[place + 1:]
    out["  of it: dynamo's guards"] = guards
    out["  of it: the graph's operator"] = lambda x: graph(*head, x, *tail)[0]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200, help="in a round")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    x = torch.randn(4, 8, requires_grad=True)
    dy = torch.ones(4, 8)

    def forward(way):
        way(x)

    def both(way):
        way(x).backward(dy)

    def microseconds(run, way):
        run(way)
        began = time.process_time()
        for _ in range(options.calls):
            run(way)
        return (time.process_time() - began) / options.calls * 1e6

    table = ways()
    times = {name: ([], []) for name in table}
    for name, way in table.items():
        both(way) if "guards" not in name else forward(way)
    gc.collect()
    gc.freeze()  # objects left by imports and captures must not slow down a call
    for _ in range(options.rounds):
        for name, way in table.items():
            ahead = microseconds(forward, way)
            times[name][0].append(ahead)
            if "guards" not in name:
                times[name][1].append(microseconds(both, way) - ahead)
    print(f"{'':30} {'forward':>8} {'least':>6} {'backward':>9} {'least':>6}")
    for name, (ahead, back) in times.items():
        text = f"{name:30} {statistics.median(ahead):8.1f} {min(ahead):6.1f}"
        print(text + (f" {statistics.median(back):9.1f} {min(back):6.1f}" if back else ""))


if __name__ == "__main__":
    main()
