# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator samples through our own kernels, forward and backward, beside eager PyTorch.

    python benchmarks/operators.py [--ops REGEX] [--every N] [--samples N] [--dtypes float32,float64] [--dynamic | --steps]
                                   [--twice] [--list] [--fills N] [--seed N]

Each sample of each operator (OpInfo) is captured as caesura.wrap captures it (AOT autograd, decompositions, the same
importer) and runs in our programs. Calls without an equivalent stay with PyTorch. Results and the gradients of all
floating-point inputs are compared with eager's, to TOLERANCE of the largest element. It prints each wrong sample; the
calls that stayed with PyTorch, with their number of samples; the reasons for samples left out or not captured; the
distances of the others from eager; and how many ran in our kernels wholly, partly and not at all. It exits with 1 if a
sample was wrong.

With --steps each sample's forward is captured as caesura.compile_step captures it, and differentiated by our own rules;
with --twice the forward is the sample's gradient by torch.autograd.grad.

With --fills N each sample is tried with N drawn fills in place of its own numbers: zeros, ties, small integers, infinities,
NaN, denormals, an empty dimension, or one of size 1 (special_fills.py). The numbers depend on the seed, the operator, its dtype
and the sample only. A table of the differences closes the list.
"""

import collections
import dataclasses
import math
import re
import warnings

import torch
from aten_nodes import Record, samples_of, selected, selection
from functorch.compile import aot_function
from generators.special_fills import fills_of
from torch._decomp import get_decompositions
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_flatten, tree_unflatten

import caesura
from caesura import _core
from caesura.capture.decompositions import corrected, decompositions
from caesura.lowering import TABLE
from caesura.lowering.training_importer import DECOMPOSED_TWICE, KEPT, ForwardImporter, import_forward
from caesura.rewrites.complex_numbers import in_pairs
from caesura.rewrites.linalg_checks import join_checks
from caesura.rewrites.stop_gradient import drop_detached
from caesura.runtime.graph_executor import GraphProgram
from caesura.runtime.step_program import as_real, keep_inputs

# Sums in another order and exponentials with errors of a few units in the last place, through a backward: 250 units of
# float32's rounding. The float64 tolerance detects a constant stored in float32 (6e-8), and allows 50,000 units.
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-11, torch.complex64: 3e-5, torch.complex128: 1e-11}
# Operators with float32 constants in every dtype: PyTorch's own
# hardsigmoid multiplies its gradient with 1.0f / 6.
FLOAT32_CONSTANTS = re.compile("hardsigmoid")
# Eager's vector code gives another gradient for NaN than its code of single elements (gelu: another value for infinity), so that
# an element's place in a tensor decides. With --fills, eager's number for an element by itself is right too.
BY_PLACE = re.compile(r"nn\.functional\.(relu6|hardtanh|hardshrink|softshrink|elu|selu|celu|hardswish|gelu)$")
# Differences of filled samples that are known: the fill, the operators, and the reason. They are counted, and are not wrong.
LISTED = (
    ("infinities", r"(masked\.)?(var|std)(_mean)?|nn\.functional\.instance_norm|native_batch_norm",
     "docs/differences.md: means and norms of infinities"),
    ("NaN", r"nn\.functional\.adaptive_max_pool[123]d", "docs/differences.md: adaptive max pools over several NaNs"),
    ("infinities", r"nn\.functional\.interpolate", "docs/differences.md: interpolation beside an infinity"),
    ("denormals", r"(var|std)(_mean)?|masked\.(std|var|norm)|polar", "docs/differences.md: their squares are 0 in float32"),
    ("denormals", r"scatter_reduce", "PyTorch divides a product by a factor: a denormal has too few digits for it"),
    ("denormals", r"qr|linalg\.qr", "the inverse of a factor overflows: the order of a sum decides"),
    ("zeros", r"linalg\.pinv", "rounding times a power of the condition number of a matrix that is nearly singular"),
)
# Raised where a graph cannot be captured whole: torch.compile breaks it there.
UNCAPTURED = ("DynamicOutputShapeException", "DataDependentOutputException", "GuardOnDataDependentSymNode",
              "UnsupportedOperatorException", "ZeroDivisionError")  # the last one by PyTorch's decompositions, of a size of 0

# Left out of --steps, and why.
NO_STEPS = {"nn.functional.linear_cross_entropy": "an autograd.Function, which only dynamo shows",
            "as_strided_scatter": "PyTorch's own derivative goes through what is overwritten"}


def is_float(tensor):
    return tensor.is_floating_point() or tensor.is_complex()


def compile_graph(module, example_inputs):
    module = in_pairs(module)
    with unset_fake_temporarily():  # the graph's constants are real
        return GraphProgram(module)


def function_of(op, sample):
    """Returns (f, tensors): f takes the sample's tensors and returns the tensors among its results."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors):
        given = list(leaves)
        for place, tensor in zip(places, tensors):
            given[place] = tensor
        value, args, kwargs = tree_unflatten(given, spec)
        return [r for r in tree_flatten(op(value, *args, **kwargs))[0] if isinstance(r, torch.Tensor)]

    return call, [leaves[i] for i in places]


def run(function, tensors, differentiable, apart=False):
    """Returns (results, gradients) for repeatable cotangents. apart: no element of the tensors has a neighbour."""
    torch.manual_seed(0)
    copies = [torch.stack([t, t], -1)[..., 0] if apart else t.detach().clone() for t in tensors]
    leaves = [t.detach().requires_grad_(differentiable and is_float(t)) for t in copies]
    results = function(*leaves)
    wanted = [t for t in leaves if t.requires_grad]
    ys = [y for y in results if y.requires_grad]
    if not ys or not wanted:
        return results, []
    dys = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ys]
    gradients = torch.autograd.grad(ys, wanted, dys, allow_unused=True)
    return results, [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, gradients)]


def run_eager(function, tensors):
    """Returns (has a derivative, results, gradients). Raises if eager cannot run the sample or does not repeat it."""
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


@dataclasses.dataclass
class Checked:
    """The outcome of one sample."""
    outcome: str
    reason: str = ""
    gradients: int = 0     # that were compared
    distance: float = 0.0  # largest distance from eager's, relative to the largest element if that exceeds 1
    cause: str = ""        # a difference without the sample's own numbers


def kind_of(number):
    """The number as a special one, or "a number"."""
    return "NaN" if number != number else f"{number:g}" if number in (0, math.inf, -math.inf) else "a number"


def compare(name, ours, theirs, tolerance):
    """Returns (None or the error of a result as a text, its distance from eager's, the error's cause)."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{name} is {ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}", 0.0, "its type"
    if torch.equal(ours, theirs):
        return None, 0.0, ""
    if theirs.is_complex():
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
    if not theirs.is_floating_point():
        return f"{name} differs", 0.0, f"another {theirs.dtype}"
    finite = theirs.isfinite()
    scale = max(theirs[finite].abs().max().item(), 1.0) if finite.any() else 1.0
    off = (ours[finite] - theirs[finite]).abs().max().item() if finite.any() else 0.0
    same = torch.isclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if same.all():
        return None, off / scale, ""
    place = tuple((~same).nonzero()[0].tolist())
    a, b = ours[place].item(), theirs[place].item()
    return (f"{name} is {a:.8g} for {b:.8g} at {list(place)}, {(~same).sum()} of {same.numel()} are off, scale {scale:.3g}", off / scale,
            f"{kind_of(a)} for {kind_of(b)}")


def compared(op, names, ours, theirs, apart):
    """The outcome of a sample that ran. apart: eager's results for elements by themselves, if they are right too."""
    checked = Checked("ours")
    for i, (name, a, b) in enumerate(zip(names, ours, theirs, strict=True)):
        b = torch.where(torch.isclose(a, apart[i], equal_nan=True), a, b) if apart else b
        tolerance = 1e-7 if b.dtype == torch.float64 and FLOAT32_CONSTANTS.search(op.name) else TOLERANCE.get(b.dtype, 0.0)
        problem, distance, cause = compare(name, a, b, tolerance)
        if problem:
            return Checked("wrong", problem, cause=f"{name.split()[0]}: {cause}")
        checked.distance = max(checked.distance, distance)
    return checked


def raised(outcome, error):
    """The outcome of a sample that raises an error with us."""
    first = str(error).strip().splitlines()[0][:160] if str(error) else ""
    return Checked(outcome, f"{type(error).__name__}: {first}", cause=f"an error: {type(error).__name__}")


def check(op, function, tensors, kept, options):
    """kept: captures of this sample's operator by the shapes that they are for."""
    if op.name.removeprefix("new_").startswith("empty"):
        return Checked("left out", "gives bytes that nobody has written")
    if options.dynamic and op.name.startswith("resize_"):
        return Checked("left out", "PyTorch does not trace it with symbols")
    if any(t.layout != torch.strided for t in tensors):
        return Checked("left out", "sparse")
    try:
        differentiable, results, gradients = run_eager(function, tensors)
    except Exception as error:
        return Checked("left out", f"eager: {type(error).__name__}: {error}")
    caesura.reports.reset()
    key = differentiable, *(t.shape for t in tensors)
    try:
        if key not in kept:
            kept[key] = aot_function(function, compile_graph, compile_graph, min_cut_rematerialization_partition,
                                     decompositions(TABLE), dynamic=options.dynamic)
        with corrected:  # it is traced when it is called
            ours = run(kept[key], tensors, differentiable)
    except Exception as error:
        if type(error).__name__ in UNCAPTURED:
            return Checked("not captured", type(error).__name__)
        return raised("wrong", error)
    names = [f"result {i}" for i in range(len(results))] + [f"gradient {i}" for i in range(len(gradients))]
    apart = sum(map(list, run(function, tensors, differentiable, True)), []) if options.fills and BY_PLACE.match(op.name) else []
    checked = compared(op, names, [*ours[0], *ours[1]], [*results, *gradients], apart)
    checked.gradients = len(gradients)
    report = caesura.stats()
    if report.eager_calls and checked.outcome == "ours":
        checked.outcome = "partly ours" if report.kernel_calls else "left to PyTorch"
    return checked


def gradient_of(function):
    """The gradients of the floating tensors as a function of all."""
    def gradients(*tensors):
        with torch.enable_grad():
            ys = [y for y in function(*tensors) if y.requires_grad]
            dys = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ys]
            found = torch.autograd.grad(ys, [t for t in tensors if t.requires_grad], dys, create_graph=True, allow_unused=True)
        return [g for g in found if g is not None]
    return gradients


def forward_of_a_step(function, tensors, wanted, twice):
    """Returns the model of a step's forward. wanted: results with a gradient."""
    table = decompositions(KEPT)
    if twice:
        tensors, table = [t.detach().requires_grad_(is_float(t)) for t in tensors], table | get_decompositions(DECOMPOSED_TWICE)
    graphs = []

    def keep(module, inputs):
        graphs.append(module)
        return module.forward

    def loss_of(*given):
        results = (y.real if y.is_complex() else y for y in function(*given))  # cotangents are real numbers
        return sum((y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
                   for y, counts in zip(results, wanted) if counts)

    with torch.no_grad(), corrected:
        aot_function(loss_of, keep, inference_compiler=keep, decompositions=table)(*tensors)
    join_checks(graphs[0], len(graphs[0].graph.find_nodes(op="placeholder")) - len(tensors))
    if twice:
        drop_detached(graphs[0])
    graph = in_pairs(*graphs, real_inputs=True)
    names = {n: f"input_{i}" for i, n in enumerate(n for n in graph.graph.nodes if n.op == "placeholder")}
    (loss,) = next(n for n in graph.graph.nodes if n.op == "output").args[0]
    model = import_forward(ForwardImporter(decompositions=table, twice=twice), graph, names, loss)
    keep_inputs(model, {name for node in model.graph.node for name in node.input})
    return model


def gradients_of_a_step(model, tensors):
    """Returns the gradients of the floating tensors, taken by a training session."""
    read = {name for node in model.graph.node for name in node.input}
    given = {f"input_{i}": as_real(t.detach().clone().contiguous()) for i, t in enumerate(tensors)}
    trained = [name for name, t in given.items() if name in read and t.is_floating_point()]
    found = {}
    if trained:
        session = _core.Training.open(model.SerializeToString(), {
            "loss": "output", "target": "", "prediction": "loss", "class_axis": 1, "optimizer": "sgd", "coefficients": {}, "fed": [],
            "groups": [], "trainable": trained, "frozen": [], "clip_norm": 0.0, "accumulation_steps": 1, "commit": "late",
            "precision": "fp32", "memory_budget": 0, "keep_gradients": True, "threads": 0, "seed": 0,
        }, {name: given[name] for name in trained})
        session.step({name: t for name, t in given.items() if name in read and name not in trained})
        found = {name: torch.from_dlpack(g) for name, g in zip(session.parameter_names(), session.gradients())}
    gradients = [found.get(name, torch.zeros_like(t)).reshape(t.shape) for name, t in given.items()]
    return [torch.view_as_complex(g) if t.is_complex() else g for g, t in zip(gradients, tensors) if is_float(t)]


def check_step(op, function, tensors, kept, options):
    """kept: forwards of this sample's operator by the shapes that they are for, each with its outcome if it gives no wrong gradient."""
    function = gradient_of(function) if options.twice else function
    if op.name in NO_STEPS or any(t.layout != torch.strided for t in tensors):
        return Checked("left out", NO_STEPS.get(op.name, "sparse"))
    try:
        _, _, gradients = run_eager(function, tensors)
    except Exception as error:
        return Checked("left out", f"eager: {type(error).__name__}: {error}")
    if not gradients:
        return Checked("left out", "no gradient")
    key = tuple(t.shape for t in tensors)
    caesura.reports.reset()
    if key not in kept:
        results = function(*[t.detach().clone().requires_grad_(is_float(t)) for t in tensors])
        try:
            model = forward_of_a_step(function, tensors, [y.requires_grad for y in results], options.twice)
            kept[key] = model, "partly ours" if caesura.stats().fallbacks else "ours"
        except Exception as error:
            kept[key] = None, raised("refused", error)
    model, outcome = kept[key]
    if model is None:
        return outcome
    try:
        ours = gradients_of_a_step(model, tensors)
    except Exception as error:
        return raised("refused" if isinstance(error, NotImplementedError) or not options.fills else "wrong", error)
    apart = run(function, tensors, True, True)[1] if options.fills and BY_PLACE.match(op.name) else []
    checked = compared(op, [f"gradient {i}" for i in range(len(gradients))], ours, gradients, apart)
    checked.gradients = len(gradients)
    checked.outcome = outcome if checked.outcome == "ours" else checked.outcome
    return checked


def general(reason):
    """Returns the reason without the sample's own numbers, so that equal reasons are counted together."""
    return re.sub(r"\d+", "N", reason.splitlines()[0])[:110]


def main():
    parser = selection(__doc__)
    parser.add_argument("--dynamic", action="store_true", help="sizes are symbols, as when they have changed between calls")
    parser.add_argument("--steps", action="store_true", help="the gradients of whole steps")
    parser.add_argument("--twice", action="store_true", help="the gradients of steps whose forward takes gradients")
    parser.add_argument("--list", action="store_true", help="also the samples that are left out or not captured")
    parser.add_argument("--fills", type=int, default=0, help="drawn fills of each sample in place of its own numbers")
    parser.add_argument("--seed", type=int, default=0, help="of the fills")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    places, left = collections.defaultdict(list), collections.Counter()  # outcome to the operators of its samples
    reasons, agree = collections.Counter(), collections.defaultdict(list)
    differences = collections.defaultdict(collections.Counter)  # cause to operators
    check_one = check_step if options.steps or options.twice else check
    for op in selected(options):
        for number, (dtype, sample) in enumerate(samples_of(op, options)):
            function, tensors = function_of(op, sample)
            name, kept = str(dtype).removeprefix("torch."), {}
            place = f"{options.seed} {op.name} {op.variant_test_name} {name} {number}"
            for fill, given in fills_of(tensors, options.fills, place) if options.fills else [("", tensors)]:
                checked = check_one(op, function, given, kept, options)
                why = [why for kind, ops, why in LISTED if fill == kind and re.fullmatch(ops, op.name)]
                if checked.outcome == "wrong" and why:
                    checked = Checked("listed", why[0])
                places[checked.outcome].append(op.name)
                left.update(f"{target}: {why}" for target, why in caesura.stats().fallbacks)
                if checked.reason:
                    reasons[checked.outcome, general(checked.reason)] += checked.outcome != "wrong"
                else:
                    agree[name].append((checked.distance, checked.gradients, op.name))
                if checked.outcome == "wrong":
                    differences[f"{fill + ', ' if fill else ''}{checked.cause}"][op.name] += 1
                if checked.outcome == "wrong" or (options.list and checked.reason):
                    print(f"{op.name} {op.variant_test_name} {name} {number} {fill}: {checked.outcome}: {checked.reason}", flush=True)
    for call, n in left.most_common():
        print(f"  {n:5} {call}")
    for (outcome, reason), n in sorted((+reasons).items()):
        print(f"  {n:5} {outcome}: {reason}")
    for cause, names in sorted(differences.items(), key=lambda item: -item[1].total()):
        print(f"  {names.total():5} wrong: {cause}: " + ", ".join(f"{name} {n}" for name, n in names.most_common()))
    for name, samples in agree.items():
        distance, _, farthest = max(samples)
        print(f"{name}: {len(samples)} samples agree, {sum(n > 0 for _, n, _ in samples)} with gradients; "
              f"the farthest is {distance:.2g} of scale away ({farthest})")
    print(f"{len(selected(options))} operators, {sum(map(len, places.values()))} samples: " +
          ", ".join(f"{len(names)} {outcome} ({len(set(names))} operators)"
                    for outcome, names in sorted(places.items(), key=lambda item: -len(item[1]))))
    raise SystemExit(1 if places["wrong"] else 0)


if __name__ == "__main__":
    main()
