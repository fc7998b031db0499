# SPDX-License-Identifier: Apache-2.0
"""Two ranks on Gloo whose calls use different parameters train as one process with all batches does, and as
DDP(find_unused_parameters=True)."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from rank_steps import in_turn  # noqa: E402
from torch import nn  # noqa: E402

import caesura  # noqa: E402
from caesura import torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


class Tasks(nn.Module):
    """A body, and heads of other sizes; a call takes those that it names, one after the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 9), nn.Linear(16, 5)

    def forward(self, x, tasks):
        x = torch.tanh(self.body(x))
        return sum(getattr(self, task)(x)[:, :4] for task in tasks)


class Normed(Tasks):
    """Heads with running statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(head, nn.BatchNorm1d(head.out_features)) for head in (self.a, self.b, self.c))


def _batch(rank, call, rows=6):
    random = torch.Generator().manual_seed(10 * call + rank)
    targets = torch.randint(4, (rows,), generator=random)
    targets[:rank] = -100  # ranks count other numbers of tokens
    return torch.randn(rows, 8, generator=random), targets


def _sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def _adamw(net):
    return torch.optim.AdamW([{"params": [net.body.weight, net.a.weight, net.b.weight, net.c.weight], "weight_decay": 0.1},
                              {"params": [net.body.bias, net.a.bias, net.b.bias, net.c.bias], "lr": 0.01}], lr=0.02)


def _adafactor(net):
    return torch.optim.Adafactor(net.parameters(), lr=0.05)


def _loss_of_all(net, calls, tokens):
    """Returns the loss that one process has for the batches of all ranks. calls: (inputs, tasks, targets) of each rank."""
    losses = []
    for rank, (x, tasks, y) in enumerate(calls):
        buffers = {} if rank == 0 else {name: buffer.clone() for name, buffer in net.named_buffers()}  # those of rank 0 count
        losses.append(F.cross_entropy(torch.func.functional_call(net, buffers, (x, tasks)), y))
    counts = [int((y != -100).sum()) if tokens else 1 for _, _, y in calls]
    return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)


def _state(optimizer, parameter):
    return {key: value for key, value in optimizer.state.get(parameter, {}).items() if isinstance(value, torch.Tensor)}


def _train(rank, make, updates, accumulation_steps=1, clip_norm=0.0, tolerance=1e-4, precision="fp32", module=Tasks, **ranks):
    ours, eager = module(), module()
    optimizers = [make(eager), make(ours)]
    step = caesura.compile_step(ours, F.cross_entropy, optimizers[1], accumulation_steps=accumulation_steps, clip_norm=clip_norm,
                                precision=precision, ranks=caesura.Ranks(**ranks))
    for update, tasks in enumerate(updates):
        optimizers[0].zero_grad()
        for micro, now in enumerate(tasks.split()):
            calls = [(x, tasks, y) for (x, y), tasks in zip((_batch(r, 10 * update + micro) for r in range(2)), now.split("|"))]
            wanted = _loss_of_all(eager, calls, ranks.get("mean_over") == "tokens")
            (wanted / accumulation_steps).backward()
            loss = step(*calls[rank])
            if micro + 1 < accumulation_steps:
                continue
            if accumulation_steps == 1:
                torch.testing.assert_close(loss, wanted.detach(), rtol=tolerance, atol=0)
        if clip_norm:
            nn.utils.clip_grad_norm_([p for p in eager.parameters() if p.grad is not None], clip_norm)
        optimizers[0].step()
        same_on_all_ranks(ours.parameters())
    if ranks.get("shard"):
        step.gather_state()
    for (name, p), q in zip(eager.named_parameters(), ours.parameters()):
        torch.testing.assert_close(q, p, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
        states = _state(optimizers[0], p), _state(optimizers[1], q)
        assert states[0].keys() == states[1].keys(), name
        for key, value in states[0].items():
            torch.testing.assert_close(states[1][key], value, rtol=tolerance, atol=tolerance,
                                       msg=lambda text, name=name, key=key: f"{key} of {name}: {text}")
        same_on_all_ranks(states[1].values())
    if ranks.get("broadcast_buffers", True):
        for (name, p), q in zip(eager.named_buffers(), ours.buffers()):
            if p.dtype == torch.float32:
                torch.testing.assert_close(q, p, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
    return step


_UPDATES = ("a|a", "a|b", "b|a", "b|b", "a|a", "ab|b", "c|a", "a|a", "b|c", "c|c", "abc|c", "abc|abc")
_FEW = ("a|a", "b|a", "a|a", "b|c", "c|c")


def plain(rank):
    with caesura.strict():
        step = _train(rank, _adamw, _UPDATES)
    assert len(step._ranks.rows.rows) == 8  # a body and three heads, in two groups each
    assert len(step._calls) >= 3  # which Python does not look into
    with pytest.raises(ValueError, match="the ranks' calls train different parameters: save the module's"):
        step.save("unwritten")
    return True


def options(rank):
    """Clipping, tokens, buckets of one parameter each, updates that ONNX's ops compose, and a scaled loss."""
    _train(rank, _sgd, _FEW, clip_norm=0.3)
    _train(rank, _sgd, _FEW, mean_over="tokens", bucket_bytes=1)
    _train(rank, _adafactor, _FEW)
    _train(rank, _adamw, _FEW, precision="fp16", tolerance=2e-2)
    _train(rank, _sgd, _FEW, exchange_dtype="bf16", tolerance=3e-2)
    return True


def shards(rank):
    """Divided state is gathered and divided anew where a call uses other parameters."""
    for shard in (1, 2):
        _train(rank, _adamw, _FEW, shard=shard)
        _train(rank, _sgd, _FEW, shard=shard, clip_norm=0.3)
    return True


def accumulation(rank):
    """A parameter counts as used if any micro-step of an update uses it."""
    updates = ("a|a a|a", "a|b b|b", "a|a b|b", "a|a a|a", "a|a b|c", "c|a a|c", "a|a a|a")
    for shard in (0, 1):
        _train(rank, _adamw, updates, accumulation_steps=2, clip_norm=0.3, shard=shard)
    return True


def norms(rank):
    """Running statistics that only some ranks' calls write to are those of rank 0, or each rank's own."""
    for broadcasts in (True, False):
        _train(rank, _sgd, _FEW, module=Normed, broadcast_buffers=broadcasts)
    return True


def no_tokens(rank):
    """A rank without any token adds nothing. Without any on all ranks the loss is no number and gradients are zero, as in one
    process, whether there are rows or not."""
    for tasks in ("a|a", "a|b"):
        ours, eager = Tasks(), Tasks()
        optimizers = [_adamw(eager), _adamw(ours)]
        step = caesura.compile_step(ours, F.cross_entropy, optimizers[1], ranks=caesura.Ranks(mean_over="tokens"))
        for call, without in enumerate(((), (0,), (1,), (0, 1), (), (0,))):
            calls = [(*_batch(r, call), task) for r, task in enumerate(tasks.split("|"))]
            for r in without:
                calls[r][1][:] = -100
            total = sum(F.cross_entropy(eager(x, task), y, reduction="sum") for x, y, task in calls)
            count = sum(int((y != -100).sum()) for _, y, _ in calls)
            optimizers[0].zero_grad()
            (total / max(count, 1)).backward()
            optimizers[0].step()
            x, y, task = calls[rank]
            torch.testing.assert_close(step(x, task, y), total.detach() / count, equal_nan=True)
            for p, q in zip(eager.parameters(), ours.parameters()):
                torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)
    return True


def test_two_ranks():
    run_ranks(2, in_turn, [plain, options, shards, accumulation, norms, no_tokens], seconds=60)
