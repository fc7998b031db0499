# SPDX-License-Identifier: Apache-2.0
"""Runs a captured graph of ATen calls: programs on our kernels if possible, the other calls one by one in PyTorch."""

import functools
import math
import operator
import time
from collections import defaultdict
from typing import NamedTuple

import torch

from caesura import _core
from caesura.capture.compat import is_view, optimization_hint
from caesura.capture.rng_inputs import DRAWS, drawer
from caesura.lowering import Refused, TABLE, import_graph
from caesura.lowering.importer import Importer
from caesura.lowering.onnx_builder import Tensor, make_model
from caesura.lowering.ops.exchange import is_exchange
from caesura.reports import RECORD, fall_back
from caesura.rewrites.complex_numbers import has_complex
from caesura.rewrites.draws import EMPTY, draw_early, why_drawn
from caesura.rewrites.dropout import take_dropouts_apart
from caesura.rewrites.fx_meta import describe, devices_of, draws, is_symbolic, is_tensor, makes_view, storage_of
from caesura.rewrites.gpu_attention import IN_PARTS
from caesura.rewrites.layout import lay_arguments
from caesura.runtime.gpu import CPU, open_gpu

aten = torch.ops.aten

# Views that a program, too, makes at no cost, unless another reader sees their base.
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
             aten.squeeze.dim, aten.squeeze.dims}
# Numbers that are eager's own by design, which PyTorch's generator gives; they depend on shapes only.
_GENERATED = DRAWS | {aten.native_dropout.default}
# The order of the steps of a level.
_ORDER = {"size": 0, "eager": 1, "program": 2}
# Checks of values, which compute nothing.
_CHECKS = {aten._assert_scalar.default, aten._assert_async.default, aten._assert_async.msg, aten._assert_tensor_metadata.default}
_UNCOUNTED = {*_CHECKS, *EMPTY, operator.getitem}
# A backward hands out gradients of at least this many bytes at a time: DistributedDataParallel's first, smallest bucket.
_PART = 1 << 20
# Results of ours are dense, where PyTorch's own may have had the strides for a view.
_AS = {aten.view.default: aten.reshape.default, aten._unsafe_view.default: aten.reshape.default}


class Program:
    """ATen calls that run as one plan of caesura's executor.

    Called with tensors and ints in the order of `inputs`, gives tensors in the order of `outputs` (FX nodes both).
    """

    def __init__(self, parts, inputs, constants, phase, gpu):
        """parts: that it runs in, with a yield after each but the last one. gpu: that it runs on; None: the CPU."""
        self.parts, self.inputs, self.gpu = parts, inputs, gpu
        self.nodes = [n for part in parts for n in part.nodes]
        self.outputs = [n for part in parts for n in part.outputs]
        yields = [(part.nodes[-1], part.outputs, part.released) for part in parts[:-1]]
        self.model = import_graph(self.nodes, inputs, parts[-1].outputs, constants, phase, yields)

    @functools.cached_property
    def _program(self):
        return _core.Program(self.model.SerializeToString(), 0, self.gpu)

    def __call__(self, values):
        return self._program.run(values)

    def plan(self, values):
        """(text, arena bytes) of the plan that these inputs get."""
        return self._program.plan(values)


class Part(NamedTuple):
    """A part of a program: its nodes, those that it hands out, and the program's inputs that nobody reads after it and
    that may then be overwritten."""

    nodes: list
    outputs: list
    released: list


class GraphProgram:
    """Runs an FX graph of ATen calls (functional, shapes known from its metadata).

    Nodes are sorted into levels. No call of PyTorch's stands between the supported calls of a level, so that they are
    one program. Programs run on one device; calls on others are PyTorch's. Thread safety: calls from several threads at
    the same time are independent.

    A backward is cut into parts: after each, the results that are then ready can be handed out, and whoever gets them may
    write to them and to the tensors that they are the gradients of. `parts` has the part of each result.
    """

    def __init__(self, module: torch.fx.GraphModule, phase: str = "", sources=(), device=CPU):
        """phase: as import_graph() takes it. sources: of a backward, the inputs of the forward (nodes of its graph) that
        the results are the gradients of, in order. device: whose kernels run, the CPU's or a GPU's (gpu.open_gpu)."""
        self.graph, self.phase, self.device = module.graph, phase, device
        self.gpu = None if device == CPU else open_gpu(device)[0]
        take_dropouts_apart(self.graph)
        draw_early(self.graph)
        _cancel_transposes(self.graph)
        lay_arguments(self.graph, past_views=True)  # what is left is of the caller's tensors, which PyTorch looks at
        self.constants = {n: _attribute(module, n.target) for n in self.graph.nodes if n.op == "get_attr"}
        self.placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.results = list(next(n for n in self.graph.nodes if n.op == "output").args[0])
        self._sources, self._touching = {}, {}
        if len(sources) == len(self.results):
            self._find_touching(sources)
        self.problems = []  # what is left to PyTorch: (op, reason, place)
        self._kernels, self._problems = _core.Kernels(self.gpu), {}
        self.supported = self._find_supported(self.problems)
        self.steps = None
        while self.steps is None:
            try:
                self.steps = self._schedule()
            except Refused as error:  # the call is supported by itself, but not in one program with its inputs
                if error.node not in self.supported:
                    raise
                self.supported -= {error.node, *(n for n in error.node.users if n.target is operator.getitem)}
                self.problems.append((str(error.node.target), str(error), describe(error.node)))
        fall_back(self.problems)

    # --- what runs where ---

    def _find_supported(self, problems):
        """The calls that our ops have an equivalent for; each is tried by itself."""
        supported, away = set(), {}
        for node in self.graph.nodes:
            if node.op != "call_function" or is_symbolic(node) or node.target in EMPTY:
                continue
            if node.target is operator.getitem:
                if node.args[0] in supported:
                    supported.add(node)
                continue
            devices = devices_of([node, *node.all_input_nodes])
            if not devices <= {self.device}:
                if _is_told(node) and not (is_tensor(node) and 0 in node.meta["val"].shape):  # which takes no computing
                    away.setdefault(min(devices - {self.device}, key=str), node)
                continue
            reason = self._refusal(node)
            if reason is None:
                supported.add(node)
            elif _is_told(node) and not is_exchange(node):  # the process group exchanges
                reason = why_drawn(node) if draws(node) else reason
                problems.append((str(node.target), reason, describe(node)))
        for device, node in away.items():
            why = "" if device == CPU else open_gpu(device)[1]
            problems.append((f"all calls on {device}", why or f"the graph's kernels are those of {self.device}", describe(node)))
        return supported

    def _refusal(self, node):
        if has_complex(node):
            return "complex numbers have no kernels"
        if node.target not in TABLE:
            return "no equivalent in ONNX ops"
        importer = Importer(self.constants)
        try:
            for i, argument in enumerate(node.all_input_nodes):
                if argument.op != "get_attr":
                    importer.bind(argument, f"i{i}")
            importer.know_shapes()
            importer.write(node)
        except Refused as error:
            return str(error)
        return self._problem(importer, node)

    def _problem(self, importer, node):
        """Why the ops that the importer has written for the call cannot be planned (a dtype without a kernel); or None."""
        writer, made = importer.writer, importer.values[node]
        outputs = [value for value in (made if isinstance(made, tuple) else (made,)) if isinstance(value, Tensor)]
        inputs = [importer.values[n] for n in node.all_input_nodes if n.op != "get_attr"]
        key = (tuple((n.op_type, n.domain, *(a.SerializeToString() for a in n.attribute)) for n in writer.nodes),
               tuple((value.dtype, value.rank) if isinstance(value, Tensor) else None for value in inputs),
               tuple(t.data_type for t in writer.initializers))
        if key not in self._problems:
            outputs = [Tensor(writer.op("Identity", [value]), value.dtype, value.shape) for value in outputs]
            model = make_model(writer, inputs, outputs).SerializeToString()
            sizes = [[_size(d) for d in value.shape] if isinstance(value, Tensor) else
                     [] if value.dtype == torch.float64 else _size(value.symbol) for value in inputs]
            self._problems[key] = " ".join(self._kernels.problem(model, sizes).split()) or None
        return self._problems[key]

    # --- the order of things ---

    def _schedule(self):
        level, kind, drawn = {}, {}, 0
        for node in self.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            kind[node] = "size" if is_symbolic(node) else "program" if node in self.supported else "eager"
            level[node] = 0
            for source in node.all_input_nodes:
                if source in kind:
                    level[node] = max(level[node], level[source] + (_ORDER[kind[source]] > _ORDER[kind[node]]))
            if draws(node):  # PyTorch's generator is asked in the graph's order
                drawn = level[node] = max(level[node], drawn)
        needed = self._needed_outside(level, kind)
        steps = []
        for number in range(max(level.values(), default=-1) + 1):
            here = [n for n in self.graph.nodes if level.get(n) == number]
            steps += [CallStep(n) for n in here if kind[n] == "size" and n.target is not operator.getitem]
            steps += [CallStep(n) for n in here if kind[n] == "eager"]
            steps += self._program_steps([n for n in here if kind[n] == "program"], needed)
        return self._with_releases(self._cut(steps))

    def _needed_outside(self, level, kind):
        """Nodes of programs that another step or the caller reads."""
        needed = {n for n in self.results if isinstance(n, torch.fx.Node)}
        for node in level:
            for source in node.all_input_nodes:
                if kind.get(source) != "program" or (kind[node] == "program" and level[node] == level[source]):
                    continue
                if kind[node] == "program":  # which makes the view again
                    while self._is_view(source):
                        source = source.args[0]
                needed.add(source)
        return needed

    def _is_view(self, node):
        return node in self.supported and makes_view(node)

    def _with_views(self, nodes, inside):
        """`nodes` and the views that they read from other levels, in order. A program takes dense inputs, so it would
        copy a view that PyTorch made in each run."""
        views = set()
        for node in nodes:
            reads = [s for s in node.all_input_nodes if s not in inside]
            while reads:
                source = reads.pop()
                if self._is_view(source) and source not in views:
                    views.add(source)
                    reads += source.all_input_nodes
        if not views:
            return nodes
        views.update(nodes)
        return [n for n in self.graph.nodes if n in views]

    def _program_steps(self, nodes, needed):
        """The program of one level, and the views that PyTorch makes from its results."""
        inside, views, outputs = set(nodes), [], []

        def is_reshaped(node):
            source = node.args[0]
            return node.target in _RESHAPES and source in inside and len(source.users) == 1 and (
                not makes_view(source) or is_reshaped(source))

        def laid(node):
            """The layout of a result, or of a view that PyTorch would make of it, as a tensor without memory."""
            value = node.meta["val"]
            if node not in inside or not makes_view(node) or is_reshaped(node):
                return torch.empty([_size(d) for d in value.shape], dtype=value.dtype, device="meta")
            arguments = torch.fx.map_arg(node.args, lambda n: _size(n.meta["val"]) if is_symbolic(n) else laid(n))
            return _AS.get(node.target, node.target)(*arguments, **node.kwargs)

        def is_copied(node):
            """True if PyTorch could make the node from our results only by a copy."""
            with torch.inference_mode(False):  # in it no tensor says that it is a view
                return node.target in _AS and not is_view(laid(node))

        def provide(node):
            """Makes `node` a result of the program, or, if it is a view, its base."""
            if node in views or node in outputs:
                return
            if node not in inside:
                if self._is_view(node) and node not in needed:  # an earlier level's, which it has made for nobody
                    provide(node.args[0])
                    views.append(node)
                return
            if makes_view(node) and not is_reshaped(node) and not is_copied(node):
                provide(node.args[0])
                views.append(node)
            else:
                outputs.append(node)

        for node in nodes:
            if node in needed:
                provide(node)
        if not outputs:  # nothing but views
            return [CallStep(n) for n in views]
        used = self._with_views(self._reaching(nodes, outputs), inside)
        made = set(used)
        inputs = list(dict.fromkeys(s for n in used for s in n.all_input_nodes if s not in made and s.op != "get_attr"))
        program = Program(self._parts(used, inputs, outputs), inputs, self.constants, self.phase, self.gpu)
        part_of = {n: i for i, part in enumerate(program.parts) for n in part.outputs}
        for view in views:
            part_of[view] = max((part_of.get(n, 0) for n in view.all_input_nodes), default=0)
        return [step for i in range(len(program.parts))
                for step in (RunStep(program, i), *(CallStep(n) for n in views if part_of[n] == i))]

    @staticmethod
    def _reaching(nodes, outputs):
        """The members of `nodes`, in order, that `outputs` depend on."""
        wanted = set(outputs)
        for node in reversed(nodes):
            if node in wanted:
                wanted.update(s for s in node.all_input_nodes)
        return [n for n in nodes if n in wanted]

    def _with_releases(self, steps):
        """(step, nodes that nobody reads after it) for each step."""
        kept = {n for n in self.results if isinstance(n, torch.fx.Node)}
        out, seen = [], set(kept)
        for step in reversed(steps):
            last = [n for n in step.reads if n not in seen and n.op != "get_attr"]
            unread = [n for n in step.writes if n not in seen]
            seen.update(last)
            seen.update(unread)
            out.append((step, list(dict.fromkeys(last + unread))))
        return out[::-1]

    # --- parts of a backward ---

    def _find_touching(self, sources):
        """Finds, for the memory of each result, the memory of the tensors that it is a gradient of (`_sources`), and the
        calls that make or read either, or a view of them (`_touching`)."""
        calls = defaultdict(list)
        for node in self.graph.nodes:
            for storage in {storage_of(n) for n in (node, *node.all_input_nodes)}:
                calls[storage].append(node)
        self._sources = defaultdict(set)
        for result, source in zip(self.results, sources, strict=True):
            if isinstance(result, torch.fx.Node) and storage_of(result) is not None:
                self._sources[storage_of(result)] |= {storage_of(source)} - {None}
        self._touching = {result: [node for s in {result, *sources} for node in calls[s]]
                          for result, sources in self._sources.items()}

    def _ready(self, node, positions, end):
        """The last of the positions (a dict by nodes) at which the memory of the node is touched, -1 if none of them touches it;
        `end` for no result, and for a sparse one: whose memory it shares is unknown."""
        touching = self._touching.get(storage_of(node))
        return end if touching is None else max((positions[n] for n in touching if n in positions), default=-1)

    def _parts(self, nodes, inputs, outputs):
        """The parts of a program, which hand out about _PART bytes of results each."""
        positions = {n: i for i, n in enumerate(nodes)}
        ready = {n: self._ready(n, positions, len(nodes)) for n in outputs}
        parts, begin, handed, size = [], 0, [], 0
        outputs = sorted(outputs, key=ready.__getitem__)
        for i, node in enumerate(outputs):
            handed.append(node)
            size += _bytes(node)
            if size < _PART or i + 1 == len(outputs) or ready[node] in (ready[outputs[i + 1]], len(nodes)):
                continue
            sources = {s for n in handed for s in self._sources.get(storage_of(n), ())}
            released = [n for n in inputs if storage_of(n) in sources]
            parts.append(Part(nodes[begin:ready[node] + 1], handed, released))
            begin, handed, size = ready[node] + 1, [], 0
        return [*parts, Part(nodes[begin:], handed, [])]

    def _cut(self, steps):
        """Adds a cut wherever enough results are ready; fills `parts`."""
        positions = {n: i for i, step in enumerate(steps) for n in step.nodes}
        ready = [self._ready(r, positions, len(steps)) if isinstance(r, torch.fx.Node) else -1 for r in self.results]
        self.parts = [None] * len(ready)
        out, part = [], 0
        for i, step in enumerate(steps):
            here = [k for k, at in enumerate(ready) if self.parts[k] is None and at < i]
            if step.counts and len(here) < self.parts.count(None) and sum(_bytes(self.results[k]) for k in here) >= _PART:
                for k in here:
                    self.parts[k] = part
                out.append(Cut())
                part += 1
            out.append(step)
        self.parts = [part if p is None else p for p in self.parts]
        return out

    # --- the run ---

    def __call__(self, *arguments):
        return self.run(list(arguments))

    def run(self, arguments: list):
        """Takes the arguments out of the list, so that they are freed when nothing reads them any more."""
        values = dict(zip(self.placeholders, arguments))
        values.update(self.constants)
        arguments.clear()
        for step, release in self.steps:
            step(values)
            for node in release:
                values.pop(node, None)
        return [values[r] if isinstance(r, torch.fx.Node) else r for r in self.results]

    @property
    def programs(self):
        """The programs in it."""
        return [step.program for step, _ in self.steps if isinstance(step, RunStep) and step.part == 0]


def _cancel_transposes(graph: torch.fx.Graph) -> None:
    """A transposed transpose is what it was."""
    for node in list(graph.nodes):
        source = node.args[0] if node.target == aten.t.default else None
        if source is not None and source.target == aten.t.default and source.args[0].op == "call_function":
            node.replace_all_uses_with(source.args[0])
            graph.erase_node(node)
            if not source.users:
                graph.erase_node(source)


class Cut:
    """Stands where a backward may stop and hand out results. In Python it does not."""

    reads, writes, nodes, counts = (), (), (), False

    def __call__(self, values):
        pass


class RunStep:
    """A step that runs a part of a program. In Python, the first part's step runs the whole program."""

    counts = True

    def __init__(self, program: Program, part: int):
        self.program, self.part = program, part
        self.nodes, self.writes = program.parts[part].nodes, program.parts[part].outputs
        self.reads = [] if part else program.inputs

    def __call__(self, values):
        if self.part:
            return
        began = time.perf_counter()
        results = self.program([as_scalar(values[n]) for n in self.reads])
        values.update(zip(self.program.outputs, results))
        RECORD.kernel_seconds += time.perf_counter() - began
        RECORD.kernel_calls += 1


class CallStep:
    """A step that makes one call in PyTorch: a size, a view, or a call without a kernel of ours."""

    def __init__(self, node: torch.fx.Node):
        self.node, self.reads, self.writes, self.nodes = node, node.all_input_nodes, [node], [node]
        self.target = drawer(_AS.get(node.target, node.target))
        if self.target in IN_PARTS and devices_of([node]) != {CPU}:
            self.target = IN_PARTS[self.target]
        self.counts = not (is_symbolic(node) or node.target in _UNCOUNTED or makes_view(node) or is_exchange(node))

    def __call__(self, values):
        began = time.perf_counter()
        fetch = values.__getitem__
        arguments = torch.fx.map_arg(self.node.args, fetch)
        values[self.node] = self.target(*arguments, **torch.fx.map_arg(self.node.kwargs, fetch))
        if self.counts:
            RECORD.eager_seconds += time.perf_counter() - began
            RECORD.eager_calls += 1


def _is_told(node) -> bool:
    """True if it is a fallback where PyTorch makes the call."""
    return node.target not in _UNCOUNTED and node.target not in _GENERATED and not makes_view(node)


def as_scalar(value):
    """A value as programs take it: a float, which no shape depends on, becomes a tensor."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value


def _bytes(node) -> int:
    """The bytes of a result that is a tensor; 0 for any other."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return math.prod(map(_size, value.shape)) * value.itemsize if isinstance(value, torch.Tensor) else 0


def _size(dim) -> int:
    """A size as it was when the graph was captured; for what is known only at run time, 2."""
    return dim if isinstance(dim, int) else optimization_hint(dim, 2) or 2


def _attribute(module, path: str):
    for part in path.split("."):
        module = getattr(module, part)
    return module
