# SPDX-License-Identifier: Apache-2.0
"""Trains steps that export_training() wrote in onnxruntime, beside caesura's own and beside eager PyTorch.

    python benchmarks/exported_steps.py                      nine models, SGD and AdamW of two eps
    python benchmarks/exported_steps.py --only lstm schnet   these models
    python benchmarks/exported_steps.py --optimizers SGD     this optimizer

It takes an environment with onnxruntime (and transformers for BERT and Llama). Each row is 20 steps on one thread:
the nodes of the file, with those in bodies; the distance of the parameters in the end, onnxruntime's from caesura's;
what rounding alone does, which is the distance of eager PyTorch that sees the samples of each batch in another order
(the most of three orders), and of eager PyTorch in float32, from eager PyTorch in float32 and float64; and the CPU time
of a step. A distance is the largest difference of an element, divided by the largest element of that parameter or by 1e-3, of all
parameters the worst. Another order leaves each sample's own products as they are; two runtimes do not.
"""

import argparse
import copy
import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import caesura
from caesura.bench import models as nets
from second_derivatives import SchNet, WithLoss, forces, molecules

STEPS, ORDERS, SMALL = 20, 3, 1e-3
OPTIMIZERS = {
    "SGD": lambda module, rate: torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9),
    "AdamW": lambda module, rate: torch.optim.AdamW(module.parameters(), lr=1e-3),
    # AdamW's first update is g / (|g| + eps). Rounding decides it where g is about 1e-8, the default eps; 1e-5 is far above rounding.
    "AdamW, eps 1e-5": lambda module, rate: torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-5),
}


@dataclass
class Trained:
    """A module that returns its loss, and how to make a batch of its inputs and to put that in another order."""

    module: nn.Module
    batch: Callable[[], tuple]
    reorder: Callable[[tuple], tuple] = lambda batch: rows(batch, torch.randperm(len(batch[0])))
    rate: float = 1e-3  # of SGD


def rows(batch, order):
    return tuple(value[order] if value.dim() else value for value in batch)


class Scored(nn.Module):
    """The mean cross-entropy of a net's scores."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *inputs):
        return cross_entropy(self.net(*inputs[:-1]), inputs[-1].flatten())


class OfLabels(nn.Module):
    """The loss of a model of transformers."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens, labels):
        return self.net(input_ids=tokens, labels=labels).loss


class Reader(nn.Module):
    """Scores of the next token by an LSTM."""

    def __init__(self, vocabulary=65, width=128):
        super().__init__()
        self.tokens, self.last = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, tokens):
        return self.last(self.lstm(self.tokens(tokens))[0]).flatten(0, 1)


class Branching(nn.Module):
    """An If and a Loop whose number of rounds is an input."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.other, self.inner = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, rounds):
        h = torch.tanh(self.first(x))
        h = torch.cond(x[0, 0] > 0, lambda h: self.other(h).relu(), lambda h: h * 2, (h,))
        start = (torch.zeros((), dtype=torch.int64), h)
        return self.last(torch.while_loop(lambda i, h: i < rounds, lambda i, h: (i + 1, torch.tanh(self.inner(h))), start)[1])


def rows_and_rounds():
    x = torch.randn(32, 16)
    x[:, 0] = x[0, 0]  # what the branch depends on is the same in each order
    return x, torch.randint(1, 5, ()), torch.randint(0, 4, (32,))


def text(batch, length, vocabulary):
    def make():
        tokens = torch.randint(0, vocabulary, (batch, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return make


def images(*shape, classes=10):
    return lambda: (torch.randn(*shape), torch.randint(0, classes, shape[:1]))


def transformer(name, **sizes):
    import transformers

    config = getattr(transformers, name.partition("For")[0] + "Config")(**sizes, vocab_size=512, num_hidden_layers=2, use_cache=False)
    return Trained(OfLabels(getattr(transformers, name)(config).train()), text(2, 64, 512))


def schnet():
    def pairs_turned(batch):
        kinds, positions, pairs, *others = batch
        return kinds, positions, pairs[:, torch.randperm(pairs.shape[1])], *others

    def batch():
        kinds, positions, pairs, *others = fixed
        return kinds, positions + 0.01 * torch.randn_like(positions), pairs, *others

    fixed = molecules()
    return Trained(WithLoss(SchNet(), forces), batch, pairs_turned, rate=1e-5)


MODELS = {
    "digits net": lambda: Trained(Scored(nets.digits_cnn()), images(32, 1, 8, 8)),
    "MLP": lambda: Trained(Scored(nets.mlp(784, 512, 512, 10)), images(64, 784)),
    "character GPT": lambda: Trained(Scored(nets.Gpt(nets.GptSizes(layers=2, width=192))), text(4, 64, 65)),
    "Llama": lambda: transformer("LlamaForCausalLM", hidden_size=192, intermediate_size=512, num_attention_heads=6,
                                 num_key_value_heads=3),
    "BERT": lambda: transformer("BertForMaskedLM", hidden_size=192, intermediate_size=768, num_attention_heads=6,
                                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "ResNet-18": lambda: Trained(Scored(nets.resnet18(10)), images(16, 3, 32, 32)),
    "LSTM": lambda: Trained(Scored(Reader()), text(8, 32, 65)),
    "If and Loop": lambda: Trained(Scored(Branching()), rows_and_rounds),
    "SchNet with forces": schnet,
}


def train_eagerly(module, update, batches):
    module = copy.deepcopy(module)
    update = update(module)
    for batch in batches:
        update.zero_grad()
        module(*(value.detach() for value in batch)).backward()
        update.step()
    return values(module)


def in_double(batch):
    return tuple(value.double() if value.is_floating_point() else value for value in batch)


def values(module):
    return {name: value.detach().numpy().copy() for name, value in module.named_parameters()}


def distance(found, expected):
    return max(float(np.abs(found[name] - value).max() / max(np.abs(value).max(), SMALL)) for name, value in expected.items())


class OrtStep:
    """A step in onnxruntime: what it puts out goes into the next one."""

    def __init__(self, path, inputs):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.run = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.run.get_outputs()]
        self.inputs, self.state, self.steps = inputs, {}, 0

    def __call__(self, *batch):
        self.steps += 1
        feeds = {name: value.detach().numpy() for name, value in zip(self.inputs, batch) if name is not None}
        found = dict(zip(self.names, self.run.run(None, feeds | self.state | {"caesura.step": np.array(self.steps)})))
        self.state = {name.removeprefix("updated."): value for name, value in found.items() if name.startswith("updated.")}
        return found["caesura.loss"]


def free_inputs(model):
    known = {value.name for value in model.graph.initializer} | {"caesura.step"}
    return [value.name for value in model.graph.input if value.name not in known]


def count_nodes(graph):
    return sum(1 + sum(count_nodes(a.g) for a in node.attribute if a.HasField("g")) for node in graph.node)


def seconds_of(steps, batches):
    """The medians of each step's CPU time, which take turns."""
    times = [[] for _ in steps]
    for batch in batches:
        for step, of_it in zip(steps, times):
            before = time.process_time()
            step(*batch)
            of_it.append(time.process_time() - before)
    return [statistics.median(of_it) for of_it in times]


def measure(name, optimizer, folder):
    torch.manual_seed(0)
    trained = MODELS[name]()
    batches = [trained.batch() for _ in range(STEPS)]
    update = functools.partial(OPTIMIZERS[optimizer], rate=trained.rate)
    eager = train_eagerly(trained.module, update, batches)
    orders = [train_eagerly(trained.module, update, [trained.reorder(batch) for batch in batches]) for _ in range(ORDERS)]
    exact = train_eagerly(copy.deepcopy(trained.module).double(), update, [in_double(batch) for batch in batches])
    step = caesura.compile_step(trained.module, None, update(trained.module), threads=1)
    path = folder / "step.onnx"
    step.export_training(path, *batches[0])
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    ort = OrtStep(path, free_inputs(model))
    for batch in batches:
        step(*batch)
        ort(*batch)
    ours = values(trained.module)
    state = dict(ort.state)
    seconds = seconds_of([ort, step], batches[:10])
    far = [distance(state, ours), max(distance(other, eager) for other in orders), distance(eager, exact)]
    return [name, optimizer, count_nodes(model.graph), *(f"{value:.1e}" for value in far), *(f"{1e3 * s:.2f}" for s in seconds)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="models whose names contain one of these")
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIMIZERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | optimizer | nodes | distance | of another order | of float32 | ms, onnxruntime | ms, caesura |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            if arguments.only and not any(part.lower() in name.lower() for part in arguments.only):
                continue
            for optimizer in arguments.optimizers:
                try:
                    row = measure(name, optimizer, pathlib.Path(folder))
                except Exception as error:
                    row = [name, optimizer, f"{type(error).__name__}: {error}"]
                print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
