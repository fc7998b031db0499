# SPDX-License-Identifier: Apache-2.0
"""Two ranks on Gloo: DistributedDataParallel around wrapped modules."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import caesura  # noqa: E402


class Net(nn.Module):
    """28 MiB of parameters, and a layer that only some calls use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(7))
        self.last, self.spare = nn.Linear(1024, 8), nn.Linear(8, 8)

    def forward(self, x, spare=False):
        for layer in self.layers:
            x = torch.relu(layer(x))
        x = self.last(x)
        return self.spare(x) if spare else x


def _batch(rank, step):
    return torch.randn(4, 1024, generator=torch.Generator().manual_seed(10 * step + rank))


def _train(module, ours, rank, steps=2, accumulated=False, optimizer=None):
    """Returns the losses, and the gradients of the last step."""
    optimizer, losses = optimizer or torch.optim.SGD(module.parameters(), lr=0.01), []
    for step in range(steps):
        optimizer.zero_grad()
        if accumulated:
            with module.no_sync():
                module(_batch(rank, 100 + step)).square().mean().backward()
        with caesura.strict(ours):
            loss = module(_batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.grad for p in module.parameters() if p.grad is not None]


def _compare(expected, actual):
    for a, b in zip(expected[0] + expected[1], actual[0] + actual[1], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    same_on_all_ranks(actual[1])


def around_wrap(rank):
    for accumulated in (False, True):
        eager = _train(DistributedDataParallel(Net(), find_unused_parameters=True), False, rank, accumulated=accumulated)
        caesura.reports.reset()
        ours = _train(DistributedDataParallel(caesura.wrap(Net()), find_unused_parameters=True), True, rank, accumulated=accumulated)
        _compare(eager, ours)
        assert caesura.stats().kernel_calls == 4 * (1 + accumulated) and not caesura.stats().fallbacks
    return True


def under_compile(rank):
    """torch.compile() works around DistributedDataParallel, whose own code breaks the graph, and within it."""
    eager = _train(DistributedDataParallel(Net(), find_unused_parameters=True), False, rank)
    for around in (True, False):
        caesura.reports.reset()
        net = Net()
        if around:
            module = torch.compile(DistributedDataParallel(net, find_unused_parameters=True), backend="caesura")
        else:
            module = DistributedDataParallel(torch.compile(net, backend="caesura"), find_unused_parameters=True)
        _compare(eager, _train(module, False, rank))
        assert caesura.stats().kernel_calls == 4 and caesura.stats().kernel_share == 1
    return True


def around_ddp(rank):
    """wrap() of a module in DistributedDataParallel is DistributedDataParallel of the wrapped module."""
    eager = _train(DistributedDataParallel(Net(), find_unused_parameters=True), False, rank)
    caesura.reports.reset()
    plain = DistributedDataParallel(Net(), find_unused_parameters=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", caesura.FallbackWarning)
        module = caesura.wrap(plain)
        assert caesura.wrap(module) is module and isinstance(module, DistributedDataParallel)
        assert list(module.state_dict()) == list(plain.state_dict())
        _compare(eager, _train(module, True, rank))
    assert caesura.stats().kernel_calls == 4 and not caesura.stats().fallbacks
    return True


def options(rank):
    """Whatever is asked of DistributedDataParallel, results are those of eager modules with the same options."""
    for given in ({"bucket_cap_mb": 1}, {"gradient_as_bucket_view": True}, {"static_graph": True},
                  {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 4}):
        results = []
        for ours in (False, True):
            net = Net()
            net.spare = nn.Identity()  # static graphs use all parameters
            module = DistributedDataParallel(caesura.wrap(net) if ours else net, **given)
            results.append(_train(module, ours, rank, steps=3))
        _compare(*results)
    return True


def _in_halves(state, bucket):
    """A hook of our own: sums in float16, of a hundred times each gradient."""
    small = (bucket.buffer() * 100).half()
    future = dist.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float() / (100 * dist.get_world_size()))


def hooks(rank):
    for hook in (default_hooks.fp16_compress_hook, _in_halves):
        results = []
        for ours in (False, True):
            net = Net()
            net.spare = nn.Identity()
            module = DistributedDataParallel(caesura.wrap(net) if ours else net)
            module.register_comm_hook(None, hook)
            results.append(_train(module, ours, rank))
        for a, b in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-2, atol=2.0**-23)  # float16: 11 bits, multiples of 2**-24
        same_on_all_ranks(results[1][1])
    return True


def sharded_optimizer(rank):
    results = []
    for ours in (False, True):
        net = Net()
        net.spare = nn.Identity()
        module = DistributedDataParallel(caesura.wrap(net) if ours else net)
        optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-3)
        results.append(_train(module, ours, rank, steps=3, optimizer=optimizer))
        same_on_all_ranks(module.parameters())
    _compare(*results)
    return True


def overlap(rank):
    """Kernels of the backward run after the first bucket was sent, and before the last one is."""
    module = DistributedDataParallel(caesura.wrap(Net()), bucket_cap_mb=4, find_unused_parameters=True)
    module.register_comm_hook(None, _marked)
    _train(module, True, rank, steps=2)  # buckets are laid anew after the first step
    with torch.profiler.profile() as profile:
        _train(module, True, rank, steps=1)
    events = [e.name for e in sorted(profile.events(), key=lambda e: e.time_range.start)
              if e.name.startswith("caesura::") or e.name == "a bucket"]
    sent = [i for i, name in enumerate(events) if name == "a bucket"]
    assert len(sent) >= 5
    assert any(name.startswith("caesura::") for name in events[sent[0]:sent[-1]])
    return True


def _marked(state, bucket):
    with torch.profiler.record_function("a bucket"):
        return default_hooks.allreduce_hook(None, bucket)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tensor_parallel(rank):
    """A module whose weights are sharded over the ranks: our kernels compute, the ranks' group exchanges."""
    mesh = init_device_mesh("cpu", (2,))
    x = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(1))  # the same on all ranks
    plans = ({"up": ColwiseParallel(), "down": RowwiseParallel()},
             {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
              "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)})
    for sequence, plan in enumerate(plans):
        results = []
        for ours in (False, True):
            block = parallelize_module(Block(), mesh, plan)
            caesura.reports.reset()
            module = caesura.wrap(block) if ours else block
            given = distribute_tensor(x, mesh, [Shard(1)]) if sequence else x
            with caesura.strict(ours), warnings.catch_warnings():
                warnings.simplefilter("error" if ours else "default", caesura.FallbackWarning)
                y = _whole(module(given))
            y.square().mean().backward()
            assert not ours or (caesura.stats().kernel_calls > 2 and not caesura.stats().fallbacks), caesura.stats()
            results.append([y.detach()] + [_whole(p.grad) for p in block.parameters()])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)
    return True


class Sharded(nn.Module):
    """A forward that loops over layers, each of which fully_shard() has; one is computed again in the backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.norms = (nn.ModuleList(kind(16) for _ in range(3)) for kind in (lambda n: nn.Linear(n, n), nn.LayerNorm))

    def forward(self, x):
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            x = x + norm(checkpoint(layer, x, use_reentrant=False) if i == 1 else layer(x))
        return x


def _sharded(order, mesh):
    """order: what happens to the whole, then to each layer, then to the whole: "w", wrap(); "s", fully_shard()."""
    net, kinds = Sharded(), {"w": caesura.wrap, "s": lambda module: fully_shard(module, mesh=mesh)}
    for kind in order[0]:
        net = kinds[kind](net)
    for i in range(3):
        for kind in order[1]:
            net.layers[i] = kinds[kind](net.layers[i])
    for kind in order[2]:
        net = kinds[kind](net)
    return net


def sharded(rank):
    """fully_shard(): the layers run in kernels in whatever order they were wrapped, and as they do in PyTorch."""
    mesh, expected = init_device_mesh("cpu", (2,)), None
    for order in (("", "s", "s"), ("", "ws", "s"), ("", "s", "sw"), ("", "sw", "s"), ("w", "s", "s"), ("", "ws", "s")):
        losses = []
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always", caesura.FallbackWarning)
            caesura.reports.reset()
            net = _sharded(order, mesh)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
            for step in range(3):
                x = torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * step + rank))
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
        found = losses, [p.full_tensor().detach() for p in net.parameters()]
        if expected is None:
            expected = found
            continue
        for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5, msg=str(order))
        is_whole = "w" in order[0] + order[2]
        # A layer's forward and backward each step, once more for what is computed again; a norm's likewise.
        assert caesura.stats().kernel_calls == 3 * (7 + 6 * is_whole), order
        told = [str(warning.message) for warning in given]
        assert len(told) == is_whole and all("Sharded at" in text for text in told), (order, told)
    with pytest.raises(caesura.StepRefused, match=r"fully_shard\(\) has FSDPSharded: .* caesura.wrap\(module\).*caesura.Ranks\(shard=1\)"):
        caesura.compile_step(net, F.mse_loss, optimizer)(x, x)
    return True


class Energy(nn.Module):
    """A smooth net: its derivatives have derivatives."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 600), nn.Linear(600, 1)
        self.middle = nn.Linear(600, 600)  # of more than 1 MiB: the backward has parts

    def forward(self, x):
        return self.last(F.silu(self.middle(torch.tanh(self.first(x)))))


def _energy_and_forces(net, x):
    """The loss of a potential: one call, differentiated by what it was given."""
    x = x.requires_grad_()
    energy = net(x)
    slope, = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return (energy - 1).square().mean() + 10 * (slope - 0.1).square().mean()


def _gradient_penalty(net, x):
    """WGAN-GP's loss: three calls."""
    between = (0.3 * x + 0.7 * x.flip(0)).requires_grad_()
    slope, = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    return net(x).mean() - net(-x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def second_derivatives(rank):
    """Gradients of losses that hold gradients are the mean over the ranks, as in eager, in all forms of DDP and wrap."""
    def around(net):
        return DistributedDataParallel(caesura.wrap(net))

    for loss_of in (_energy_and_forces, _gradient_penalty):
        expected = None
        for form in (DistributedDataParallel, around, lambda net: caesura.wrap(DistributedDataParallel(net))):
            caesura.reports.reset()
            net = form(Energy().double())
            optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.02), []
            for step in range(4):
                optimizer.zero_grad()
                x = torch.randn(5 + rank, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))
                with caesura.strict(form is not DistributedDataParallel):
                    loss = loss_of(net, x)
                    loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            found = losses, [p.grad for p in net.parameters()]
            same_on_all_ranks(found[1])
            expected = expected or found
            for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
                torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-9)
            assert form is DistributedDataParallel or caesura.stats().kernel_calls and not caesura.stats().fallbacks
    return True


@pytest.mark.parametrize("body", (around_wrap, under_compile, around_ddp, options, hooks, sharded_optimizer, sharded, overlap,
                                  second_derivatives, tensor_parallel))
def test_two_ranks(body):
    run_ranks(2, body)
