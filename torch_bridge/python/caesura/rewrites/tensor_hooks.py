# SPDX-License-Identifier: Apache-2.0
"""Where the hooks of tensors stand in Dynamo's graph.

In eager, a hook sees the gradient of all that reads the tensor, also of what read it before the hook was registered, and hooks are
called in the order of their registration. In Dynamo's graph a hook is a call that gives the tensor on, to what comes later. So it
is moved to right after the call that made the tensor, or the last write to it that autograd records.
"""

import torch

from caesura.capture.compat import symbolic_convert
from caesura.rewrites.fx_meta import describe
from caesura.rewrites.shared_memory import changes_shape, group_of, is_tracked, storage_of, tensors_of, with_modes, written_to
from caesura.rewrites.stop_gradient import FailsInEager


def place_hooks(graph: torch.fx.GraphModule) -> list:
    """Moves the hooks in a graph that Dynamo hands to a backend, which is to be called before the backend returns. Returns a line
    for each that cannot be moved. To be called before take_functions(). Raises FailsInEager."""
    kept = symbolic_convert.InstructionTranslator.current_tx().output.side_effects.tensor_hooks
    problems = ["it registers a hook on a parameter, a buffer or an argument: register it outside of the forward"] if kept else []
    chains = {}  # by the call that a tensor comes from: its hooks, as they were registered
    for hook in [node for node in graph.graph.nodes if is_hook(node)]:
        why = _place(graph.graph, hook, chains)
        problems += [f"a hook on a tensor {why} (at {describe(hook)})"] if why else []
    return problems


def is_hook(node) -> bool:
    """True if the call registers a hook on a tensor."""
    return node.op == "call_function" and str(node.target) == "register_hook"


def _changed(node):
    """The nodes whose tensors the call writes to, or changes the shape of."""
    return written_to(node) or ([node.args[0]] if node.op == "call_method" and changes_shape(node) else [])


def _is_recorded(graph, write, value):
    """True if autograd records the write for `value`, which then has another gradient than before."""
    recording = next(recording and not inference for node, recording, inference in with_modes(graph) if node is write)
    return recording and any(is_tracked(t) and group_of(t) == group_of(value) for target in _changed(write) for t in tensors_of(target))


def _place(graph, hook, chains):
    """Moves one hook. Returns the reason if it cannot."""
    value = hook.meta["example_value"]
    if not value.requires_grad:
        raise FailsInEager("cannot register a hook on a tensor that doesn't require gradient")
    sharing = [(n, t) for n in graph.nodes for t in tensors_of(n) if storage_of(t) == storage_of(value)]
    alike, memory = [n for n, _ in sharing if n.meta["example_value"] is value], {n for n, _ in sharing}
    writes = [n for n in graph.nodes if alike[0] < n and not memory.isdisjoint(_changed(n))]
    if any(h < n < hook for h in filter(is_hook, alike) for n in alike if changes_shape(n)):  # eager takes both for hooks of the first
        return "whose shape was changed in place since it got another hook: make a new tensor"
    start = max([alike[0], *(n for n in writes if n < hook and _is_recorded(graph, n, value))])
    is_view = group_of(value) != id(value)  # eager gives a view another gradient after each write, and forgets its hooks
    if writes and (is_view or any(start < user for n, t in sharing if t is not value and not start < n for user in n.users)):
        return "that shares memory with others and is written to: register it on a clone() of the tensor"
    chain = chains.setdefault(start, [])
    chain.append(hook)
    at = max([start, *(n for h in chain for n in h.args[1:] if isinstance(n, torch.fx.Node) and n.op != "get_attr")])
    readers = [(n, user) for n in alike for user in n.users if start < user and user not in chain]
    if any(not at < user for _, user in readers):
        return "that reads what is computed after the tensor is read"
    for node, user in readers:
        user.replace_input_with(node, chain[0])
    given = [n for n in alike if n not in chain and not start < n][-1]  # a hook before a write gives a tensor, which is written to
    for h in reversed(chain):
        h.args = (given, *h.args[1:])
        at.append(h.args[1])  # the hook's own graph
        h.args[1].append(h)
        given = at = h
    return None
