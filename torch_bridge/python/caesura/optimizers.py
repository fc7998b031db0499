# SPDX-License-Identifier: Apache-2.0
"""PyTorch's optimizers as update ops: coefficients, and state that both sides share."""

from dataclasses import dataclass

import torch


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
    """What a training session needs to know of an optimizer of PyTorch's."""
    optimizer: torch.optim.Optimizer
    name: str
    coefficients: dict
    groups: list       # (parameter names, learning rate as a factor of the first group's, weight decay)
    trained: dict      # id of a parameter to its group
    steps: torch.Tensor  # the parameters' update counts, one storage

    def learning_rate(self) -> float:
        """Of the next update; raises ValueError when the groups' rates are no longer in proportion."""
        base = self.optimizer.param_groups[0]["lr"]
        for group, (_, scale, _) in zip(self.optimizer.param_groups, self.groups):
            if abs(group["lr"] - base * scale) > 1e-9 * abs(group["lr"]):
                raise ValueError("the learning rates of the parameter groups have changed their proportions")
        return float(base)

    def updates(self) -> int:
        return int(self.steps[0]) if len(self.steps) else 0

    def count_update(self) -> None:
        self.steps.add_(1)

    def states(self, parameter) -> dict:
        """The parameter's state tensors, which a session's updates write to."""
        return {name: self.optimizer.state[parameter][name] for name in self.state_names(parameter)}

    def state_names(self, parameter):
        return _OPTIMIZERS[type(self.optimizer)][2](self.trained[id(parameter)])


def describe_optimizer(optimizer, names):
    """The recipe, with the optimizer's state made where it has none yet; None when there is no such update op.

    names: id of a parameter to its name.
    """
    row = _OPTIMIZERS.get(type(optimizer))
    if row is None:
        return None
    name, coefficients, states, forbidden = row
    first = coefficients(optimizer.param_groups[0])
    if any(coefficients(g) != first or any(g.get(f) for f in forbidden) for g in optimizer.param_groups):
        return None
    base = float(optimizer.param_groups[0]["lr"])
    groups, trained = [], {}
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if p.requires_grad]
        trained.update((id(p), group) for p in parameters)
        groups.append(([names[id(p)] for p in parameters], float(group["lr"]) / base if base else 1.0,
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
    if len(steps) and not bool((steps == steps[0]).all()):
        return None
    return Recipe(optimizer, name, {k: float(v) for k, v in first.items()}, groups, trained, steps)
