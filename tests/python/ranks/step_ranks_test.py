# SPDX-License-Identifier: Apache-2.0
"""compile_step() and TrainingSession as ranks of one run on Gloo: the step exchanges gradients itself."""

import copy
import ctypes
import os
import pathlib
import signal
import time

import numpy
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from rank_processes import run_ranks, same_on_all_ranks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import caesura  # noqa: E402
from caesura import _core, torch_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not torch_kernels.built(), reason="libcaesura_torch was not built")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


class Gpt(nn.Module):
    """A small GPT without dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(17, 32), nn.Embedding(16, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 17)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token(tokens) + self.position(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.head(self.block(x, src_mask=mask, is_causal=True)).transpose(1, 2)


def _batch(kind, rank, step, length=16):
    random = torch.Generator().manual_seed(10 * step + rank)
    if kind is Gpt:
        tokens = torch.randint(17, (4, length + 1), generator=random)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(4, 64, generator=random), torch.randint(8, (4,), generator=random)


def _mean(loss):
    loss = torch.as_tensor(loss).detach().clone().double()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def _eager(kind, rank, steps, optimizer_of, accumulate=1, clip=0.0):
    module = DistributedDataParallel(kind())
    optimizer, losses = optimizer_of(module.parameters()), []
    for step in range(steps):
        loss = nn.functional.cross_entropy(module(_batch(kind, rank, step)[0]), _batch(kind, rank, step)[1])
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(_mean(loss))
    return losses, list(module.parameters())


def _compiled(kind, rank, steps, optimizer_of, accumulate=1, clip=0.0, module=None, **options):
    module = kind() if module is None else module
    optimizer = optimizer_of(module.parameters())
    step_of = caesura.compile_step(module, nn.functional.cross_entropy, optimizer, accumulation_steps=accumulate, clip_norm=clip,
                                   **options)
    losses = [step_of(*_batch(kind, rank, step)) for step in range(steps)]
    return losses, list(module.parameters())


def _check(kind, rank, steps, optimizer_of, **options):
    eager, ours = (train(kind, rank, steps, optimizer_of, **options) for train in (_eager, _compiled))
    same_on_all_ranks(ours[1])
    every = options.get("accumulate", 1)
    for a, b in zip(eager[0][every - 1::every], ours[0][every - 1::every], strict=True):
        torch.testing.assert_close(b.double(), a, rtol=1e-5, atol=0)  # the mean of all ranks
    for a, b in zip(eager[1], ours[1], strict=True):
        if a.shape == (96,):  # attention's bias: that of the keys has no gradient but rounding errors, of which AdamW makes steps
            a, b = (t.detach().view(3, 32)[::2] for t in (a, b))
        # AdamW divides by the square root of a small mean: where it is next to 0, rounding errors show.
        assert (a - b).abs().max() <= (1e-3 if optimizer_of is _adamw else 1e-5) * a.abs().max()


def _adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def as_eager(rank):
    _check(Net, rank, 20, _sgd)
    _check(Gpt, rank, 20, _sgd)
    _check(Net, rank, 20, _adamw)
    _check(Net, rank, 6, _adamw, accumulate=3, clip=0.5)
    return True


def lengths(rank):
    """Ranks with other sequence lengths: each has its own programs, and all have the same parameters."""
    module = Gpt()
    step = caesura.compile_step(module, nn.functional.cross_entropy, _adamw(module.parameters()))
    for i in range(6):
        step(*_batch(Gpt, rank, i, length=16 if rank == 0 else 4 + 2 * (i % 3)))
    same_on_all_ranks(module.parameters())
    return True


def tokens(rank):
    """Ranks with other numbers of tokens: each token counts alike, as in one process with all of them."""
    ours, eager = Gpt(), Gpt()
    step = caesura.compile_step(ours, nn.functional.cross_entropy, _sgd(ours.parameters()), ranks=caesura.Ranks(mean_over="tokens"))
    optimizer = _sgd(eager.parameters())
    for i in range(6):
        batches = [tuple(t.clone() for t in _batch(Gpt, r, i, length=(16, 4 + 2 * (i % 3))[r])) for r in range(2)]
        for r, (_, targets) in enumerate(batches):
            targets[:, :1 + 2 * r] = -100  # not counted
        loss = step(*batches[rank])
        sums = [nn.functional.cross_entropy(eager(x), targets, reduction="sum") for x, targets in batches]
        expected = sum(sums) / sum(int((targets != -100).sum()) for _, targets in batches)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0)
    same_on_all_ranks(ours.parameters())
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        if a.shape == (96,):  # attention's bias: that of the keys has no gradient but rounding errors
            a, b = (t.detach().view(3, 32)[::2] for t in (a, b))
        assert (a - b).abs().max() <= 1e-5 * a.abs().max()
    linear = nn.Linear(4, 4)
    other = caesura.compile_step(linear, nn.functional.mse_loss, _sgd(linear.parameters()), ranks=caesura.Ranks(mean_over="tokens"))
    with pytest.raises((ValueError, caesura.StepRefused), match="is no mean cross entropy"):
        other(torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(ValueError, match="needs accumulation_steps=1, got 2"):
        caesura.compile_step(ours, nn.functional.cross_entropy, _sgd(ours.parameters()), accumulation_steps=2,
                             ranks=caesura.Ranks(mean_over="tokens"))
    return True


def compressed(rank):
    """Gradients that are exchanged in bfloat16: near those that are not, and the same on all ranks."""
    plain, ours = (_compiled(Net, rank, 20, _sgd, ranks=caesura.Ranks(exchange_dtype=dtype)) for dtype in (None, "bf16"))
    same_on_all_ranks(ours[1])
    assert not torch.equal(plain[1][0], ours[1][0])
    first = [_compiled(Net, rank, 1, _sgd, ranks=caesura.Ranks(exchange_dtype=dtype))[1] for dtype in (None, "bf16")]
    for a, b, start in zip(*first, Net().parameters(), strict=True):
        # Two roundings of 2^-8 each, where the ranks' gradients are up to twice as large as their mean.
        assert 0 < (a - b).abs().max() <= 2**-6 * (a - start).abs().max()
    torch.testing.assert_close(ours[0], plain[0], rtol=5e-3, atol=0)
    with pytest.raises(ValueError, match="exchange_dtype is 'bf16' or None, got 'fp8'"):
        caesura.Ranks(exchange_dtype="fp8")
    return True


def buckets(rank):
    """Their size changes the exchanges only. Ranks that take other sizes are refused."""
    one, small = (_compiled(Net, rank, 4, _sgd, ranks=caesura.Ranks(bucket_bytes=size)) for size in (1 << 30, 100))
    assert one[0] == small[0]
    for a, b in zip(one[1], small[1], strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="bucket_bytes is 1 or more, got 0"):
        caesura.Ranks(bucket_bytes=0)
    with pytest.raises((RuntimeError, ValueError), match="rank"):
        _compiled(Net, rank, 1, _sgd, ranks=caesura.Ranks(bucket_bytes=1 << 30 if rank == 0 else 100))
    return True


def _state(optimizer):
    return [value for _, state in sorted(optimizer.state_dict()["state"].items()) for _, value in sorted(state.items())]


def _divided(kind, rank, optimizer_of, shard, accumulate, alone):
    """Six calls with two shapes, so two programs; then two calls of a new step that loads the state, and that has no other
    ranks if `alone`."""
    module = kind()
    optimizer = optimizer_of(module.parameters())
    step = caesura.compile_step(module, nn.functional.cross_entropy, optimizer, accumulation_steps=accumulate,
                                ranks=caesura.Ranks(shard=shard))
    batches = [_batch(kind, rank, i, length=(16, 8)[i % 2]) for i in range(6)]
    if kind is Net:
        batches = [(x[:4 - i % 2], y[:4 - i % 2]) for i, (x, y) in enumerate(batches)]
    losses = [step(*batch) for batch in batches]
    whole = len(_state(optimizer))
    step.gather_state()
    assert len(_state(optimizer)) > whole if shard else len(_state(optimizer)) == whole
    state = copy.deepcopy(optimizer.state_dict())
    taken = [t.clone() for t in _state(optimizer)]
    losses += [step(*_batch(kind, rank, i)) for i in (6, 7)]  # takes its parts again
    assert len(_state(optimizer)) == whole
    if shard:
        held = sum(t.numel() for t in step._ranks.shards._parts.values())
        assert held <= sum(t.numel() for t in taken) / 2 + 4096
    same_on_all_ranks(module.parameters())
    later = kind()
    optimizer = optimizer_of(later.parameters())
    optimizer.load_state_dict(state)
    step = caesura.compile_step(later, nn.functional.cross_entropy, optimizer, ranks=caesura.Ranks(alone, shard=shard))
    losses += [step(*_batch(kind, 0 if alone else rank, i)) for i in (6, 7)]
    return [*losses, *module.parameters(), *taken, *later.parameters()]


def divided(rank, kind, optimizer_of, accumulate, is_alone):
    """Divided optimizer state gives what whole state gives, bit for bit: a sum of two has one order."""
    alone = [dist.new_group([r]) for r in range(2)][rank] if is_alone else None
    whole, parts = (_divided(kind, rank, optimizer_of, shard, accumulate, alone) for shard in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    return True


def divided_limits(rank):
    groups = [dist.new_group([r]) for r in range(2)]
    net = Net()
    step = caesura.compile_step(net, nn.functional.cross_entropy, _adamw(net.parameters()), ranks=caesura.Ranks(shard=1))
    step(*_batch(Net, rank, 0))
    with pytest.raises(ValueError, match="the part of a rank that was lost is gone"):
        step.regroup(groups[rank])
    with pytest.raises(ValueError, match="shard=2 needs accumulation_steps=1"):
        caesura.compile_step(net, nn.functional.cross_entropy, _adamw(net.parameters()), accumulation_steps=2,
                             ranks=caesura.Ranks(shard=2))
    with pytest.raises(ValueError, match="fully_shard"):
        caesura.Ranks(shard=3)
    with pytest.raises(ValueError, match="logical_shards=2 is TrainingSession's"):
        caesura.compile_step(net, nn.functional.cross_entropy, _adamw(net.parameters()), ranks=caesura.Ranks(logical_shards=2))
    whole = torch.optim.NAdam(net.parameters())
    with pytest.raises(caesura.StepRefused, match="belongs to whole parameters"):
        caesura.compile_step(net, nn.functional.cross_entropy, whole, ranks=caesura.Ranks(shard=1))(*_batch(Net, rank, 0))
    return True


def begins_alike(rank):
    module = Net()
    if rank == 1:
        with torch.no_grad():
            module.last.weight.zero_()
    _, parameters = _compiled(Net, rank, 2, _sgd, module=module)
    same_on_all_ranks(parameters)
    reference = _compiled_alone(rank)
    assert torch.equal(parameters[0], reference[0])
    return True


def _compiled_alone(rank):
    return _compiled(Net, rank, 2, _sgd)[1]


def masks(rank):
    """The same seed on all ranks: each draws masks of its own."""
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Dropout(0.5))
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(64))
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    torch.manual_seed(5)
    caesura.compile_step(module, lambda y, t: (y * t).sum(), optimizer)(torch.ones(1, 64), torch.ones(1, 64))
    # An element that both ranks keep has the gradient 2, one that both drop 0, others 1.
    update = torch.eye(64)[:, 0] - module[0].weight[:, 0]
    assert update.unique().numel() == 3
    return True


def refusals(rank):
    net = Net()
    with pytest.raises(caesura.StepRefused, match=r"give compile_step\(\) the module that DistributedDataParallel holds"):
        caesura.compile_step(DistributedDataParallel(net), nn.functional.cross_entropy, _sgd(net.parameters()))

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            pass

    with pytest.raises(caesura.StepRefused, match="which PyTorch.s Own would do .there is no such update op"):
        caesura.compile_step(net, nn.functional.cross_entropy, Own(net.parameters()))
    return True


def sessions(rank, path):
    """A model without PyTorch's modules: what one process gets with both batches, whenever updates are committed."""
    feeds = [{"x": _batch(Net, r, 0)[0].numpy(), "target": _batch(Net, r, 0)[1].numpy()} for r in range(2)]
    early, session = (caesura.TrainingSession(path, optimizer=caesura.optim.SGD(lr=0.1), commit=commit)
                      for commit in ("eager-consume", "late"))
    for _ in range(3):
        loss = session.step(feeds[rank])
        assert early.step(feeds[rank]) == loss
    weight = torch.from_numpy(session.parameters()["w"])
    assert torch.equal(torch.from_numpy(early.parameters()["w"]), weight)
    same_on_all_ranks([weight])
    if rank == 0:  # no other rank makes one
        alone = caesura.TrainingSession(path, optimizer=caesura.optim.SGD(lr=0.1), ranks=caesura.Ranks("alone"))
        both = {name: torch.cat([torch.from_numpy(f[name]) for f in feeds]).numpy() for name in feeds[0]}
        for _ in range(3):
            expected = alone.step(both)
        assert abs(loss - expected) < 1e-6
        torch.testing.assert_close(weight, torch.from_numpy(alone.parameters()["w"]))
    return True


def shards(rank, path):
    """Divided optimizer state gives what undivided state gives; the checkpoint of all ranks is read by one."""
    trained = {}
    for shard in (0, 1):
        session = caesura.TrainingSession(path, optimizer=caesura.optim.AdamW(lr=0.01), ranks=caesura.Ranks(shard=shard))
        told = session._session.memory
        losses = [session.step(dict(zip(("x", "target"), (t.numpy() for t in _batch(Net, rank, step))))) for step in range(4)]
        trained[shard] = losses, torch.from_numpy(session.parameters()["w"]), told
    assert trained[0][0] == trained[1][0]
    assert torch.equal(trained[0][1], trained[1][1])  # a sum of two has one order
    same_on_all_ranks([trained[1][1]])
    assert trained[0][2]["optimizer_state"] == 2 * trained[0][2]["parameters"]
    assert trained[1][2]["optimizer_state"] <= trained[0][2]["optimizer_state"] // 2 + 256
    with pytest.raises(NotImplementedError, match="Save gathers it"):
        session.set_parameter("optimizer.exp_avg.w", trained[1][1].numpy())
    session.save(path + ".ckpt", {"epoch": 3})
    alone = [dist.new_group([r]) for r in range(2)][rank]
    for one in (caesura.TrainingSession(path, optimizer=caesura.optim.AdamW(), ranks=caesura.Ranks("alone", shard=1)),
                caesura.TrainingSession(path, optimizer=caesura.optim.AdamW(), ranks=caesura.Ranks(shard=1))):
        assert one.restore(path + ".ckpt") == {"epoch": 3}
        assert one.updates == 4 and torch.equal(torch.from_numpy(one.parameters()["w"]), trained[1][1])
    with pytest.raises(ValueError, match="Restore the last checkpoint"):
        session.regroup(alone)
    return True


def ordered(rank, path, folder, shards=4, updates=20):
    """One rank and all ranks give the same bits, with dropout: of each, the hash of losses and parameters is compared."""
    world = dist.get_world_size()
    session = caesura.TrainingSession(path, optimizer=caesura.optim.AdamW(lr=0.01), clip_norm=0.1, seed=7, threads=1,
                                      ranks=caesura.Ranks(logical_shards=shards))
    own, losses = shards // world, []
    for update in range(updates):
        for shard in range(rank * own, (rank + 1) * own):
            loss = session.step(dict(zip(("x", "target"), (t.numpy() for t in _batch(Net, shard, update)))))
        losses.append(loss)
    assert session.updates == updates
    numpy.savez(pathlib.Path(folder) / f"{world}_{rank}.npz", losses=losses, **session.parameters())
    return True


def suite(rank):
    """The checks that every communicator passes (tests/core/distributed/communicator_suite.h)."""
    torch_kernels.load()
    library = ctypes.CDLL(str(pathlib.Path(_core.__file__).parents[2] / "lib" / "librank_checks.so"))
    text, i = ctypes.create_string_buffer(4096), 0
    while library.caesura_rank_check(dist.group.WORLD.group_name.encode(), i, text, len(text)):
        assert not text.value, text.value.decode()
        i += 1
    assert i > 10
    return True


def _lost(rank, sent):
    module = Net()
    step = caesura.compile_step(module, nn.functional.cross_entropy, _adamw(module.parameters()))
    step(*_batch(Net, rank, 0))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), sent)
    before = [p.detach().clone() for p in module.parameters()]
    began = time.monotonic()
    with pytest.raises(caesura.RankFailure):
        step(*_batch(Net, rank, 1))
    print(f"rank 1 by {signal.Signals(sent).name}: an error after {time.monotonic() - began:.2f} s")
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before))


def goes_on(rank):
    """Rank 2 is killed between two steps. The others regroup, do the step again with their own batches, and go on."""
    module = Net()
    module.layers.append(nn.BatchNorm1d(64))
    step = caesura.compile_step(module, nn.functional.cross_entropy, _adamw(module.parameters()))
    step(*_batch(Net, rank, 0))
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(caesura.RankFailure, match="nothing was heard of rank 2.*Regroup the ranks that are left"):
        step(*_batch(Net, rank, 1))
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), before))
    began = time.monotonic()
    survivors = dist.new_group([0, 1], use_local_synchronization=True)
    step.regroup(survivors)
    print(f"rank {rank} regrouped in {time.monotonic() - began:.2f} s")
    losses = [step(*_batch(Net, rank, i)) for i in (1, 2)]
    for tensor in (*module.parameters(), *losses):
        other = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(other, tensor.detach().contiguous(), group=survivors)
        assert torch.equal(*other)
    assert int(step.optimizer.state[module.last.weight]["step"]) == 3


def suspends(rank):
    """All ranks stop after the step in which one was asked to, before the next one begins."""
    net = Net()
    step = caesura.compile_step(net, nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1))
    step(*_batch(Net, rank, 0))
    step.suspend = rank == 0
    step(*_batch(Net, rank, 1))
    before = net.last.weight.clone()
    with pytest.raises(caesura.Suspended, match="no step has begun"):
        step(*_batch(Net, rank, 2))
    assert not step.suspended and torch.equal(net.last.weight, before)
    step.suspend = False
    step(*_batch(Net, rank, 2))
    assert not torch.equal(net.last.weight, before)
    same_on_all_ranks(net.parameters())
    return True


@pytest.mark.parametrize("body", [as_eager, lengths, tokens, compressed, buckets, divided_limits, begins_alike, masks, refusals,
                                  suite, suspends],
                         ids=lambda body: body.__name__)
def test_two_ranks(body):
    run_ranks(2, body)


@pytest.mark.parametrize("case", [(Gpt, _adamw, 1, False), (Net, _sgd, 1, False), (Net, _adamw, 2, True)],
                         ids=["AdamW", "SGD", "accumulated"])
def test_two_ranks_with_divided_state(case):
    run_ranks(2, divided, *case)


def test_four_ranks():
    run_ranks(4, suite)


def test_sessions(tmp_path):
    from onnx import helper, numpy_helper, save, TensorProto
    weight = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).numpy()
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])], [numpy_helper.from_array(weight, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "net.onnx")
    for body in (sessions, shards):
        run_ranks(2, body, str(tmp_path / "net.onnx"))


def test_ordered_sums(tmp_path):
    from onnx import helper, numpy_helper, save, TensorProto
    random = torch.Generator().manual_seed(1)
    weights = {"w": torch.randn(64, 32, generator=random) / 8, "v": torch.randn(32, 8, generator=random) / 4}
    constants = {"rate": numpy.float32(0.25), "on": numpy.bool_(True)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["a"]),
             helper.make_node("Dropout", ["a", "rate", "on"], ["d"]), helper.make_node("MatMul", ["d", "v"], ["y"])]
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
                              [numpy_helper.from_array(numpy.asarray(value), name)
                               for name, value in (*((n, w.numpy()) for n, w in weights.items()), *constants.items())])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "net.onnx")
    for world in (1, 2, 4):
        run_ranks(world, ordered, str(tmp_path / "net.onnx"), str(tmp_path))
    one = numpy.load(tmp_path / "1_0.npz")
    assert len(set(one["losses"])) == 20 and "w" in one
    for world in (2, 4):
        for rank in range(world):
            ours = numpy.load(tmp_path / f"{world}_{rank}.npz")
            assert all(numpy.array_equal(ours[name], one[name]) for name in one), f"rank {rank} of {world}"


def test_survivors_go_on():
    run_ranks(3, goes_on, seconds=5, lost=(2,))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_an_error(sent):
    """Rank 1 is killed, or stopped: rank 0's step fails within the group's time-out, with nothing changed."""
    run_ranks(2, _lost, sent, seconds=3, lost=(1,))
