# SPDX-License-Identifier: Apache-2.0
"""Handles each autograd.Function in a forward that our rules differentiate.

The Function's forward is decomposed like all other code. A call of caesura::with_gradient follows it, which returns the
values unchanged and knows the backward that the Function defines for them. A tensor's hook counts as a Function that
returns the tensor unchanged.
"""

import torch

from caesura.capture.compat import APPLIES_FUNCTION, NON_DIFFERENTIABLE, detect_fake_mode, make_fx, set_grad_enabled, tree_leaves
from caesura.rewrites.fx_meta import describe

_library = torch.library.Library("caesura", "FRAGMENT")
_library.define("with_gradient(Tensor[] values, Tensor[] inputs, Tensor[] saved, int function) -> Tensor[]")
TARGET = torch.ops.caesura.with_gradient.default


@torch.library.register_fake("caesura::with_gradient", lib=_library)
def _(values, inputs, saved, function):
    return [torch.empty_like(value) for value in values]


_TENSOR = object()  # stands for a given tensor


def take_functions(graph: torch.fx.GraphModule) -> tuple:
    """Decomposes the autograd.Functions in Dynamo's graph. Returns them by their number in with_gradient, and a line
    for each one that cannot be decomposed."""
    functions, problems = [], []
    for module in parts_of(graph):
        for node in list(module.graph.nodes):
            is_hook = node.op == "call_function" and str(node.target) == "register_hook"
            if not is_hook and APPLIES_FUNCTION not in str(node.target):
                continue
            why = None if is_hook else _problem(node)
            if why is not None:
                problems.append(f"an autograd.Function {why} (at {describe(node)})")
                continue
            bodies = node.args[1:2] if is_hook else node.args[:2]
            graphs = [_without_modes(getattr(module, body.target)) for body in bodies]
            runs = [torch.fx.Interpreter(body).run for body in graphs]
            given = [argument for argument in node.args if argument not in bodies]
            forward, backward = (_give_on, _hooked(runs[0], len(given))) if is_hook else runs
            without = () if is_hook else _positions_of_none(graphs[1])
            functions.append(Function(forward, backward, len(functions), set(node.kwargs.get(NON_DIFFERENTIABLE, ())), without))
            node.target, node.args, node.kwargs = functions[-1], tuple(given), {}
            for body in bodies:
                module.graph.erase_node(body)
                delattr(module, body.target)
        module.recompile()
    return functions, problems


def _positions_of_none(module):
    (output,) = module.graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], (list, tuple)) else output.args
    return {i for i, result in enumerate(results) if result is None}


def _give_on(x, *others):
    return x, others


def _hooked(hook, count):
    def backward(dy, *others):
        found = hook(dy, *others)
        found = found[0] if isinstance(found, (list, tuple)) else found
        return [dy if found is None else found] + [None] * (count - 1)
    return backward


def parts_of(graph: torch.fx.GraphModule) -> list:
    """Dynamo's graph and the graphs that its calls run, such as the body of a checkpoint."""
    return [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]


def _problem(node):
    """The reason why the call cannot be decomposed, or None."""
    if "saved_for_backward_idx" not in node.kwargs:
        return f"as PyTorch {torch.__version__} captures it"
    if node.kwargs.get("dirty_idx"):
        return "that writes to its inputs"
    values = tree_leaves([n.meta.get("example_value") for n in (node, *node.all_input_nodes)])
    return "of complex numbers" if any(isinstance(v, torch.Tensor) and v.is_complex() for v in values) else None


def _without_modes(module):
    for node in list(module.graph.nodes):
        if node.target is set_grad_enabled:
            module.graph.erase_node(node)
    module.recompile()
    return module


class Function:
    """The call in dynamo's graph. forward: gives the results and what is saved; backward: takes the results' gradients and
    what was saved, and gives those of the arguments. fixed: the results that have no gradient. without: the arguments that
    have none."""

    __name__ = "autograd_function"

    def __init__(self, forward, backward, number, fixed, without=()):
        self.forward, self.backward, self.number, self.fixed, self.without = forward, backward, number, fixed, without
        self.is_hook = forward is _give_on

    def __call__(self, *arguments):
        results, saved = self.forward(*arguments)
        several = isinstance(results, (list, tuple))
        results = list(results) if several else [results]
        moving = [i for i, r in enumerate(results) if _is_float(r) and i not in self.fixed]
        self.inputs = [i for i, a in enumerate(arguments) if _is_float(a)]
        self.saved = [_TENSOR if isinstance(s, torch.Tensor) else s for s in saved]
        self.results = [_TENSOR if i in moving else (r.shape, r.dtype) if isinstance(r, torch.Tensor) else None
                        for i, r in enumerate(results)]
        tensors = [s for s in saved if isinstance(s, torch.Tensor)]
        given = TARGET([results[i] for i in moving], [arguments[i] for i in self.inputs], tensors, self.number)
        for i, value in zip(moving, given):
            results[i] = value
        return tuple(results) if several else results[0]

    def trace(self, values, inputs, saved, decompositions):
        """The backward as a graph of ATen calls: from the gradients of `values` and from `saved` to the gradients of `inputs`, None
        where there is none (fake tensors all)."""
        def run(gradients, tensors):
            gradients, tensors = iter(gradients), iter(tensors)
            # PyTorch gives zeros for results without a gradient.
            given = [next(gradients) if r is _TENSOR else r and torch.zeros(r[0], dtype=r[1]) for r in self.results]
            given += [next(tensors) if s is _TENSOR else s for s in self.saved]
            found = self.backward(*given)
            found = found if isinstance(found, (list, tuple)) else [found]
            found = [found[i] for i in self.inputs]
            return [g if g is None else g.sum_to_size(x.shape).to(x.dtype) for g, x in zip(found, inputs)]

        with detect_fake_mode(values), torch.fx.traceback.preserve_node_meta():
            given = [[torch.empty_like(t) for t in tensors] for tensors in (values, saved)]  # all distinct
            traced = make_fx(run, decomposition_table=decompositions)(*given)
        traced.graph.eliminate_dead_code()
        return traced


def value_of_first(number) -> Function:
    """A call that gives the first one's values of two tensors, with the second one's gradient."""
    return Function(lambda value, of: (value, ()), lambda dy: (None, dy), number, set())


def value_over_last(number) -> Function:
    """A call that gives the first one's values of two tensors, with its gradient. The second one's is zeros, of which backwards may
    make NaN."""
    return Function(lambda value, last: (value, ()), lambda dy: (dy, torch.zeros_like(dy)), number, set())


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()
