# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own operator samples through ATen nodes, and counts the dispatcher calls that agree with PyTorch.

    python benchmarks/aten_nodes.py [--ops REGEX] [--samples N] [--dtypes float32,float64] [--list]

Each sample of each operator (OpInfo) runs in PyTorch. Every functional dispatcher call that it makes becomes a graph of
one ATen node. Its outputs must equal PyTorch's bit for bit (or be "close": a product's order of summation depends on
the addresses of its operands). Its gradients must be PyTorch's if the call has a derivative. It prints a line for each
wrong call, with the reason, and the counts. It exits with 1 if a call was wrong.
"""

import argparse
import collections
import itertools
import re
import warnings

import torch
from onnx import helper
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import caesura
from caesura import onnxruntime, torch_kernels
from caesura.lowering.aten_fallback import DOMAIN, aten_node
from caesura.lowering.registry import Refused

TYPES = {getattr(torch, name): number for name, number in (
    ("float32", 1), ("uint8", 2), ("int8", 3), ("uint16", 4), ("int16", 5), ("int32", 6), ("int64", 7), ("bool", 9),
    ("float16", 10), ("float64", 11), ("uint32", 12), ("uint64", 13), ("complex64", 14), ("complex128", 15),
    ("bfloat16", 16))}


class Record(TorchDispatchMode):
    """Records the calls made under it. `random` is True if one of them took random numbers."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.random = False

    def __torch_dispatch__(self, target, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        random = torch.Tag.nondeterministic_seeded in target.tags
        self.random |= random
        if not target._schema.is_mutable and not random:
            arguments = [args[i] if i < len(args) else
                         kwargs.get(a.name, a.default_value if a.has_default_value() else None)
                         for i, a in enumerate(target._schema.arguments)]
            self.calls.append((target, arguments))
        return target(*args, **kwargs)


def tensors_in(items):
    return [item for item in tree_flatten(items)[0] if isinstance(item, torch.Tensor)]


def signature(target, arguments):
    def of(item):
        if not isinstance(item, torch.Tensor):
            return repr(item)
        return (item.dtype, tuple(item.shape), item.stride() if item.layout == torch.strided else item.layout)

    return (str(target), str([of(item) for item in tree_flatten(arguments)[0]]))


def model_of(target, arguments, results):
    """Returns the call as a graph of one node: (model bytes, feeds, names of tensors by id)."""
    names, feeds = {}, {}

    def name_of(item):
        if not isinstance(item, torch.Tensor):
            return None
        if id(item) not in names:
            names[id(item)] = f"x{len(names)}"
            feeds[names[id(item)]] = item.detach().contiguous()
        return names[id(item)]

    outputs = [f"y{i}" if isinstance(r, torch.Tensor) else "" for i, r in enumerate(results)]
    node = aten_node(target, arguments, name_of, outputs)
    describe = lambda name, t: helper.make_tensor_value_info(name, TYPES[t.dtype], list(t.shape))  # noqa: E731
    graph = helper.make_graph([node], "call", [describe(n, t) for n, t in feeds.items()],
                              [describe(n, r) for n, r in zip(outputs, results) if n])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid(DOMAIN, 1)])
    return model.SerializeToString(), feeds, names


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def close(a, b):
    return same(a, b) or torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def check_gradients(source, feeds, names, target, arguments):
    """Returns None, the error as a text, or "" if PyTorch itself has no derivative."""
    wanted = [n for n, t in feeds.items() if t.is_floating_point()]
    leaves = {n: feeds[n].clone().requires_grad_() for n in wanted}
    replace = lambda item: leaves.get(names.get(id(item)), item) if isinstance(item, torch.Tensor) else item  # noqa: E731
    arguments = [[replace(i) for i in a] if isinstance(a, (list, tuple)) else replace(a) for a in arguments]
    try:
        keyword = {a.name: v for a, v in zip(target._schema.arguments, arguments) if a.kwarg_only}
        eager = tree_flatten(target(*[v for a, v in zip(target._schema.arguments, arguments) if not a.kwarg_only],
                                    **keyword))[0]
        ys = [(i, y) for i, y in enumerate(eager) if isinstance(y, torch.Tensor) and y.requires_grad
              and y.is_floating_point()]
        if not ys or not wanted:
            return ""
        dys = [torch.ones_like(y) for _, y in ys]
        expected = torch.autograd.grad([y for _, y in ys], [leaves[n] for n in wanted], dys, allow_unused=True)
    except (RuntimeError, NotImplementedError):
        return ""
    run = caesura.SplitModule(source, inputs=wanted, training=False).forward(feeds)
    given = {f"y{i}": dy for (i, _), dy in zip(ys, dys)}
    gradients = run.backward({n: given.get(n) for n in run.outputs})
    for name, dx in zip(wanted, expected):
        if not close(gradients[name], torch.zeros_like(feeds[name]) if dx is None else dx):
            return f"the gradient of {name} differs"
    return None


def check(target, arguments):
    """(outcome, reason) of one call."""
    if target._schema.name.split("::")[1].removeprefix("new_").startswith("empty"):
        return "left out", "gives bytes that nobody has written"
    if any(t.dtype not in TYPES or t.layout != torch.strided for t in tensors_in(arguments)):
        return "left out", "types or layouts without a tensor of ours"
    copies = [[i.clone() if isinstance(i, torch.Tensor) else i for i in a] if isinstance(a, (list, tuple)) else
              a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    formals = target._schema.arguments
    def call():
        return target(*[v for a, v in zip(formals, copies) if not a.kwarg_only],
                      **{a.name: v for a, v in zip(formals, copies) if a.kwarg_only})

    try:
        returned = call()
    except Exception as error:  # the sample changed its own input
        return "left out", f"PyTorch: {error}"
    again = tree_flatten(call())[0]
    results = [torch.tensor(r, dtype=torch.float64 if isinstance(r, float) else None)
               if isinstance(r, (bool, int, float)) else r for r in tree_flatten(returned)[0]]
    if any(isinstance(r, torch.Tensor) and (r.dtype not in TYPES or r.layout != torch.strided) for r in results):
        return "left out", "types or layouts without a tensor of ours"
    if not any(isinstance(r, torch.Tensor) for r in results):
        return "left out", "gives no tensor"
    try:
        source, feeds, names = model_of(target, copies, results)
    except Refused as error:
        return "left out", str(error)
    outputs = onnxruntime.InferenceSession(source).run(None, feeds)
    outputs = [torch.as_tensor(o) for o in outputs]
    pairs = [(theirs, second) for theirs, second in zip(results, again) if isinstance(theirs, torch.Tensor)]
    for ours, (theirs, second) in zip(outputs, pairs, strict=True):
        if isinstance(second, torch.Tensor) and not same(theirs, second):
            continue  # contains uninitialised bytes (ctc_loss)
        if not same(ours, theirs):
            return ("close" if close(ours, theirs) else "differs"), "outputs"
    wrong = check_gradients(source, feeds, names, target, copies)
    return ("agrees", "forward") if wrong == "" else ("differs", wrong) if wrong else ("agrees", "with gradients")


def selection(description):
    """Returns a parser with the options that select operators."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="", help="a regular expression: operators whose name has a match")
    parser.add_argument("--every", type=int, default=1, help="only every n-th of them")
    parser.add_argument("--samples", type=int, default=3, help="samples of each operator and dtype (default: 3)")
    parser.add_argument("--dtypes", default="float32,float64")
    return parser


def selected(options):
    """Returns the selected operators."""
    return [op for op in op_db if re.search(options.ops, op.name)][::options.every]


def samples_of(op, options):
    """(dtype, sample) of an operator."""
    for dtype in (getattr(torch, name) for name in options.dtypes.split(",")):
        if dtype not in op.dtypes:
            continue
        try:
            samples = itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), options.samples)
            yield from ((dtype, sample) for sample in samples)
        except Exception as error:  # a sampler that this machine cannot run
            print(f"  {op.name}: no samples: {error}")


def main():
    parser = selection(__doc__)
    parser.add_argument("--list", action="store_true", help="also the calls that are left out")
    options = parser.parse_args()
    if not torch_kernels.load():
        raise SystemExit("built without LibTorch (CAESURA_TORCH=OFF)")
    warnings.filterwarnings("ignore")
    seen, counts, targets = set(), collections.Counter(), {}
    for op in selected(options):
        for _, sample in samples_of(op, options):
            torch.manual_seed(0)
            with Record() as record:
                try:
                    op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
            for target, arguments in record.calls:
                key = signature(target, arguments)
                if key in seen:
                    continue
                seen.add(key)
                try:
                    outcome, reason = check(target, arguments)
                except Exception as error:
                    outcome, reason = "fails", f"{type(error).__name__}: {str(error)[:200]}"
                counts[outcome] += 1
                targets.setdefault(str(target), collections.Counter())[outcome] += 1
                if outcome in ("differs", "fails") or (options.list and outcome == "left out"):
                    print(f"{op.name}: {target} {outcome}: {reason}", flush=True)
    print(f"{len(selected(options))} operators of OpInfo; {len(targets)} operators of the dispatcher in {sum(counts.values())} calls: " +
          ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    clean = sum(not (c["differs"] or c["fails"]) and c["agrees"] + c["close"] > 0 for c in targets.values())
    print(f"{clean} of the dispatcher's operators right in every call that was compared")
    raise SystemExit(1 if counts["differs"] or counts["fails"] else 0)


if __name__ == "__main__":
    main()
