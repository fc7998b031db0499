# SPDX-License-Identifier: Apache-2.0
"""compile_step() on modules of parallelize_module: each rank trains its part of the parameters, beside eager DTensors."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as exchanges  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")

_TOKENS, _LENGTH, _WIDTH = 16, 8, 32


class Mlp(nn.Module):
    """Two divided layers between plain ones."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.up, self.down, self.head = nn.Linear(8, 32), nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.head(x + self.down(F.gelu(self.up(x))))


class Attention(nn.Module):
    """Rotary attention, two heads of queries to one of keys; each rank has its part of the heads."""

    def __init__(self):
        super().__init__()
        self.wq, self.wo = nn.Linear(_WIDTH, _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.wk, self.wv = nn.Linear(_WIDTH, _WIDTH // 2, bias=False), nn.Linear(_WIDTH, _WIDTH // 2, bias=False)
        angles = torch.outer(torch.arange(_LENGTH), 1e4 ** -(torch.arange(4) / 4))
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def _turned(self, x):
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat((-high, low), dim=-1) * self.sin

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, 8)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(self._turned(q), self._turned(k), v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class Swiglu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((_WIDTH, 48), (_WIDTH, 48), (48, _WIDTH)))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(_WIDTH), Attention()
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(_WIDTH), Swiglu()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.block = nn.Embedding(_TOKENS, _WIDTH), Block()
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _TOKENS, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embedding(tokens)))).transpose(1, 2)


_MLP = {"up": ColwiseParallel(), "down": RowwiseParallel()}
_HEADS = {"block.attention.wq": ColwiseParallel(), "block.attention.wk": ColwiseParallel(),
          "block.attention.wv": ColwiseParallel(), "block.attention.wo": RowwiseParallel(),
          "block.feed_forward.gate": ColwiseParallel(), "block.feed_forward.up": ColwiseParallel(),
          "block.feed_forward.down": RowwiseParallel()}
# The sequence is divided between the blocks, as torch's recipe for Llama has it.
_SEQUENCE = _HEADS | {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "block.attention_norm": SequenceParallel(), "block.feed_forward_norm": SequenceParallel(), "norm": SequenceParallel(),
    "block.attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "block.feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "block.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "block.feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
_CASES = {"mlp": (Mlp, _MLP), "heads": (Llama, _HEADS), "sequence": (Llama, _SEQUENCE)}


def _batch(kind, step):
    """The same on all ranks."""
    random = torch.Generator().manual_seed(step)
    if kind is Mlp:
        return torch.randn(6, 8, generator=random), torch.randint(5, (6,), generator=random)
    tokens = torch.randint(_TOKENS, (4, _LENGTH + 1), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-3)


def _clip(module, norm):
    """As clip_grad_norm_(), which takes no module with both DTensors and plain tensors."""
    total = torch.stack([_whole(p.grad).norm() for p in module.parameters()]).norm()
    for p in module.parameters():
        p.grad.mul_(min(1.0, norm / (float(total) + 1e-6)))


def _made(case, mesh):
    kind, plan = _CASES[case]
    return parallelize_module(kind(), mesh, plan)


def _eager(case, mesh, steps, accumulate=1, clip=0.0):
    module, losses = _made(case, mesh), []
    optimizer = _adamw(module)
    for step in range(steps):
        x, target = _batch(_CASES[case][0], step)
        loss = F.cross_entropy(module(x), target)
        (loss / accumulate).backward()
        losses.append(loss.detach())
        if (step + 1) % accumulate == 0:
            if clip:
                _clip(module, clip)
            optimizer.step()
            optimizer.zero_grad()
    return module, optimizer, losses


def _compiled(case, mesh, steps, accumulate=1, clip=0.0, **options):
    module = _made(case, mesh)
    optimizer = _adamw(module)
    step_of = caesura.compile_step(module, F.cross_entropy, optimizer, accumulation_steps=accumulate, clip_norm=clip, **options)
    losses = [step_of(*_batch(_CASES[case][0], step)) for step in range(steps)]
    return module, optimizer, losses


def _near(ours, eager, tolerance):
    assert ours.dtype == eager.dtype and ours.shape == eager.shape
    assert (ours - eager).abs().max() <= tolerance * eager.abs().max()


def as_eager(rank, case, options):
    """Losses, parameters and the optimizer's state dict after 20 steps."""
    mesh = init_device_mesh("cpu", (2,))
    with caesura.strict():
        module, optimizer, losses = _compiled(case, mesh, 20, **options)
    reference, reference_optimizer, reference_losses = _eager(case, mesh, 20, **options)
    for a, b in zip(losses, reference_losses, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    same_on_all_ranks(losses)
    for (name, a), b in zip(module.named_parameters(), reference.parameters(), strict=True):
        assert isinstance(a, DTensor) == isinstance(b, DTensor) and getattr(a, "placements", 0) == getattr(b, "placements", 0), name
        _near(_whole(a.detach()), _whole(b.detach()), 1e-5)
        if not isinstance(a, DTensor):
            same_on_all_ranks([a])
    ours, eager = optimizer.state_dict(), reference_optimizer.state_dict()
    assert ours["state"].keys() == eager["state"].keys()
    for key, state in eager["state"].items():
        assert ours["state"][key].keys() == state.keys()
        for name, value in state.items():
            found = ours["state"][key][name]
            assert getattr(found, "placements", None) == getattr(value, "placements", None)
            _near(_whole(found), _whole(value), 1e-4)
    return True


def goes_on(rank):
    """A state dict of eager DTensors is taken up, and other shapes are captured; then eager goes on with ours."""
    mesh = init_device_mesh("cpu", (2,))
    module, optimizer, _ = _eager("mlp", mesh, 3)
    state = optimizer.state_dict()
    later = _made("mlp", mesh)
    later.load_state_dict(module.state_dict())
    optimizer = _adamw(later)
    optimizer.load_state_dict(copy.deepcopy(state))
    step = caesura.compile_step(later, F.cross_entropy, optimizer)
    for i in range(3, 6):
        x, target = _batch(Mlp, i)
        step(x[:6 - i % 2], target[:6 - i % 2])
    other = _adamw(module)
    other.load_state_dict(copy.deepcopy(state))  # it would take these very tensors
    for i in range(3, 6):
        x, target = _batch(Mlp, i)
        other.zero_grad()
        F.cross_entropy(module(x[:6 - i % 2]), target[:6 - i % 2]).backward()
        other.step()
    for a, b in zip(later.parameters(), module.parameters(), strict=True):
        _near(_whole(a.detach()), _whole(b.detach()), 1e-5)
    F.cross_entropy(later(_batch(Mlp, 6)[0]), _batch(Mlp, 6)[1]).backward()
    optimizer.step()
    return True


def divided_ends(rank):
    """The rows of the batch are divided, and so are the results: the step does what one process does with the whole module."""

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))

    def gathered(y, target):
        return F.cross_entropy(y.full_tensor(), target, reduction="none").mean()

    mesh, alone = init_device_mesh("cpu", (2,)), made()
    last = ColwiseParallel(use_local_output=False)
    module = parallelize_module(made(), mesh, {"0": RowwiseParallel(input_layouts=Shard(0)), "2": last})
    step, optimizer = caesura.compile_step(module, gathered, _adamw(module)), _adamw(alone)
    for i in range(4):
        x, target = _batch(Mlp, i)
        loss = F.cross_entropy(alone(x), target)
        torch.testing.assert_close(step(distribute_tensor(x, mesh, [Shard(0)]), target), loss.detach(), rtol=1e-5, atol=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for a, b in zip(module.parameters(), alone.parameters(), strict=True):
        _near(_whole(a.detach()), b.detach(), 1e-5)
    return True


def other_exchanges(rank):
    """Functional collectives that the forward calls itself: an update goes by the mean of all ranks' losses."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = exchanges.all_reduce(torch.tanh(self.linear(x)), "avg", dist.group.WORLD)
            z = exchanges.all_to_all_single(self.linear(x), [1, 1], [1, 1], dist.group.WORLD)
            rows = exchanges.reduce_scatter_single(self.linear(y), "sum", 0, dist.group.WORLD)
            return exchanges.all_gather_single(rows, 0, dist.group.WORLD) * (1 + rank) + z

    net, alone = Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inputs = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(3))
    loss = caesura.compile_step(net, F.mse_loss, optimizer)(inputs[rank], inputs[rank] + rank)
    linear = alone.linear
    y = torch.stack([torch.tanh(linear(x)) for x in inputs]).mean(0)
    z = [linear(x) for x in inputs]
    z = [torch.stack([other[r] for other in z]) for r in range(2)]
    expected = sum(F.mse_loss(2 * linear(y) * (1 + r) + z[r], inputs[r] + r) for r in range(2)) / 2
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0)
    for ours, theirs in zip(net.parameters(), linear.parameters(), strict=True):
        _near(ours.detach(), (theirs - 0.1 * theirs.grad).detach(), 1e-5)
    same_on_all_ranks(net.parameters())
    return True


def _refusal(module, batch, loss_fn=F.cross_entropy, optimizer=_adamw, **options):
    before = [_whole(p.detach()).clone() for p in module.parameters()]
    with pytest.raises((caesura.StepRefused, ValueError)) as caught:
        caesura.compile_step(module, loss_fn, optimizer(module), **options)(*batch)
    assert all(torch.equal(_whole(p.detach()), b) for p, b in zip(module.parameters(), before, strict=True))
    return str(caught.value)


def refusals(rank):
    mesh, batch = init_device_mesh("cpu", (2,)), _batch(Mlp, 0)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    two = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    grid = Mlp()
    grid.up.weight = nn.Parameter(distribute_tensor(grid.up.weight, two, [Replicate(), Shard(0)]))
    grid.up.bias = nn.Parameter(distribute_tensor(grid.up.bias, two, [Replicate(), Shard(0)]))
    grid.up.register_forward_pre_hook(lambda _, given: DTensor.from_local(given[0], two, [Replicate(), Replicate()]))
    grid.up.register_forward_hook(lambda _, __, result: result.full_tensor())
    assert "meshes of one dim" in _refusal(grid, batch)
    assert "write mean_over='batches'" in _refusal(parallelize_module(Mlp(), mesh, plan), batch,
                                                    ranks=caesura.Ranks(mean_over="tokens"))
    assert "write shard=0" in _refusal(parallelize_module(Mlp(), mesh, plan), batch, ranks=caesura.Ranks(shard=1))
    assert "take another optimizer" in _refusal(parallelize_module(Mlp(), mesh, plan), batch,
                                                optimizer=lambda m: torch.optim.Adafactor(m.parameters()))
    dropping = Mlp()
    dropping.head = nn.Sequential(nn.Dropout(0.5), dropping.head)
    assert "set dropout to 0" in _refusal(parallelize_module(dropping, mesh, plan), batch)
    own = parallelize_module(nn.Sequential(nn.Linear(8, 8)), mesh, {"0": ColwiseParallel()})  # each rank has 4 of 8 results
    assert "each rank's loss is that of its own part" in _refusal(own, (batch[0], batch[0][:, :4]), loss_fn=F.mse_loss)
    unequal = parallelize_module(nn.Sequential(nn.Linear(8, 5)), mesh, {"0": ColwiseParallel(output_layouts=Replicate())})
    assert "is divided unequally" in _refusal(unequal, batch)
    open_end = parallelize_module(nn.Sequential(nn.Linear(8, 8)), mesh, {"0": ColwiseParallel(use_local_output=False)})
    assert "write loss.full_tensor()" in _refusal(open_end, batch, loss_fn=lambda y, _: y.square().mean())
    alone = dist.new_group([rank], use_local_synchronization=True)
    for ranks in (caesura.Ranks(alone), caesura.Ranks("alone")):
        assert "ranks=Ranks(mesh.get_group())" in _refusal(parallelize_module(Mlp(), mesh, plan), batch, ranks=ranks)
    module = parallelize_module(Mlp(), mesh, plan)
    step = caesura.compile_step(module, F.cross_entropy, _adamw(module))
    step(*batch)
    with pytest.raises(ValueError, match="cannot be exported"):
        step.export("never", *batch)
    with pytest.raises(ValueError, match="load the last state"):
        step.regroup(dist.group.WORLD)

    class Largest(nn.Linear):
        def forward(self, x):
            return exchanges.all_reduce(super().forward(x), "max", dist.group.WORLD)

    assert "a step sums and averages floats, and this is 'max'" in _refusal(Largest(8, 5), batch)
    return True


@pytest.mark.parametrize("case, options", [("mlp", {}), ("mlp", {"clip": 0.1}), ("mlp", {"accumulate": 2}), ("heads", {}),
                                           ("sequence", {}), ("sequence", {"clip": 0.1})], ids=str)
def test_as_eager(case, options):
    run_ranks(2, as_eager, case, options)


@pytest.mark.parametrize("body", [goes_on, divided_ends, other_exchanges, refusals], ids=lambda body: body.__name__)
def test_two_ranks(body):
    run_ranks(2, body)
