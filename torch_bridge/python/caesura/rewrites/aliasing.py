# SPDX-License-Identifier: Apache-2.0
"""Detects tensors of a call that share memory: a captured graph that writes to one does not know that another
changes."""

import collections
import re

import torch
from torch.autograd.function import BackwardCFunction

from caesura.capture.compat import (APPLIES_FUNCTION, OutputType, apply_view_meta_sequence, base, force_recompile, get_data, has_hooks,
                                    is_functorch_wrapped_tensor, is_view, preserve_version, set_grad_enabled, storage_id, tree_leaves)
from caesura.reports import fall_back
from caesura.rewrites.shared_memory import is_tracked, tensors_of, with_modes, written_to
from caesura.user_code import calling_line


# How dynamo writes `p.data = ...`; the second one since PyTorch 2.14.
_ASSIGNS = {torch.Tensor.set_, getattr(torch.ops.aten, "shallow_copy_data_", None)} - {None}


def data_assignments(graph: torch.fx.Graph) -> list:
    """The calls in a graph of dynamo's that assign the data of a tensor."""
    return [node for node in graph.nodes if node.op == "call_function" and node.target in _ASSIGNS]


def _bytes(tensor) -> tuple:
    """The address range of its elements: the first byte, and one past the last."""
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors on one device may have an element in common."""
    if a.device != b.device or a.layout != torch.strided or b.layout != torch.strided:
        return False
    (first, end), (start, last) = _bytes(a), _bytes(b)
    return first < last and start < end


def is_modules_own(placeholder: torch.fx.Node) -> bool:
    """True if this input of Dynamo's graph is a parameter or a buffer, not an argument of the call."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    name = name() if callable(name) else name
    return re.search(r"_(parameters|buffers)('\])?\[", name) is not None


def hooked(values, partly):
    """The reason why a call must run in eager, or None. partly: positions of values that have no gradient if some result has none;
    autograd would call their hooks with None, and autograd.Functions that made them with zeros."""
    for i in partly:
        if isinstance(values[i].grad_fn, BackwardCFunction):
            values[i].grad_fn.register_hook(_none_of_none)
    return "a hook is on what not all of its results depend on" if any(has_hooks(values[i]) for i in partly) else None


def _none_of_none(gradients, given):
    """A hook of an autograd.Function: it has no gradients where none is given, as if autograd had not reached it."""
    return (None,) * len(gradients) if all(g is None for g in given) else None


def unlike_captured(graph: torch.fx.Graph, written, records: bool, partly=()):
    """Returns a function of the values that Dynamo's graph is called with: the reason why this call must run in eager, or None. It
    is None itself if no call must.

    written: positions of the values that the graph writes to. records: whether it switches autograd on, which a caller's inference
    mode keeps off, unseen by the capture. partly: as in hooked()."""
    placeholders = graph.find_nodes(op="placeholder")
    tensors = [isinstance(n.meta.get("example_value"), torch.Tensor) for n in placeholders]
    pairs = [(i, j) for i in written for j, n in enumerate(placeholders)
             if i != j and tensors[j] and not (is_modules_own(placeholders[i]) and is_modules_own(n))]
    if not pairs and not records and not partly:
        return None

    def why(values):
        if records and torch.is_inference_mode_enabled():
            return "it switches autograd on in inference mode"
        if any(share_memory(values[i], values[j]) for i, j in pairs):
            return "it writes to memory that two of its arguments share"
        return hooked(values, partly)

    return why


def plain_forward(module: torch.fx.GraphModule):
    """The function of Dynamo's graph, in eager. One that is not compiled yet would call the module, and with it global hooks."""
    force_recompile(module)
    return module.forward


def run_in_eager(module: torch.fx.GraphModule, values, reason: str):
    """Runs Dynamo's graph on PyTorch's kernels, and reports the fallback."""
    fall_back([("a call", reason, "{}:{} in {}".format(*calling_line()))])
    return plain_forward(module)(*values)


def unless_unlike(compiled, module: torch.fx.GraphModule, written, records: bool, partly):
    """Wraps `compiled`, the call of Dynamo's graph `module`: runs it in eager where unlike_captured() says so."""
    why = unlike_captured(module.graph, written, records, partly)
    if why is None:
        return compiled

    def run(*values):
        reason = why(values)
        return compiled(*values) if reason is None else run_in_eager(module, values, reason)

    return run


def share_storage(graph: torch.fx.Graph) -> list:
    """The nodes of Dynamo's graph that write to memory which two inputs share, in the captured call."""
    held = collections.Counter(map(_storage, graph.find_nodes(op="placeholder")))
    writes = ((node, target) for node in graph.nodes for target in written_to(node))
    return [node for node, target in writes if _storage(target) and held[_storage(target)] > 1]


def writes_to_overlaps(graph: torch.fx.Graph) -> list:
    """The nodes of Dynamo's graph that write to a tensor in which one place in memory stands for several elements, or to a part of
    such a tensor. A functional graph would write the other elements' old values to that place."""
    found, overlapping = [], set()
    for node in graph.nodes:
        source = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
        if _storage(node) and (_overlaps(node.meta["example_value"]) or source in overlapping and _storage(source) == _storage(node)):
            overlapping.add(node)
        if not overlapping.isdisjoint(written_to(node)):
            found.append(node)
    return found


def views_past_autograd(graph: torch.fx.Graph, recording: bool) -> list:
    """The outputs of Dynamo's graph that are views of tensors which require a gradient, made with autograd off. recording: whether
    it is on where the graph is called."""
    found, switches = set(), graph.find_nodes(op="call_function", target=set_grad_enabled)
    for node, records, _ in with_modes(graph, recording) if switches else ():
        for source in node.all_input_nodes:
            past = source in found or (not records and any(t.requires_grad for t in tensors_of(source)))
            if past and not _storages_of(source).isdisjoint(_storages_of(node)):
                found.add(node)
    (output,) = graph.find_nodes(op="output")
    return [node for node in output.all_input_nodes if node in found]


def keep_gradients(graph: torch.fx.Graph) -> list:
    """The module's own inputs of Dynamo's graph that hold a part of autograd's graph after the call: buffers written to with a gradient.
    The call is one node of autograd's, and a second call's backward would go on into the first call's, which is freed."""
    return [n for n in graph.find_nodes(op="placeholder") if is_modules_own(n)
            for t in tensors_of(n) if not t.is_leaf and is_tracked(t)]


def made_in_inference(graph: torch.fx.Graph) -> list:
    """The inputs of Dynamo's graph that are inference tensors in a call with autograd on. Autograd saves none; eager needs it only for
    what has a gradient, a node of ours for all of the call."""
    return [n for n in graph.find_nodes(op="placeholder") if torch.is_grad_enabled()
            for argument in [n.meta.get("grapharg")] if getattr(argument, "is_tensor", False) and argument.example.is_inference()]


def past_inference(graph: torch.fx.Graph) -> list:
    """The calls in inference mode that view or write to what was made outside of that mode. AOT autograd ends with an internal error at
    such a view."""
    found, outside = [], set()  # the memory of what was made outside
    for node, _, inference in with_modes(graph):
        if not inference:
            outside |= _storages_of(node)
        elif not outside.isdisjoint(_storages_of(node)):
            found.append(node)
    return found


def writes_to_saved(module: torch.fx.GraphModule) -> list:
    """The calls in Dynamo's graph that write to what an autograd.Function before them has saved for its backward, which then raises an
    error in eager. What is saved in another way, as an attribute, autograd does not look at."""
    found, saved, unnoticed = [], set(), set()
    for node in module.graph.nodes:
        if APPLIES_FUNCTION in str(node.target) and "saved_for_backward_idx" in node.kwargs:
            body = getattr(module, node.args[0].target).graph
            (output,) = body.find_nodes(op="output")
            results, kept = output.args[0]
            values = {name: a.meta["example_value"] for name, a in zip(body.find_nodes(op="placeholder"), node.args[2:])}
            if isinstance(results, (list, tuple)):
                values |= zip(results, node.meta["example_value"])
            else:
                values[results] = node.meta["example_value"]
            saved |= _storages([values.get(kept[i]) for i in node.kwargs["saved_for_backward_idx"]])
        elif node.target is get_data or not unnoticed.isdisjoint(node.all_input_nodes):
            unnoticed.add(node)
        found += [node for target in written_to(node) if target not in unnoticed and not saved.isdisjoint(_storages_of(target))]
    return found


def _overlaps(tensor) -> bool:
    """True if elements of the tensor may share their place in memory."""
    sizes, strides = ([d if isinstance(d, int) else d.node.hint or 2 for d in of] for of in (tensor.shape, tensor.stride()))
    reach = 0
    for stride, size in sorted(zip(strides, sizes)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def views_of_each_other(results) -> list:
    """Lists of the positions of results that are views of one tensor, or that tensor; that one's position first, None if it is no
    result. results: tensors without values; None for those that are left out."""
    groups = collections.defaultdict(list)
    for i, value in enumerate(results):
        of = None if value is None else base(value)
        if of is not None and value.is_floating_point() and of.dtype == value.dtype:
            groups[id(of)].append(i)
    positions = {id(value): i for i, value in enumerate(results)}
    return [[positions.get(of), *views] for of, views in groups.items() if of in positions or len(views) > 1]


def views_made_anew_fit(metadata, results) -> bool:
    """False if PyTorch's record of how to make a result from its base gives another view (an error in each call, or wrong values), or
    one without a gradient. It does where a view is detached (PyTorch 2.13 to 2.15). metadata: AOT autograd's; results: the graph's own
    and the bases, without values."""
    for result, info in zip(results, metadata.output_info):
        steps = info.view_meta_sequence.sequence if info.view_meta_sequence is not None else ()
        if not info.output_type.name.startswith("alias_of_intermediate") or any(step.has_symbolic_inputs for step in steps):
            continue
        own = info.output_type == OutputType.alias_of_intermediate_base_is_user_output
        of = results[info.base_idx + (0 if own else len(metadata.output_info))].detach()
        try:
            with torch.enable_grad():
                made = apply_view_meta_sequence(of.requires_grad_(info.requires_grad), steps)
        except RuntimeError:
            return False
        if (made.requires_grad != info.requires_grad or made.shape != result.shape or made.stride() != result.stride()
                or made.storage_offset() != result.storage_offset()):
            return False
    return True


def as_views(call, groups):
    """`call`, whose results are views of each other as `groups` says. AOT autograd's graph without a backward makes tensors that share
    memory: what is written to one with a gradient would give the others none."""
    def run(*values):
        results = list(call(*values))
        for whole, *views in groups:
            of = results[views[0]].detach() if whole is None else results[whole]
            for i in views:
                results[i] = of.as_strided(results[i].shape, results[i].stride(), results[i].storage_offset())
        return results
    return run


def hidden_writes(graph: torch.fx.Graph) -> list:
    """The positions of the inputs that dynamo's graph writes to through `.data`, which autograd does not notice."""
    reads = {}  # nodes that are such a `.data`, or a view of it, to the input's position
    inputs = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if node.target is get_data and source in inputs:
            reads[node] = inputs[source]
        elif isinstance(source, torch.fx.Node) and source in reads and _storage(node) == _storage(source):
            reads[node] = reads[source]
    return sorted({reads[target] for node in graph.nodes for target in written_to(node) if target in reads})


def hidden_in_views(graph: torch.fx.Graph) -> list:
    """The inputs that Dynamo's graph writes to through `.data`, and reads otherwise, too, and that are views made by an autograd.Function:
    autograd forbids all other ways of writing to such a view."""
    inputs = graph.find_nodes(op="placeholder")
    examples = {n: getattr(n.meta.get("grapharg"), "example", None) for n in (inputs[i] for i in hidden_writes(graph)) if not _is_bare(n)}
    return [n for n, t in examples.items() if t is not None and is_view(t) and isinstance(t.grad_fn, BackwardCFunction)]


def _is_bare(placeholder) -> bool:
    return all(user.target is get_data for user in placeholder.users)


def unnoticed(call, graph: torch.fx.Graph, positions):
    """`call`, of Dynamo's graph, whose writes to the inputs at `positions` leave the versions that autograd goes by. An input that the
    graph takes nothing but `.data` of is given as that: autograd forbids writes to some views."""
    inputs = graph.find_nodes(op="placeholder")
    bare = {i for i in positions if _is_bare(inputs[i])}

    def run(*values):
        with preserve_version(tuple(values[i] for i in positions)):
            return call(*(value.data if i in bare else value for i, value in enumerate(values)))
    return run


def unrecorded(call, positions):
    """`call`, AOT autograd's of a graph without a backward, whose writes to the inputs at `positions` autograd does not record: they
    are made under no_grad, and AOT autograd would repeat them with autograd on."""
    def run(*values):
        given = [value.detach() if i in positions else value for i, value in enumerate(values)]
        handed = {id(given[i]): values[i] for i in positions}
        return [handed.get(id(result), result) for result in call(*given)]
    return run


def _storages_of(node) -> set:
    return _storages(node.meta.get("example_value"))


def _storages(value) -> set:
    held = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    return {storage_id(t) for t in held if t.layout == torch.strided and not is_functorch_wrapped_tensor(t)}


def _storage(node):
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or is_functorch_wrapped_tensor(value):
        return None
    return storage_id(value)
