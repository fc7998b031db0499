# SPDX-License-Identifier: Apache-2.0
"""Removes separate checks of factorisations from traces: the factorisation itself checks (check_errors=True).

In PyTorch a factorisation returns an extra result that says whether it succeeded. Another call checks that result, and
tokens keep these checks in order.
"""

import operator

import torch

from caesura.capture.compat import schema

aten = torch.ops.aten


def join_checks(module: torch.fx.GraphModule, tokens: int):
    """Takes the checks out of a trace, with the tokens, the first of its inputs and outputs."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, checked, info = node.args[:3]
        if checked is not aten._linalg_check_errors.default or info.target is not operator.getitem:
            continue
        factorised = info.args[0]
        formals = [a.name for a in schema(factorised.target).arguments]
        if "check_errors" not in formals:
            continue
        place = formals.index("check_errors")
        factorised.args = factorised.args[:place]
        factorised.kwargs = {**factorised.kwargs, "check_errors": True}
        for result in list(node.users):
            result.replace_all_uses_with(token)
            graph.erase_node(result)
        graph.erase_node(node)
    output = next(n for n in graph.nodes if n.op == "output")
    inputs = graph.find_nodes(op="placeholder")[:tokens]
    if list(output.args[0][:tokens]) == inputs:
        output.args = (output.args[0][tokens:],)
        for node in inputs:
            graph.erase_node(node)
    module.recompile()
