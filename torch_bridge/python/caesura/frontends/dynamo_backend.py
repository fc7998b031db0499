# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.compile: `torch.compile(module, backend="caesura")`."""

import functools
import types
from typing import Any

import torch

from caesura.cache import disk, graph_calls
from caesura.cache.fingerprint import Unkeyed
from caesura.capture import frames
from caesura.capture.compat import (OutputType, TracingContext, aot_autograd, boxed, default_partition, global_hooks,
                                    is_view, set_grad_enabled, unset_fake_temporarily)
from caesura.capture.decompositions import decompositions
from caesura.capture.ops.recurrent import by_layers
from caesura.capture.packed_sequences import drop_unread
from caesura.capture.python_rng import take_as_given
from caesura.errors import StrictError
from caesura.lowering import TABLE
from caesura.reports import fall_back, note_detour
from caesura.rewrites.aliasing import (as_views, data_assignments, hidden_in_views, hidden_writes, keep_gradients, made_in_inference,
                                      past_inference, plain_forward, share_storage, unless_unlike, unnoticed, unrecorded,
                                      views_made_anew_fit, views_of_each_other, views_past_autograd, writes_to_overlaps,
                                      writes_to_saved)
from caesura.rewrites.autograd_function import parts_of
from caesura.rewrites.complex_numbers import in_pairs, share_complex
from caesura.rewrites.double_backward import differentiable_again, value_numbers, without_tokens
from caesura.rewrites.fx_meta import describe, is_tensor, storage_of
from caesura.rewrites.gpu_attention import take_attention
from caesura.rewrites.grouped_query_attention import take_unrepeated
from caesura.rewrites.layout import lay_results
from caesura.rewrites.partition import partition, settings_of_aot
from caesura.rewrites.stop_gradient import takes_gradients
from caesura.runtime.autograd_call import describe_call, differentiate, of_reached, open_call, recording, rows_reached
from caesura.runtime.gpu import CPU, open_gpu
from caesura.runtime.graph_executor import GraphProgram


def apart(function: Any) -> Any:
    """The function with code of its own: PyTorch keeps and counts captured graphs by code, which all modules would share."""
    return types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
                              function.__closure__)


_NEW = (OutputType.non_alias, OutputType.unsafe_view_alias)  # results that share no memory with what the caller holds


class _Captured:
    """The parts that AOT autograd hands over while it compiles a graph. device: whose kernels run. away: whether the graph
    is on a device where all kernels are PyTorch's."""

    forward: Any = None
    backward: Any = None
    metadata: Any = None
    fits = True  # PyTorch can make the results that are views
    saved: Any = ()  # value_numbers() of what the forward saves
    refused = False  # the backward is, by caesura.strict(); an error where it is called

    def __init__(self, device: Any, away: Any, results: Any) -> None:
        """results: those of Dynamo's graph, as tensors without values, nothing if one is no tensor."""
        self.device, self.away, self.results = device, away, results

    def compile_forward(self, module: Any, example_inputs: Any) -> Any:
        take_unrepeated(module.graph)  # of a graph without a backward, which nothing has cut
        self.metadata, whole = TracingContext.get().fw_metadata, []
        (output,) = module.graph.find_nodes(op="output")
        numbers = {} if self.metadata.tokens else value_numbers(module.graph)
        self.saved = [numbers.get(n) for n in output.args[0][self.metadata.num_forward:]]
        if not self.away:
            tokens = len(self.metadata.tokens)  # the first of the results
            first, last = tokens + len(self.metadata.mutated_inp_runtime_indices), tokens + self.metadata.num_forward
            remade = self.metadata.num_outputs_aliased or self.metadata.num_intermediate_bases  # as views, by AOT autograd
            own = [info.output_type in _NEW for info in self.metadata.output_info]
            lay_results(module.graph, first, last, [like if is_own else None for like, is_own in zip(self.results, own)])
            self.fits = views_made_anew_fit(self.metadata, [getattr(n, "meta", {}).get("val") for n in output.args[0][first:]])
            module = module if not remade and share_complex(output.args[0][first:last]) else in_pairs(module)
            whole = [first + i for i, is_own in enumerate(own) if is_own]
        self.forward = self._program(module)
        return _boxed(lambda: self.forward, whole)

    def compile_backward(self, module: Any, example_inputs: Any) -> Any:
        module = module if self.away else in_pairs(module)
        try:
            self.backward = self._program(module, "backward", self.forward.placeholders)
        except StrictError:
            self.refused = True
        return _boxed(lambda: self.backward or self._program(module, "backward"))

    def saves(self, positions: Any) -> bool:
        """True if the backward is given memory of the inputs at those positions."""
        inputs, results = without_tokens(self.forward, self.metadata)
        memory = {storage_of(inputs[i]) for i in positions}
        return any(storage_of(n) in memory for n in results[self.metadata.num_forward:] if isinstance(n, torch.fx.Node) and is_tensor(n))

    def _program(self, module: Any, phase: Any = "", sources: Any = ()) -> Any:
        with unset_fake_temporarily():  # the graph's constants are real
            return GraphProgram(module, phase, sources, self.device)


def _boxed(get_program: Any, whole: Any = ()) -> Any:
    """whole: positions of results that are no views in eager. Ours may be views of dense tensors, in which autograd forbids writes."""
    def run(arguments: Any) -> Any:
        results = get_program().run(arguments)
        for i in whole:
            if isinstance(results[i], torch.Tensor) and is_view(results[i]):
                results[i] = results[i].detach()
        return results

    return boxed(run)


def _key(module: Any, example_inputs: Any) -> Any:
    """The key of the graph's call on disk; None if the call is not kept."""
    if not disk.enabled():
        return None
    try:
        return graph_calls.key_of(module, example_inputs)
    except Unkeyed as error:
        note_detour("a graph is not kept on disk", f"no key holds {error}")
        return None


def _device_of(example_inputs: Any) -> torch.device:
    """The device that the graph's tensors are on, the CPU's scalars beside them left out."""
    devices = {value.device for value in example_inputs if isinstance(value, torch.Tensor) and value.device != CPU}
    return min(devices, key=str, default=CPU)


def backend(module: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Any:
    """Compiles a graph of dynamo's: forward and backward as programs of caesura's, cut where PyTorch's autograd cuts."""
    if options:
        raise frames.OptionError(f"backend 'caesura' has no options {sorted(options)}")
    if len(parts_of(module)) > 1 and any(global_hooks()):
        raise RuntimeError(frames.HOOKS_WITHIN)
    for node in writes_to_saved(module):  # whose backward raises an error in eager, and not where Dynamo's graph runs in eager
        raise RuntimeError(f"it writes to what an autograd.Function has saved for its backward (at {describe(node)})")
    example_inputs = take_as_given(module, example_inputs)
    assigned = [node for node in data_assignments(module.graph) if node.args[0].op == "placeholder"]
    if assigned:  # p.data = ...; AOT autograd has no graph for it
        fall_back([("a graph", "it assigns the data of a tensor that it is given", describe(n)) for n in assigned])
        return plain_forward(module)
    shared = share_storage(module.graph)
    if shared:  # AOT autograd's graph for it would be for such calls only
        fall_back([("a graph", "it writes to memory that two of its inputs share", describe(n)) for n in shared])
        return plain_forward(module)
    twice = [node for part in parts_of(module) for node in writes_to_overlaps(part.graph)]
    if twice:
        fall_back([("a graph", "it writes to a tensor whose elements share memory", describe(n)) for n in twice])
        return plain_forward(module)
    records = not torch.is_grad_enabled() and any(
        n.args[0] for n in module.graph.find_nodes(op="call_function", target=set_grad_enabled))
    recorded = records or torch.is_grad_enabled()
    for nodes, why in (
            # AOT autograd makes all views that it hands out in one mode
            (views_past_autograd(module.graph, torch.is_grad_enabled()) if recorded else [],
             "it hands out views made with autograd off, beside what has a gradient"),
            (keep_gradients(module.graph), "after it a buffer holds gradients, by which calls follow one another"),
            (hidden_in_views(module.graph), "it writes through .data to a view that an autograd.Function made"),
            (made_in_inference(module.graph), "with autograd on it is given a tensor that was made in inference mode"),
            (past_inference(module.graph), "in inference mode it views or writes to what was made outside")):
        if nodes:
            fall_back([("a graph", why, describe(n)) for n in nodes])
            return plain_forward(module)
    device = _device_of(example_inputs)
    # Other devices' kernels are PyTorch's: what runs there is the calls of its eager mode, saved as it does.
    away = device != CPU and open_gpu(device)[0] is None
    (output,) = module.graph.find_nodes(op="output")
    results = [getattr(n, "meta", {}).get("example_value") for n in output.args[0]]
    are_tensors = all(isinstance(r, torch.Tensor) and r.layout == torch.strided and not r.is_nested for r in results)
    captured = _Captured(CPU if away else device, away, results if are_tensors else [])
    table = dict if away else functools.partial(decompositions, TABLE)
    hidden = hidden_writes(module.graph)
    key = None if hidden else _key(module, example_inputs)
    if key is not None:
        with unset_fake_temporarily():
            call = graph_calls.load(key, module, table)
        if call is not None:
            call.code = TracingContext.get().traced_code
            return call
    compile_graph = aot_autograd(fw_compiler=captured.compile_forward, bw_compiler=captured.compile_backward,
                                 inference_compiler=captured.compile_forward, decompositions=table(),
                                 partition_fn=default_partition if away else partition)
    with settings_of_aot():
        if device != CPU and not away:
            take_attention(module)
        drop_unread(module.graph)
        as_it_is = device != CPU or any(map(takes_gradients, parts_of(module)))  # a layer of ours has no second derivative
        compiled = compile_graph(module if as_it_is else by_layers(module), example_inputs)
    if not captured.fits:
        fall_back([("a graph", "PyTorch makes another view of a result that is a view", describe(output))])
        return plain_forward(module)
    captured.metadata.bw_donated_idxs = []  # which PyTorch takes None not to be: retain_graph may be asked for
    if captured.refused:
        return compiled
    written = captured.metadata.mutated_inp_runtime_indices if recorded and captured.backward is None else []
    infos = {i: captured.metadata.input_info[i] for i in written}
    without = [i for i, info in infos.items() if info.mutations_under_no_grad_or_inference_mode and info.requires_grad]
    views = [n for n, info in zip(output.args[0], captured.metadata.output_info)
             if info.output_type == OutputType.alias_of_input and info.base_idx in without]
    if views:
        fall_back([("a graph", "it hands out a view of what it writes to with autograd off", describe(n)) for n in views])
        return plain_forward(module)
    new = [r if info.output_type in _NEW else None for r, info in zip(captured.results, captured.metadata.output_info)]
    leaves = [n for n, r in zip(output.args[0], new) if r is not None and r.requires_grad]
    if leaves and (captured.backward is None or not recorded):
        fall_back([("a graph", "without a gradient to record, it makes a tensor require one", describe(n)) for n in leaves])
        return plain_forward(module)
    groups = views_of_each_other(new) if captured.backward is None else []
    hidden = [] if captured.saves(hidden) else hidden  # otherwise the backward is to notice what changed
    with unset_fake_temporarily():
        facts = None if groups else describe_call(
            len(module.graph.find_nodes(op="placeholder")), captured.forward, captured.backward, captured.metadata, records, captured.saved)
        if facts is not None:
            call = open_call(module, facts, table)
            if hidden:
                return unnoticed(call, module.graph, hidden)
            if key is not None and graph_calls.store(key, facts):
                call.key, call.code = key, TracingContext.get().traced_code
            return call
    partly = []
    if captured.backward is not None:
        compiled = differentiable_again(compiled, module, captured.forward, captured.metadata, table, differentiate)
        positions, rows = rows_reached(captured.forward, captured.backward, captured.metadata)
        compiled = of_reached(compiled, positions, rows)
        tensors = [i for i, value in enumerate(example_inputs) if isinstance(value, torch.Tensor)]
        partly = [i for i, row in zip(tensors, rows) if 0 in row]
    else:
        compiled = unrecorded(compiled, without) if without else compiled
        compiled = as_views(compiled, groups) if groups else compiled
    compiled = unnoticed(compiled, module.graph, hidden) if hidden else compiled
    if records and captured.metadata.grad_enabled_mutation is None:
        compiled = recording(compiled)
    return unless_unlike(compiled, module, captured.metadata.mutated_inp_runtime_indices, records, partly)


frames.watch(backend, runs_eager=True)
