# SPDX-License-Identifier: Apache-2.0
"""PyTorch's module samples (ModuleInfo) through caesura.wrap and caesura.compile_step, beside eager PyTorch.

    python benchmarks/modules.py [--modules REGEX] [--every N] [--samples N] [--dtypes float32,float64] [--routes wrap,step]
                                 [--list]

Each sample of each module is trained twice, in training mode and also in evaluation mode if these differ. Through wrap,
the results, the gradient of each parameter and input (None if eager gives None) and the buffers must equal eager's. As
steps, the floating inputs are parameters too; the losses, the buffers and all parameters after each of 3 steps of SGD
must agree. The tolerance is operators.TOLERANCE of the largest element. A step draws its own dropout masks, so samples
with results that depend on the generator's seed are run there without a comparison ("drawn").

It prints each wrong sample; the reasons for refusals and for calls left to PyTorch, with the modules; and, by route,
how many samples ran in our kernels wholly, partly and not at all. It exits with 1 if a sample was wrong.
"""

import argparse
import collections
import copy
import re
import warnings

import torch
from operators import TOLERANCE, Checked, compare, general
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import caesura

STEPS, RATE = 3, 0.01
ROUTES = ("wrap", "step")


def samples_of(info, options):
    """Yields (description, module, args, kwargs) of each sample. Modules have the same parameters each time."""
    for name in options.dtypes.split(","):
        dtype = getattr(torch, name)
        if dtype not in info.dtypes:
            continue
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
            for i, sample in enumerate(samples[:options.samples]):
                torch.manual_seed(1)
                made = sample.constructor_input
                module = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
                given = sample.forward_input
                if any(isinstance(p, torch.nn.UninitializedParameter) for p in module.parameters()):
                    with torch.no_grad():
                        module(*copy.deepcopy(given.args), **given.kwargs)
                yield (f"{info.name} {name} {'train' if training else 'eval'} {i} {sample.desc}".rstrip(), module, given.args,
                       given.kwargs)


def fresh(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def differentiable(results):
    return [y for y in tree_leaves(results) if isinstance(y, torch.Tensor) and y.requires_grad]


def weights_of(y):
    return torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)


def run(module, function, args, kwargs, seed=0):
    """Returns (names, values): results, gradients and buffers of one call. function: the module, wrapped or not."""
    args, kwargs = tree_map_only(torch.Tensor, fresh, (args, kwargs))
    torch.manual_seed(seed)
    results = function(*args, **kwargs)
    ys = differentiable(results)
    if ys:
        torch.autograd.backward(ys, list(map(weights_of, ys)))
    inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    values = [(f"result {i}", y) for i, y in enumerate(tree_leaves(results))]
    values += [(f"the gradient of {name}", p.grad) for name, p in module.named_parameters()]
    values += [(f"the gradient of input {i}", t.grad) for i, t in enumerate(inputs)]
    return values + list(module.named_buffers())


class Trained(torch.nn.Module):
    """Holds the module and its differentiable inputs as parameters; returns a loss."""

    def __init__(self, module, args, kwargs):
        super().__init__()
        leaves, self.spec = tree_flatten((args, kwargs))
        self.module, self.inputs = module, torch.nn.ParameterList()
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        self.leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.inputs.extend(torch.nn.Parameter(self.leaves[i]) for i in self.places)

    def forward(self):
        given = list(self.leaves)
        for place, value in zip(self.places, self.inputs):
            given[place] = value
        args, kwargs = tree_unflatten(given, self.spec)
        return sum((y * weights_of(y)).sum() for y in differentiable(self.module(*args, **kwargs)))


def train(module, make_step, seed=0):
    """Returns (names, values): losses and parameters of some steps. make_step: returns a function of one step."""
    torch.manual_seed(seed)
    step, values = make_step(module, torch.optim.SGD(module.parameters(), lr=RATE)), []
    for i in range(STEPS):
        values.append((f"loss {i}", step().detach()))
        values += [(f"{name} after step {i}", p.detach().clone()) for name, p in module.named_parameters()]
    return values + list(module.named_buffers())


def eager_step(module, optimizer):
    def step():
        optimizer.zero_grad()
        loss = module()
        loss.backward()
        optimizer.step()
        return loss
    return step


def differences(ours, theirs):
    """Returns (None or the error as a text, the largest distance)."""
    farthest = 0.0
    for (name, a), (_, b) in zip(ours, theirs, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if a is not b:
                return f"{name} is {'None' if a is None else 'not None'}", 0.0
            continue
        problem, distance, _ = compare(name, a.detach(), b.detach(), TOLERANCE.get(b.dtype, 0.0))
        if problem:
            return problem, distance
        farthest = max(farthest, distance)
    return None, farthest


def check(route, module, args, kwargs):
    torch._dynamo.reset()
    caesura.reports.reset()
    if route == "wrap":
        given = [copy.deepcopy(module) for _ in range(3)]
        eager = lambda module, seed: run(module, module, args, kwargs, seed)  # noqa: E731
        ours = lambda module: run(module, caesura.wrap(module), args, kwargs)  # noqa: E731
    else:
        given = [Trained(copy.deepcopy(module), args, kwargs) for _ in range(3)]
        eager = lambda module, seed: train(module, eager_step, seed)  # noqa: E731
        ours = lambda module: train(module, lambda *made: caesura.compile_step(made[0], None, made[1]))  # noqa: E731
    try:
        if route == "step" and not isinstance(copy.deepcopy(given[0])(), torch.Tensor):
            return Checked("left out", "no gradient")
        expected = eager(given[0], 0)
        drawn = route == "step" and differences(eager(given[1], 1), expected)[0] is not None
    except Exception as error:
        return Checked("left out", f"eager: {type(error).__name__}: {error}")
    try:
        found = ours(given[2])
    except (caesura.StepRefused, NotImplementedError) as error:
        return Checked("refused", " ".join(str(error).split())[:240])
    except Exception as error:
        return Checked("wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:240]}")
    problem, distance = (None, 0.0) if drawn else differences(found, expected)
    if problem:
        return Checked("wrong", problem)
    report = caesura.stats()
    reason = "; ".join(f"{call}: {why}" for call, why in report.fallbacks)
    if not reason:
        return Checked("drawn" if drawn else "ours", distance=distance)
    return Checked("partly ours" if report.kernel_calls or route == "step" else "left to PyTorch", reason, distance=distance)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default="", help="modules whose names contain this regular expression")
    parser.add_argument("--every", type=int, default=1, help="of the modules every N-th")
    parser.add_argument("--samples", type=int, default=None, help="of a module, mode and dtype at most so many")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--routes", default=",".join(ROUTES))
    parser.add_argument("--list", action="store_true", help="also the samples that are not ours")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    outcomes = {route: collections.Counter() for route in options.routes.split(",")}
    reasons, farthest = collections.defaultdict(collections.Counter), {}
    for info in [m for m in module_db if re.search(options.modules, m.name)][::options.every]:
        for name, *sample in samples_of(info, options):
            for route, counted in outcomes.items():
                checked = check(route, *sample)
                counted[checked.outcome] += 1
                farthest[route] = max(farthest.get(route, (0.0, "")), (checked.distance, name))
                if checked.reason and checked.outcome != "wrong":
                    reasons[route, checked.outcome, general(checked.reason)][info.name] += 1
                if checked.outcome == "wrong" or (options.list and checked.reason):
                    print(f"{route} {name}: {checked.outcome}: {checked.reason}", flush=True)
    for (route, outcome, reason), modules in sorted(reasons.items()):
        print(f"  {sum(modules.values()):5} {route} {outcome}: {reason} ({', '.join(modules)})")
    for route, counted in outcomes.items():
        checked = sum(n for outcome, n in counted.items() if outcome != "left out")
        share = (counted["ours"] + counted["drawn"]) / max(checked, 1)
        print(f"{route}: {', '.join(f'{n} {outcome}' for outcome, n in counted.most_common())}; ours {share:.2%} of {checked}; "
              f"the farthest is {farthest[route][0]:.2g} of scale away ({farthest[route][1]})")
    raise SystemExit(1 if any(counted["wrong"] for counted in outcomes.values()) else 0)


if __name__ == "__main__":
    main()
