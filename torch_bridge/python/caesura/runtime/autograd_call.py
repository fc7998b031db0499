# SPDX-License-Identifier: Apache-2.0
"""Wraps a captured forward and backward as one PyTorch operator, whose steps and autograd node are in C++."""

import contextlib
import functools
import operator
import threading
from typing import Any

import torch

from caesura import _core, torch_kernels
from caesura.capture.compat import (ConstantSource, DimDynamic, FakeTensorMode, OpOverload, ShapeEnv, StatelessSymbolicContext,
                                    TracingContext, aot_autograd, boxed, is_functorch_wrapped_tensor, jit_operation, schema,
                                    unset_fake_temporarily, with_context)
from caesura.capture.decompositions import corrected
from caesura.errors import StrictError
from caesura.reports import collect_from, lose, note_detour
from caesura.rewrites.aliasing import hooked, run_in_eager, unlike_captured
from caesura.rewrites.complex_numbers import in_pairs
from caesura.rewrites.double_backward import Again, Gradients, Joined, Refused, node_of, origins, value_numbers
from caesura.rewrites.fx_meta import is_tensor
from caesura.rewrites.grouped_query_attention import take_unrepeated
from caesura.rewrites.partition import settings_of_aot, partition
from caesura.runtime.gpu import CPU, open_gpu
from caesura.runtime.graph_executor import Cut, GraphProgram, RunStep

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
_SIZES = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv",
          operator.mod: "mod", operator.neg: "neg", operator.ge: "ge", operator.le: "le", operator.gt: "gt", operator.lt: "lt",
          operator.eq: "eq", operator.ne: "ne"}


def describe_call(count: int, forward: GraphProgram, backward, metadata, records: bool, saved_numbers=(), numbers=()):
    """The call of a graph with `count` inputs, for open_call(): dicts, lists, tuples, plain values, bytes and tensors
    that are constants. None where AOT autograd's own wrappers are needed.

    forward, backward: what AOT autograd has made of it (None where nothing is differentiated), metadata: what it says. records:
    whether the graph switches autograd on, which is off where it is called. saved_numbers, numbers: as
    Again.describe() takes them.
    """
    if not registered():
        return None
    if not _is_plain(count, forward, metadata):
        note_detour("a graph", "PyTorch makes its results: they are views, subclasses or tokens, or it changes its inputs")
        return None
    layout = _layout(forward, backward, metadata)
    graphs = [None if program is None else _describe_graph(program) for program in (forward, backward)]
    if layout is None or graphs[0] is None or (graphs[1] is None) != (backward is None):
        note_detour("a graph", "PyTorch makes its results: they are inputs, constants or numbers, or a step is no operator")
        return None
    problems = [p for program in (forward, backward) if program is not None for p in program.problems]
    return {"graphs": graphs, "layout": layout, "again": Again.describe(forward, metadata, saved_numbers, numbers), "problems": problems,
            "device": str(forward.device), "records": records}


watching = []  # lists that calls are noted in: (function, arguments, outputs)


def open_call(module, facts, decompositions):
    """A callable for the graph `module` of dynamo's, that describe_call() has described.

    The callable's attributes: inputs, outputs: how many; written: which inputs it writes to; key, code: the key on disk
    and the traced code, which the maker sets; number: of its operators; checks: whether some calls run in eager.
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
    function.number, function.checks = again.key, unlike is not None
    function.keeping = functools.partial(_keeping, jit_operation(f"caesura::keeping_call_{again.key}")[0], tensors)
    function.inputs, function.outputs, function.written = len(tensors), len(facts["layout"][2]), facts["layout"][4]
    return function


# --- derivatives of derivatives ---

_KINDS = 16  # that a graph's gradients are captured for
_compiling = threading.RLock()


@torch.compiler.disable  # which sees it where a forward that it traces calls backward
def _differentiate_by_key(key, *arguments):
    """caesura::differentiate (captured_derivatives.h)."""
    return differentiate(Again.of(key), *arguments)


def differentiate(again, tensors, sizes, dys, random, saved, wanted, before, before_given, joins):
    """As caesura::differentiate (captured_derivatives.h): by a captured call of Gradients, in eager where there is none."""
    given, reason = [dy for dy in dys if dy is not None], "the gradients are a batch"
    differs = torch.is_grad_enabled()
    if not again.problem and not any(map(is_functorch_wrapped_tensor, (*tensors, *given))):
        kind = tuple(wanted), tuple(None if dy is None else dy.requires_grad for dy in dys), tuple(before), differs
        arguments = [*again.arguments(tensors, sizes), *before_given, *given, *saved]
        call, number, reason = _gradients_call(again, kind, arguments)
        if call is not None and joins and number is not None and not any(dy.requires_grad for dy in given):
            found, kept = call.keeping(arguments, sizes)
            return found, kept, [number, *again.joined[number].facts], call.number
        if call is not None:
            return call(*arguments), [], [], -1 if call.checks else call.number
    return again.gradients(tensors, sizes, dys, random, wanted, again.joined_before(before), before_given, reason), [], [], -1


def _gradients_call(again, kind, arguments):
    """(A call of Gradients for such arguments or None, its number in again.joined or None, the reason why there is none.) kind:
    positions of what is wanted; for each of again.outputs() whether its gradient requires one, None if it has none; numbers of those
    that have joined it; and whether the gradients are to be differentiable."""
    known = again.captured.setdefault(kind, [])
    for fits, *found in known:
        if fits is None or fits(arguments):
            return found
    if len(known) == _KINDS:
        return None, None, f"their sizes have changed {_KINDS} times"
    with _compiling:
        try:
            known.append((*_capture_gradients(again, kind, arguments), ""))
        except StrictError:
            raise
        except Exception as error:  # PyTorch's, of any kind; eager raises it, too, if it is the user's
            known.append((None, None, None, f"no graph of it: {(str(error).strip() or type(error).__name__).splitlines()[0]}"))
    return known[-1][1:]


def _capture_gradients(again, kind, arguments):
    """(A function of arguments: whether the call fits them, None if it fits all; the call; its number in again.joined, None if it cannot
    join). Raises what the capture raises."""
    wanted, requires, before, differs = kind
    given = tuple(yes is not None for yes in requires)
    function = Gradients(again, wanted, given, again.joined_before(before), differs)
    count = len(again.is_tensor)
    devices = {value.device for value in arguments if isinstance(value, torch.Tensor)} - {CPU}
    device = min(devices, key=str, default=CPU)
    if device != CPU and open_gpu(device)[0] is None:
        raise Refused(f"no kernels of ours run on {device}")
    captured = _GradientsCapture(function, again.mutated if again.refusal else [], device)
    first_dy = len(arguments) - len(again.saved) - sum(given)
    mode, examples = _examples(again, arguments, [*range(count), *range(first_dy, first_dy + sum(given))])
    compiler = aot_autograd(fw_compiler=captured.compile_forward, bw_compiler=captured.compile_backward,
                            inference_compiler=captured.compile_forward, decompositions=again.decompositions(),
                            partition_fn=captured.partition)
    with contextlib.ExitStack() as modes:
        for name in {"cpu", device.type}:
            modes.enter_context(torch.autocast(name, enabled=False))
        with corrected, settings_of_aot(), with_context(TracingContext(mode)):
            compiler(function, examples)
    facts = describe_call(len(arguments), captured.forward, captured.backward, captured.metadata, False, captured.saved, captured.names)
    if facts is None:
        raise Refused("PyTorch makes its results")
    if again.random:
        facts["again"]["refusal"] = "that draws random numbers"
    call, number = open_call(function, facts, again.decompositions), None
    if captured.backward is not None and not any(requires):
        number = len(again.joined)
        again.joined.append(Joined(wanted, given, facts["again"]["saved"], _join_facts(again, facts["layout"])))
    guards = mode.shape_env and mode.shape_env.produce_guards_expression(examples, ignore_static=False)
    fits = _Fits(functools.partial(mode.shape_env.evaluate_guards_expression, guards)) if guards else None
    return fits, call, number


class _Fits:
    """Remembers, by their sizes, whether arguments fit: to evaluate guards takes as long as a small call."""

    def __init__(self, evaluate):
        self.evaluate, self.known = evaluate, {}

    def __call__(self, arguments):
        sizes = tuple(value.shape if isinstance(value, torch.Tensor) else value for value in arguments)
        if sizes not in self.known:
            if len(self.known) == 1024:
                self.known.clear()
            self.known[sizes] = self.evaluate(arguments)
        return self.known[sizes]


def _join_facts(again, layout) -> list:
    """Joined.facts: for all gradients, those that are constant, too."""
    outputs, taking, reached = layout[2], layout[3], layout[12]
    differs = [int(i in taking) for i in range(len(outputs))]
    rows = [dict(zip(taking, reached[t * len(taking):])) for t in range(sum(again.is_tensor))]
    return differs + [row.get(i, 0) for row in rows for i in range(len(outputs))]


def _examples(again, arguments, moving):
    """(Mode, arguments without values). moving: positions of those that may require a gradient, which the others never do."""
    env = None if again.sizes is None else ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    examples = []
    for i, value in enumerate(arguments):
        source = ConstantSource(f"given_{i}")
        if isinstance(value, torch.Tensor):
            if not isinstance(value, torch.nn.Parameter) and type(value) is not torch.Tensor:
                raise Refused(f"a tensor is a {type(value).__name__}")
            context, source = None, source if value.dim() else None  # a scalar with a source would be taken for its number
            if env is not None and value.dim():
                kind = DimDynamic.DUCK if i in moving else DimDynamic.DYNAMIC
                changing = again.sizes[i] if i < len(again.sizes) else range(value.dim())
                context = StatelessSymbolicContext([kind if k in changing else DimDynamic.STATIC for k in range(value.dim())])
            example = mode.from_tensor(value.detach(), symbolic_context=context, source=source)
            examples.append(example.requires_grad_(value.requires_grad and i in moving))
        elif type(value) is int:
            examples.append(env.create_symintnode(env.create_symbol(value, source), hint=value, source=source))
        else:
            raise Refused(f"an input is a {type(value).__name__}")
    return mode, examples


class _GradientsCapture:
    """Keeps what AOT autograd hands over while it compiles Gradients. written: positions of inputs that hold other values now; device:
    whose kernels run."""

    forward: Any = None
    backward: Any = None
    metadata: Any = None
    names: Any = None  # of the inputs
    saved: Any = ()  # numbers of the values that the forward saves

    def __init__(self, function, written, device):
        self.function, self.written, self.device = function, written, device

    def partition(self, joint, inputs, **options):
        self._take(joint)
        return partition(joint, inputs, **options)

    def compile_forward(self, module, inputs):
        self.metadata = TracingContext.get().fw_metadata
        if self.names is None:  # there is no backward, which would have been cut off
            self._take(module)
        numbers = value_numbers(module.graph, self.names)
        (output,) = module.graph.find_nodes(op="output")
        self.saved = [numbers.get(n) for n in output.args[0][self.metadata.num_forward:]]
        self.forward = self._program(module)
        return boxed(lambda arguments: self.forward.run(arguments))

    def compile_backward(self, module, inputs):
        self.backward = self._program(module, "backward", self.forward.placeholders)
        return boxed(lambda arguments: self.backward.run(arguments))

    def _take(self, module):
        take_unrepeated(module.graph)
        self.names = self.function.take_saved(module.graph, self.written)

    def _program(self, module, phase="", sources=()):
        with unset_fake_temporarily():
            return GraphProgram(in_pairs(module), phase, sources, self.device)


def _keeping(operation, tensors, arguments, sizes):
    return operation([arguments[i] for i in tensors], sizes)


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
        _library().impl("differentiate", _differentiate_by_key, key)


@functools.cache
def _library():
    return torch.library.Library("caesura", "FRAGMENT")


@functools.cache
def _counters():
    counters = torch.classes.caesura.Counters()
    collect_from(counters.take)
    return counters


def _is_plain(count, forward, metadata) -> bool:
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
    return count == len(forward.placeholders) == len(metadata.input_info)


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
