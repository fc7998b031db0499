# SPDX-License-Identifier: Apache-2.0
"""Partitions a joint graph into forward and backward, and saves base tensors, not views, so that the backward copies
nothing.

For example, PyTorch's partition saves the queries of an attention as a transposed part of a product. The backward's
programs take dense tensors, so they would copy that part. Here the product is saved, which the views keep alive in any
case, and the backward makes the views itself at no cost.
"""

import contextlib
import operator

import torch
from torch.utils.checkpoint import CheckpointPolicy

from caesura.capture.compat import OpOverload, functorch_config, inductor_config, min_cut_partition, schema
from caesura.rewrites.fx_meta import draws, makes_view, storage_of
from caesura.rewrites.grouped_query_attention import take_unrepeated

aten = torch.ops.aten
_UNLIKE = {torch.Tag.nondeterministic_seeded,  # calls that differ, or whose results' sizes have symbols of their own
           torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@contextlib.contextmanager
def settings_of_aot():
    """AOT autograd's settings while it makes graphs for us. Gradients are not laid as an output whose elements share memory, in which they
    would overwrite each other. A backward is called outside of autocast."""
    with functorch_config.patch(force_non_lazy_backward_lowering=True, donated_buffer=False, guess_tangent_strides_as_outputs=False,
                                backward_pass_autocast="off"), inductor_config.patch(fallback_random=True):
        yield


def partition(joint_module, inputs, *, num_fwd_outputs, **options):
    """PyTorch's min-cut partition of a joint graph, with bases saved in the place of their views."""
    take_unrepeated(joint_module.graph)
    _merge_equal(joint_module.graph)
    _save_within_checkpoints(joint_module.graph)
    unread = _unread_draws(joint_module.graph)
    held = num_fwd_outputs + len(unread)  # outputs of the forward: the cut would leave such draws out, and others had their numbers
    _put_outputs(joint_module.graph, num_fwd_outputs, num_fwd_outputs, unread)
    with functorch_config.patch(cse=False):  # its own merging imports a hundred modules of Inductor's: 0.4 s, longer than the cut
        forward, backward = min_cut_partition(joint_module, inputs, num_fwd_outputs=held, **options)
    _put_outputs(forward.graph, num_fwd_outputs, held, [])
    _save_bases(forward, backward, num_fwd_outputs)
    return forward, backward


def _unread_draws(graph) -> list:
    """The draws that nothing reads, by one tensor of each."""
    unread = [n for n in graph.nodes if draws(n) and not n.users]
    for i, node in enumerate(unread):
        if isinstance(node.meta["val"], (tuple, list)):
            with graph.inserting_after(node):
                unread[i] = graph.call_function(operator.getitem, (node, 0))
            unread[i].meta = node.meta | {"val": node.meta["val"][0]}
    return unread


def _put_outputs(graph, first, last, nodes):
    """Puts `nodes` in the place of a graph's outputs from `first` to `last`."""
    (output,) = graph.find_nodes(op="output")
    outputs = list(output.args[0])
    outputs[first:last] = nodes
    output.args = (outputs,)
    if "desc" in output.meta:
        output.meta["desc"] = [*output.meta["desc"][:first], *[None] * len(nodes), *output.meta["desc"][last:]]


def _save_within_checkpoints(graph):
    """Marks the calls within a checkpoint whose results are saved, not recomputed.

    A training batch norm has already updated its running statistics. PyTorch believes that an attention without dropout
    draws random numbers; its results are small."""
    norm, attention = aten._native_batch_norm_legit_functional.default, aten._scaled_dot_product_flash_attention_for_cpu.default
    saved = [n for n in graph.find_nodes(op="call_function", target=norm) if n.args[5]]
    saved += [n for n in graph.find_nodes(op="call_function", target=attention) if not n.args[3:4] or n.args[3] == 0]
    for node in saved:
        for result in (node, *node.users):
            result.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _merge_equal(graph):
    """Merges equal calls, so that the cut does not save one value twice. Calls that share storage with outputs stay,
    because a caller may write to each output separately."""
    (output,) = graph.find_nodes(op="output")
    outputs = {storage_of(n) for n in output.all_input_nodes} - {None}
    seen = {}
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) and node.target is not operator.getitem:
            continue
        if node.target is not operator.getitem:
            if schema(node.target).is_mutable:
                seen.clear()  # reads after the write give other values
                continue
            if not _UNLIKE.isdisjoint(node.target.tags):
                continue
        if outputs and storage_of(node) in outputs:
            continue
        first = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)  # a node's repr is its name, its own
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _save_bases(forward, backward, num_outputs):
    (output,) = forward.graph.find_nodes(op="output")
    results, dropped = list(output.args[0]), set()
    placeholders = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    saved = {n: placeholders[n.name] for n in results[num_outputs:] if n.name in placeholders}  # forward's to backward's
    made = {}  # the same of views that the backward makes, and of their bases
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    for i in range(num_outputs, len(results)):
        node = results[i]
        chain = _views_behind(node, saved, made) if node in saved else []
        if not chain:
            continue
        base, old = chain[0], saved.pop(node)
        if base in made:
            dropped.add(i)
        elif base in saved:
            made[base] = saved[base]
            dropped.add(i)
        else:
            with backward.graph.inserting_before(old):
                made[base] = backward.graph.placeholder(base.name)
            made[base].meta = old.meta | {k: base.meta[k] for k in ("val", "tensor_meta") if k in base.meta}
            results[i] = base
        with backward.graph.inserting_before(first):
            for view in chain[1:]:
                made[view] = backward.graph.node_copy(view, made.__getitem__)
        old.replace_all_uses_with(made[node])
        backward.graph.erase_node(old)
    output.args = ([r for i, r in enumerate(results) if i not in dropped],)
    if "desc" in output.meta:
        output.meta["desc"] = [d for i, d in enumerate(output.meta["desc"]) if i not in dropped]
    forward.recompile()
    backward.recompile()


def _views_behind(node, saved, made):
    """A tensor that the backward has or can save, and the views that lead from it to `node`; empty if the node is dense
    or has sizes that change."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.meta.get("saved_tensor_with_no_vc_check"):
        return []
    if not all(isinstance(d, int) for d in (*value.shape, *value.stride())) or _is_dense(node):
        return []
    chain = [node]
    while makes_view(chain[0]):
        if len(chain[0].all_input_nodes) != 1:
            return []
        chain.insert(0, chain[0].all_input_nodes[0])
        if chain[0] in made or (chain[0] in saved and _is_dense(chain[0])):
            break
    return chain if len(chain) > 1 and chain[0].op == "call_function" else []


def _is_dense(node) -> bool:
    return isinstance(node.meta["val"], torch.Tensor) and node.meta["val"].is_contiguous()
