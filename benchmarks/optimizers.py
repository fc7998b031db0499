# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own table of optimizer configurations through caesura.compile_step or caesura.fuse, beside eager PyTorch.

    python benchmarks/optimizers.py [--route step|fuse] [--only REGEX] [--dtypes float32,float64] [--uses REGEX]

With `fuse` the loop is eager's, and only the optimizer's step is ours.

The table is torch.testing._internal.common_optimizers.optim_db: every optimizer, with every combination of options that
PyTorch tests on the CPU. Tensor learning rates and betas, and groups that differ, are added. Each configuration is used
in several ways (USES): a plain loop, clipped gradients, parameter groups with a schedule, OneCycleLR and CyclicLR (they
change momentum and betas), and a state that moves from one side to the other midway. After each use the parameters and
the optimizer's whole state_dict() must agree with eager's. It prints each configuration that is not ours, and
why; then how many agree, are left to PyTorch, are refused, or are wrong. It exits with 1 if one is wrong.
"""

import argparse
import copy
import os
import re
import sys
import tempfile
import warnings

import torch
from torch.testing._internal.common_optimizers import optim_db

import caesura
from caesura.runtime.optimizers import Stepping

# Relative to the largest element, for six updates that round in another order. PyTorch's Muon rounds to bfloat16 (2^-8)
# in each of its products, and our sums have another order, so an update of size `lr` may differ by several roundings.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
MUON = 0.05  # of the largest update
TENSOR = 3e-6  # of the largest: with float32 tensor rates and betas PyTorch computes in float32 for any dtype
STEPS = 6
ROWS = 12


class Net(torch.nn.Module):
    """Parameters of several ranks (of rank 2 only, if `matrices`). The loss does not depend on one of them."""

    def __init__(self, matrices):
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def made(*shape):
            return torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.4 + 0.1)

        self.first, self.last, self.unused = made(6, 8), made(8, 3), made(3, 2)
        self.matrices = matrices
        if not matrices:
            self.kernel, self.bias, self.scale, self.stack = made(4, 1, 3, 3), made(8), made(), made(2, 3, 3)

    def forward(self, x):
        y = x @ self.first
        if not self.matrices:
            y = y * self.scale.exp() + self.bias
        y = torch.tanh(y) @ self.last
        if not self.matrices:
            image = torch.nn.functional.conv2d(x.reshape(-1, 1, 2, 3), self.kernel, padding=1)
            y = y @ self.stack[0] @ self.stack[1] + image.mean((2, 3))[:, :3]
        return (y - 0.7).square().mean()


def one_group(module):
    return list(module.parameters())


def two_groups(module):
    """The second group has another learning rate."""
    parameters = list(module.parameters())
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.004}]


def cycle(optimizer):
    momentum = "betas" in optimizer.defaults or "momentum" in optimizer.defaults
    return torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.001, max_lr=0.01, step_size_up=2, cycle_momentum=momentum)


def one_cycle(optimizer):
    momentum = "betas" in optimizer.defaults or "momentum" in optimizer.defaults
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=STEPS + 1, cycle_momentum=momentum)


def decaying(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


# Name to (how groups are made, schedule, clip_norm, True if the state changes sides midway).
USES = {"plain": (one_group, None, 0.0, False), "clipped": (one_group, None, 0.05, False),
        "groups, StepLR": (two_groups, decaying, 0.0, False), "OneCycleLR": (one_group, one_cycle, 0.0, False),
        "groups, CyclicLR": (two_groups, cycle, 0.0, False), "state_dict": (one_group, None, 0.0, True)}


def configurations(only="."):
    """(name, optimizer class, options) of the table, and some more."""
    for info in optim_db:
        kind = info.optim_cls
        for options in (row.kwargs for row in info.optim_inputs_func(device="cpu")):
            name = f"{kind.__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"
            if re.search(only, name):
                yield name, kind, options


def added(only="."):
    """Yields configurations that the table lists for other devices only, or not at all."""
    rows = [(kind, {"lr": torch.tensor(0.003)}) for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
                                                             torch.optim.Adamax, torch.optim.Adadelta, torch.optim.ASGD,
                                                             torch.optim.RMSprop, torch.optim.Adafactor)]
    rows += [(kind, {"lr": torch.tensor(0.003), "betas": (torch.tensor(0.8), torch.tensor(0.99))})
             for kind in (torch.optim.Adam, torch.optim.AdamW)]
    rows += [(kind, {flag: True}) for kind, flags in ((torch.optim.AdamW, ("foreach", "fused")), (torch.optim.SGD, ("foreach", "fused")),
                                                     (torch.optim.Adagrad, ("foreach", "fused"))) for flag in flags]
    rows += [(torch.optim.Adam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
             (torch.optim.Adafactor, {"eps": (1e-6, 1e-2)}), (torch.optim.Rprop, {"step_sizes": (1e-3, 0.1), "maximize": True}),
             (torch.optim.ASGD, {"t0": 2, "lambd": 0.01, "alpha": 0.5}), (torch.optim.RAdam, {"betas": (0.5, 0.8)})]
    if hasattr(torch.optim, "Muon"):
        rows += [(torch.optim.Muon, {"adjust_lr_fn": "match_rms_adamw", "nesterov": False})]
    for kind, options in rows:
        name = f"{kind.__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"
        if re.search(only, name):
            yield name, kind, options


def data(dtype):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, 6, generator=generator).to(dtype) for _ in range(STEPS)]


class Side:
    """A module with its optimizer and schedule, trained by eager, by a compiled step, or by eager with a fused optimizer."""

    def __init__(self, kind, options, dtype, use, route="eager"):
        groups, schedule, self.clip_norm, _ = use
        self.module = Net(kind is getattr(torch.optim, "Muon", None)).to(dtype)
        self.optimizer = kind(groups(self.module), **copy.deepcopy(options))
        self.schedule = schedule and schedule(self.optimizer)
        if route == "fuse":
            caesura.fuse(self.optimizer)
        self.step = self.eager
        if route == "step":
            self.step = caesura.compile_step(self.module, None, self.optimizer, clip_norm=self.clip_norm)

    @property
    def is_pytorchs(self):
        """True if PyTorch makes the updates."""
        made = self.optimizer.step.updates._programs if hasattr(self.optimizer.step, "updates") else ()
        return isinstance(self.step._recipe, Stepping) if isinstance(self.step, caesura.CompiledStep) else not made

    def eager(self, x):
        self.optimizer.zero_grad()
        loss = self.module(x)
        loss.backward()
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def run(self, batches):
        for x in batches:
            self.step(x)
            if self.schedule:
                self.schedule.step()


def differences(ours, eagers, dtype):
    """Lists our differences from eager, a line each."""
    def far(name, a, b, slack=0.0):
        if a.shape != b.shape or a.dtype != b.dtype:
            return [f"{name}: {a.dtype} {list(a.shape)}, expected {b.dtype} {list(b.shape)}"]
        if not b.numel():
            return []
        # Scalars of the state are float32 in PyTorch whatever the parameters are.
        allowed = TOLERANCE[a.dtype] * max(1e-3, b.abs().max().item()) + slack
        off = (a - b).abs().max().item()
        return [] if off <= allowed else [f"{name}: off by {off:.3g}, at most {allowed:.3g}"]

    has_tensor = any(isinstance(group["lr"], torch.Tensor) for group in eagers.optimizer.param_groups)
    rounding = MUON if type(eagers.optimizer).__name__ == "Muon" else TENSOR if has_tensor else 0.0
    found = []
    for (name, a), b in zip(ours.module.named_parameters(), eagers.module.parameters()):
        start = dict(Net(eagers.module.matrices).named_parameters())[name].to(dtype)
        slack = rounding * (b if has_tensor else b - start).abs().max().item()  # a tensor rate decays all of a parameter
        found += far(name, a.detach(), b.detach(), slack)
    mine, theirs = ours.optimizer.state_dict(), eagers.optimizer.state_dict()
    if mine["state"].keys() != theirs["state"].keys():
        return [*found, f"state of parameters {sorted(mine['state'])}, expected {sorted(theirs['state'])}"]
    for i, state in theirs["state"].items():
        if mine["state"][i].keys() != state.keys():
            found.append(f"state of parameter {i} has {sorted(mine['state'][i])}, expected {sorted(state)}")
            continue
        for key, b in state.items():
            a = mine["state"][i][key]
            if isinstance(b, torch.Tensor):
                found += far(f"{key} of parameter {i}", a, b, rounding * b.abs().max().item())
            elif a != b:
                found.append(f"{key} of parameter {i} is {a}, expected {b}")
    if str(mine["param_groups"]) != str(theirs["param_groups"]):
        found.append(f"param_groups are {mine['param_groups']}, expected {theirs['param_groups']}")
    return found


def swap_states(sides):
    """Each side continues from the state that the other has saved."""
    saved = [(copy.deepcopy(side.module.state_dict()), copy.deepcopy(side.optimizer.state_dict())) for side in sides]
    for side, (module, optimizer) in zip(sides, reversed(saved)):
        side.module.load_state_dict(module)
        side.optimizer.load_state_dict(optimizer)


def outcome(kind, options, dtype, use, route):
    """(one of ORDER, why)."""
    torch._dynamo.reset()  # it counts the captures of all steps of a process
    try:
        eager = Side(kind, options, dtype, use)
        Side(kind, options, dtype, use).run(data(dtype))
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        if route == "fuse" or kind not in (torch.optim.LBFGS, torch.optim.SparseAdam):  # which steps refuse by themselves
            return "not run", f"eager fails: {str(error).splitlines()[0]}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = Side(kind, options, dtype, use, route)
            sides = [eager, ours]
            batches = data(dtype)
            for side in sides:
                side.run(batches[:3])
            if use[3]:
                swap_states(sides)
            for side in sides:
                side.run(batches[3:])
        except (caesura.StepRefused, ValueError) as error:  # LBFGS takes no groups
            return "refused", str(error).splitlines()[0]
    found = differences(ours, eager, dtype)
    if found:
        return "wrong", "; ".join(found[:3])
    return ("left", "PyTorch steps it") if ours.is_pytorchs else ("ours", "")


ORDER = ("ours", "left", "refused", "not run", "wrong")


def examine(rows, dtypes, uses, route="step", tell=print):
    """Returns a dict from outcome to the names of configurations, each by its worst use."""
    found = {key: [] for key in ORDER}
    for name, kind, options in rows:
        worst, where = "ours", ""
        for dtype in dtypes:
            for use in uses:
                key, why = outcome(kind, options, dtype, USES[use], route)
                if ORDER.index(key) > ORDER.index(worst):
                    worst, where = key, f"{dtype}, {use}: {why}"
                if key == "refused":
                    break
        found[worst].append(name)
        if worst != "ours":
            tell(f"{worst}: {name} ({where})", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--route", choices=("step", "fuse"), default="step")
    parser.add_argument("--only", default=".", help="configurations whose name has this")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--uses", default=".", help="ways to use them, of: " + "; ".join(USES))
    given = parser.parse_args()
    dtypes = [getattr(torch, name) for name in given.dtypes.split(",")]
    uses = [use for use in USES if re.search(given.uses, use)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CAESURA_PROGRAM_CACHE"] = folder  # all configurations have one forward, captured once
        for title, rows in (("PyTorch's table", configurations(given.only)), ("added", added(given.only))):
            found = examine(rows, dtypes, uses, given.route)
            counts = {key: len(names) for key, names in found.items()}
            print(f"{title}: {sum(counts.values())} configurations, each {len(dtypes)} x {len(uses)} times: "
                  f"{counts['ours']} are ours and agree, {counts['left']} left to PyTorch, {counts['refused']} refused, "
                  f"{counts['not run']} fail in eager, {counts['wrong']} wrong", flush=True)
            wrong += counts["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
