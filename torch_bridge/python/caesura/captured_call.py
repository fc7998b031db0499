# SPDX-License-Identifier: Apache-2.0
"""A captured forward and backward as one operator of PyTorch's: its steps and its autograd node are in C++."""

import functools
import itertools
import operator
import os
import traceback
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from caesura import _core, torch_library
from caesura.graph_program import CallStep, GraphProgram, RunStep, draws
from caesura.reports import collect_from, fall_back

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3}
_SIZES = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv",
          operator.mod: "mod", operator.neg: "neg"}


def make_call(module, forward: GraphProgram, backward, metadata, decompositions):
    """A callable for the graph `module` of dynamo's; None where AOT autograd's own wrappers are needed.

    forward, backward: what AOT autograd has made of it (None where nothing is differentiated), metadata: what it says.
    """
    if not _registered() or not _is_plain(module, forward, backward, metadata):
        return None
    layout = _layout(forward, backward, metadata)
    graphs = [None if program is None else _lower(program) for program in (forward, backward)]
    if layout is None or graphs[0] is None or (graphs[1] is None) != (backward is None):
        return None
    again = Again(module, forward, metadata, decompositions)
    call = torch.classes.caesura.Call(*graphs, layout, again.random, again.key, _core.keep_alive(again))
    operation, _ = torch._C._jit_get_operation(f"caesura::call_{again.key}")
    tensors = [i for i, n in enumerate(forward.placeholders) if _is_tensor(n)]
    sizes = [i for i, n in enumerate(forward.placeholders) if not _is_tensor(n)]

    def run(*arguments, held=call):
        return operation(arguments, ())

    def run_with_sizes(*arguments, held=call):
        return operation([arguments[i] for i in tensors], [arguments[i] for i in sizes])

    return run_with_sizes if sizes else run


@functools.cache
def _registered() -> bool:
    """Whether the operators are there; makes the one that is in Python."""
    try:
        if not torch_library.load():
            return False
    except NotImplementedError:  # built for another PyTorch
        return False
    _library().impl("differentiate", _differentiate, "CompositeImplicitAutograd")
    return True


@functools.cache
def _library():
    return torch.library.Library("caesura", "FRAGMENT")


@functools.cache
def _counters():
    counters = torch.classes.caesura.Counters()
    collect_from(counters.take)
    return counters


def _is_tensor(node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_plain(module, forward, backward, metadata) -> bool:
    """No inputs that are written to but buffers, no outputs that are views of others, no subclasses, no tokens, CPU."""
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
    if len(inputs) != len(forward.placeholders) or len(inputs) != len(metadata.input_info):
        return False
    nodes = itertools.chain(forward.graph.nodes, backward.graph.nodes if backward else ())
    return all(n.meta["val"].device.type == "cpu" for n in nodes if _is_tensor(n))


def _layout(forward, backward, metadata):
    """CallLayout's lists (captured_call.h); None where the graphs have another form."""
    number = {n: i for i, n in enumerate(forward.graph.nodes)}
    written = metadata.num_mutated_inp_runtime_indices
    new_values, outputs = forward.results[:written], forward.results[written:metadata.num_forward]
    if any(not isinstance(n, torch.fx.Node) or not _is_tensor(n) or n.op != "call_function" for n in outputs + new_values):
        return None
    tensors = [n for n in forward.placeholders if _is_tensor(n)]
    mutated = [forward.placeholders[i] for i in metadata.mutated_inp_runtime_indices]
    taking = [i for i, info in enumerate(metadata.output_info) if info.requires_grad_for_backward]
    saved = forward.results[metadata.num_forward:]
    if len(set(outputs)) != len(outputs) or any(not isinstance(n, torch.fx.Node) for n in saved):
        return None
    held = [n for n in saved if _is_tensor(n)]
    layout = [[number[n] for n in tensors], [number[n] for n in forward.placeholders if not _is_tensor(n)],
              [number[n] for n in outputs], taking if backward else [], [tensors.index(n) for n in mutated],
              [number[n] for n in new_values], [number[n] for n in held],
              [number[n] for n in saved if not _is_tensor(n)]]
    if backward is None:
        return None if saved else layout + [[], [], [], []]
    number = {n: i for i, n in enumerate(backward.graph.nodes)}
    inputs = [number[n] for n in backward.placeholders]
    ints, count = len(saved) - len(held), len(saved)
    if any(n in held for n in mutated) or len(inputs) != count + len(taking):
        return None
    if len(backward.results) != len(forward.placeholders):
        return None
    results = [number[r] if isinstance(r, torch.fx.Node) else -1
               for n, r in zip(forward.placeholders, backward.results) if _is_tensor(n)]
    return layout + [inputs[ints:count], inputs[:ints], inputs[count:], results]


def _lower(program: GraphProgram):
    """The program as a torch.classes.caesura.Graph; None where a step is a call that is no operator."""
    number = {n: i for i, n in enumerate(program.graph.nodes)}
    graph = torch.classes.caesura.Graph(len(number), _counters())
    for node, tensor in program.constants.items():
        graph.add_constant(number[node], tensor)

    def encoded(argument):
        if isinstance(argument, torch.fx.Node):
            return "value", number[argument]
        if isinstance(argument, (list, tuple)):
            return "list", *map(encoded, argument)
        return _FORMATS.get(argument, argument) if isinstance(argument, torch.memory_format) else argument

    for step, release in program.steps:
        dead = [number[n] for n in release]
        if isinstance(step, RunStep):
            model = torch.frombuffer(bytearray(step.program.model.SerializeToString()), dtype=torch.uint8)
            graph.add_program(model, [number[n] for n in step.reads], [number[n] for n in step.writes], dead)
            continue
        node = step.node
        if step.target is operator.getitem and isinstance(node.args[1], int):
            graph.add_element(number[node.args[0]], node.args[1], number[node], dead)
        elif step.target in _SIZES:
            graph.add_size(_SIZES[step.target], tuple(map(encoded, node.args)), number[node], dead)
        elif isinstance(step.target, torch._ops.OpOverload):
            schema = step.target._schema
            given = dict(zip((a.name for a in schema.arguments), node.args)) | node.kwargs
            arguments = tuple(encoded(given.get(a.name, a.default_value)) for a in schema.arguments)
            graph.add_operator(schema.name, schema.overload_name, arguments, number[node], step.counts, dead)
        else:
            return None
    return graph


# --- derivatives of derivatives -------------------------------------------------------------------------------------

class Again:
    """Runs the captured graph in eager, for gradients that are to be differentiated themselves."""

    _known = weakref.WeakValueDictionary()  # by key; a torch.classes.caesura.Call keeps its own alive
    _keys = itertools.count()

    def __init__(self, module, forward, metadata, decompositions):
        self.module, self.decompositions = module, decompositions
        self.is_tensor = [_is_tensor(n) for n in forward.placeholders]
        self.mutated = metadata.mutated_inp_runtime_indices
        self.taking = [i for i, info in enumerate(metadata.output_info) if info.requires_grad_for_backward]
        self.random = any(draws(n) for n in forward.graph.nodes)
        self.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self.rewritten = self._reads_what_it_writes(forward, forward.results[len(self.mutated):metadata.num_forward])
        self.key = next(self._keys)
        self._known[self.key] = self

    @classmethod
    def of(cls, key):
        return cls._known[key]

    def _reads_what_it_writes(self, forward, outputs) -> bool:
        """Whether the outputs depend on the old values of inputs that the graph writes to: those are gone."""
        reached, seen = list(outputs), set(outputs)
        while reached:
            new = [n for n in _sources(reached.pop()) if isinstance(n, torch.fx.Node) and n not in seen]
            seen.update(new)
            reached += new
        return any(forward.placeholders[i] in seen for i in self.mutated)

    def outputs(self, tensors, sizes, random):
        """Those that have gradients."""
        if self.rewritten:
            raise RuntimeError("caesura: create_graph=True through a module whose outputs depend on a buffer that it writes to")
        tensors, sizes = iter(tensors), iter(sizes)
        arguments = [next(tensors) if is_tensor else next(sizes) for is_tensor in self.is_tensor]
        for i in self.mutated:
            arguments[i] = arguments[i].clone()
        enabled, dtype = self.autocast
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled), torch.random.fork_rng([], enabled=self.random):
            if not self.random:
                results = self.module(*arguments)
            else:
                torch.set_rng_state(random)
                with torch._dispatch.python.enable_python_dispatcher(), _Drawing(self.decompositions):
                    results = self.module(*arguments)
        return [results[i] for i in self.taking]


def _sources(node):
    """What the value of a node depends on; of a batch norm's results only the new statistics depend on the old ones."""
    norm = torch.ops.aten._native_batch_norm_legit_functional.default
    if node.target is operator.getitem and getattr(node.args[0], "target", None) == norm:
        return node.args[0].all_input_nodes if node.args[1] > 2 or not node.args[0].args[5] else node.args[0].args[:3]
    return node.all_input_nodes


class _Drawing(TorchDispatchMode):
    """Draws as the captured graph does: what is decomposed there is decomposed here, below autograd."""

    def __init__(self, decompositions):
        super().__init__()
        self.decompositions = decompositions

    def __torch_dispatch__(self, target, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in target.tags and target in self.decompositions:
            with self:
                return self.decompositions[target](*args, **kwargs)
        return target(*args, **kwargs)


def _differentiate(key, tensors, sizes, gradients, random):
    again = Again.of(key)
    fall_back([("backward(create_graph=True)", "derivatives of derivatives are PyTorch's: the forward is run again in eager",
                _caller())])
    outputs = again.outputs(tensors, sizes, random)
    pairs = [(y, dy) for y, dy in zip(outputs, gradients) if dy is not None]
    wanted = [t for t in tensors if t.requires_grad]
    return list(torch.autograd.grad([y for y, _ in pairs], wanted, [dy for _, dy in pairs], create_graph=True,
                                    allow_unused=True, materialize_grads=True))


def _caller() -> str:
    """The user's line that called for a backward."""
    libraries = ("<", os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
    places = [f for f in traceback.extract_stack() if not f.filename.startswith(libraries)]
    return f"{places[-1].filename}:{places[-1].lineno}" if places else "a thread of PyTorch's"
