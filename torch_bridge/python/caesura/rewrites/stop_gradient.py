# SPDX-License-Identifier: Apache-2.0
"""Stops gradients where a forward that our rules differentiate does (no_grad, inference_mode, `.data`).

Dynamo's tensors show these places, but AOTAutograd's trace loses them. So calls are marked in Dynamo's graph, and
gradients are stopped in the trace.
"""

import functools
import inspect
import logging

import torch

from caesura.capture.compat import is_functorch_wrapped_tensor, make_fx, set_grad_enabled
from caesura.capture.polyfills import IN_PLACE
from caesura.rewrites.autograd_function import Function
from caesura.rewrites.fx_meta import describe
from caesura.rewrites.shared_memory import (MARK, SharedMemory, group_of, is_tracked, mark, name_of, storage_of, switches_inference,
                                           tensors_of, with_modes, written_to)

aten = torch.ops.aten
_UNRECORDED = "caesura_unrecorded"  # of calls that autograd does not record
_GRADIENTS = {"grad", "_autograd_grad"}  # torch.autograd.grad, and functorch's


def takes_gradients(graph: torch.fx.GraphModule) -> bool:
    """True if calls in Dynamo's graph take gradients, which the loss may depend on."""
    return any(node.op == "call_function" and name_of(node) in _GRADIENTS for node in graph.graph.nodes)


def detach_all_names(graph: torch.fx.GraphModule):
    """Lets all calls after a detach_() read what it gives. The tensor may have other names: Dynamo takes the result of a write in place
    for another variable."""
    for node in [n for n in graph.graph.nodes if IN_PLACE in n.meta]:
        value = node.args[0].meta["example_value"]
        for other in [n for n in graph.graph.nodes if n < node and n.meta.get("example_value") is value]:
            for user in [user for user in other.users if node < user]:
                user.replace_input_with(other, node)


def mark_cuts(graph: torch.fx.GraphModule, functions: list, keep_modes: bool = False) -> list:
    """Marks the calls in Dynamo's graph that no gradient passes, and removes the mode switches, since AOTAutograd would
    obey the last one and trace a backward. functions: as take_functions() gives them; more may be added. keep_modes:
    keeps the switches, for gradients that the graph itself takes. Returns a line for each place that marks cannot express."""
    problems = []
    for node in graph.graph.find_nodes(op="call_method", target="item"):
        if any(t.requires_grad for t in tensors_of(node.args[0])):
            _detach(graph, node, node.args[0])  # AOTAutograd would trace a gradient through the number
    leaves = {node.args[0] for node in graph.graph.find_nodes(op="call_method", target="requires_grad_")}
    memory = SharedMemory(graph, functions, keep_modes)
    for node, recording, inference in with_modes(graph.graph):
        if inference and keep_modes:
            problems.append(f"inference_mode in a forward that takes gradients (at {describe(node)})")
        given, written = [t for source in node.all_input_nodes for t in tensors_of(source)], written_to(node)
        bare = [source for source in node.all_input_nodes
                if source not in written and any(map(memory.only_others_track, tensors_of(source)))]
        passes = bool(bare) or any(map(memory.tracks, given))
        if isinstance(node.target, Function) and node.target.is_hook:
            recording, inference = True, False  # it may be registered in any mode
        problems += memory.enter(node, written, recording and not inference)
        if not recording or inference:
            node.meta[_UNRECORDED] = True
        results = [t for target in written for t in tensors_of(target)] or tensors_of(node)
        untracked = inference and not written  # whatever Dynamo's tensors say after an enable_grad() within inference_mode()
        if passes and results and (node in leaves or untracked or not any(map(memory.tracks, results))):
            mark(node)
            if not _passes_marks():
                problems.append(f"{name_of(node)} passes no gradient, which PyTorch {torch.__version__} does not hand on "
                                f"(at {describe(node)})")
        else:
            for source in bare:
                _detach(graph, node, source)
    for node in filter(_is_marked, list(graph.graph.nodes)):
        for source in node.all_input_nodes:
            value = source.meta.get("example_value")
            if isinstance(value, torch.Tensor) and any(storage_of(t) in memory.last for t in tensors_of(source)):
                _view_before(graph, node, source)
    for node in [] if keep_modes else reversed(graph.graph.nodes):
        if node.target is set_grad_enabled or switches_inference(node):
            graph.graph.erase_node(node)
    graph.recompile()
    return list(dict.fromkeys(problems))


def _view_before(graph, node, source):
    """Adds a view of what a marked call reads. AOTAutograd makes a view of memory that was written to anew where it is read first, which
    has the mark of that call then; others read it, too."""
    with graph.graph.inserting_before(node):
        view = graph.graph.call_method("view_as", (source, source))
    view.meta.update(example_value=source.meta["example_value"], stack_trace=node.meta.get("stack_trace"))


def _detach(graph, node, source):
    """Lets a call read a copy of a tensor, which no gradient passes. A mark on a view would not do: AOTAutograd makes views of
    memory that was written to anew where they are read, without marks."""
    with graph.graph.inserting_before(node):
        read = graph.graph.call_method("clone", (source,))
    read.meta.update(example_value=source.meta["example_value"].detach(), stack_trace=node.meta.get("stack_trace"))
    mark(read)
    node.replace_input_with(source, read)


def record(graph: torch.fx.GraphModule):
    """Lets the graph switch autograd on for its own gradients, and off at its end, where AOTAutograd reads the mode. Its results are
    detached: AOTAutograd would trace their gradients, too."""
    first, last = next(iter(graph.graph.nodes)), next(n for n in graph.graph.nodes if n.op == "output")

    def detached(node):
        if node.op == "placeholder" or not any(t.requires_grad for t in tensors_of(node)):
            return node
        return graph.graph.call_function(aten.detach.default, (node,))

    with graph.graph.inserting_before(first):
        graph.graph.call_function(set_grad_enabled, (True,))
    with graph.graph.inserting_before(last):
        graph.graph.call_function(set_grad_enabled, (False,))
        last.args = torch.fx.map_arg(last.args, detached)
    graph.recompile()


def adds_detaches(graph: torch.fx.GraphModule) -> bool:
    """True if a trace of Dynamo's graph has detaches that are not the forward's: autograd adds them after results that it
    saves, and nested tensors within their operators."""
    return takes_gradients(graph) or any(t.is_nested for node in graph.graph.nodes for t in tensors_of(node))


def drop_detached(module: torch.fx.GraphModule):
    """Removes the detaches without a mark, which are not the forward's where adds_detaches()."""
    for node in module.graph.find_nodes(op="call_function", target=aten.detach.default):
        if not _is_marked(node):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()


class FailsInEager(RuntimeError):
    """An error that eager raises, too."""


def reached_by_autograd(graph: torch.fx.GraphModule, loss: torch.fx.Node, functions: list):
    """reached_inputs(), or None where autograd cannot tell. functions: as take_functions() gives them. To be called before
    mark_cuts(). Raises FailsInEager."""
    value, parts = loss.meta["example_value"], sum(isinstance(m, torch.fx.GraphModule) for m in graph.modules())
    whole = parts == 1 and all(f.is_hook for f in functions)
    if not (whole and value.requires_grad and value.numel() == 1 and any(map(written_to, graph.graph.nodes))):
        return None
    if any(switches_inference(node) or IN_PLACE in node.meta for node in graph.graph.nodes):
        return None  # Dynamo's tensors may have gradients that eager's have not
    # Dynamo's tensors have no values, but their gradients.
    leaves = {i: t for i, node in enumerate(graph.graph.find_nodes(op="placeholder")) for t in tensors_of(node)
              if t.is_leaf and t.requires_grad}
    try:
        with value.fake_mode, value.fake_mode.shape_env.ignore_fresh_unbacked_symbols():
            gradients = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
        return {i for i, gradient in zip(leaves, gradients) if gradient is not None}
    except (RuntimeError, AssertionError) as error:  # AssertionError: of tensors that PyTorch made without its fake mode
        if "modified by an inplace operation" in str(error):
            raise FailsInEager(str(error)) from None
        logging.getLogger("caesura").info("a backward without values fails", exc_info=True)
        return None


def reached_inputs(graph: torch.fx.GraphModule, loss: torch.fx.Node) -> set:
    """The positions of dynamo's inputs that autograd would hand a gradient of `loss`: PyTorch's optimizers leave the others as
    they are, where a gradient of zeros would have them decay. To be called after mark_cuts()."""
    inputs = graph.graph.find_nodes(op="placeholder")
    given = {id(t) for node in inputs for t in tensors_of(node)}

    def begins(tensor) -> bool:
        """True for a leaf of the forward's own. Tensors within functorch's transforms are leaves of another kind."""
        return tensor.is_leaf and id(tensor) not in given and not is_functorch_wrapped_tensor(tensor)

    leads, groups = {loss}, set()  # what the loss is computed from, and the memory that this reads
    for node in reversed(graph.graph.nodes):
        passes = not _is_marked(node) and ("example_value" not in node.meta or any(
            is_tracked(t) and not begins(t) for t in tensors_of(node)))
        written = written_to(node)
        if passes and (node in leads or any(group_of(t) in groups for target in written for t in tensors_of(target))):
            sources = written if written and _UNRECORDED in node.meta else node.all_input_nodes
            if isinstance(node.target, Function):
                sources = [a for i, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and i not in node.target.without]
            leads.update(sources)
            groups.update(group_of(t) for source in sources for t in tensors_of(source))
    return {i for i, node in enumerate(inputs) if node in leads}


def _sparse(node):
    """(the call's arguments by name, the one by which its gradients are sparse in eager), or None."""
    try:
        named = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        named = node.kwargs
    names = [name for name in ("sparse", "sparse_grad") if node.op == "call_function" and named.get(name) is True]
    return (named, names[0]) if names else None


def sparse_inputs(graph: torch.fx.GraphModule) -> set:
    """The positions of dynamo's inputs whose gradients are sparse in eager: embeddings with sparse=True alone read them."""
    found = set()
    for i, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        readers = [user for user in node.users if any(map(is_tracked, tensors_of(user)))]
        if readers and all(map(_sparse, readers)):
            found.add(i)
    return found


def take_dense(graph: torch.fx.GraphModule):
    """Makes gradients dense that calls would have sparse: PyTorch traces no sparse tensors."""
    for node in graph.graph.nodes:
        if (found := _sparse(node)) is not None:
            named, name = found
            given = len(node.args) if named is node.kwargs else 0  # an operator in C++ takes it by name
            node.args, node.kwargs = node.args[:given], {**named, name: False}
    graph.recompile()


def stop_at_cuts(module: torch.fx.GraphModule):
    """Adds a detach after each result of a marked call that other calls read."""
    for node in list(module.graph.nodes):
        value = node.meta.get("val")
        readers = [user for user in node.users if not _is_marked(user)]
        if _is_marked(node) and readers and isinstance(value, torch.Tensor) and value.is_floating_point():
            with module.graph.inserting_after(node):
                stopped = module.graph.call_function(aten.detach.default, (node,))
            stopped.meta.update(val=value, custom=node.meta["custom"], stack_trace=node.meta.get("stack_trace"))
            for user in readers:
                user.replace_input_with(node, stopped)


@functools.cache
def _passes_marks():
    """True if a trace copies a call's mark to the nodes made from it."""
    graph = torch.fx.Graph()
    node = graph.call_function(torch.sin, (graph.placeholder("x"),))
    node.meta["custom"] = {MARK: True}
    graph.output(node)
    run = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run
    with torch.fx.traceback.preserve_node_meta():
        traced = make_fx(run)(torch.zeros(()))
    return any(_is_marked(node) for node in traced.graph.nodes)


def _is_marked(node):
    return MARK in node.meta.get("custom", {})


def as_leaf(value):
    """A tensor that requires_grad_() may be called on: dynamo refuses it for what it is given."""
    return value if value.requires_grad or not value.is_floating_point() else value.detach()
