# SPDX-License-Identifier: Apache-2.0
"""Wraps a captured forward and backward as one PyTorch operator, whose steps and autograd node are in C++."""

import functools
import operator

import torch

from caesura import _core, torch_kernels
from caesura.capture.compat import OpOverload, jit_operation, schema
from caesura.reports import collect_from, lose, note_detour
from caesura.rewrites.aliasing import hooked, run_in_eager, unlike_captured
from caesura.rewrites.double_backward import Again, differentiate, node_of, origins
from caesura.rewrites.fx_meta import is_tensor
from caesura.runtime.gpu import CPU, open_gpu
from caesura.runtime.graph_executor import Cut, GraphProgram, RunStep

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
_SIZES = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv",
          operator.mod: "mod", operator.neg: "neg", operator.ge: "ge", operator.le: "le", operator.gt: "gt", operator.lt: "lt",
          operator.eq: "eq", operator.ne: "ne"}


def describe_call(module, forward: GraphProgram, backward, metadata, records: bool):
    """The call of the graph `module` of dynamo's, for open_call(): dicts, lists, tuples, plain values, bytes and tensors
    that are constants. None where AOT autograd's own wrappers are needed.

    forward, backward: what AOT autograd has made of it (None where nothing is differentiated), metadata: what it says. records:
    whether the graph switches autograd on, which is off where it is called.
    """
    if not registered():
        return None
    if not _is_plain(module, forward, metadata):
        note_detour("a graph", "PyTorch makes its results: they are views, subclasses or tokens, or it changes its inputs")
        return None
    layout = _layout(forward, backward, metadata)
    graphs = [None if program is None else _describe_graph(program) for program in (forward, backward)]
    if layout is None or graphs[0] is None or (graphs[1] is None) != (backward is None):
        note_detour("a graph", "PyTorch makes its results: they are inputs, constants or numbers, or a step is no operator")
        return None
    problems = [p for program in (forward, backward) if program is not None for p in program.problems]
    return {"graphs": graphs, "layout": layout, "again": Again.describe(forward, metadata), "problems": problems,
            "device": str(forward.device), "records": records}


watching = []  # lists that calls are noted in: (function, arguments, outputs)


def open_call(module, facts, decompositions):
    """A callable for the graph `module` of dynamo's, that describe_call() has described.

    The callable's attributes: inputs, outputs: how many; written: which inputs it writes to; key, code: the key on disk
    and the traced code, which the maker sets.
    """
    again = Again(module, facts["again"], decompositions)
    device = torch.device(facts["device"])
    gpu, missing = (None, "") if device == CPU else open_gpu(device)
    if missing:
        raise RuntimeError(f"a call on {device}: {missing}")
    graphs = [None if graph is None else _open_graph(graph, gpu) for graph in facts["graphs"]]
    call = torch.classes.caesura.Call(*graphs, facts["layout"], again.random, again.key, _core.keep_alive(again))
    operation, _ = jit_operation(f"caesura::call_{again.key}")
    operation = recording(operation) if facts["records"] else operation
    tensors = [i for i, yes in enumerate(again.is_tensor) if yes]
    sizes = [i for i, yes in enumerate(again.is_tensor) if not yes]

    taking, reached, unlike = len(facts["layout"][3]), facts["layout"][12], None
    partly = [i for k, i in enumerate(tensors) if 0 in reached[k * taking:(k + 1) * taking]]
    if isinstance(module, torch.fx.GraphModule):  # otherwise the caller looks for shared memory
        unlike = unlike_captured(module.graph, [tensors[i] for i in facts["layout"][4]], facts["records"], partly)
    elif partly:
        unlike = functools.partial(hooked, partly=partly)

    def run(*arguments):
        if unlike is not None and (reason := unlike(arguments)):
            return run_in_eager(module, arguments, reason)
        results = operation(arguments, ())
        for records in watching:
            records.append((run, arguments, results))
        return results

    def run_with_sizes(*arguments):
        if unlike is not None and (reason := unlike(arguments)):
            return run_in_eager(module, arguments, reason)
        return operation([arguments[i] for i in tensors], [arguments[i] for i in sizes])

    function = run_with_sizes if sizes else run
    function.held, function.key, function.code = call, None, ()
    function.inputs, function.outputs, function.written = len(tensors), len(facts["layout"][2]), facts["layout"][4]
    return function


def recording(call):
    """`call` with autograd on."""
    def run(*arguments):
        with torch.enable_grad():
            return call(*arguments)
    return run


def is_operator(function) -> bool:
    """True if open_call() has made the function."""
    return isinstance(getattr(function, "held", None), torch.ScriptObject)


def registered() -> bool:
    """True if the operators exist. If not, what is lost without them is reported."""
    why = torch_kernels.misfit()
    if why:
        lose("the library of calls in PyTorch", why, "Calls of wrapped modules take longer, they are not kept on disk, and "
             "DistributedDataParallel sends gradients only after the whole backward",
             f"Build caesura with PyTorch {torch.__version__}; `caesura env` shows both releases")
        return False
    _register()
    return True


@functools.cache
def _register():
    """Registers the operator that is in Python."""
    for key in ("CompositeImplicitAutograd", "Batched", "FuncTorchBatched"):
        _library().impl("differentiate", differentiate, key)


@functools.cache
def _library():
    return torch.library.Library("caesura", "FRAGMENT")


@functools.cache
def _counters():
    counters = torch.classes.caesura.Counters()
    collect_from(counters.take)
    return counters


def _is_plain(module, forward, metadata) -> bool:
    """No inputs that are written to but buffers, no outputs that are views of others, no subclasses, no tokens."""
    if metadata.num_outputs_aliased or metadata.num_intermediate_bases or metadata.tokens or metadata.num_backward_tokens:
        return False
    if metadata.is_rng_op_functionalized or metadata.num_graphsafe_rng_states or metadata.num_mutated_graph_handled_indices:
        return False
    if metadata.num_tensors_saved_with_no_vc_check or metadata.num_opaque_objects_saved_for_bw:
        return False
    if metadata.grad_enabled_mutation is not None:
        return False
    if any(type(m).__name__ != "PlainTensorMeta" for m in metadata.subclass_inp_meta + metadata.subclass_fw_graph_out_meta):
        return False
    for i in metadata.mutated_inp_runtime_indices:
        info = metadata.input_info[i]
        if not info.mutates_data or info.mutates_metadata or info.requires_grad:
            return False
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    return len(inputs) == len(forward.placeholders) == len(metadata.input_info)


def _layout(forward, backward, metadata):
    """CallLayout's lists (captured_call.h); None if the graphs have another form."""
    number = {n: i for i, n in enumerate(forward.graph.nodes)}
    written = metadata.num_mutated_inp_runtime_indices
    new_values, outputs = forward.results[:written], forward.results[written:metadata.num_forward]
    if any(not isinstance(n, torch.fx.Node) or not is_tensor(n) or n.op != "call_function" for n in outputs + new_values):
        return None
    tensors = [n for n in forward.placeholders if is_tensor(n)]
    mutated = [forward.placeholders[i] for i in metadata.mutated_inp_runtime_indices]
    taking = [i for i, info in enumerate(metadata.output_info) if info.requires_grad_for_backward]
    saved = forward.results[metadata.num_forward:]
    if len(set(outputs)) != len(outputs) or any(not isinstance(n, torch.fx.Node) for n in saved):
        return None
    held = [n for n in saved if is_tensor(n)]
    layout = [[number[n] for n in tensors], [number[n] for n in forward.placeholders if not is_tensor(n)],
              [number[n] for n in outputs], taking if backward else [], [tensors.index(n) for n in mutated],
              [number[n] for n in new_values], [number[n] for n in held],
              [number[n] for n in saved if not is_tensor(n)]]
    if backward is None:
        return None if saved else layout + [[], [], [], [], [], []]
    number = {n: i for i, n in enumerate(backward.graph.nodes)}
    inputs = [number[n] for n in backward.placeholders]
    ints, count = len(saved) - len(held), len(saved)
    if any(n in held for n in mutated) or len(inputs) != count + len(taking):
        return None
    if len(backward.results) != len(forward.placeholders):
        return None
    results = [number[r] if isinstance(r, torch.fx.Node) else -1
               for n, r in zip(forward.placeholders, backward.results) if is_tensor(n)]
    reached = _reached(backward, backward.placeholders[count:])
    return layout + [inputs[ints:count], inputs[:ints], inputs[count:], results,
                     [k for n, row in zip(forward.placeholders, reached) if is_tensor(n) for k in row],
                     [part for n, part in zip(forward.placeholders, backward.parts) if is_tensor(n)]]


def _reached(backward, gradients) -> list:
    """A row for each result of the backward, with 1 for each of the given `gradients` that the result depends on, else
    0. A result that depends on none of them (the zeros of a step function) has 1 for all."""
    sources = {node: 1 << i for i, node in enumerate(gradients)}  # of each value, a bit for each gradient
    for node in backward.graph.nodes:
        if node not in sources:
            sources[node] = functools.reduce(operator.or_, map(sources.__getitem__, node.all_input_nodes), 0)
    masks = [sources.get(result) or -1 if isinstance(result, torch.fx.Node) else 0 for result in backward.results]
    return [[mask >> i & 1 for i in range(len(gradients))] for mask in masks]


def rows_reached(forward, backward, metadata):
    """For the call that AOT autograd makes: the positions of the results with gradients, and for each tensor that it is given a row with
    1 for each of them that the gradient depends on. Nothing of both if the graphs have another form."""
    kinds = type(metadata.output_info[0].output_type) if metadata.output_info else None
    written = [metadata.input_info[i] for i in metadata.mutated_inp_runtime_indices]
    taking = [info.mutates_data and info.requires_grad for info in written]
    taking += [info.requires_grad_for_backward and
               info.output_type in (kinds.non_alias, kinds.unsafe_view_alias, kinds.custom_function_view) for info in metadata.output_info]
    taking += [True] * metadata.num_intermediate_bases
    positions = [i for i, takes in enumerate(taking) if takes]
    saved = len(forward.results) - metadata.num_forward
    if len(backward.placeholders) != saved + len(positions) or len(backward.results) != len(forward.placeholders):
        return [], []
    return positions, [row for n, row in zip(forward.placeholders, _reached(backward, backward.placeholders[saved:])) if is_tensor(n)]


def of_reached(compiled, positions, rows):
    """`compiled`, AOT autograd's callable: gradients that depend on none of the results' gradients given are None. AOT autograd
    makes zeros of those that are not given. positions, rows: as rows_reached() gives them."""
    if not rows:
        return compiled

    def only_reached(gradients, given):
        if len(gradients) != len(rows):
            return None
        there = [given[i] is not None for i in positions]
        return tuple(g if any(a and b for a, b in zip(row, there)) else None for g, row in zip(gradients, rows))

    def run(*arguments):
        given = origins(arguments)
        results = compiled(*arguments)
        node = node_of((*results, *arguments), given)
        if node is not None:
            node.register_hook(only_reached)
        return results

    return run


def _describe_graph(program: GraphProgram):
    """The calls that make a torch.classes.caesura.Graph; None where a step is a call that is no operator."""
    number = {n: i for i, n in enumerate(program.graph.nodes)}
    calls = [("add_constant", number[node], tensor) for node, tensor in program.constants.items()]

    def encoded(argument):
        if isinstance(argument, torch.fx.Node):
            return "value", number[argument]
        if isinstance(argument, (list, tuple)):
            return "list", *map(encoded, argument)
        return _FORMATS.get(argument, argument) if isinstance(argument, torch.memory_format) else argument

    for step, release in program.steps:
        dead = [number[n] for n in release]
        if isinstance(step, Cut):
            calls.append(("add_cut",))
            continue
        if isinstance(step, RunStep):
            writes = [number[n] for n in step.writes]
            if step.part:
                calls.append(("add_part", writes, dead))
                continue
            if any(isinstance(n.meta.get("val"), (torch.SymFloat, float)) for n in step.reads):
                return None
            model = step.program.model.SerializeToString()
            calls.append(("add_program", model, [number[n] for n in step.reads], writes, dead))
            continue
        node = step.node
        if step.target is operator.getitem and isinstance(node.args[1], int):
            calls.append(("add_element", number[node.args[0]], node.args[1], number[node], dead))
        elif step.target in _SIZES:
            calls.append(("add_size", _SIZES[step.target], tuple(map(encoded, node.args)), number[node], dead))
        elif isinstance(step.target, OpOverload):
            form = schema(step.target)
            given = dict(zip((a.name for a in form.arguments), node.args)) | node.kwargs
            arguments = tuple(encoded(given.get(a.name, a.default_value)) for a in form.arguments)
            calls.append(("add_operator", form.name, form.overload_name, arguments, number[node], step.counts, dead))
        else:
            return None
    return {"values": len(number), "calls": calls}


def _open_graph(facts, gpu):
    graph = torch.classes.caesura.Graph(facts["values"], _counters(), gpu.share() if gpu else 0)
    for name, *arguments in facts["calls"]:
        if name not in ("add_constant", "add_program", "add_part", "add_cut", "add_operator", "add_size", "add_element"):
            raise ValueError(f"a graph has no {name}")
        if name == "add_program":
            arguments[0] = torch.frombuffer(bytearray(arguments[0]), dtype=torch.uint8)
        getattr(graph, name)(*arguments)
    return graph
