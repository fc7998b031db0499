# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator samples through our own kernels, forward and backward, beside eager PyTorch.

    python benchmarks/operators.py [--ops REGEX] [--every N] [--samples N] [--dtypes float32,float64] [--list]

Each sample of each operator (OpInfo) is captured as caesura.wrap captures it (AOT autograd, decompositions, the same
importer) and runs in programs of ours; calls that have no equivalent stay with PyTorch. Results and the gradients of all
floating-point inputs are compared with eager's, to TOLERANCE of the largest element. Printed: each sample that is wrong,
then how many ran in our kernels wholly, partly and not at all, and the calls that stayed with PyTorch, by how many
samples have them. Exits with 1 where a sample was wrong.
"""

import collections
import warnings

import torch
from aten_nodes import Record, samples_of, selected, selection
from functorch.compile import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_unflatten

import caesura
from caesura.backend import decompositions
from caesura.graph_program import GraphProgram

TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-7}
# Raised where a graph cannot be captured whole: torch.compile breaks it there.
UNCAPTURED = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode",
              "UnsupportedOperatorException")


def compile_graph(module, example_inputs):
    with unset_fake_temporarily():  # the graph's constants are real
        return GraphProgram(module)


def function_of(op, sample):
    """(f, tensors): the sample as a function of its tensors that gives the tensors among its results."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        value, args, kwargs = tree_unflatten(given, spec)
        return [r for r in tree_flatten(op(value, *args, **kwargs))[0] if isinstance(r, torch.Tensor)]

    return call, [leaves[i] for i in places]


def run(function, tensors, differentiable):
    """(results, gradients) with cotangents that repeat."""
    torch.manual_seed(0)
    leaves = [t.detach().clone().requires_grad_(differentiable and t.is_floating_point()) for t in tensors]
    results = function(*leaves)
    wanted = [t for t in leaves if t.requires_grad]
    ys = [y for y in results if y.requires_grad]
    if not ys or not wanted:
        return results, []
    dys = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ys]
    gradients = torch.autograd.grad(ys, wanted, dys, allow_unused=True)
    return results, [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, gradients)]


def run_eager(function, tensors):
    """(whether it has a derivative, results, gradients); raises where eager cannot run it, or does not repeat it."""
    differentiable = True
    with Record() as record:
        try:
            first = run(function, tensors, True)
        except (RuntimeError, NotImplementedError):
            differentiable = False
            first = run(function, tensors, False)
    if record.random:
        raise ValueError("random numbers")
    second = run(function, tensors, differentiable)
    for a, b in zip([*first[0], *first[1]], [*second[0], *second[1]]):
        if not torch.equal(a, b) and not torch.allclose(a, b, equal_nan=True):
            raise ValueError("two runs differ")
    return differentiable, *first


def difference(ours, theirs):
    """None, or what is wrong with a result."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"is {ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    if torch.equal(ours, theirs):
        return None
    finite = theirs[theirs.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    tolerance = TOLERANCE.get(theirs.dtype, 0.0)
    if torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * max(scale, 1.0), equal_nan=True):
        return None
    away = (ours - theirs).abs() if theirs.is_floating_point() else (ours != theirs).double()
    return f"is off by {away.max().item():.3g} of {scale:.3g}"


def check(op, sample):
    """(outcome, reason) of one sample."""
    function, tensors = function_of(op, sample)
    if op.name.removeprefix("new_").startswith("empty"):
        return "left out", "gives bytes that nobody has written"
    if any(t.layout != torch.strided or t.is_complex() for t in tensors):
        return "left out", "complex or sparse"
    try:
        differentiable, results, gradients = run_eager(function, tensors)
    except Exception as error:
        return "left out", f"eager: {type(error).__name__}: {error}"
    caesura.reset_report()
    try:
        captured = aot_function(function, compile_graph, compile_graph, min_cut_rematerialization_partition, decompositions())
        ours = run(captured, tensors, differentiable)
    except Exception as error:
        if type(error).__name__ in UNCAPTURED:
            return "not captured", type(error).__name__
        return "wrong", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error) else ''}"
    names = [f"result {i}" for i in range(len(results))] + [f"gradient {i}" for i in range(len(gradients))]
    for name, a, b in zip(names, [*ours[0], *ours[1]], [*results, *gradients], strict=True):
        if problem := difference(a, b):
            return "wrong", f"{name} {problem}"
    report = caesura.report()
    if report.eager_calls == 0:
        return "ours", ""
    return ("partly ours" if report.kernel_calls else "left to PyTorch"), ""


def main():
    parser = selection(__doc__)
    parser.add_argument("--list", action="store_true", help="also the samples that are left out or not captured")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    counts, left, places = collections.Counter(), collections.Counter(), {}
    for op in selected(options):
        for dtype, sample in samples_of(op, options):
            outcome, reason = check(op, sample)
            counts[outcome] += 1
            left.update(f"{target}: {why}" for target, why in caesura.report().fallbacks)
            places.setdefault(outcome, set()).add(op.name)
            if outcome == "wrong" or (options.list and reason):
                print(f"{op.name} {str(dtype).removeprefix('torch.')}: {outcome}: {reason}", flush=True)
    for call, n in left.most_common():
        print(f"  {n:5} {call}")
    print(f"{len(selected(options))} operators, {sum(counts.values())} samples: " +
          ", ".join(f"{n} {outcome} ({len(places[outcome])} operators)" for outcome, n in counts.most_common()))
    raise SystemExit(1 if counts["wrong"] else 0)


if __name__ == "__main__":
    main()
