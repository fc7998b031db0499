# SPDX-License-Identifier: Apache-2.0
"""Packed sequences in captures: layers run on the padded sequences and their lengths.

A traced PackedSequence has packed data as ever, which nothing computes where nothing reads it. Dynamo's node of the data leads to
the padded sequences that it was packed from. Where it leads to none, the call is PyTorch's.
"""

import operator

import torch
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from caesura.capture.compat import ConstantVariable, SkipFunctionVariable, TensorVariable, UserFunctionVariable, weights_of
from caesura.capture.ops.recurrent import call_layers

_PADDED = "caesura_padded"  # of a node of packed data: the variables of the padded sequences, [steps, batch, ...], and of the lengths
_WORDS = ("Length of all samples has to be greater than 0 and at most the number of steps, and `lengths` sorted in decreasing order "
          "when `enforce_sorted` is True")
_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("pack(Tensor x, Tensor lengths) -> (Tensor, Tensor)")
_library.define("unpack(Tensor dy, Tensor batch_sizes, Tensor x) -> Tensor")


@torch.library.register_fake("caesura::pack", lib=_library)
def _(x, lengths):
    new = torch.library.get_ctx().new_dynamic_size
    return x.new_empty(new(), *x.shape[2:]), lengths.new_empty(new())


@torch.library.register_fake("caesura::unpack", lib=_library)
def _(dy, batch_sizes, x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.impl("caesura::pack", "CPU", lib=_library)
def _(x, lengths):
    return torch.ops.aten._pack_padded_sequence(x, lengths, False)


@torch.library.impl("caesura::unpack", "CPU", lib=_library)
def _(dy, batch_sizes, x):
    return torch.ops.aten._pack_padded_sequence_backward(dy, x.shape, batch_sizes, False)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(output[1], inputs[0])
    ctx.mark_non_differentiable(output[1])


torch.library.register_autograd("caesura::pack", lambda ctx, dy, _: (torch.ops.caesura.unpack(dy, *ctx.saved_tensors), None),
                                setup_context=_setup, lib=_library)


def _source(data, part):
    """The padded sequences (part 0) that packed data comes from, or their lengths (part 1); None where no trace knows."""


def _remember(data, padded, lengths):
    """Has _source(data, ...) give these from here on."""


def _leave(packed):
    """Ends a trace as PyTorch's functions of packed sequences do, which then run in eager."""


class Source(UserFunctionVariable):
    """_source() in a trace."""

    def call_function(self, tx, args, kwargs):
        data, part = args[0].realize(), args[1].as_python_constant()
        node = data.as_proxy().node if isinstance(data, TensorVariable) else None
        is_known = node is not None and _PADDED in node.meta and not node.users  # one of which might write to it
        return node.meta[_PADDED][part] if is_known else ConstantVariable.create(None)


class Remember(UserFunctionVariable):
    """_remember() in a trace."""

    def call_function(self, tx, args, kwargs):
        data, *source = (a.realize() for a in args)
        data.as_proxy().node.meta[_PADDED] = source
        return ConstantVariable.create(None)


class Leave(UserFunctionVariable):
    """_leave() in a trace."""

    def call_function(self, tx, args, kwargs):
        return SkipFunctionVariable(rnn.pad_packed_sequence).call_function(tx, args, kwargs)


def _packed(padded, lengths):
    """Packed data and sizes of its batches, of sequences in decreasing order of their lengths."""
    data, batch_sizes = torch.ops.caesura.pack(padded, lengths)
    _remember(data, padded, lengths)
    return data, batch_sizes


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Computes the same as torch.nn.utils.rnn.pack_padded_sequence."""
    if input.device.type != "cpu" or input.dim() < 2:
        return _leave(input)
    lengths = lengths.to(torch.int64) if isinstance(lengths, torch.Tensor) else torch.as_tensor(lengths, dtype=torch.int64)
    padded, order = (input.transpose(0, 1) if batch_first else input).clone(), None  # the forward may write to the input
    if lengths.dim() != 1 or len(lengths) != padded.size(1):
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={padded.size(1)})")
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, stable=True, descending=True)
        padded = padded.index_select(1, order)
    fits = (lengths > 0) & (lengths <= padded.size(0))
    if enforce_sorted and len(lengths) > 1:
        fits = fits & (lengths <= torch.cat([lengths[:1], lengths[:-1]]))
    lengths = torch.ops.caesura.check(lengths, fits, _WORDS)
    return PackedSequence(*_packed(padded, lengths), order, None)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """Computes the same as torch.nn.utils.rnn.pad_packed_sequence."""
    padded, lengths = _source(sequence.data, 0), _source(sequence.data, 1)
    if padded is None:
        return _leave(sequence)
    if total_length is not None and total_length < padded.size(0):
        lengths = torch.ops.caesura.check(lengths, lengths <= total_length, "Expected total_length to be at least the length of the "
                                          f"longest sequence in input, but got total_length={total_length}")
        padded = padded[:total_length]
    steps = torch.arange(padded.size(0))
    is_there = (steps[:, None] < lengths).reshape(padded.size(0), padded.size(1), *[1] * (padded.dim() - 2))
    padded = torch.where(is_there, padded, padding_value)
    if total_length is None:
        padded = padded[(steps < lengths[0]).nonzero()[:, 0]]
    elif total_length > padded.size(0):
        more = padded.new_full((total_length - padded.size(0), *padded.shape[1:]), padding_value)
        padded = torch.cat([padded, more])
    if sequence.unsorted_indices is not None:
        padded, lengths = padded.index_select(1, sequence.unsorted_indices), lengths[sequence.unsorted_indices]
    return padded.transpose(0, 1) if batch_first else padded, lengths


def _forward(theirs, kind_of):
    """A layer's forward that takes packed sequences of a trace. kind_of: what call_layers() calls the layer."""

    def forward(self, input, hx=None):
        padded = _source(input.data, 0) if isinstance(input, PackedSequence) else None
        if padded is None or self.proj_size:
            return theirs(self, input, hx)
        lengths, kind = _source(input.data, 1), kind_of(self)
        is_lstm = kind == "lstm"
        if hx is None:
            rows = self.num_layers * (2 if self.bidirectional else 1)
            zeros = padded.new_zeros(rows, padded.size(1), self.hidden_size)
            hx = (zeros, zeros) if is_lstm else zeros
        else:
            hx = self.permute_hidden(hx, input.sorted_indices)
        y, *last = call_layers(kind, padded, hx, weights_of(self), self.bias, self.num_layers, self.dropout, self.training,
                               self.bidirectional, False, lengths)
        packed = PackedSequence(_packed(y, lengths)[0], input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return packed, self.permute_hidden(tuple(last) if is_lstm else last[0], input.unsorted_indices)

    return forward


def drop_unread(graph: torch.fx.Graph) -> None:
    """Takes packed data out of a graph of Dynamo's where only Dynamo's own asserts of its sizes read it."""
    for node in reversed(graph.find_nodes(op="call_function", target=torch.ops.caesura.pack)):
        readers, new = {}, [node]
        while new:
            found = new.pop()
            readers[found] = None
            new += [user for user in found.users if user not in readers]
        if all(reader is node or reader.target in _OF_SIZES for reader in readers):
            for reader in sorted(readers, reverse=True):
                graph.erase_node(reader)


_OF_SIZES = {operator.getitem, operator.ge, torch.ops.aten.sym_size.int, torch.ops.aten._assert_scalar.default}
FORWARDS = {nn.LSTM: _forward(nn.LSTM.forward, lambda layer: "lstm"), nn.GRU: _forward(nn.GRU.forward, lambda layer: "gru"),
            nn.RNN: _forward(nn.RNN.forward, lambda layer: "rnn_" + layer.nonlinearity)}
FUNCTIONS = {rnn.pack_padded_sequence: pack_padded_sequence, rnn.pad_packed_sequence: pad_packed_sequence}
MARKS = {_source: Source, _remember: Remember, _leave: Leave}
