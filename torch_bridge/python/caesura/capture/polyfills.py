# SPDX-License-Identifier: Apache-2.0
"""Polyfills for functions of PyTorch, transformers and CHGNet that Dynamo cannot trace, because they read values or take locks;
same results."""

import contextlib
import functools
import logging
import operator
import sys
import types
import warnings
from unittest import mock

import torch
from torch.nn import RNNBase, SyncBatchNorm
from torch.nn.utils.rnn import PackedSequence
from torch.utils.checkpoint import check_backward_validity, checkpoint

from caesura.capture import contractions, foreach, frames, packed_sequences
from caesura.capture.compat import (BatchNorm, ConstantVariable, GetAttrVariable, GuardBuilder, SideEffects, TensorVariable,
                                    UserFunctionVariable, VariableTracker, build_checkpoint_variable, builders_by_id, detect_is_causal_mask,
                                    dynamo_config, fake_implementations, global_decomposition_table, seeing, tracing_tolist)
from caesura.capture.ops.check import gaussian_nll_loss
from caesura.capture.ops.ctc import ctc_loss
from caesura.capture.sync_batch_norm import sync_batch_norm

IN_PLACE = "caesura_in_place"  # the mark of a detach() that stands for a detach_()


def _is_causal(mask, is_causal=None, size=None):
    """nn.Transformer tests whether a mask is causal, so that attention can skip reading it. Here attention reads the
    mask."""
    return is_causal is True


def _linear_cross_entropy(*inputs, options=None, **settings):
    """The options say in which chunks of rows PyTorch computes the logits, by an operator of its own."""
    return _in_one_piece(*inputs, **settings)


def _faking():
    """Replaces what PyTorch makes of two calls on fake tensors. Its masked_select bounds the number of elements by x's, although the
    mask may be larger. Its power of bools is of integers, also to a bool."""
    select, power = torch.ops.aten.masked_select.default, torch.ops.aten.pow.Tensor_Scalar
    theirs = fake_implementations[select]

    def of_bools(mode, function, x, exponent):
        is_bool = x.dtype == torch.bool and isinstance(exponent, bool)
        return torch.empty_like(x) if is_bool else NotImplemented

    table = global_decomposition_table["post_autograd"]  # which PyTorch takes where sizes are symbols
    decomposed = table[power]

    def power_of(x, exponent):
        made = of_bools(None, power, x, exponent)
        return decomposed(x, exponent) if made is NotImplemented else made

    patches = contextlib.ExitStack()
    patches.enter_context(mock.patch.dict(fake_implementations, {
        select: lambda mode, _, x, mask: theirs(mode, select, *torch.broadcast_tensors(x, mask)), power: of_bools}))
    patches.enter_context(mock.patch.dict(table, {power: power_of}))
    return patches


def _same_code(function):
    """Another function with the same code, which Dynamo traces: it has no entry for it in its tables."""
    other = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other


_in_one_piece = _same_code(torch.nn.functional.linear_cross_entropy)
_STAND_INS = {
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    torch.nn.functional.gumbel_softmax: _same_code(torch.nn.functional.gumbel_softmax),  # its detach() is a stop in the graph
    torch.nn.functional.linear_cross_entropy: _linear_cross_entropy,
    detect_is_causal_mask: _is_causal,
} | foreach.stand_ins() | packed_sequences.FUNCTIONS
_OPTIONS = {"allow_rnn": True, "capture_dynamic_output_shape_ops": True, "trace_autograd_ops": True}
_batch_norm = BatchNorm.forward


def _cumulative_batch_norm(self, x):
    """Without a momentum, the statistics are the mean over all batches so far. PyTorch reads their number from a
    tensor."""
    if self.momentum is not None or not self.training or self.num_batches_tracked is None:
        return _batch_norm(self, x)
    self._check_input_dim(x)
    self.num_batches_tracked.add_(1)
    batch = [torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)]
    y = torch.nn.functional.batch_norm(x, *batch, self.weight, self.bias, True, 1.0, self.eps)
    with torch.no_grad():
        for kept, new in zip((self.running_mean, self.running_var), batch):
            share = self.num_batches_tracked.to(kept.dtype).reciprocal()
            kept.mul_(1 - share).add_(new * share)
    return y


_as_python_constant = TensorVariable.as_python_constant


def _as_constant(variable):
    """`torch.rand([]) < 0.0` is False, and `torch.rand(1) > 0.0` is True: layers that are dropped with probability 0 (transformers',
    PEFT's adapters) are no branch."""
    node = variable.proxy.node
    is_more = {operator.lt: False, operator.gt: True}.get(node.target)
    if is_more is not None and getattr(node.args[0], "target", None) is torch.rand and node.meta["example_value"].numel() == 1:
        if isinstance(node.args[1], (int, float)) and node.args[1] <= 0:
            return is_more
    return _as_python_constant(variable)


_tolist = TensorVariable.method_tolist


def _to_list(variable, tx):
    """`torch.arange(2, x.dim()).tolist()` is a list of numbers (MONAI's losses)."""
    node = variable.proxy.node
    if node.target is torch.arange and not node.kwargs and all(type(a) is int for a in node.args):
        return VariableTracker.build(tx, list(range(*node.args)))
    return _tolist(variable, tx)


_call_attribute = GetAttrVariable.call_method


def _call_name(variable, tx, name, args, kwargs):
    """`type(weight).__module__.startswith("torch.")` (PEFT's DoRA): Dynamo has the name of a class of PyTorch's as a constant, and
    calls none of its methods."""
    if variable.name in ("__module__", "__name__", "__qualname__") and variable.is_python_constant():
        return ConstantVariable.create(variable.as_python_constant()).call_method(tx, name, args, kwargs)
    return _call_attribute(variable, tx, name, args, kwargs)


_RESHAPING = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
_call_method = TensorVariable.call_method


def _call_and_look_again(variable, tx, name, args, kwargs):
    """Dynamo keeps the sizes and strides that a tensor had before one of these methods."""
    result = _call_method(variable, tx, name, args, kwargs)
    if name in _RESHAPING:
        variable.synchronize_attributes(tx)
        return variable
    return result


_store_attr = SideEffects.store_attr


def _store_now(effects, *args, **kwargs):
    """Stores an attribute where Dynamo looks for it at the end. A while_loop's trace goes on with a copy, and where attributes were
    stored before, those that are stored later were lost in what the copy was made from."""
    return _store_attr(effects.output_graph_weakref().side_effects, *args, **kwargs)


_detach_in_place = TensorVariable.method_detach_


def _detach(variable, tx):
    """Gives a new tensor in the same memory: reads before this call have a gradient, later reads have none."""
    if variable.source:
        return _detach_in_place(variable, tx)
    variable.proxy = variable.call_method(tx, "detach", [], {}).as_proxy()
    variable.proxy.node.meta[IN_PLACE] = True
    variable.synchronize_attributes(tx)
    return variable


class _AtOnce(UserFunctionVariable):
    """A function of a module that changes it once for all: called while dynamo traces, which finds the module changed."""

    def call_function(self, tx, args, kwargs):
        if len(args) != 1 or kwargs or not isinstance(getattr(args[0], "value", None), torch.nn.Module):
            return super().call_function(tx, args, kwargs)
        self.fn(args[0].value)
        return ConstantVariable.create(None)


def _cut(function, *args):
    with torch.no_grad():
        return function(*args)


class _Checkpoint(UserFunctionVariable):
    """A reentrant checkpoint warns and gives no gradients if none of its arguments requires one. Dynamo supports only
    the other kind of checkpoint."""

    def call_function(self, tx, args, kwargs):
        chosen = kwargs.get("use_reentrant")
        reentrant = chosen is None or chosen.is_python_constant() and chosen.as_python_constant() in (True, None)
        given = [a.realize() for a in args[1:]]
        inputs = [a.as_proxy().node.meta["example_value"] for a in given if isinstance(a, TensorVariable)]
        if not reentrant or not torch.is_grad_enabled() or any(value.requires_grad for value in inputs):
            return build_checkpoint_variable().call_function(tx, args, kwargs)
        check_backward_validity(inputs)  # warns
        return UserFunctionVariable(_cut).call_function(tx, args, {})


def _traced(function, kind=UserFunctionVariable):
    def build(builder, value):
        builder.install_guards(GuardBuilder.CLOSURE_MATCH if hasattr(value, "__closure__") else GuardBuilder.BUILTIN_MATCH)
        return kind(function)

    return build


def _hooks_of_transformers():
    """transformers' models install hooks, under a lock, when hidden states are first requested."""
    module = sys.modules.get("transformers.utils.output_capturing")
    install = getattr(module, "maybe_install_capturing_hooks", None)
    return {} if install is None else {id(install): _traced(install, _AtOnce)}


def _aggregate(data, owners, *, average=True, num_owner=None):
    """CHGNet's sums of rows by their owners. Its own compares num_owner with how many owners there are, which only a run knows."""
    count = torch.bincount(owners) if num_owner is None else owners.new_zeros(num_owner).index_add(0, owners, torch.ones_like(owners))
    total = data.new_zeros([len(count), data.shape[1]]).index_add(0, owners, data)
    return (total.T / count.clamp(min=1)).T if average else total


def _sums_of_chgnet():
    module = sys.modules.get("chgnet.model.functions")
    return {} if module is None else {id(module.aggregate): _traced(_aggregate)}


def logging_calls():
    """Calls that only print or log, also by methods that libraries have added to loggers (warning_once)."""
    stems = ("debug", "info", "warning", "error", "log", "exception", "critical")
    methods = {f for name, f in vars(logging.Logger).items() if callable(f) and name.startswith(stems)}
    return methods | {print, warnings.warn}


@contextlib.contextmanager
def capturing(module, is_step: bool = False, sizes=None, **options):
    """Dynamo traces the polyfills, and takes recurrent layers and torch.autograd.grad into its graphs. is_step: our rules
    differentiate these, and exchanges with other ranks have gradients. sizes: those that compat.seeing() goes by; None: all of
    the process. Further options are Dynamo's."""
    settings = dynamo_config.patch(**options) if options else contextlib.nullcontext()
    with settings, frames.tracing(functools.partial(in_place, module, is_step, sizes)):
        yield


@contextlib.contextmanager
def in_place(module=None, is_step=False, sizes=None):
    """The polyfills for one frame that Dynamo traces. module, is_step, sizes: as in capturing(); None: the module is unknown."""
    parts, forwards = [] if module is None else list(module.modules()), {}
    if any(isinstance(part, BatchNorm) and part.momentum is None for part in parts):
        forwards[BatchNorm] = _cumulative_batch_norm
    if is_step and any(isinstance(part, SyncBatchNorm) for part in parts):
        forwards[SyncBatchNorm] = sync_batch_norm
    layers = [part for part in parts if isinstance(part, RNNBase)]
    for kind, forward in packed_sequences.FORWARDS.items():  # guards on a subclass's super().forward would look for ours in PyTorch's
        if any(type(layer) is kind for layer in layers) and all(type(layer) is kind for layer in layers if isinstance(layer, kind)):
            forwards[kind] = forward
    builders = {id(theirs): _traced(ours) for theirs, ours in _STAND_INS.items()} | _hooks_of_transformers() | _sums_of_chgnet()
    builders[id(checkpoint)] = _traced(checkpoint, _Checkpoint)
    builders |= {id(mark): _traced(mark, kind) for mark, kind in (packed_sequences.MARKS | contractions.kinds()).items()}
    builders |= {id(theirs): _traced(ours) for theirs, ours in contractions.functions().items()}
    with contextlib.ExitStack() as changes:
        changes.enter_context(dynamo_config.patch(**_OPTIONS))
        changes.enter_context(mock.patch.object(TensorVariable, "as_python_constant", _as_constant))
        changes.enter_context(mock.patch.object(SideEffects, "store_attr", _store_now))
        changes.enter_context(mock.patch.object(TensorVariable, "call_method", _call_and_look_again))
        changes.enter_context(mock.patch.object(GetAttrVariable, "call_method", _call_name))
        changes.enter_context(mock.patch.object(PackedSequence, "_replace", packed_sequences.replace))
        changes.enter_context(tracing_tolist(_to_list))
        changes.enter_context(mock.patch.dict(builders_by_id(), builders))
        changes.enter_context(_faking())
        if sizes is not None:
            changes.enter_context(seeing(sizes))
        if is_step:
            changes.enter_context(mock.patch.object(TensorVariable, "method_detach_", _detach))
        for kind, forward in forwards.items():
            changes.enter_context(mock.patch.object(kind, "forward", forward))
        yield
