# SPDX-License-Identifier: Apache-2.0
"""Measures whole training steps of small language models with nn.LSTM, nn.GRU and nn.RNN, beside eager PyTorch.

    python benchmarks/recurrent_layers.py
    python benchmarks/recurrent_layers.py --only LSTM --rounds 40

Each model has an embedding, recurrent layers (batch first) and a linear layer over 65 symbols. A step is forward,
cross-entropy, backward and AdamW: fused in eager and through caesura.wrap, in the program of caesura.compile_step.
Systems take turns in one process, after two rounds that are not counted. It prints medians in ms, and the ratio to
eager in the same round (median, and the sign test's 95% interval). Use an idle machine.
"""

import argparse
import copy
import os
import statistics
import time
import warnings

SIZES = [  # kind, layers, width, batch, length
    ("LSTM", 2, 256, 32, 64), ("GRU", 2, 256, 32, 64), ("RNN", 2, 256, 32, 64), ("LSTM", 1, 64, 16, 32), ("LSTM", 2, 650, 20, 35),
]
SYMBOLS = 65


def systems(kind, layers, width, batch, length):
    """Returns a dict from name to a function that runs one step and returns its loss."""
    import torch

    import caesura
    F = torch.nn.functional

    class LanguageModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(SYMBOLS, width)
            self.layers = getattr(torch.nn, kind)(width, width, layers, batch_first=True)
            self.last = torch.nn.Linear(width, SYMBOLS)

        def forward(self, x):
            return self.last(self.layers(self.embedding(x))[0]).flatten(0, 1)

    torch.manual_seed(0)
    module, text = LanguageModel(), torch.randint(SYMBOLS, (batch, length + 1))
    inputs, targets = text[:, :-1].contiguous(), text[:, 1:].flatten()

    def plain(module):
        optimizer = torch.optim.AdamW(module.parameters(), fused=True)

        def step():
            loss = F.cross_entropy(module(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss
        return step

    wrapped, other = caesura.wrap(copy.deepcopy(module)), copy.deepcopy(module)
    compiled = caesura.compile_step(other, F.cross_entropy, torch.optim.AdamW(other.parameters()))
    return {"eager": plain(module), "wrap": plain(wrapped), "compile_step": lambda: compiled(inputs, targets)}


def measure(sizes, rounds):
    """A line of results."""
    from caesura.bench.statistics import largest_difference, ratio

    running = systems(*sizes)
    losses = {name: [step().item() for _ in range(2)] for name, step in running.items()}
    times = {name: [] for name in running}
    for k in range(rounds):
        for name in list(running)[::1 if k % 2 else -1]:
            began = time.perf_counter()
            running[name]()
            times[name].append(1e3 * (time.perf_counter() - began))
    line = f"eager {statistics.median(times['eager']):.1f} ms"
    for name in ("wrap", "compile_step"):
        median, low, high = ratio(times[name], times["eager"])
        off = largest_difference(losses[name], losses["eager"])
        line += f"; {name} {median:.2f} [{low:.2f}, {high:.2f}], losses within {off:.0e}"
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", choices=["", "LSTM", "GRU", "RNN"], help="one kind of layers")
    parser.add_argument("--rounds", type=int, default=20, help="of turns (default: 20; 6 at least)")
    options = parser.parse_args()
    os.environ["CAESURA_PROGRAM_CACHE"] = "off"
    for sizes in SIZES:
        if options.only in ("", sizes[0]):
            kind, layers, width, batch, length = sizes
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = measure(sizes, options.rounds)
            print(f"{kind}, {layers} x {width}, {batch} x {length}: {result}", flush=True)


if __name__ == "__main__":
    main()
