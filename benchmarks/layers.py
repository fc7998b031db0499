# SPDX-License-Identifier: Apache-2.0
"""Measures training steps of 44 nets of one layer, or few, beside eager PyTorch with fused optimizers, on one thread.

    python benchmarks/layers.py --isa avx2
    python benchmarks/layers.py --isa avx2 --only 'conv1d|sort' --rounds 60

A step is forward, loss, backward and update. The systems are eager, caesura.wrap with caesura.fuse, and
caesura.compile_step. They take turns in one process; a round is as many steps as take about 5 ms in eager. A figure is
the median of CPU times: other work on the machine counts little. The loss of the last step is compared with eager's.
It prints the ratio to eager's time in the same round (median, and the sign test's 95% interval) and, at the end, the
geometric means.
"""

import argparse
import copy
import os
import re
import statistics
import time
import warnings

CAPS = {"CAESURA_MAX_ISA": "x86-64-v3", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2"}


def layer_nets(torch):
    """Yields (name, net, input): nets whose loss is the mean square of what they give, trained with AdamW."""
    nn, functional, randn = torch.nn, torch.nn.functional, torch.randn

    class Call(nn.Module):
        """A function of layers and an input, as a module."""

        def __init__(self, function, *layers):
            super().__init__()
            self.function, self.layers = function, nn.ModuleList(layers)

        def forward(self, x):
            return self.function(x, *self.layers)

    def first(x, layer):
        return layer(x)[0]

    def self_attention(need_weights):
        return lambda x, attention: attention(x, x, x, need_weights=need_weights)[0]

    def sampled(x, pixels, places):
        return functional.grid_sample(pixels(x), places(x).tanh().permute(0, 2, 3, 1), align_corners=False)

    def refolded(x, layer):
        columns = layer(functional.unfold(x, 3, padding=1).mT)
        return functional.fold(columns.mT, (32, 32), 3, padding=1)

    def pair_scores(x, left, right):
        scores = functional.normalize(left(x), dim=-1) @ functional.normalize(right(x), dim=-1).T
        return functional.cross_entropy(10 * scores, torch.arange(len(x)))

    def einsum_attention(x, layer):
        return torch.einsum("bid,bjd->bij", layer(x), x).softmax(-1) @ x

    def bag(x, embedding, layer):
        return layer(embedding((1000 * x.abs()).long() % 50_000).mean(1))

    def where(x, layer):
        return torch.where(layer(x) > 0, layer(x).clamp(max=3).exp(), layer(x).tanh())

    def scattered(x, layer):
        return torch.zeros(256, 64).index_add(0, torch.arange(len(x)) % 256, layer(x))

    def solved(x, layer):
        return torch.linalg.solve(x @ x.mT + torch.eye(16), layer(x))

    def image_net(channels, *after):
        return nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1), *after)

    for kind, sizes, more in (("LSTM", (128, 128), {}), ("LSTM", (64, 64, 2), {"bidirectional": True}), ("GRU", (128, 128), {}),
                              ("RNN", (128, 128), {})):
        name = f"{kind} {sizes[0]}" + (" both ways, 2 layers" if more else "")
        yield name, Call(first, getattr(nn, kind)(*sizes, batch_first=True, **more)), randn(16, 48 if more else 64, sizes[0])
    yield "attention", Call(self_attention(False), nn.MultiheadAttention(256, 8, batch_first=True)), randn(8, 128, 256)
    yield "attention with weights", Call(self_attention(True), nn.MultiheadAttention(256, 8, batch_first=True)), randn(8, 128, 256)
    yield "encoder layer", nn.TransformerEncoderLayer(256, 8, 1024, 0.0, batch_first=True), randn(8, 64, 256)
    yield "layer norm", nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()), randn(2048, 256)
    yield "group norm", image_net(32, nn.GroupNorm(8, 64), nn.SiLU()), randn(8, 32, 28, 28)
    yield "instance norm", image_net(32, nn.InstanceNorm2d(64, affine=True), nn.ReLU()), randn(8, 32, 28, 28)
    yield "batch norm, max pool", image_net(32, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)), randn(8, 32, 28, 28)
    yield "bilinear upsampling", nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear"),
                                               nn.Conv2d(16, 16, 3, padding=1)), randn(4, 16, 32, 32)
    yield "pixel shuffle", image_net(16, nn.PixelShuffle(2), nn.PReLU()), randn(4, 16, 32, 32)
    yield "grid sample", Call(sampled, nn.Conv2d(16, 16, 1), nn.Conv2d(16, 2, 1)), randn(4, 16, 48, 48)
    yield "unfold, fold", Call(refolded, nn.Linear(72, 72)), randn(4, 8, 32, 32)
    yield ("cross entropy, 32,000 classes",
           Call(lambda x, layer: functional.cross_entropy(layer(x), torch.arange(len(x))), nn.Linear(128, 32_000)), randn(128, 128))
    yield "Bilinear", Call(lambda x, layer: layer(x, x), nn.Bilinear(64, 64, 64)), randn(256, 64)
    yield "cdist", Call(lambda x, layer: torch.cdist(layer(x), layer(x)), nn.Linear(64, 64)), randn(512, 64)
    yield "contrastive cosines", Call(pair_scores, nn.Linear(256, 128), nn.Linear(256, 128)), randn(512, 256)
    yield ("cumsum, logcumsumexp",
           Call(lambda x, layer: layer(x).logcumsumexp(1) + layer(x).cumsum(1), nn.Linear(64, 64)), randn(2048, 64))
    yield ("topk, sort",
           Call(lambda x, layer: layer(x).topk(8)[0].sum(-1, True) + layer(x).sort(-1)[0], nn.Linear(64, 64)), randn(2048, 64))
    yield "einsum attention", Call(einsum_attention, nn.Linear(128, 128)), randn(16, 128, 128)
    yield "embedding of 50,000, mean", Call(bag, nn.Embedding(50_000, 64), nn.Linear(64, 64)), randn(64, 64)
    yield "MLP with GELU", nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), randn(512, 256)
    yield ("SwiGLU", Call(lambda x, gate, up, down: down(functional.silu(gate(x)) * up(x)), nn.Linear(256, 512), nn.Linear(256, 512),
                          nn.Linear(512, 256)), randn(512, 256))
    yield "softmax over dim 1", Call(lambda x, layer: layer(x).softmax(1), nn.Linear(64, 64)), randn(32, 64, 64)
    yield ("norm, variance", Call(lambda x, layer: layer(x) / layer(x).norm(dim=1, keepdim=True) + layer(x).var(0),
                                  nn.Linear(256, 256)), randn(1024, 256))
    yield "where, clamp, exp", Call(where, nn.Linear(256, 256)), randn(1024, 256)
    yield "index_add", Call(scattered, nn.Linear(64, 64)), randn(4096, 64)
    yield "small bmm", Call(lambda x, layer: torch.bmm(layer(x), x.mT), nn.Linear(16, 16)), randn(512, 16, 16)
    yield "linalg.solve", Call(solved, nn.Linear(16, 16)), randn(128, 16, 16)
    yield "FFT", Call(lambda x, layer: torch.fft.irfft(2 * torch.fft.rfft(layer(x)), n=256), nn.Linear(256, 256)), randn(256, 256)
    yield ("float64 MLP", nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)).double(),
           randn(256, 256, dtype=torch.float64))


def convolution_nets(torch):
    """Yields (name, net, input): classifiers of 10 classes, trained with SGD."""
    nn, randn = torch.nn, torch.randn

    def net(*layers, pool="Avg", dims, channels):
        return nn.Sequential(*layers, getattr(nn, f"Adaptive{pool}Pool{dims}d")(1), nn.Flatten(), nn.Linear(channels, 10))

    def dilated():
        for dilation in (1, 2, 4, 8):
            yield from (nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation), nn.ReLU())

    yield "Conv1d 256-512", net(nn.Conv1d(256, 512, 5), nn.ReLU(), pool="Max", dims=1, channels=512), randn(2, 256, 512)
    yield ("Conv2d (5, 1) 256-512", net(nn.Conv2d(256, 512, (5, 1)), nn.ReLU(), pool="Max", dims=2, channels=512),
           randn(2, 256, 512, 1))
    yield "Conv1d dilated", net(*dilated(), dims=1, channels=64), randn(4, 64, 1024)
    yield ("Conv1d strided", net(nn.Conv1d(1, 64, 16, 4), nn.GELU(), nn.Conv1d(64, 128, 8, 4), nn.GELU(), dims=1, channels=128),
           randn(4, 1, 16_000))
    yield ("Conv1d by channels", net(nn.Conv1d(256, 256, 7, padding=3, groups=256), nn.GELU(), nn.Conv1d(256, 256, 1), dims=1,
                                     channels=256), randn(4, 256, 512))
    yield "Conv3d", net(nn.Conv3d(16, 32, 3, padding=1), nn.ReLU(), dims=3, channels=32), randn(2, 16, 16, 16, 16)
    yield "ConvTranspose1d", net(nn.ConvTranspose1d(128, 64, 16, 8), nn.ReLU(), dims=1, channels=64), randn(4, 128, 256)
    yield "ConvTranspose2d", net(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), dims=2, channels=32), randn(4, 64, 32, 32)
    yield "Conv2d of 8 groups", net(nn.Conv2d(128, 128, 3, padding=1, groups=8), nn.ReLU(), dims=2, channels=128), randn(4, 128, 28, 28)
    yield "Conv2d 5 x 5", net(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), dims=2, channels=64), randn(4, 32, 32, 32)
    yield "Conv2d dilated", net(nn.Conv2d(64, 64, 3, padding=4, dilation=4), nn.ReLU(), dims=2, channels=64), randn(4, 64, 32, 32)


def cases(torch):
    """Yields (name, net, inputs, loss of the net's result and the last input, optimizer's constructor)."""
    for name, net, x in layer_nets(torch):
        loss = lambda y, unused: (y if y.dim() == 0 else y.float().square().mean()) + 0 * unused.sum()
        yield name, net, (x, torch.zeros(1)), loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    for name, net, x in convolution_nets(torch):
        inputs = x, torch.randint(10, (len(x),))
        yield name, net, inputs, torch.nn.functional.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=1e-3, fused=True)


def systems(net, inputs, loss, make_optimizer):
    """Returns a dict from name to a function that runs one step and returns its loss."""
    import caesura

    def loop(module, optimizer):
        def step():
            optimizer.zero_grad()
            result = loss(module(inputs[0]), inputs[1])
            result.backward()
            optimizer.step()
            return result
        return step

    nets = [copy.deepcopy(net) for _ in range(3)]
    optimizers = [make_optimizer(each.parameters()) for each in nets]
    compiled = caesura.compile_step(nets[2], loss, optimizers[2])
    return {"eager": loop(nets[0], optimizers[0]), "wrap": loop(caesura.wrap(nets[1]), caesura.fuse(optimizers[1])),
            "compile_step": lambda: compiled(*inputs)}


def measured(steps, rounds):
    """Returns a dict from name to CPU times in ms, and one to the losses of the last step; the systems take turns."""
    for step in steps.values():
        for _ in range(3):
            step()
    seconds = {}
    for name, step in steps.items():
        began = time.process_time()
        step()
        seconds[name] = time.process_time() - began
    count = max(1, int(0.005 / max(seconds["eager"], 1e-5)))
    times, losses = {name: [] for name in steps}, {}
    for turn in range(rounds):
        for name in sorted(steps, reverse=turn % 2 == 1):
            began = time.process_time()
            for _ in range(count):
                losses[name] = steps[name]()
            times[name].append(1e3 * (time.process_time() - began) / count)
    return times, {name: float(value) for name, value in losses.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="nets whose names match this regular expression")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--isa", choices=["avx2", "avx512"], default="avx512",
                        help="avx2: all libraries are capped; avx512: as wide as the machine")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.isa == "avx2":
        os.environ.update(CAPS)
    warnings.simplefilter("ignore")
    import torch

    from caesura.bench.statistics import median_interval
    torch.set_num_threads(1)
    torch.manual_seed(0)
    medians = {"wrap": [], "compile_step": []}
    for name, net, inputs, loss, make_optimizer in cases(torch):
        if not re.search(arguments.only, name):
            continue
        times, losses = measured(systems(net, inputs, loss, make_optimizer), arguments.rounds)
        line = f"{name:30} {statistics.median(times['eager']):8.2f} ms"
        for system, kept in medians.items():
            ratios = sorted(own / eager for own, eager in zip(times[system], times["eager"]))
            low, high = median_interval(ratios) or (ratios[0], ratios[-1])
            kept.append(statistics.median(ratios))
            line += f"   {system} {kept[-1]:.2f} [{low:.2f}, {high:.2f}]"
            if abs(losses[system] - losses["eager"]) > 1e-3 * max(abs(losses["eager"]), 1e-3):
                line += f" LOSS {losses[system]} IN PLACE OF {losses['eager']}"
        print(line, flush=True)
    for system, kept in medians.items():
        print(f"{system}: geometric mean {statistics.geometric_mean(kept):.3f}, above 1: {sum(each > 1 for each in kept)} of {len(kept)}")


if __name__ == "__main__":
    main()
