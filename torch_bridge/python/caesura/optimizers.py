# SPDX-License-Identifier: Apache-2.0
"""PyTorch's optimizers: as update ops, with state that both sides share; or as they are, stepping our gradients."""

import inspect
from dataclasses import dataclass

import torch

from caesura.reports import fall_back


def _adam(group):
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, "epsilon": group["eps"]}


# Class to (name, coefficients of a group, states of a parameter, what a group must not ask for).
_OPTIMIZERS = {
    torch.optim.AdamW: ("adamw", _adam, lambda g: ("exp_avg", "exp_avg_sq"), ("amsgrad", "maximize", "differentiable")),
    torch.optim.Adam: ("adam", _adam, lambda g: ("exp_avg", "exp_avg_sq"), ("amsgrad", "maximize", "differentiable")),
    torch.optim.SGD: ("sgd", lambda g: {"momentum": g["momentum"], "dampening": g["dampening"], "nesterov": g["nesterov"]},
                      lambda g: ("momentum_buffer",) if g["momentum"] else (), ("maximize", "differentiable")),
    torch.optim.RMSprop: ("rmsprop", lambda g: {"alpha": g["alpha"], "epsilon": g["eps"], "momentum": g["momentum"],
                                                "centered": g["centered"]},
                          lambda g: ("square_avg",) + (("grad_avg",) if g["centered"] else ())
                          + (("momentum_buffer",) if g["momentum"] else ()), ("maximize", "differentiable")),
}


@dataclass
class Recipe:
    """An optimizer of PyTorch's as an update op: what a training session needs to know of it."""
    optimizer: torch.optim.Optimizer
    name: str
    coefficients: dict
    groups: list       # (parameter names, learning rate as a factor of the leading group's, weight decay)
    leading: int       # the group that the others' rates go by
    trained: dict      # id of a parameter to its group
    steps: torch.Tensor  # the parameters' update counts, one storage
    options: list        # the groups' own

    def learning_rate(self) -> float:
        """Of the next update: the leading group's."""
        return float(self.optimizer.param_groups[self.leading]["lr"])

    def change(self):
        """What the optimizer has now that was not written into the update; or None. Rates may change in proportion."""
        if self.options != _options(self.optimizer):
            return "options that change between steps"
        if _has_hooks(self.optimizer):
            return _HOOKS
        rate = self.learning_rate()
        groups = zip(self.optimizer.param_groups, self.groups)
        if any(abs(group["lr"] - rate * scale) > 1e-9 * abs(group["lr"]) for group, (_, scale, _) in groups):
            return RATES
        return None

    def has_state(self) -> bool:
        """Whether the optimizer's state is still what the update writes to."""
        return all(p in self.optimizer.state for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad)

    def updates(self) -> int:
        return int(self.steps[0]) if len(self.steps) else 0

    def accumulation_steps(self, count: int) -> int:
        """Of the session, where the caller asks for `count`."""
        return count

    def bindings(self, parameter) -> dict:
        """Tensors of PyTorch's that a session's steps write to, by what the session calls them (".NAME" follows)."""
        names = _OPTIMIZERS[type(self.optimizer)][2](self.trained[id(parameter)])
        state = self.optimizer.state[parameter]
        state.update((name, state[name].contiguous()) for name in names)
        return {f"optimizer.{name}": state[name] for name in names}

    def begin(self, session, micro_steps: int) -> None:
        """Before a step of the session."""
        self.optimizer._opt_called = True  # for schedulers, which ask whether it steps before they do
        session.learning_rate = self.learning_rate()
        session.set_position(self.updates(), micro_steps)

    def end(self, session, micro_steps: int) -> None:
        """Behind it; `micro_steps` counts it."""
        if session.updates != self.updates():  # with "fp16" an update may not happen
            self.steps.add_(1)


_HOOKS = "hooks around its step"
RATES = "learning rates of groups that change their proportions"


def _has_hooks(optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _options(optimizer) -> list:
    return [{key: value for key, value in group.items() if key not in ("params", "lr")} for group in optimizer.param_groups]


class Stepping:
    """An optimizer that PyTorch steps: a session accumulates gradients, in tensors that are the parameters' .grad."""

    name, coefficients, groups = "sgd", {}, []  # of an update that the session never comes to

    def __init__(self, optimizer, clip_norm: float, accumulation_steps: int):
        self.optimizer, self.clip_norm, self.count = optimizer, clip_norm, accumulation_steps
        self.trained = {id(p): g for g in optimizer.param_groups for p in g["params"] if p.requires_grad}
        self.gradients = {}  # of the parameters that the programs read

    def accumulation_steps(self, count: int) -> int:
        return 2**30

    def bindings(self, parameter) -> dict:
        if parameter not in self.gradients:
            self.gradients[parameter] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        return {"accumulator": self.gradients[parameter]}

    def begin(self, session, micro_steps: int) -> None:
        session.set_position(0, micro_steps % self.count)  # at 0 the session sets gradients, then it adds to them

    def end(self, session, micro_steps: int) -> None:
        if micro_steps % self.count:
            return
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        if self.count > 1:
            torch._foreach_mul_(list(self.gradients.values()), 1 / self.count)
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_(list(self.gradients), self.clip_norm)
        self.optimizer.step()


def describe_optimizer(optimizer, names, *, clip_norm, accumulation_steps, changing=None):
    """What a training session needs to know of the optimizer: a Recipe, with the optimizer's state made where it has none
    yet; or, where there is no such update op, with a FallbackWarning, a Stepping. Raises ValueError where neither fits.

    names: id of a parameter to its name. changing: what a program would hold but changes between steps.
    """
    problem = changing or _no_recipe(optimizer)
    if problem is None:
        return _make_recipe(optimizer, names)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{type(optimizer).__name__} evaluates the loss several times in a step (closure)")
    fall_back([(f"{type(optimizer).__name__}.step", problem, "compile_step")])
    return Stepping(optimizer, clip_norm, accumulation_steps)


def _no_recipe(optimizer):
    """Why the optimizer is not written into the program; None where it is."""
    row = _OPTIMIZERS.get(type(optimizer))
    if row is None:
        return "there is no such update op"
    _, coefficients, _, forbidden = row
    if _has_hooks(optimizer):
        return _HOOKS
    groups = optimizer.param_groups
    for option in forbidden:
        if any(group.get(option) for group in groups):
            return f"its option {option}"
    if any(coefficients(group) != coefficients(groups[0]) for group in groups):
        return "coefficients that differ between its parameter groups"
    parameters = [p for group in groups for p in group["params"] if p.requires_grad]
    if len({float(optimizer.state[p].get("step", 0.0)) if p in optimizer.state else 0.0 for p in parameters}) > 1:
        return "parameters that were updated unequally often"
    return None


def _make_recipe(optimizer, names) -> Recipe:
    name, coefficients, states, _ = _OPTIMIZERS[type(optimizer)]
    rate = "lr" if any(group["lr"] for group in optimizer.param_groups) else "initial_lr"  # where a schedule starts at 0
    rates = [float(group.get(rate, 0.0)) for group in optimizer.param_groups]
    leading = next((i for i, value in enumerate(rates) if value), 0)
    groups, trained = [], {}
    for group, value in zip(optimizer.param_groups, rates):
        parameters = [p for p in group["params"] if p.requires_grad]
        trained.update((id(p), group) for p in parameters)
        groups.append(([names[id(p)] for p in parameters], value / rates[leading] if rates[leading] else 1.0,
                       float(group["weight_decay"])))
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
    steps = torch.zeros(len(parameters))
    for i, p in enumerate(parameters):
        state = optimizer.state[p]
        steps[i] = state.get("step", 0.0)
        state["step"] = steps[i]
        for key in states(trained[id(p)]):
            if state.get(key) is None:
                state[key] = torch.zeros_like(p, memory_format=torch.contiguous_format)
    first = coefficients(optimizer.param_groups[0])
    return Recipe(optimizer, name, {k: float(v) for k, v in first.items()}, groups, leading, trained, steps,
                  _options(optimizer))
