# SPDX-License-Identifier: Apache-2.0
"""Packed sequences in captures: layers run on the padded sequences and their lengths.

A traced PackedSequence has packed data as ever, which nothing computes where nothing reads it. Dynamo's nodes of its tensors lead
to what it was packed from. Where they lead to nothing, the call is PyTorch's.
"""

import operator

import torch
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence

from caesura.capture.compat import ConstantVariable, SkipFunctionVariable, TensorVariable, UserFunctionVariable, weights_of
from caesura.capture.ops.recurrent import call_layers, is_there

_KNOWN = "caesura_packed"  # of a node: the variables that _remember() was given
_WORDS = ("Length of all samples has to be greater than 0 and at most the number of steps, and `lengths` sorted in decreasing order "
          "when `enforce_sorted` is True")
_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("packed_rows(Tensor lengths, SymInt steps) -> (Tensor, Tensor)")


@torch.library.impl("caesura::packed_rows", "CompositeImplicitAutograd", lib=_library)
def _(lengths, steps):
    """The rows of [steps * batch, ...] that sequences have, and how many of each step."""
    there = is_there(lengths, steps)
    sizes = there.sum(1)
    return there.flatten().nonzero()[:, 0], sizes[sizes > 0]


def _source(tensor, part):
    """Returns source number `part` that _remember() stored for the tensor; None where it stored none."""


def _remember(tensor, *source):
    """Has _source(tensor, ...) give these from here on, unless another call takes the tensor."""


def _leave(packed):
    """Ends a trace as PyTorch's functions of packed sequences do, which then run in eager."""


class Source(UserFunctionVariable):
    """_source() in a trace."""

    def call_function(self, tx, args, kwargs):
        tensor, part = args[0].realize(), args[1].as_python_constant()
        node = tensor.as_proxy().node if isinstance(tensor, TensorVariable) else None
        is_known = node is not None and _KNOWN in node.meta and not node.users  # one of which might write to it
        return node.meta[_KNOWN][part] if is_known else ConstantVariable.create(None)


class Remember(UserFunctionVariable):
    """_remember() in a trace."""

    def call_function(self, tx, args, kwargs):
        tensor, *source = (a.realize() for a in args)
        tensor.as_proxy().node.meta[_KNOWN] = source
        return ConstantVariable.create(None)


class Leave(UserFunctionVariable):
    """_leave() in a trace."""

    def call_function(self, tx, args, kwargs):
        return SkipFunctionVariable(rnn.pad_packed_sequence).call_function(tx, args, kwargs)


def _packed(padded, rows):
    """Packed data of sequences [steps, batch, ...] in decreasing order of their lengths, and zeros after these."""
    data = padded.flatten(0, 1).index_select(0, rows)
    _remember(data, padded)
    return data


def _unpacked(sequence):
    """Returns (padded sequences with zeros after their ends, lengths, rows) of what `sequence` was packed from; None if it is unknown."""
    lengths, rows, steps = (_source(sequence.batch_sizes, part) for part in range(3))
    if lengths is None:
        return None
    data, padded = sequence.data, _source(sequence.data, 0)
    if padded is None:  # changed since
        shape = data.shape[1:]
        padded = data.new_zeros(steps * len(lengths), *shape).index_copy(0, rows, data).view(steps, len(lengths), *shape)
    return padded, lengths, rows


def _mask(padded, lengths):
    """is_there() for each element of padded sequences."""
    return is_there(lengths, padded.size(0)).reshape(padded.size(0), padded.size(1), *[1] * (padded.dim() - 2))


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Computes the same as torch.nn.utils.rnn.pack_padded_sequence."""
    if input.device.type != "cpu" or input.dim() < 2:
        return _leave(input)
    lengths = lengths.to(torch.int64) if isinstance(lengths, torch.Tensor) else torch.as_tensor(lengths, dtype=torch.int64)
    padded, order = input.transpose(0, 1) if batch_first else input, None
    if lengths.dim() != 1 or len(lengths) != padded.size(1):
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={padded.size(1)})")
    if not enforce_sorted:
        lengths, order = torch.sort(lengths, stable=True, descending=True)
        padded = padded.index_select(1, order)
    fits = (lengths > 0) & (lengths <= padded.size(0))
    if enforce_sorted and len(lengths) > 1:
        fits = fits & (lengths <= torch.cat([lengths[:1], lengths[:-1]]))
    lengths = torch.ops.caesura.check(lengths, fits, _WORDS)
    padded = torch.where(_mask(padded, lengths), padded, 0)  # new memory, too: the forward may write to the input
    rows, batch_sizes = torch.ops.caesura.packed_rows(lengths, padded.size(0))
    _remember(batch_sizes, lengths, rows, padded.size(0))
    return PackedSequence(_packed(padded, rows), batch_sizes, order, None)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """Computes the same as torch.nn.utils.rnn.pad_packed_sequence."""
    known = _unpacked(sequence)
    if known is None:
        return _leave(sequence)
    padded, lengths, _ = known
    if total_length is not None and total_length < padded.size(0):
        lengths = torch.ops.caesura.check(lengths, lengths <= total_length, "Expected total_length to be at least the length of the "
                                          f"longest sequence in input, but got total_length={total_length}")
        padded = padded[:total_length]
    if padding_value != 0:
        padded = torch.where(_mask(padded, lengths), padded, padding_value)
    if total_length is None:
        padded = padded[(torch.arange(padded.size(0)) < lengths[0]).nonzero()[:, 0]]
    elif total_length > padded.size(0):
        more = padded.new_full((total_length - padded.size(0), *padded.shape[1:]), padding_value)
        padded = torch.cat([padded, more])
    if sequence.unsorted_indices is not None:
        padded, lengths = padded.index_select(1, sequence.unsorted_indices), lengths[sequence.unsorted_indices]
    return padded.transpose(0, 1) if batch_first else padded, lengths


def replace(sequence, **fields):
    """Computes the same as PackedSequence._replace, whose result Dynamo loses at a graph break."""
    return PackedSequence(**(dict(zip(PackedSequence._fields, sequence)) | fields))


def forward(self, input, hx=None):
    """Computes the same as the forward of nn.LSTM, nn.GRU and nn.RNN, with kernels for packed sequences of a trace. It has no closure:
    guards would look for it in PyTorch's forward."""
    known = _unpacked(input) if isinstance(input, PackedSequence) and not self.proj_size else None
    if known is None:
        return _THEIRS[self.mode](self, input, hx)
    padded, lengths, rows = known
    is_lstm = self.mode == "LSTM"
    self.check_input(padded[0], lengths)
    size = (self.num_layers * (2 if self.bidirectional else 1), len(lengths), self.hidden_size)
    if hx is None:
        zeros = padded.new_zeros(size)
        hx = (zeros, zeros) if is_lstm else zeros
    else:
        for state in hx if is_lstm else (hx,):
            self.check_hidden_size(state, size)
        hx = self.permute_hidden(hx, input.sorted_indices)
    y, *last = call_layers(self.mode.lower(), padded, hx, weights_of(self), self.bias, self.num_layers, self.dropout, self.training,
                           self.bidirectional, False, lengths)
    packed = PackedSequence(_packed(y, rows), input.batch_sizes, input.sorted_indices, input.unsorted_indices)
    return packed, self.permute_hidden(tuple(last) if is_lstm else last[0], input.unsorted_indices)


def drop_unread(graph: torch.fx.Graph) -> None:
    """Takes packed data out of a graph of Dynamo's where only Dynamo's own asserts of its sizes read it."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.caesura.packed_rows):
        readers, new = {}, [node]
        while new:
            found = new.pop()
            readers[found] = None
            new += [user for user in found.users if user not in readers]
        if all(reader is node or reader.target in _OF_SIZES for reader in readers):
            for reader in sorted(readers, reverse=True):
                graph.erase_node(reader)


_OF_SIZES = {operator.getitem, operator.ge, operator.le, "index_select", torch.ops.aten.sym_size.int,
             torch.ops.aten._assert_scalar.default}
_THEIRS = {"LSTM": nn.LSTM.forward, "GRU": nn.GRU.forward, "RNN_TANH": nn.RNN.forward, "RNN_RELU": nn.RNN.forward}
FORWARDS = dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), forward)
FUNCTIONS = {rnn.pack_padded_sequence: pack_padded_sequence, rnn.pad_packed_sequence: pad_packed_sequence}
MARKS = {_source: Source, _remember: Remember, _leave: Leave}
