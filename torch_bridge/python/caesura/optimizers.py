# SPDX-License-Identifier: Apache-2.0
"""PyTorch's optimizers: as update ops, with state that both sides share; or as they are, stepping our gradients."""

import inspect
from dataclasses import dataclass, field

import torch

from caesura.reports import fall_back


def _adam(group):
    beta1, beta2 = group["betas"]
    return {"beta1": beta1, "beta2": beta2, "epsilon": group["eps"]}


def _adam_or_adamw(group, of_class) -> str:
    return "adamw" if group.get("decoupled_weight_decay", of_class == "adamw") else "adam"


def _of_class(group, of_class) -> str:
    return of_class


# Class to (name, coefficients of a group, states of a parameter, what a group must not ask for, the name of a group).
_OPTIMIZERS = {
    torch.optim.AdamW: ("adamw", _adam, lambda g: ("exp_avg", "exp_avg_sq"), ("amsgrad", "maximize", "differentiable"),
                        _adam_or_adamw),
    torch.optim.Adam: ("adam", _adam, lambda g: ("exp_avg", "exp_avg_sq"), ("amsgrad", "maximize", "differentiable"),
                       _adam_or_adamw),
    torch.optim.SGD: ("sgd", lambda g: {"momentum": g["momentum"], "dampening": g["dampening"], "nesterov": g["nesterov"]},
                      lambda g: ("momentum_buffer",) if g["momentum"] else (), ("maximize", "differentiable"), _of_class),
    torch.optim.RMSprop: ("rmsprop", lambda g: {"alpha": g["alpha"], "epsilon": g["eps"], "momentum": g["momentum"],
                                                "centered": g["centered"]},
                          lambda g: ("square_avg",) + (("grad_avg",) if g["centered"] else ())
                          + (("momentum_buffer",) if g["momentum"] else ()), ("maximize", "differentiable"), _of_class),
}

# What an optimizer may come to have that its programs were not made for.
_HOOKS = "hooks around its step"
RATES = "learning rates of groups that change their proportions"
MEMBERS = "other parameters"
_OPTIONS = "options that change between steps"
_UNEQUAL = "parameters that were updated unequally often"
_TURNS = "parameters that get gradients by turns within one update"


class Gradients:
    """What calls add up until an update: a tensor for each parameter, which all programs of a step write to."""

    def __init__(self):
        self.tensors = {}

    def of(self, parameter):
        found = self.tensors.get(parameter)
        if found is None:
            found = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
        elif found.shape != parameter.shape:
            raise ValueError(f"a parameter has become {list(parameter.shape)} from {list(found.shape)}")
        self.tensors[parameter] = found = found.to(parameter.dtype)
        return found


@dataclass
class Recipe:
    """An optimizer of PyTorch's as an update op: what a training session needs to know of it."""
    optimizer: torch.optim.Optimizer
    name: str
    coefficients: dict
    groups: list       # (parameter names, learning rate as a factor of the leading group's, weight decay)
    leading: int       # the group that the others' rates go by
    trained: dict      # id of a parameter to its group
    gradients: Gradients  # of the calls that come before an update; None where each is one
    members: list = field(init=False)  # the groups' parameters, by id
    options: list = field(init=False)  # what the update reads of each group

    def __post_init__(self):
        self.members, self.options = _members(self.optimizer), _options(self.optimizer)

    @property
    def counts_matter(self) -> bool:
        """Whether an update depends on how many came before it."""
        return self.name in ("adam", "adamw") or bool(self.coefficients.get("dampening"))

    def learning_rate(self) -> float:
        """Of the next update: the leading group's."""
        return float(self.optimizer.param_groups[self.leading]["lr"])

    def written(self):
        """What sessions are made for."""
        return self.name, self.coefficients, self.groups, self.members

    def change(self):
        """What the optimizer has now that was not written into the update; or None. Rates may change in proportion."""
        if self.members != _members(self.optimizer):
            return MEMBERS
        if self.options != _options(self.optimizer):
            return _OPTIONS
        if _has_hooks(self.optimizer):
            return _HOOKS
        rate = self.learning_rate()
        groups = zip(self.optimizer.param_groups, self.groups)
        if any(abs(group["lr"] - rate * scale) > 1e-9 * abs(group["lr"]) for group, (_, scale, _) in groups):
            return RATES
        return None

    def misfit(self, program, window):
        """Why the next update cannot be the program's, where it is not of all that it would have to be; or None.
        window: the parameters that have gradients since the last update."""
        if window - program.learning:
            return _TURNS
        counts = torch.stack(program.counts())
        return _UNEQUAL if self.counts_matter and bool((counts != counts[0]).any()) else None

    def accumulation_steps(self, count: int) -> int:
        """Of the session, where the caller asks for `count`."""
        return count

    def bindings(self, parameter) -> dict:
        """Tensors of PyTorch's that a session's steps write to, by what the session calls them (".NAME" follows). Made where
        the state lacks them. Raises ValueError where they are of another shape, or would lose more than float32 has."""
        names = _OPTIMIZERS[type(self.optimizer)][2](self.trained[id(parameter)])
        state, found = self.optimizer.state[parameter], {}
        for name in names:
            held = state.get(name)
            if held is None:
                held = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            elif held.shape != parameter.shape or _bits(parameter) < min(_bits(held), 32):
                raise ValueError(f"the optimizer's {name} is {held.dtype} {list(held.shape)}, its parameter "
                                 f"{parameter.dtype} {list(parameter.shape)}")
            found[name] = held.to(parameter.device, parameter.dtype).contiguous()
        count = state.get("step", 0.0)
        if self.name == "sgd" and names:  # PyTorch knows a first update by the buffer alone
            has_buffer = state.get("momentum_buffer") is not None
            count = state.get("step", 1.0) if has_buffer else 0.0
        if not (isinstance(count, torch.Tensor) and count.dtype == torch.float32 and count.device.type == "cpu"
                and count.dim() == 0):
            count = torch.tensor(float(count))
        state.update(found, step=count)
        accumulator = {} if self.gradients is None else {"accumulator": self.gradients.of(parameter)}
        return accumulator | {f"optimizer.{name}": tensor for name, tensor in found.items()}

    def watch(self, watch, parameters) -> None:
        """Adds to a _core.Watch what bindings() goes by."""
        watch.item(vars(self.optimizer), "state", self.optimizer.state)
        watch.whole(self.optimizer.state)
        for parameter in parameters:
            watch.whole(self.optimizer.state[parameter])
        if self.gradients is not None:
            watch.whole(self.gradients.tensors)

    def begin(self, program, micro_steps: int) -> None:
        """Before a step of the program."""
        program.session.learning_rate = self.learning_rate()
        program.session.set_position(program.updates(), micro_steps)

    def end(self, program, micro_steps: int, window) -> None:
        """Behind it; `micro_steps` counts it."""
        if program.session.updates != program.updates():  # with "fp16" an update may not happen
            torch._foreach_add_(program.counts(), 1)


def _bits(tensor) -> int:
    return torch.finfo(tensor.dtype).bits


def _has_hooks(optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _members(optimizer) -> list:
    return [[id(p) for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]


def _options(optimizer) -> list:
    """What an update reads of each group, but for the learning rate. Others may be there: schedulers keep theirs in it."""
    name, coefficients, _, forbidden, name_of = _OPTIMIZERS[type(optimizer)]
    return [(name_of(group, name), coefficients(group), float(group["weight_decay"]),
             [option for option in forbidden if group.get(option)]) for group in optimizer.param_groups]


class Stepping:
    """An optimizer that PyTorch steps: a session accumulates gradients, in tensors that are the parameters' .grad."""

    name, coefficients, groups = "sgd", {}, []  # of an update that the session never comes to

    def __init__(self, optimizer, gradients: Gradients, clip_norm: float, accumulation_steps: int):
        self.optimizer, self.clip_norm, self.count = optimizer, clip_norm, accumulation_steps
        self.trained = {id(p): g for g in optimizer.param_groups for p in g["params"] if p.requires_grad}
        self.gradients, self.members = gradients, _members(optimizer)
        if type(optimizer) is torch.optim.SGD:  # it has no counts: what was not updated yet has no momentum
            for state in optimizer.state.values():
                if "step" in state and not state.pop("step"):
                    state.pop("momentum_buffer", None)

    def written(self):
        return Stepping, self.members

    def change(self):
        return MEMBERS if self.members != _members(self.optimizer) else None

    def misfit(self, program, window):
        return None

    def accumulation_steps(self, count: int) -> int:
        return 2**30

    def bindings(self, parameter) -> dict:
        return {"accumulator": self.gradients.of(parameter)}

    def watch(self, watch, parameters) -> None:
        watch.whole(self.gradients.tensors)

    def begin(self, program, micro_steps: int) -> None:
        program.session.set_position(0, micro_steps % self.count)  # at 0 the session sets gradients, then it adds to them

    def end(self, program, micro_steps: int, window) -> None:
        """window: the parameters that have gradients since the last update; as behind zero_grad() the others have none."""
        if micro_steps % self.count:
            return
        given = []
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"]):
            parameter.grad = self.gradients.of(parameter) if id(parameter) in window else None
            if parameter.grad is not None:
                given.append(parameter)
        if self.count > 1:
            torch._foreach_mul_([p.grad for p in given], 1 / self.count)
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_(given, self.clip_norm)
        self.optimizer.step()


def describe_optimizer(optimizer, names, gradients, *, clip_norm, accumulation_steps, changing=None):
    """What a training session needs to know of the optimizer: a Recipe; or, where there is no such update op, with a
    FallbackWarning, a Stepping. Raises ValueError where neither fits.

    names: id of a parameter to its name. changing: what a program would hold but changes between steps.
    """
    problem = changing or _no_recipe(optimizer)
    if problem is None:
        return _make_recipe(optimizer, names, gradients if accumulation_steps > 1 else None)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{type(optimizer).__name__} evaluates the loss several times in a step (closure)")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(f"{type(optimizer).__name__} takes sparse gradients alone, and a step's are dense")
    fall_back([(f"{type(optimizer).__name__}.step", problem, "compile_step")])
    return Stepping(optimizer, gradients, clip_norm, accumulation_steps)


def _no_recipe(optimizer):
    """Why the optimizer is not written into the program; None where it is."""
    if type(optimizer) not in _OPTIMIZERS:
        return "there is no such update op"
    if _has_hooks(optimizer):
        return _HOOKS
    options = _options(optimizer)
    unwritten = [option for *_, forbidden in options for option in forbidden]
    if unwritten:
        return f"its option {unwritten[0]}"
    if any(of_group[:2] != options[0][:2] for of_group in options):
        return "coefficients that differ between its parameter groups"
    return None


def _make_recipe(optimizer, names, gradients) -> Recipe:
    rate = "lr" if any(group["lr"] for group in optimizer.param_groups) else "initial_lr"  # where a schedule starts at 0
    rates = [float(group.get(rate, 0.0)) for group in optimizer.param_groups]
    leading = next((i for i, value in enumerate(rates) if value), 0)
    groups, trained = [], {}
    for group, value in zip(optimizer.param_groups, rates):
        parameters = [p for p in group["params"] if p.requires_grad]
        trained.update((id(p), group) for p in parameters)
        groups.append(([names[id(p)] for p in parameters], value / rates[leading] if rates[leading] else 1.0,
                       float(group["weight_decay"])))
    name, coefficients, *_ = _options(optimizer)[0]
    return Recipe(optimizer, name, {k: float(v) for k, v in coefficients.items()}, groups, leading, trained, gradients)
