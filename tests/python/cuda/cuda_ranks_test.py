# SPDX-License-Identifier: Apache-2.0
"""compile_step() as two ranks with a GPU each, on the stand-ins for PyTorch's device, CUDA and NCCL."""

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from standin_cuda import paths  # noqa: E402
from torch import nn  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = [pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built"),
              pytest.mark.skipif(not paths(), reason="built without the stand-ins for CUDA (cmake/setup.sh --cuda)")]


class Net(nn.Module):
    """With running statistics, and a parameter that no loss depends on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


class Attends(nn.Module):
    """Tokens, a layer norm and causal attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)
        self.attend, self.head = nn.Linear(16, 48), nn.Linear(16, 11)

    def forward(self, tokens):
        x = self.tokens(tokens)
        q, k, v = self.attend(self.norm(x)).chunk(3, -1)
        return self.head(x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)).transpose(1, 2)


def _batch(kind, rank, step, length=6):
    random = torch.Generator().manual_seed(10 * step + rank)
    if kind is Attends:
        tokens = torch.randint(11, (2, length + 1), generator=random)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(4, 8, generator=random), torch.randint(4, (4,), generator=random)


def _adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _train(kind, rank, device, steps, optimizer_of, lengths=(6,), **options):
    """The losses, and the parameters and buffers on the host. The ranks begin with other parameters."""
    module = kind()
    if rank == 1:
        with torch.no_grad():
            next(module.parameters()).zero_()
    module = module.to(device)
    step = caesura.compile_step(module, nn.functional.cross_entropy, optimizer_of(module.parameters()), **options)
    losses = []
    for i in range(steps):
        inputs = _batch(kind, rank, i, lengths[(i + rank) % len(lengths)])
        losses.append(step(*(t.to(device) for t in inputs)))
    return torch.stack(losses), [t.detach().cpu() for t in (*module.parameters(), *module.buffers())]


def _start(rank, folder, index=None):
    """The stand-in for the GPU of a rank, and its device, on a machine with two GPUs. folder: of the messages."""
    from standin_torch import start

    os.environ.update(STANDIN_DEVICES="2", STANDIN_NCCL_FOLDER=folder)
    index = rank if index is None else index
    return start(pytest.MonkeyPatch(), index), torch.device("cuda", index)


def _check(cuda, device, kind, rank, optimizer_of, **options):
    exchanged = cuda.operations("nccl")
    (on_cpu, wanted), (losses, given) = (_train(kind, rank, where, 20, optimizer_of, **options) for where in ("cpu", device))
    assert cuda.operations("nccl") > exchanged
    same_on_all_ranks(given)
    torch.testing.assert_close(losses, on_cpu, rtol=1e-5, atol=0)
    for a, b in zip(wanted, given, strict=True):
        if a.shape == (48,):  # the keys' part of attention's bias has no gradient but rounding errors
            a, b = (t.view(3, 16)[::2] for t in (a, b))
        # AdamW divides by the square root of a small mean: where it is next to 0, rounding errors show.
        torch.testing.assert_close(b, a, rtol=1e-5, atol=float(a.abs().max()) * (1e-3 if optimizer_of is _adamw else 1e-5))


def as_on_cpus(rank, folder):
    cuda, device = _start(rank, folder)
    _check(cuda, device, Net, rank, _sgd)
    _check(cuda, device, Net, rank, _adamw, accumulation_steps=2, clip_norm=0.5, ranks=caesura.Ranks(bucket_bytes=100))
    _check(cuda, device, Attends, rank, _sgd, lengths=(6, 4), ranks=caesura.Ranks(mean_over="tokens"))
    assert cuda.reports() == [], cuda.reports()
    return True


class Heads(nn.Module):
    """A body and three heads, of which a call takes one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.heads = nn.Linear(8, 16), nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x, head: int):
        return self.heads[head](torch.tanh(self.body(x)))


def with_heads_by_rank(rank, folder):
    """Both ranks take one head, each its own, the other rank's; the third one comes last. A head that no rank takes stays as it is."""
    cuda, device = _start(rank, folder)

    def train(where, **options):
        module = Heads().to(where)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        step = caesura.compile_step(module, nn.functional.cross_entropy, optimizer, clip_norm=0.5, **options)
        states = []
        for i, heads in enumerate([(0, 0), (0, 1), (1, 0), (0, 1), (1, 1), (2, 0), (0, 1)]):
            inputs, labels = (t.to(where) for t in _batch(Net, rank, i))
            before = [p.detach().cpu().clone() for p in module.parameters()]
            step(inputs, heads[rank], labels)
            after = [p.detach().cpu().clone() for p in module.parameters()]
            for head in range(3):
                assert torch.equal(before[2 + 2 * head], after[2 + 2 * head]) == (head not in heads), (i, head)
            states.append(after)
        same_on_all_ranks(after)
        return states

    for options in ({}, {"ranks": caesura.Ranks(bucket_bytes=100)}):
        exchanged = cuda.operations("nccl")
        for wanted, given in zip(train("cpu", **options), train(device, **options), strict=True):
            torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
        assert cuda.operations("nccl") > exchanged
    assert cuda.reports() == [], cuda.reports()
    return True


def beside_nccl(rank, folder):
    """A group of PyTorch's that exchanges tensors on GPUs only, as its NCCL group does: a Gloo group is made beside it."""
    cuda, device = _start(rank, folder)
    dist.Backend.register_backend("gpuonly", dist.ProcessGroupGloo, devices=["cuda"])
    group = dist.new_group(backend="cuda:gpuonly")
    with pytest.raises(RuntimeError, match="cpu"):
        dist.all_reduce(torch.ones(1), group=group)
    (losses, given), (wanted, _) = (_train(Net, rank, device, 3, _sgd, ranks=caesura.Ranks(g)) for g in (group, None))
    assert torch.equal(losses, wanted)
    same_on_all_ranks(given)
    assert cuda.reports() == [], cuda.reports()
    return True


def loses_one(rank, folder):
    """A rank is killed before its fourth step. The step of the other rank fails and changes nothing; that rank goes on alone."""
    cuda, device = _start(rank, folder)
    module = Net().to(device)
    step = caesura.compile_step(module, nn.functional.cross_entropy, _sgd(module.parameters()))
    for i in range(3):
        step(*(t.to(device) for t in _batch(Net, rank, i)))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    before, began = [t.detach().cpu() for t in (*module.parameters(), *module.buffers())], time.monotonic()
    inputs = [t.to(device) for t in _batch(Net, rank, 3)]
    with pytest.raises(caesura.RankFailure):
        step(*inputs)
    assert time.monotonic() - began < 60
    for a, b in zip(before, (*module.parameters(), *module.buffers()), strict=True):
        assert torch.equal(a, b.detach().cpu())
    step.regroup(dist.new_group([0], use_local_synchronization=True))
    step(*inputs)
    assert not torch.equal(before[0], module.first.weight.detach().cpu())
    assert cuda.reports() == [], cuda.reports()


def with_divided_state(rank, folder):
    _, device = _start(rank, folder)
    with pytest.raises(caesura.StepRefused, match=f"shard: parts of the state .* 'nccl' exchanges that of {device}"):
        _train(Net, rank, device, 1, _adamw, ranks=caesura.Ranks(shard=1))
    return True


def with_one_gpu(rank, folder):
    _, device = _start(rank, folder, index=0)
    with pytest.raises(caesura.StepRefused, match="cannot exchange gradients on cuda:0: nccl: ranks 0 and 1 have the same GPU"):
        _train(Net, rank, device, 1, _sgd)
    return True


def without_nccl(rank, folder):
    from caesura.runtime import gpu

    _, device = _start(rank, folder)
    options = {**paths(), "nccl_library": "libnone.so"} if rank == 1 else paths()
    gpu.with_cuda_libraries = lambda given: {**given, **options}
    says = "libnone.so" if rank == 1 else "rank 1 has no GPU, or no NCCL"
    with pytest.raises(caesura.StepRefused, match=f"cannot exchange gradients on {device}: .*{says}"):
        _train(Net, rank, device, 1, _sgd)
    return True


BODIES = [as_on_cpus, with_heads_by_rank, beside_nccl, with_divided_state, with_one_gpu, without_nccl]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_two_ranks(body, tmp_path):
    run_ranks(2, body, str(tmp_path))


def test_a_lost_rank(tmp_path):
    run_ranks(2, loses_one, str(tmp_path), seconds=5, lost=(1,))
