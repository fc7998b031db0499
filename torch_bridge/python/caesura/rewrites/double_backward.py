# SPDX-License-Identifier: Apache-2.0
"""Derivatives of derivatives: runs the captured graph again in eager to get gradients that can be differentiated."""

import contextlib
import itertools
import operator
import weakref

import torch

from caesura.rewrites.aliasing import plain_forward
from caesura.capture.compat import TorchDispatchMode, base, enable_python_dispatcher, version
from caesura.capture.decompositions import corrected
from caesura.reports import fall_back
from caesura.rewrites.fx_meta import devices_of, draws, is_tensor
from caesura.user_code import calling_line, is_users


class Again:
    """A captured graph that can be run in eager."""

    _known = weakref.WeakValueDictionary()  # by key; a torch.classes.caesura.Call keeps its own alive
    _keys = itertools.count()

    def __init__(self, module, facts, decompositions):
        """facts: of describe(); decompositions: a function that gives the captured graph's."""
        self.module, self.decompositions = module, decompositions
        self.is_tensor, self.mutated, self.taking = facts["is_tensor"], facts["mutated"], facts["taking"]
        self.random, self.refusal = facts["random"], facts["refusal"]
        self.autocast = [(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                         for device in facts["devices"]]
        self.key = next(self._keys)
        self._known[self.key] = self

    @classmethod
    def describe(cls, forward, metadata) -> dict:
        """forward: the captured graph's GraphProgram, metadata: what AOT autograd says of it."""
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
        return {
            "is_tensor": [is_tensor(n) for n in inputs],
            "mutated": mutated,
            "taking": taking,
            "random": "cpu" in drawing,
            "refusal": refusal,
            "devices": sorted({"cpu"} | {d.type for d in devices_of(inputs)}),
        }

    @classmethod
    def of(cls, key):
        return cls._known[key]

    def run(self, tensors, sizes, random):
        """(stand-ins for `tensors`, the graph's outputs). Gradients go to the stand-ins, so that an input which depends
        on another input does not pass its gradient on."""
        what = "create_graph=True" if torch.is_grad_enabled() else "is_grads_batched=True"
        if self.refusal:
            raise RuntimeError(f"caesura: {what} through a module {self.refusal}")
        fall_back([(f"backward({what})", "such derivatives are PyTorch's: the forward is run again in eager", _caller())])
        with torch.enable_grad(), contextlib.ExitStack() as casts, torch.random.fork_rng([], enabled=self.random):
            for device, enabled, dtype in self.autocast:
                casts.enter_context(torch.autocast(device, dtype, enabled))
            tensors = [t.view_as(t) if t.requires_grad else t for t in tensors]
            given, sizes = iter(tensors), iter(sizes)
            arguments = [next(given) if is_tensor else next(sizes) for is_tensor in self.is_tensor]
            for i in self.mutated:
                arguments[i] = arguments[i].clone()
            if not self.random:
                return tensors, plain_forward(self.module)(*arguments)
            torch.set_rng_state(random)
            with corrected, enable_python_dispatcher(), _Drawing(self.decompositions()):
                return tensors, plain_forward(self.module)(*arguments)


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
    """Gradients of those of `tensors` that require one, differentiable in turn if grad mode is on. A `dy` of None
    stands for no gradient."""
    pairs = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
    return list(torch.autograd.grad([y for y, _ in pairs], [t for t in tensors if t.requires_grad], [dy for _, dy in pairs],
                                    create_graph=torch.is_grad_enabled(), allow_unused=True, materialize_grads=True))


@torch.compiler.disable  # which sees it where a forward that it traces calls backward
def differentiate(key, tensors, sizes, gradients, random):
    """caesura::differentiate (captured_call.h)."""
    again = Again.of(key)
    tensors, results = again.run(tensors, sizes, random)
    return _gradients([results[i] for i in again.taking], gradients, tensors)


def _caller() -> str:
    """The user's line that called for a backward."""
    file, line, _ = calling_line()
    return f"{file}:{line}" if is_users(file) else "a thread of PyTorch's"


# --- graphs in AOT autograd's own wrappers --------------------------------------------------------------------------

def differentiable_again(compiled, module, forward, metadata, decompositions):
    """`compiled`, AOT autograd's callable for a graph of dynamo's, whose backward with create_graph=True is this one's."""
    if metadata.subclass_inp_meta and any(type(m).__name__ != "PlainTensorMeta" for m in metadata.subclass_inp_meta):
        return compiled
    if len(without_tokens(forward, metadata)[0]) != len(metadata.input_info):
        return compiled
    if any(metadata.input_info[i].requires_grad or metadata.input_info[i].mutates_metadata
           for i in metadata.mutated_inp_runtime_indices):
        return compiled  # an input that is changed has the new origin: what it was is gone
    again = Again(module, Again.describe(forward, metadata), decompositions)

    def run(*arguments):
        random = torch.get_rng_state() if again.random else None
        tensors = [t for t in arguments if isinstance(t, torch.Tensor)]
        given = origins(tensors)
        results = compiled(*arguments)
        node = node_of((*results, *tensors), given)
        if node is not None:
            sizes = [s for s in arguments if not isinstance(s, torch.Tensor)]
            node.register_hook(_Replacement(again, metadata, tensors, sizes, random))
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


class _Replacement:
    """A hook that runs after the graph's backward, and replaces its gradients with differentiable ones."""

    def __init__(self, again, metadata, tensors, sizes, random):
        self.again, self.metadata, self.tensors, self.sizes, self.random = again, metadata, tensors, sizes, random
        written = {id(tensors[sum(again.is_tensor[:i])]) for i in again.mutated}
        self.versions = [(t, version(t)) for t in tensors if id(t) not in written]

    @torch.compiler.disable  # as differentiate(): a capture of the graph that is run again would have a hook like this one
    def __call__(self, without, dys):
        if not torch.is_grad_enabled() or len(without) != len(self.tensors):
            return None
        if any(version(t) != before for t, before in self.versions):
            raise RuntimeError("caesura: create_graph=True, but one of the inputs that the forward is to be run again with has "
                               "been modified by an inplace operation")
        tensors, results = self.again.run(self.tensors, self.sizes, self.random)
        gradients = iter(_gradients(self._differentiated(results), dys, tensors))
        found = [next(gradients) if t.requires_grad else None for t in tensors]
        return tuple(None if was is None else dx for was, dx in zip(without, found, strict=True))

    def _differentiated(self, results):
        """The results that the graph's node takes gradients for: changed inputs, outputs, and the bases of outputs."""
        kinds = type(self.metadata.output_info[0].output_type)
        bases = [None] * self.metadata.num_intermediate_bases
        for result, info in zip(results, self.metadata.output_info):
            if info.output_type in (kinds.alias_of_intermediate, kinds.alias_of_intermediate_save_as_output):
                bases[info.base_idx] = base(result)
        return [None] * len(self.again.mutated) + list(results) + bases
