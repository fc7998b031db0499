# SPDX-License-Identifier: Apache-2.0
"""Follows autograd through the calls of Dynamo's graph, where calls write to memory.

A write may make a tensor require gradients that did not before. And tensors may share memory without sharing gradients
(`y.detach()`, `y.data`): a write to one changes the values of the other, whose gradients stay those of its old values.
AOTAutograd's trace keeps values only. So such a tensor gets memory of its own here, and after each write the values are
copied to the others, past the gradients. After a write that autograd does not record (under no_grad), a tensor gets its new
values with the gradient of the old ones.
"""

import inspect
import operator

import torch

from caesura.capture.compat import (base, get_unwrapped, is_functorch_wrapped_tensor, set_grad_enabled, storage_id, tree_leaves,
                                    tree_map_only)
from caesura.capture.frames import first_line
from caesura.rewrites.autograd_function import Function, value_of_first, value_over_last
from caesura.rewrites.fx_meta import describe

MARK = "caesura_cut"
_WRITING = {getattr(operator, name) for name in dir(operator) if name.startswith("i") and hasattr(operator, name[1:])}
_WRITING.add(operator.setitem)
_FILLING = {"copy_", "fill_", "zero_", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_",
            "uniform_"}
_SHAPING = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"}  # of one tensor; nothing is written to its memory


def mark(node):
    """Marks a call in Dynamo's graph as one that no gradient passes; the calls traced from it have the mark, too."""
    node.meta["custom"] = {**node.meta.get("custom", {}), MARK: True}


def name_of(node) -> str:
    return getattr(node.target, "__name__", str(node.target))


def tensors_of(node) -> list:
    """The floating-point and complex tensors among a call's results."""
    return [t for t in tree_leaves(node.meta.get("example_value"))
            if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())]


def is_tracked(tensor) -> bool:
    """True if autograd tracks the tensor at the end of the graph, by itself or within a vmap."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    if not tensor.requires_grad or base(tensor) is None:
        return tensor.requires_grad
    try:  # a view that is made without gradients says that it requires one, as its base does; none reaches the base
        return tensor.grad_fn is not None
    except RuntimeError:  # and the base was written to
        return False


def storage_of(tensor):
    """The same for tensors that share memory."""
    try:
        return storage_id(tensor)
    except NotImplementedError:  # inside of a vmap there is none
        return id(tensor)


def group_of(tensor):
    """The same for a tensor and its views, which share memory and gradients."""
    if tensor.is_inference():
        return storage_of(tensor)
    of = None if is_functorch_wrapped_tensor(tensor) else base(tensor)
    return id(tensor if of is None else of)


def written_to(node) -> list:
    """The nodes whose tensors the call writes to."""
    if node.op == "call_method":
        writes = node.target[-1] == "_" and node.target[-2:] != "__" and node.target not in {"requires_grad_", *_SHAPING}
        return [node.args[0]] if writes else []
    if node.op != "call_function":
        return []
    written = None
    if node.target in _WRITING or (name_of(node)[-1] == "_" and name_of(node)[-2:] != "__"):
        written = node.args[0]
    elif node.kwargs.get("out") is not None:
        written = node.kwargs["out"]
    else:
        try:
            bound = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
        except (TypeError, ValueError):
            return []
        written = next(iter(bound.values())) if bound.get("inplace") is True else None
    return [target for target in tree_leaves(written) if isinstance(target, torch.fx.Node)]


def changes_shape(node) -> bool:
    """True for a call that writes no values but changes the shape of its tensor, such as t_()."""
    packet = getattr(torch.ops.aten, name_of(node), None)
    return packet is not None and any(torch.Tag.inplace_view in getattr(packet, name).tags for name in packet.overloads())


def switches_inference(node) -> bool:
    return name_of(node) in ("_enter_inference_mode", "_exit_inference_mode")


def with_modes(graph: torch.fx.Graph, recording: bool = True):
    """Yields each call of Dynamo's graph, whether grad mode is on there, and whether inference mode is. The end of an inference mode
    restores the grad mode from before it. recording: whether it is on where the graph is called."""
    within = []  # (grad mode before it, whether it switches inference mode on or off)
    for node in list(graph.nodes):
        if node.target is set_grad_enabled:
            recording = node.args[0]
        elif name_of(node) == "_enter_inference_mode":
            within.append((recording, node.args[0]))
        elif name_of(node) == "_exit_inference_mode":
            recording, _ = within.pop()
        yield node, recording, bool(within) and within[-1][1]


def replaces_all(node) -> bool:
    """True for a write that reads nothing of what it writes to."""
    if node.target is not operator.setitem:
        return name_of(node) in _FILLING
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    return all(i is Ellipsis or i == slice(None) for i in index)


class SharedMemory:
    """Enter a graph's calls one after the other. functions: for gradients that pass a write. takes_gradients: whether
    the graph itself takes gradients, which then cannot be kept."""

    def __init__(self, graph: torch.fx.GraphModule, functions: list, takes_gradients: bool):
        self.graph, self.functions, self.takes_gradients = graph.graph, functions, takes_gradients
        self.last = {}  # storage to the number of the last call that writes to it
        for number, node in enumerate(self.graph.nodes):
            for target in written_to(node):
                self.last.update((storage_of(t), number) for t in tensors_of(target))
        self.number = -1
        self.now = {}  # of tensors in memory that is written to, by id: whether they require gradients
        self.members = {}  # group to its tensors
        self.nodes = {}  # of tensors by id: the last nodes that gave them; a hook's node gives a tensor that exists already
        self.leaves = set()  # groups of parameters
        self.apart = []  # (node, a tensor that shares its memory and not its gradients), which has memory of its own here

    def tracks(self, tensor) -> bool:
        """True if the tensor requires gradients after the call last entered."""
        return self.now.get(id(tensor), False) if storage_of(tensor) in self.last else is_tracked(tensor)

    def only_others_track(self, tensor) -> bool:
        """True if a write or a view leads gradients past a tensor that requires none: it was made under no_grad."""
        return not self.tracks(tensor) and self._is_tracked(group_of(tensor))

    def _is_tracked(self, group):
        return any(map(self.tracks, self.members.get(group, ())))

    def enter(self, node, written, recording: bool) -> list:
        """Follows one call; recording: whether autograd records it. Returns lines that say what cannot be kept."""
        self.number += 1
        problems = []
        for tensor in [t for t in tensors_of(node) if storage_of(t) in self.last and id(t) not in self.now]:
            try:
                self.now[id(tensor)] = is_tracked(tensor) and self._begins_tracked(node, tensor, recording)
            except Exception as error:  # of jagged tensors; of tensors whose shape is changed in place later
                self.now[id(tensor)] = True
                problems.append(f"{name_of(node)} is not followed to what is written later: {first_line(error)} (at {describe(node)})")
            self.members.setdefault(group_of(tensor), []).append(tensor)
            if node.op == "placeholder" and self.now.get(id(tensor)):
                self.leaves.add(group_of(tensor))
        if isinstance(value := node.meta.get("example_value"), torch.Tensor):
            self.nodes[id(value)] = node
        if written:
            problems += self._write(node, written, recording)
        else:
            problems += self._separate(node)
        return problems

    def _begins_tracked(self, node, tensor, recording) -> bool:
        """True if a result requires gradients right after its call. Makes the call again, on tensors without values."""
        if tensor.is_leaf and base(tensor) is None:
            return True
        if not recording or not any(self.tracks(t) for source in node.all_input_nodes for t in tensors_of(source)):
            return False
        if any("example_value" not in source.meta for source in node.all_input_nodes) or isinstance(node.target, Function):
            return True  # a call of a graph
        if is_functorch_wrapped_tensor(tensor):
            return True

        def like(given):
            made = torch.empty_strided(given.size(), given.stride(), dtype=given.dtype, device=given.device)
            return made.requires_grad_(self.tracks(given)) if given.is_floating_point() or given.is_complex() else made

        sizes = tensor.fake_mode.shape_env  # a size that depends on values would be another symbol here
        with tensor.fake_mode, sizes.ignore_fresh_unbacked_symbols(), torch.set_grad_enabled(recording):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["example_value"])
            args, kwargs = tree_map_only(torch.Tensor, like, (args, kwargs))
            found = getattr(args[0], node.target)(*args[1:], **kwargs) if node.op == "call_method" else node.target(*args, **kwargs)
        at = next(i for i, leaf in enumerate(tree_leaves(node.meta["example_value"])) if leaf is tensor)
        return is_tracked(tree_leaves(found)[at])

    def _write(self, node, written, recording) -> list:
        problems = []
        gains = recording and any(self.tracks(t) for source in node.all_input_nodes for t in tensors_of(source))
        for target, tensor in [(of, t) for of in written for t in tensors_of(of)]:
            group, last = group_of(tensor), node
            if self._is_tracked(group) and not (recording and self.tracks(tensor)):
                last, problem = (node, [_past(node)]) if recording else self._keep_gradient(node, node, target)
                problems += problem
            elif self._is_tracked(group) and replaces_all(node):
                if self.takes_gradients or tensor.is_complex():
                    problems.append(f"{name_of(node)} replaces values that get a gradient of zeros, which are complex or in a forward that "
                                    f"takes gradients: make a new tensor (at {describe(node)})")
                    continue
                last = self._with_old(node, node, target, value_over_last)  # the trace would lose the old values' gradient of zeros
            if gains:
                self.now.update((id(member), True) for member in self.members.get(group, [tensor]))
            problems += self._hand_on(node, last, group)
        return problems

    def _keep_gradient(self, node, write, target) -> tuple:
        """Lets what a write changes keep the gradient of its old values, by adding calls before and after it. Returns the last of
        them, and lines that say what cannot be kept. node: the forward's call that the write is or belongs to."""
        value = target.meta["example_value"]
        if not self.tracks(value):  # a view that was made under no_grad
            target = self.nodes.get(group_of(value))
            value = target and target.meta["example_value"]
        if (value is None or not self.tracks(value) or group_of(value) in self.leaves or self.takes_gradients or value.is_complex()
                or changes_shape(write)):
            return write, [_past(node)]
        return self._with_old(node, write, target, value_of_first), []

    def _with_old(self, node, write, target, function):
        """Writes what `function` makes of the new and the old values. Returns the last of the added calls."""
        value = target.meta["example_value"]
        self.functions.append(function(len(self.functions)))
        with self.graph.inserting_before(write):
            old = self._like(node, self.graph.call_method("clone", (target,)), value)
        with self.graph.inserting_after(write):
            new = self._like(node, self.graph.call_function(self.functions[-1], (target, old)), value)
        with self.graph.inserting_after(new):
            return self._like(node, self.graph.call_method("copy_", (target, new)), value)

    def _separate(self, node) -> list:
        """Gives a result memory of its own if it shares memory that is written to later, and not the gradients."""
        problems = []
        value = node.meta.get("example_value")
        for source in node.all_input_nodes:
            for tensor, of in [(t, g) for t in tensors_of(node) for g in tensors_of(source)]:
                if (storage_of(tensor) != storage_of(of) or group_of(tensor) == group_of(of)
                        or self.last.get(storage_of(tensor), -1) < self.number):
                    continue
                if value is not tensor or source.meta["example_value"] is not of or tensor.shape != of.shape:
                    problems.append(f"{name_of(node)} shares memory that is written to later, past the gradients (at {describe(node)})")
                    continue
                with self.graph.inserting_after(node):
                    own = self._like(node, self.graph.call_method("clone", (node,)), value)
                node.replace_all_uses_with(own, delete_user_cb=lambda user, own=own: user is not own)
                self.nodes[id(value)] = own
                self.apart.append((source, own))
        return problems

    def _hand_on(self, node, last, group) -> list:
        """Copies what a call has written to tensors of one group to those that share its memory. last: the call to do it after."""
        problems, reached, found = [], {group}, True
        while found:
            pairs = [pair for a, b in self.apart for pair in ((a, b), (b, a))]
            found = next(((a, b) for a, b in pairs if _group(a) in reached and _group(b) not in reached), None)
            if found is None:
                break
            source, target = found
            value = target.meta["example_value"]
            reached.add(_group(target))
            with self.graph.inserting_after(last):
                copied = self._like(node, self.graph.call_method("detach", (source,)), value)
            mark(copied)
            with self.graph.inserting_after(copied):
                last = self._like(node, self.graph.call_method("copy_", (target, copied)), value)
            if self._is_tracked(_group(target)):
                last, problem = self._keep_gradient(node, last, target)
                problems += problem
        return problems

    @staticmethod
    def _like(node, made, value):
        made.meta.update(example_value=value, stack_trace=node.meta.get("stack_trace"))
        return made


def _group(node):
    return group_of(node.meta["example_value"])


def _past(node):
    return f"{name_of(node)} writes, past the gradients, to what depends on a parameter (at {describe(node)})"
