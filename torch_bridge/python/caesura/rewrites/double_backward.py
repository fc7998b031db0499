# SPDX-License-Identifier: Apache-2.0
"""Derivatives of derivatives: a captured graph's gradients as a function of its inputs, which can be captured and
differentiated in turn."""

import contextlib
import copy
import hashlib
import itertools
import operator
import uuid
import weakref
from typing import NamedTuple

import torch

from torch.nn.attention import SDPBackend, sdpa_kernel

from caesura.capture.compat import (APPLIES_FUNCTION, TorchDispatchMode, base, enable_python_dispatcher, set_grad_enabled, storage_id,
                                    version)
from caesura.capture.decompositions import corrected
from caesura.reports import fall_back
from caesura.rewrites.autograd_function import parts_of
from caesura.rewrites.fx_meta import describe, devices_of, draws, is_static, is_tensor
from caesura.user_code import calling_line, is_users

aten = torch.ops.aten


class Refused(Exception):
    """A graph's gradients cannot be captured; says why."""


class Again:
    """A captured graph whose gradients can be differentiated."""

    _known = weakref.WeakValueDictionary()  # by key; a torch.classes.caesura.Call keeps its own alive
    _keys = itertools.count()

    def __init__(self, module, facts, decompositions):
        """facts: of describe(); decompositions: a function that gives the captured graph's."""
        self.module, self.decompositions = module, decompositions
        self.is_tensor, self.mutated, self.taking = facts["is_tensor"], facts["mutated"], facts["taking"]
        self.random, self.refusal, self.sizes = facts["random"], facts["refusal"], facts["sizes"]
        self.numbers, self.saved = facts["numbers"], facts["saved"]
        self.autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                         for device in facts["devices"]]
        # self.problem: why derivatives would be wrong; self.refusal: why the forward cannot run again
        self.captured = {}  # calls that compute the gradients, by what is asked for (runtime/autograd_call.py)
        self.joined = []  # the Joined, by the numbers that C++ knows them by
        self.problem = _functions_problem(module) if isinstance(module, torch.fx.GraphModule) else None
        self.key = next(self._keys)
        self._known[self.key] = self

    @classmethod
    def describe(cls, forward, metadata, saved_numbers=(), numbers=()) -> dict:
        """forward: the captured graph's GraphProgram, metadata: what AOT autograd says of it. saved_numbers: of the values that
        it saves, as value_numbers() gives them; numbers: of its inputs, as it takes them."""
        inputs, results = without_tokens(forward, metadata)
        mutated = list(metadata.mutated_inp_runtime_indices)
        taking = [i for i, info in enumerate(metadata.output_info) if info.requires_grad_for_backward]
        made = results[len(mutated):metadata.num_forward]
        bases = made[len(metadata.output_info):]  # of outputs that are views
        drawing, refusal = {d.type for d in devices_of(n for n in forward.graph.nodes if draws(n))}, None
        if _reads_what_it_writes([inputs[i] for i in mutated], [made[i] for i in taking] + bases):
            refusal = "whose outputs depend on a buffer that it writes to"
        elif drawing - {"cpu"}:
            refusal = f"that draws random numbers on {min(drawing - {'cpu'})}"
        saved = results[metadata.num_forward:]
        if len(saved_numbers) != len(saved):  # complex ones became pairs, or nobody has numbered them
            saved_numbers = [None] * len(saved)
        return {
            "is_tensor": [is_tensor(n) for n in inputs],
            "mutated": mutated,
            "taking": taking,
            "random": "cpu" in drawing,
            "refusal": refusal,
            "devices": sorted({"cpu"} | {d.type for d in devices_of(inputs)}),
            # of the values that are saved beside inputs; None: unknown
            "saved": [number for n, number in zip(saved, saved_numbers) if is_tensor(n) and n not in inputs],
            "numbers": list(numbers),
            # by input: the dims whose sizes change; None if all sizes are fixed
            "sizes": None if all(map(_is_fixed, (*inputs, *saved))) else [_changing(n) for n in inputs],
        }

    @classmethod
    def of(cls, key):
        return cls._known[key]

    def taken(self, results) -> list:
        """Returns the graph's results that have incoming gradients."""
        return [results[i] for i in self.taking]

    def arguments(self, tensors, sizes) -> list:
        """The graph's inputs in their order."""
        given, sizes = iter(tensors), iter(sizes)
        return [next(given) if is_tensor else next(sizes) for is_tensor in self.is_tensor]

    def run(self, arguments):
        """The graph's outputs, with autograd on. Written inputs are left as they are."""
        arguments = list(arguments)
        for i in self.mutated:
            arguments[i] = arguments[i].clone()
        with torch.enable_grad(), contextlib.ExitStack() as casts:
            for device, enabled, dtype in self.autocast:
                casts.enter_context(torch.autocast(device, dtype, enabled))
            if not isinstance(self.module, torch.fx.GraphModule):
                return self.module.forward(*arguments)
            with torch.fx.traceback.preserve_node_meta(), sdpa_kernel(SDPBackend.MATH):  # the fast ones have no second derivative
                return _Run(self.module).run(*arguments)

    def gradients(self, tensors, sizes, dys, random, wanted, before, before_given, reason):
        """The gradients of `tensors` at the positions `wanted`, in eager; `reason`: why they are not captured. Differentiable in turn
        if grad mode is on. `dys` are the gradients of taken(), None for those that have none; before, before_given: as outputs() takes
        them."""
        what = "create_graph=True" if torch.is_grad_enabled() else "is_grads_batched=True"
        if self.refusal or self.problem:
            raise RuntimeError(f"caesura: {what} through a module {self.refusal or self.problem}")
        fall_back([(f"backward({what})", f"the forward is run again in eager: {reason}: take the derivative within the module's "
                    "forward, or in the loss of compile_step()", _caller())])
        # Gradients go to stand-ins, so that an input which depends on another input does not pass its gradient on.
        with torch.enable_grad():
            tensors = [t.view_as(t) if t.requires_grad else t for t in tensors]
        arguments = self.arguments(tensors, sizes)
        if not self.random:
            return _gradients(self.outputs(arguments, before, before_given), dys, [tensors[i] for i in wanted])
        with torch.random.fork_rng([]):
            torch.set_rng_state(random)
            with corrected, enable_python_dispatcher(), _Drawing(self.decompositions()):
                outputs = self.outputs(arguments, before, before_given)
        return _gradients(outputs, dys, [tensors[i] for i in wanted])

    def outputs(self, arguments, before, before_given):
        """Returns all that has incoming gradients: taken(), and what has joined it. before: as joined_before() gives it; before_given:
        an iterator over the tensors that each was given, and what it has kept."""
        outputs, given = [self.taken(self.run(arguments))], iter(before_given)
        tensors = [value for value, yes in zip(arguments, self.is_tensor) if yes]
        for joined, reads in before:
            read = [y for i in (0, *(1 + place for place in reads)) for y in outputs[i]]
            dys = [next(given) if yes else None for yes in joined.given]
            for _ in joined.kept:
                next(given)
            with torch.enable_grad():
                outputs.append(_gradients(read, dys, [tensors[i] for i in joined.wanted]))
        return [y for block in outputs for y in block]

    def joined_before(self, before) -> list:
        """(Joined, the places in this list of those that it was made from), of numbers as C++ gives them."""
        found, numbers = [], iter(before)
        for number in numbers:
            found.append((self.joined[number], tuple(next(numbers) for _ in range(next(numbers)))))
        return found


class Joined(NamedTuple):
    """Gradients that are further outputs of a graph (captured_call.h)."""

    wanted: tuple  # positions of the tensors that they are of
    given: tuple  # for each output before, whether it has a gradient
    kept: list  # value_numbers() of the values that are kept
    facts: list  # whether each is differentiable, and the rows that say by which tensors


class _Run(torch.fx.Interpreter):
    """A run of Dynamo's graph, in which the values that an autograd.Function has saved keep their origin."""

    def call_function(self, target, args, kwargs):
        if APPLIES_FUNCTION not in str(target):
            return super().call_function(target, args, kwargs)
        return _apply(*args, **kwargs)


class _RunRecorded(torch.fx.Interpreter):
    """A run of a Function's backward in the mode of its caller. Dynamo has traced it with autograd off."""

    def call_function(self, target, args, kwargs):
        return None if target is set_grad_enabled else super().call_function(target, args, kwargs)


def _functions_problem(module):
    """Why the autograd.Functions in Dynamo's graph have no derivatives of derivatives; or None."""
    (first, *inner) = parts_of(module)
    applied = [n for n in first.graph.nodes if APPLIES_FUNCTION in str(n.target)]
    if any(APPLIES_FUNCTION in str(n.target) for part in inner for n in part.graph.nodes):
        return "with an autograd.Function within another one or within a checkpoint"
    backwards = [getattr(module, n.args[1].target) for n in applied]
    if any(len(body.graph.find_nodes(op="call_function", target=set_grad_enabled)) > 2 for body in backwards):
        return "with an autograd.Function whose backward switches autograd on"
    return None


def _apply(forward, backward, *arguments, non_differentiable_idx=(), dirty_idx=(), **_):
    """Calls an autograd.Function that Dynamo has captured as two graphs. PyTorch's own call of them loses where saved inputs and
    results come from."""
    class Apply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            results, saved = torch.fx.Interpreter(forward).run(*given)
            rows = results if isinstance(results, (tuple, list)) else [results]
            ctx.mark_non_differentiable(*(rows[i] for i in non_differentiable_idx))
            ctx.mark_dirty(*(rows[i] for i in dirty_idx))
            ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in saved))
            ctx.others = [None if isinstance(value, torch.Tensor) else value for value in saved]
            return results

        @staticmethod
        def backward(ctx, *dys):
            saved = [other if value is None else value for value, other in zip(ctx.saved_tensors, ctx.others)]
            return _RunRecorded(backward).run(*dys, *saved)

    return Apply.apply(*arguments)


def _is_fixed(node) -> bool:
    return not isinstance(node, torch.fx.Node) or is_tensor(node) and is_static(node.meta["val"].shape)


def _changing(node) -> list:
    return [i for i, d in enumerate(node.meta["val"].shape) if not isinstance(d, int)] if is_tensor(node) else []


class Gradients(torch.nn.Module):
    """The function of a graph's inputs, of its outputs' gradients, and of the values that it has saved, which gives the gradients of
    some inputs: a captured graph in turn.

    It computes the forward, too. take_saved() replaces that by the values that were saved."""

    def __init__(self, again, wanted, given, before, differs):
        """wanted: positions among the tensors. given: for each of again.outputs(), whether it has a gradient. before: as
        again.joined_before() gives it. differs: whether the gradients are differentiable."""
        super().__init__()
        self.again, self.wanted, self.given, self.before, self.differs = copy.copy(again), wanted, given, before, differs
        self.again.captured, self.again.joined = {}, []  # which would hold this
        self.leaves = {*wanted, *(i for joined, _ in before for i in joined.wanted)}

    def __call__(self, *arguments):  # without hooks
        return self.forward(*arguments)

    def names(self, of=None) -> list:
        """Texts for the arguments, as value_numbers() takes them, None for values that were saved. of: a place in `before`; the names are
        then those that its own capture has used, and others for what it was not given."""
        again, count = self.again, len(self.again.is_tensor)
        names = [again.numbers[i] if i < len(again.numbers) else f"input {i}" for i in range(count)]
        reads = range(len(self.before)) if of is None else self.before[of][1]
        places = {j: i for i, j in enumerate((*reads, len(self.before) if of is None else of))}
        for j, (given, kept) in enumerate([*((joined.given, joined.kept) for joined, _ in self.before), (self.given, ())]):
            names += [f"gradient {k} of {count}, {places.get(j, f'not of {of}')}" for k, yes in enumerate(given) if yes]
            names += [None] * len(kept)
        return names + [None] * len(again.saved)

    def take_saved(self, graph, written=()):
        """Lets the calls in a graph of this function read the values that were saved, and removes calls that nothing reads then. Returns
        the names of all arguments. Raises Refused if random numbers are still to be drawn, or if an input at a position of `written` is
        read."""
        inputs, names = graph.find_nodes(op="placeholder"), self.names()
        numbers = value_numbers(graph, names)
        first = len(self.again.is_tensor)
        for place, (joined, _) in enumerate(self.before):
            first += sum(joined.given)
            if joined.kept:
                _replace(graph, value_numbers(graph, self.names(place)), zip(joined.kept, range(first, len(names))), numbers, names)
            first += len(joined.kept)
        _replace(graph, numbers, zip(self.again.saved, range(len(names) - len(self.again.saved), len(names))), numbers, names)
        for node in reversed(graph.nodes):
            if node.op == "call_function" and not node.users:
                graph.erase_node(node)
        if any(inputs[i].users for i in written):
            raise Refused("its outputs depend on a buffer that it writes to")
        drawing = next((n for n in graph.nodes if draws(n)), None)
        if drawing is not None:
            raise Refused(f"the forward's random numbers are not among what it has saved ({describe(drawing)})")
        return names

    def forward(self, *arguments):
        again = self.again
        count, rest = len(again.is_tensor), iter(arguments)
        own = [next(rest) for _ in range(count)]
        tensors = [t for t, yes in zip(own, again.is_tensor) if yes]
        for i, t in enumerate(tensors):
            if t.requires_grad and not self.differs or i in self.leaves and not t.requires_grad:
                tensors[i] = t.detach().requires_grad_()
        sizes = [value for value, yes in zip(own, again.is_tensor) if not yes]
        outputs = again.outputs(again.arguments(tensors, sizes), self.before, rest)
        dys = [next(rest) if yes else None for yes in self.given]
        with torch.set_grad_enabled(self.differs):
            found = _gradients(outputs, dys, [tensors[i] for i in self.wanted])
        memory = {storage_id(t) for t in arguments if isinstance(t, torch.Tensor)}
        for i, gradient in enumerate(found):  # results of their own
            if storage_id(gradient) in memory:
                found[i] = gradient.clone()
            memory.add(storage_id(found[i]))
        return found


def _replace(graph, numbers, saved, all_numbers, names):
    """Replaces the calls in a graph by the inputs that hold their results. numbers: those of the calls; saved: (number, position of the
    input) each. Notes the names of those inputs, by `all_numbers`."""
    inputs, positions = graph.find_nodes(op="placeholder"), {number: i for number, i in saved if number}
    for node in graph.nodes:
        position = positions.get(numbers.get(node))
        if position is None or node.op != "call_function" or not is_tensor(node):
            continue
        held = inputs[position]
        if held.meta["val"].dtype != node.meta["val"].dtype or held.meta["val"].dim() != node.meta["val"].dim():
            continue
        if names[position] is None:  # the memory that views of it are views of
            names[position] = all_numbers[node]
            held.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(held, delete_user_cb=lambda user: user.op != "output")


def value_numbers(graph, given=()) -> dict:
    """A text for each node of a graph of ATen calls: two nodes that compute the same from the inputs have the same, also in two graphs.
    given: texts of the inputs, None for those that no other graph knows."""
    numbers, other = {}, uuid.uuid4().hex
    given, drawn = dict(enumerate(given)), 0
    for i, node in enumerate(graph.find_nodes(op="placeholder")):
        numbers[node] = (given.get(i) or f"{other} {i}") if given else f"input {i}"
    for node in graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default):
            numbers[node] = numbers[node.args[0]]
        elif node.op not in ("placeholder", "output"):
            text = f"{node.target} {torch.fx.map_arg((node.args, node.kwargs), numbers.__getitem__)}"
            if node.op == "get_attr":
                text = f"{text} {other}"
            if draws(node):
                text, drawn = f"{text} {drawn}", drawn + 1
            numbers[node] = hashlib.sha256(text.encode()).hexdigest()
    return numbers


def without_tokens(forward, metadata) -> tuple:
    """(The inputs, the results) of a graph without the tokens that keep calls with side effects in order. They come first, and
    only the graph itself has them: AOT autograd adds and removes them around it."""
    first = len(metadata.tokens)
    return forward.placeholders[first:], forward.results[first:]


def _reads_what_it_writes(mutated, outputs) -> bool:
    """True if the outputs depend on old values of the inputs `mutated`, which the graph overwrites."""
    seen = {n for n in outputs if isinstance(n, torch.fx.Node)}
    reached = list(seen)
    while reached:
        new = [n for n in _sources(reached.pop()) if isinstance(n, torch.fx.Node) and n not in seen]
        seen.update(new)
        reached += new
    return not seen.isdisjoint(mutated)


def _sources(node):
    """The nodes that a node's value depends on. Only the new statistics of a batch norm depend on the old ones."""
    norm = torch.ops.aten._native_batch_norm_legit_functional.default
    if node.target is operator.getitem and getattr(node.args[0], "target", None) == norm:
        return node.args[0].all_input_nodes if node.args[1] > 2 or not node.args[0].args[5] else node.args[0].args[:3]
    return node.all_input_nodes


class _Drawing(TorchDispatchMode):
    """Draws random numbers as the captured graph does: decomposes the same calls, below autograd."""

    def __init__(self, decompositions):
        super().__init__()
        self.decompositions = decompositions

    def __torch_dispatch__(self, target, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in target.tags and target in self.decompositions:
            with self:
                return self.decompositions[target](*args, **kwargs)
        return target(*args, **kwargs)


def _gradients(ys, dys, tensors):
    """The gradients of `tensors`, differentiable in turn if grad mode is on. A `dy` of None stands for no gradient."""
    pairs = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
    return list(torch.autograd.grad([y for y, _ in pairs], tensors, [dy for _, dy in pairs],
                                    create_graph=torch.is_grad_enabled(), allow_unused=True, materialize_grads=True))


def _caller() -> str:
    """The user's line that called for a backward."""
    file, line, _ = calling_line()
    return f"{file}:{line}" if is_users(file) else "a thread of PyTorch's"


# --- graphs in AOT autograd's own wrappers --------------------------------------------------------------------------

def differentiable_again(compiled, module, forward, metadata, decompositions, differentiate):
    """`compiled`, AOT autograd's callable for a graph of dynamo's, whose backward with create_graph=True is this one's.
    differentiate: gives the gradients (runtime/autograd_call.py)."""
    if metadata.subclass_inp_meta and any(type(m).__name__ != "PlainTensorMeta" for m in metadata.subclass_inp_meta):
        return compiled
    if len(without_tokens(forward, metadata)[0]) != len(metadata.input_info):
        return compiled
    if any(metadata.input_info[i].requires_grad or metadata.input_info[i].mutates_metadata
           for i in metadata.mutated_inp_runtime_indices):
        return compiled  # an input that is changed has the new origin: what it was is gone
    again = _AgainByAot(module, Again.describe(forward, metadata), decompositions)
    again.metadata, again.saved = metadata, []  # which the node does not hand out

    def run(*arguments):
        random = torch.get_rng_state() if again.random else None
        tensors = [t for t in arguments if isinstance(t, torch.Tensor)]
        given = origins(tensors)
        results = compiled(*arguments)
        node = node_of((*results, *tensors), given)
        if node is not None:
            sizes = [s for s in arguments if not isinstance(s, torch.Tensor)]
            node.register_hook(_Replacement(again, tensors, sizes, random, differentiate))
        return results

    return run


def origins(tensors) -> set:
    """The autograd nodes that the tensors come from. A tensor that a graph writes to has another one after the call."""
    return {t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None}


def node_of(results, given):
    """The autograd node of the graph that made the results; None if there is none. Some results are views of others, or what the graph
    wrote to. given: the origins() of what the graph was given, from before the call."""
    seen = set(given)
    reached = [r.grad_fn for r in results if isinstance(r, torch.Tensor)]
    while reached:
        node = reached.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CompiledFunctionBackward":
            return node
        seen.add(node)
        reached += [source for source, _ in node.next_functions]
    return None


class _AgainByAot(Again):
    """A captured graph whose autograd node is AOT autograd's."""

    def taken(self, results):
        """The node takes gradients for changed inputs, outputs, and the bases of outputs."""
        kinds = type(self.metadata.output_info[0].output_type)
        bases = [None] * self.metadata.num_intermediate_bases
        for result, info in zip(results, self.metadata.output_info):
            if info.output_type in (kinds.alias_of_intermediate, kinds.alias_of_intermediate_save_as_output):
                bases[info.base_idx] = base(result)
        return [None] * len(self.mutated) + list(results) + bases


class _Replacement:
    """A hook that runs after the graph's backward, and replaces its gradients with differentiable ones."""

    def __init__(self, again, tensors, sizes, random, differentiate):
        self.again, self.sizes, self.random, self.differentiate = again, sizes, random, differentiate
        written = {sum(again.is_tensor[:i]) for i in again.mutated}
        self.tensors = [t.data if i in written else t for i, t in enumerate(tensors)]  # whose versions do not count
        self.versions = [(t, version(t)) for i, t in enumerate(tensors) if i not in written]

    @torch.compiler.disable  # a capture of the graph that is run again would have a hook like this one
    def __call__(self, without, dys):
        if not torch.is_grad_enabled() or len(without) != len(self.tensors):
            return None
        if any(version(t) != before for t, before in self.versions):
            raise RuntimeError("caesura: create_graph=True, but one of the inputs that the forward is to be run again with has "
                               "been modified by an inplace operation")
        wanted = [i for i, (t, was) in enumerate(zip(self.tensors, without)) if t.requires_grad and was is not None]
        found, *_ = self.differentiate(self.again, self.tensors, self.sizes, dys, self.random, [], wanted, (), (), False)
        replaced = [None] * len(without)
        for i, dx in zip(wanted, found, strict=True):
            replaced[i] = dx
        return tuple(replaced)
