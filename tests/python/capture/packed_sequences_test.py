# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of packed sequences in wrapped modules and compiled steps, beside eager."""

import contextlib
import copy
import os

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence  # noqa: E402

import caesura  # noqa: E402
from compile_step_test import fresh  # noqa: E402, F401


class Net(nn.Module):
    """Reads the padded sequences, their lengths and the last states."""

    def __init__(self, kind, total=None, is_sorted=False, given=False, **options):
        super().__init__()
        self.layers, self.batch_first = kind(6, 8, **options), options.get("batch_first", False)
        self.total, self.is_sorted, self.given = total, is_sorted, given
        width = 16 if options.get("bidirectional") else 8
        self.last, self.start = nn.Linear(width, 4), nn.Parameter(torch.randn(options.get("num_layers", 1) * width // 8, 4, 8))

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, self.batch_first, enforce_sorted=self.is_sorted)
        start = (self.start, self.start * 2) if isinstance(self.layers, nn.LSTM) else self.start
        packed, states = self.layers(packed, start) if self.given else self.layers(packed)
        y, sizes = pad_packed_sequence(packed, self.batch_first, 0.5, self.total)
        states = states if isinstance(states, tuple) else (states,)
        return self.last(y).square().sum(-1).mean() + (sizes * torch.arange(4)).sum() * self.last.bias.sum() + sum(
            (torch.arange(4)[None, :, None] * s).mean() for s in states)


CASES = {
    "lstm": (nn.LSTM, {}), "sorted": (nn.LSTM, {"is_sorted": True}), "total": (nn.LSTM, {"total": 9}), "cut": (nn.LSTM, {"total": 7}),
    "layers": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True, "total": 8}),
    "gru": (nn.GRU, {"bidirectional": True, "given": True, "bias": False}),
    "rnn": (nn.RNN, {"nonlinearity": "relu", "batch_first": True, "given": True}),
    "dropout": (nn.LSTM, {"num_layers": 2, "dropout": 0.4, "given": True}),
}


def batches(net):
    generator = torch.Generator().manual_seed(1)
    for lengths in ([3, 7, 1, 7], [5, 2, 6, 7], [4, 4, 1, 2]):
        lengths = torch.tensor(sorted(lengths, reverse=True) if net.is_sorted else lengths)
        x = torch.randn(8, 4, 6, generator=generator)
        yield x.transpose(0, 1) if net.batch_first else x, lengths


def trained(module, call=None):
    """The losses of three batches, and the gradients of the last."""
    torch.manual_seed(3)
    losses = []
    for x, lengths in batches(module):
        module.zero_grad()
        loss = (call or module)(x, lengths)
        loss.backward()
        losses.append(loss.detach())
    return losses, [p.grad for p in module.parameters()]


def cases(*short):
    """All cases in long runs."""
    return pytest.mark.parametrize("name", CASES if os.environ.get("CAESURA_LONG") else short)


def net_of(name):
    torch.manual_seed(0)
    kind, options = CASES[name]
    return Net(kind, **options)


@cases("total", "dropout")
def test_wrapped_modules_agree(name):
    module = net_of(name)
    wrapped = caesura.wrap(copy.deepcopy(module))
    with caesura.strict() if name != "dropout" else contextlib.nullcontext():
        torch.testing.assert_close(trained(wrapped), trained(module), rtol=1e-4, atol=1e-5)
    assert len(type(wrapped)._calls.captures) == 1  # for all lengths


@cases("layers")
def test_compiled_steps_agree(name):
    module = net_of(name)
    other = copy.deepcopy(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step = caesura.compile_step(other, None, torch.optim.SGD(other.parameters(), lr=0.1), masks="pytorch")
    if name == "dropout":  # between layers, of as many elements as the sequences have
        with pytest.raises(caesura.StepRefused, match="the sizes of a dropout depend on values"):
            step(*next(batches(other)))
        return
    torch.manual_seed(3)
    expected = []
    for batch in batches(module):
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        expected.append(loss.detach())
    torch.manual_seed(3)
    torch.testing.assert_close([step(*batch) for batch in batches(other)], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(other.parameters()), list(module.parameters()), rtol=1e-4, atol=1e-5)


def test_lengths_that_do_not_fit_are_refused():
    module = net_of("sorted")
    wrapped = caesura.wrap(module)
    x = torch.randn(8, 4, 6)
    for lengths in ([4, 3, 2, 0], [9, 3, 2, 1], [3, 4, 2, 1]):
        with pytest.raises(RuntimeError, match="greater than 0 and at most the number of steps, and `lengths` sorted"):
            wrapped(x, torch.tensor(lengths))
    cut = net_of("cut")
    with pytest.raises(RuntimeError, match="got total_length=7"):
        caesura.wrap(cut)(x, torch.tensor([1, 8, 2, 3]))


class Named(nn.LSTM):
    """A subclass with a forward of its own, as libraries have them."""

    def forward(self, x, hx=None):
        return super().forward(x, hx)


@pytest.mark.filterwarnings("ignore::caesura.FallbackWarning")
def test_layers_of_a_subclass_are_not_captured_for_ever():
    torch.manual_seed(0)
    module = Net(Named, total=9)
    wrapped = caesura.wrap(copy.deepcopy(module))
    for _ in range(2):
        torch.testing.assert_close(trained(wrapped), trained(module), rtol=1e-4, atol=1e-5)
    captured = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    trained(wrapped)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == captured > 0


class Changed(nn.Module):
    """Changes the packed data before a layer and after it."""

    def __init__(self, breaks):
        super().__init__()
        self.table, self.first, self.last, self.breaks = nn.Embedding(20, 6), nn.GRU(6, 8), nn.GRU(8, 8), breaks

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(ids, lengths, enforce_sorted=False)
        packed = packed._replace(data=self.table(packed.data))
        if self.breaks:
            torch._dynamo.graph_break()
        packed, _ = self.first(packed)
        packed.data.mul_(2)
        packed = PackedSequence(packed.data.tanh(), packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return self.last(packed)[1].square().sum()


@pytest.mark.parametrize("breaks", [False, True])
def test_layers_of_changed_data_agree(breaks):
    torch.manual_seed(0)
    module, ids, lengths = Changed(breaks), torch.randint(20, (8, 4)), torch.tensor([3, 8, 1, 5])
    wrapped = caesura.wrap(copy.deepcopy(module))
    with pytest.warns(caesura.FallbackWarning, match="left to PyTorch: .*rnn.py") if breaks else caesura.strict():
        wrapped(ids, lengths).backward()
    module(ids, lengths).backward()
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()], rtol=1e-4, atol=1e-5)


def test_what_padding_holds_is_not_read():
    module = net_of("total")
    wrapped = caesura.wrap(copy.deepcopy(module))
    x, lengths = next(batches(module))
    x[torch.arange(8)[:, None] >= lengths] = torch.nan
    for m in (module, wrapped):
        m(x, lengths).backward()
    torch.testing.assert_close([p.grad for p in wrapped.parameters()], [p.grad for p in module.parameters()], rtol=1e-4, atol=1e-5)
