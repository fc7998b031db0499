# SPDX-License-Identifier: Apache-2.0
"""Batch norms of two ranks: SyncBatchNorm's statistics are those of both ranks' batches, a plain one's are those of DDP."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


def _digits(**options):
    """A small net for pictures of 8 x 8 digits. options: of the batch norms."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8, **options),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.BatchNorm1d(32, **options), nn.Linear(32, 10))


def _sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def _batch(step, dtype=torch.float32):
    random = torch.Generator().manual_seed(step)
    return torch.randn(8, 1, 8, 8, generator=random, dtype=dtype), torch.randint(10, (8,), generator=random)


def _same(ours, theirs, tolerance=1e-5):
    same_on_all_ranks(ours.state_dict().values())
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        # The bias of a convolution before a batch norm has no gradient but rounding errors.
        if name not in ("0.bias", "3.bias"):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=float(tolerance * b.abs().max()), msg=lambda text: f"{name}: {text}")


def synchronized(rank):
    """As one process with the whole batch; the ranks' parts have other sizes."""
    single, double = (torch.float32, 1e-5), (torch.float64, 1e-12)
    for options, (dtype, tolerance) in (({}, single), ({"momentum": None}, double), ({"affine": False}, double),
                                        ({"track_running_stats": False}, double)):
        alone = _digits(**options).to(dtype)
        ours = nn.SyncBatchNorm.convert_sync_batchnorm(_digits(**options).to(dtype))
        step, optimizer = caesura.compile_step(ours, F.cross_entropy, _sgd(ours)), _sgd(alone)
        for i in range(20):
            x, y = _batch(i, dtype)
            parts = ((slice(0, 3), slice(3, 8)), (slice(0, 4), slice(4, 8)))[i % 2]
            loss = step(x[parts[rank]], y[parts[rank]])
            logits = alone(x)
            expected = sum(F.cross_entropy(logits[part], y[part]) for part in parts) / 2
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
            torch.testing.assert_close(loss, expected.detach(), rtol=tolerance, atol=0)
        _same(ours, alone, tolerance)
    return True


def as_ddp(rank):
    """Each rank normalizes by its own batch; running statistics are rank 0's."""
    ours, theirs = _digits(), DistributedDataParallel(_digits())
    step, optimizer = caesura.compile_step(ours, F.cross_entropy, _sgd(ours)), _sgd(theirs)
    for i in range(20):
        x, y = _batch(2 * i + rank)
        loss, expected = step(x, y), F.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        mean = expected.detach().clone()
        dist.all_reduce(mean)
        torch.testing.assert_close(loss, mean / 2, rtol=1e-5, atol=0)
    for buffer in theirs.buffers():
        dist.broadcast(buffer, 0)  # DDP does it before its next forward
    _same(ours, theirs.module)
    return True


def limits(rank):
    x, y = _batch(rank)
    module = nn.Sequential(nn.SyncBatchNorm(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 10))
    step = caesura.compile_step(module, F.cross_entropy, _sgd(module))
    step(x, y)  # each rank drops other elements
    same_on_all_ranks(module.state_dict().values())
    with pytest.raises(ValueError, match="exchanges values between the ranks that the module was captured with"):
        step.regroup(dist.new_group([rank], use_local_synchronization=True))
    step(x, y)
    with pytest.raises(caesura.StepRefused, match="SyncBatchNorm.*write shard=0"):
        caesura.compile_step(module, F.cross_entropy, _sgd(module), ranks=caesura.Ranks(shard=1))(x, y)
    half = nn.Sequential(nn.SyncBatchNorm(1, process_group=[dist.new_group([r]) for r in range(2)][rank]), nn.Flatten(), nn.Linear(64, 10))
    caesura.compile_step(half, F.cross_entropy, _sgd(half))(x, y)  # of one rank: nothing is exchanged
    module.eval()  # by running statistics, as in eager, which takes that on CPUs too
    mean = F.cross_entropy(module(x), y).detach()
    dist.all_reduce(mean)
    loss = caesura.compile_step(module, F.cross_entropy, _sgd(module))(x, y)
    torch.testing.assert_close(loss, mean / 2, rtol=1e-5, atol=0)
    same_on_all_ranks(module.parameters())
    return True


@pytest.mark.parametrize("body", [synchronized, as_ddp, limits], ids=lambda body: body.__name__)
def test_two_ranks(body):
    run_ranks(2, body)


def test_one_process():
    ours, theirs = nn.SyncBatchNorm.convert_sync_batchnorm(_digits()), _digits()
    steps = [caesura.compile_step(module, F.cross_entropy, _sgd(module)) for module in (ours, theirs)]
    for i in range(3):
        a, b = (step(*_batch(i)) for step in steps)
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
