# SPDX-License-Identifier: Apache-2.0
"""Stops gradients where a forward that our rules differentiate does (no_grad, inference_mode, `.data`).

Dynamo's tensors show these places, but AOTAutograd's trace loses them. So calls are marked in Dynamo's graph, and
gradients are stopped in the trace.
"""

import functools
import inspect
import operator

import torch

from caesura.capture.compat import (get_unwrapped, is_functorch_wrapped_tensor, make_fx, set_grad_enabled, storage_id,
                                    tree_leaves)
from caesura.capture.fx_meta import describe

aten = torch.ops.aten
_MARK = "caesura_cut"
_GRADIENTS = {"grad", "_autograd_grad"}  # torch.autograd.grad, and functorch's
_WRITING = {getattr(operator, name) for name in dir(operator) if name.startswith("i") and hasattr(operator, name[1:])}
_WRITING.add(operator.setitem)


def takes_gradients(graph: torch.fx.GraphModule) -> bool:
    """True if calls in Dynamo's graph take gradients, which the loss may depend on."""
    return any(node.op == "call_function" and _name(node) in _GRADIENTS for node in graph.graph.nodes)


def mark_cuts(graph: torch.fx.GraphModule, keep_modes: bool = False) -> list:
    """Marks the calls in Dynamo's graph that no gradient passes, and removes the mode switches, since AOTAutograd would
    obey the last one and trace a backward. keep_modes: keeps them, for gradients that the graph itself takes. Returns a
    line for each place that marks cannot express."""
    problems, recording, inference = [], True, 0
    for node in graph.graph.find_nodes(op="call_method", target="item"):
        _detach(graph, node)
    leaves = {node.args[0] for node in graph.graph.find_nodes(op="call_method", target="requires_grad_")}
    tracked, cut = set(), {}  # storages of tensors that require gradients; their views that do not, and the calls that made them
    stale = set()  # views of those whose storage was written to since
    for node in graph.graph.nodes:
        if node.target is set_grad_enabled:
            recording = node.args[0]
        inference += _inference(node)
        if inference and keep_modes:
            problems.append(f"inference_mode in a forward that takes gradients (at {describe(node)})")
        results, given = _tensors(node), [t for source in node.all_input_nodes for t in _tensors(source)]
        problems += [f"{_name(node)} reads what it shares with a tensor that was written to, past the gradients (at {describe(node)})"
                     for source in node.all_input_nodes if source in stale]
        written = written_to(node)
        if written is not None:
            for tensor in _tensors(written):
                storage = _storage(tensor)
                if storage in tracked and (not _tracked(tensor) or not recording or inference):
                    problems.append(f"{_name(node)} writes, past the gradients, to what depends on a parameter "
                                    f"(at {describe(node)})")
                stale.update(cut.get(storage, ()))
            results = results or _tensors(written)
        if any(map(_tracked, given)) and results and (node in leaves or not any(map(_tracked, results))):
            node.meta["custom"] = {**node.meta.get("custom", {}), _MARK: True}
            if not _passes_marks():
                problems.append(f"{_name(node)} passes no gradient, which PyTorch {torch.__version__} does not hand on "
                                f"(at {describe(node)})")
            for tensor in results:
                if _storage(tensor) in tracked:
                    cut.setdefault(_storage(tensor), []).append(node)
        tracked.update(_storage(t) for t in results if _tracked(t))
    for node in [] if keep_modes else reversed(graph.graph.nodes):
        if node.target is set_grad_enabled or _inference(node):
            graph.graph.erase_node(node)
    graph.recompile()
    return list(dict.fromkeys(problems))


def _detach(graph, node):
    """Detaches a tensor before a number is read off it: AOTAutograd would trace a gradient through the number."""
    (source,) = node.args
    value = source.meta.get("example_value")
    if isinstance(value, torch.Tensor) and value.requires_grad:
        with graph.graph.inserting_before(node):
            read = graph.graph.call_method("detach", (source,))
        read.meta.update(example_value=value.detach(), stack_trace=node.meta.get("stack_trace"))
        node.args = (read,)


def record(graph: torch.fx.GraphModule):
    """Lets the graph switch autograd on for its own gradients, and off at its end, where AOTAutograd reads the mode."""
    first, last = next(iter(graph.graph.nodes)), next(n for n in graph.graph.nodes if n.op == "output")
    for node, mode in (first, True), (last, False):
        with graph.graph.inserting_before(node):
            graph.graph.call_function(set_grad_enabled, (mode,))
    graph.recompile()


def drop_detached(module: torch.fx.GraphModule):
    """Removes the detaches that autograd adds after results that it saves: those without a mark are not the
    forward's."""
    for node in module.graph.find_nodes(op="call_function", target=aten.detach.default):
        if not _is_marked(node):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()


def reached_inputs(graph: torch.fx.GraphModule, loss: torch.fx.Node) -> set:
    """The positions of dynamo's inputs that autograd would hand a gradient of `loss`: PyTorch's optimizers leave the others as
    they are, where a gradient of zeros would have them decay."""
    leads = {loss}
    for node in reversed(graph.graph.nodes):
        passes = "example_value" not in node.meta or any(map(_tracked, _tensors(node)))
        if (node in leads and passes) or written_to(node) is not None:
            leads.update(node.all_input_nodes)
    return {i for i, node in enumerate(graph.graph.find_nodes(op="placeholder")) if node in leads}


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
    node.meta["custom"] = {_MARK: True}
    graph.output(node)
    run = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run
    with torch.fx.traceback.preserve_node_meta():
        traced = make_fx(run)(torch.zeros(()))
    return any(_is_marked(node) for node in traced.graph.nodes)


def _is_marked(node):
    return _MARK in node.meta.get("custom", {})


def _name(node):
    return getattr(node.target, "__name__", str(node.target))


def _tensors(node):
    return [t for t in tree_leaves(node.meta.get("example_value"))
            if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())]


def _tracked(tensor) -> bool:
    """True if autograd tracks the tensor, by itself or within a vmap."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def _storage(tensor):
    try:
        return storage_id(tensor)
    except NotImplementedError:  # inside of a vmap there is none
        return id(tensor)


def _inference(node):
    """1 where inference mode begins, -1 where it ends."""
    if _name(node) == "_exit_inference_mode":
        return -int(node.args[0].args[0])
    return int(node.args[0]) if _name(node) == "_enter_inference_mode" else 0


def written_to(node):
    """The node whose tensor the call writes to."""
    if node.op == "call_method":
        writes = node.target[-1] == "_" and node.target[-2:] != "__" and node.target != "requires_grad_"
        return node.args[0] if writes else None
    if node.op != "call_function":
        return None
    if node.target in _WRITING or (_name(node)[-1] == "_" and _name(node)[-2:] != "__"):
        return node.args[0]
    if node.kwargs.get("out") is not None:
        return node.kwargs["out"]
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return None
    return next(iter(bound.values())) if bound.get("inplace") is True else None


def as_leaf(value):
    """A tensor that requires_grad_() may be called on: dynamo refuses it for what it is given."""
    return value if value.requires_grad or not value.is_floating_point() else value.detach()
