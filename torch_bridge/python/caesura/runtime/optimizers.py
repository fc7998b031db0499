# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's optimizers as update ops that share the optimizer's state, or in PyTorch on gradients of ours."""

import functools
import inspect
import math
import weakref
from dataclasses import dataclass, field

import torch

from caesura.capture.compat import foreach_add_, foreach_mul_, step_hooks
from caesura.reports import fall_back
from caesura.rewrites.dtensors import is_dtensor
from caesura.runtime.gpu import CPU
from caesura.runtime.update_rows import UpdateRows


@dataclass(frozen=True)
class Update:
    """The form of an optimizer class in a step. Coefficients have the names of training/optimizer/optimizer.h."""
    name: object       # of a group: the update's name
    fed: dict          # coefficient to the group's key, or (key, index); each step is told them anew
    states: object     # of a group and a parameter: state to what it starts as, None for zeros, or a number
    flags: dict = field(default_factory=dict)  # coefficient to the value that a group has; written into the update
    counted: bool = True       # whether an update depends on how many came before
    keeps_count: bool = True   # whether PyTorch has the count in the state, "step"
    stays_zero: tuple = ()     # the coefficients that make it another update where they are 0
    scalars: tuple = ()        # the states that are float32 or float64 scalars
    computed: bool = False     # whether PyTorch rounds them to its default dtype, whatever theirs is
    is_real: bool = False      # whether PyTorch refuses complex parameters


def _flag(key):
    return lambda group: float(bool(group[key]))


_BETAS = {"beta1": ("betas", 0), "beta2": ("betas", 1)}
_ADAM = _BETAS | {"epsilon": "eps", "weight_decay": "weight_decay"}
_MAXIMIZE = {"maximize": _flag("maximize")}


def _adam_states(group, parameter):
    return {"exp_avg": None, "exp_avg_sq": None} | ({"max_exp_avg_sq": None} if group["amsgrad"] else {})


def _rmsprop_states(group, parameter):
    return ({"square_avg": None} | ({"grad_avg": None} if group["centered"] else {})
            | ({"momentum_buffer": None} if group["momentum"] else {}))


def _adafactor_states(group, parameter):
    if parameter.dim() < 2:
        return {"variance": None}
    *rest, rows, columns = parameter.shape
    return {"row_var": (*rest, rows, 1), "col_var": (*rest, 1, columns)}


def _adam_like(name, *states, **more):
    return Update(name=lambda group: name, fed=_ADAM | more.pop("fed", {}),
                  states=more.pop("states", lambda group, parameter: dict.fromkeys(states)),
                  flags=_MAXIMIZE | more.pop("flags", {}), **more)


def _adam(of_class):
    return Update(name=lambda group: "adamw" if group.get("decoupled_weight_decay", of_class == "adamw") else "adam", fed=_ADAM,
                  states=_adam_states, flags=_MAXIMIZE | {"amsgrad": _flag("amsgrad")})


_DECOUPLED = {"decoupled_weight_decay": _flag("decoupled_weight_decay")}
_MUON_RATES = ("match_rms_adamw", "spectral_unclamped")  # the second one since PyTorch 2.14
_UPDATES = {
    torch.optim.AdamW: _adam("adamw"),
    torch.optim.Adam: _adam("adam"),
    torch.optim.NAdam: _adam_like("nadam", flags=_DECOUPLED, fed={"momentum_decay": "momentum_decay"}, scalars=("mu_product",),
                                  states=lambda group, parameter: {"mu_product": 1.0, "exp_avg": None, "exp_avg_sq": None}),
    torch.optim.RAdam: _adam_like("radam", "exp_avg", "exp_avg_sq", flags=_DECOUPLED),
    torch.optim.Adamax: _adam_like("adamax", "exp_avg", "exp_inf"),
    torch.optim.SGD: Update(
        name=lambda group: "sgd", fed={"momentum": "momentum", "dampening": "dampening", "weight_decay": "weight_decay"},
        states=lambda group, parameter: {"momentum_buffer": None} if group["momentum"] else {},
        flags=_MAXIMIZE | {"nesterov": _flag("nesterov")}, keeps_count=False, stays_zero=("momentum",)),
    torch.optim.RMSprop: Update(
        name=lambda group: "rmsprop", fed={"alpha": "alpha", "epsilon": "eps", "momentum": "momentum", "weight_decay": "weight_decay"},
        states=_rmsprop_states, flags=_MAXIMIZE | {"centered": _flag("centered")}, counted=False, stays_zero=("momentum",)),
    torch.optim.Adagrad: Update(
        name=lambda group: "adagrad", fed={"lr_decay": "lr_decay", "epsilon": "eps", "weight_decay": "weight_decay"},
        states=lambda group, parameter: {"sum": group["initial_accumulator_value"]}, flags=_MAXIMIZE),
    torch.optim.Adadelta: Update(
        name=lambda group: "adadelta", fed={"rho": "rho", "epsilon": "eps", "weight_decay": "weight_decay"},
        states=lambda group, parameter: {"square_avg": None, "acc_delta": None}, flags=_MAXIMIZE, counted=False),
    torch.optim.ASGD: Update(
        name=lambda group: "asgd", fed={"lambd": "lambd", "alpha": "alpha", "t0": "t0", "weight_decay": "weight_decay"},
        states=lambda group, parameter: {"eta": float(group["lr"]), "mu": 1.0, "ax": None}, flags=_MAXIMIZE, scalars=("eta", "mu"),
        computed=True),
    torch.optim.Rprop: Update(
        name=lambda group: "rprop", fed={"eta_minus": ("etas", 0), "eta_plus": ("etas", 1),
                                         "step_size_min": ("step_sizes", 0), "step_size_max": ("step_sizes", 1)},
        states=lambda group, parameter: {"prev": None, "step_size": float(group["lr"])}, flags=_MAXIMIZE, counted=False),
    torch.optim.Adafactor: Update(
        name=lambda group: "adafactor", fed={"beta2_decay": "beta2_decay", "d": "d", "weight_decay": "weight_decay"},
        states=_adafactor_states, is_real=True,
        flags=_MAXIMIZE | {"epsilon1": lambda group: -1.0 if group["eps"][0] is None else float(group["eps"][0]),
                           "epsilon2": lambda group: float(group["eps"][1])}),
    torch.optim.Muon: Update(
        name=lambda group: "muon", fed={"momentum": "momentum", "weight_decay": "weight_decay"}, keeps_count=False, counted=False,
        states=lambda group, parameter: {"momentum_buffer": None}, is_real=True,
        flags={"nesterov": _flag("nesterov"), "epsilon": lambda group: float(group["eps"]),
               "ns_steps": lambda group: float(group["ns_steps"]),
               **{f"ns_{c}": lambda group, i=i: float(group["ns_coefficients"][i]) for i, c in enumerate("abc")},
               **{name: lambda group, name=name: float(group["adjust_lr_fn"] == name) for name in _MUON_RATES}}),
}

# Changes of an optimizer that its programs were not made for.
_HOOKS = "hooks around its step"
MEMBERS = "other parameters"
OPTIONS = "options that change between steps"
TURNS = "parameters that get gradients by turns within one update"

# Counts of each parameter's updates, for optimizers that do not say so in their state.
_COUNTS = weakref.WeakKeyDictionary()


class Gradients:
    """Gradients accumulated until an update: a tensor for each parameter, which all programs of a step write to."""

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


def _read(group, place) -> float:
    value = group[place] if isinstance(place, str) else group[place[0]][place[1]]
    return float(value)


@dataclass
class Recipe:
    """An optimizer of PyTorch's as an update op: what a training session needs to know of it."""
    reason = None  # for which PyTorch would do the update
    optimizer: torch.optim.Optimizer
    trained: dict      # id of a parameter to its group
    gradients: Gradients  # of the calls that come before an update; None where each is one
    runs_hooks: bool = False  # whether the caller runs the hooks around the optimizer's step
    members: list = field(init=False)  # the groups' parameters, by id
    options: list = field(init=False)  # what is written into the update of each group
    scalars: list = field(init=False)  # the dtype of each group's scalar states

    def __post_init__(self):
        self.update = _UPDATES[type(self.optimizer)]
        self.members, self.options = _members(self.optimizer), _options(self.optimizer)
        self.scalars = [dtype for (dtype,) in _scalar_dtypes(self.optimizer)]
        self._scalar_of = {of: dtype for ids, dtype in zip(self.members, self.scalars) for of in ids}
        self.forget_rows()
        self.fed = {"learning_rate": "lr"} | self.update.fed
        self.name, self.coefficients = self.options[0][:2]

    def rows_of(self, learners: dict, is_divided: bool = False) -> tuple[list, bool]:
        """UpdateRows.of() the parameters, by name, of a program that is called. is_divided: as for bindings()."""
        if self.counts_matter:
            self._rows.take({id(p): float(self.held_count(p, is_divided)) for p in learners.values()})
        return self._rows.of(learners)

    def forget_rows(self) -> None:
        """Begins the rows anew: those of ranks whose calls have updated different parameters are others."""
        self._rows = UpdateRows(self.members)

    def has_rows(self, program) -> bool:
        """True if the program was opened with the rows that its parameters have now."""
        return self._rows.of(program.learners) == (program.rows, program.has_offsets)

    def groups_of(self, rows) -> list:
        """As a session takes them: (the parameters' names, optimizer, its coefficients) of each row."""
        return [(names, self.options[i][0], self.options[i][1] | self._precision(self.scalars[i])
                 | {key: _read(self.optimizer.param_groups[i], place) for key, place in self.fed.items()}) for i, names in rows]

    def _precision(self, scalars) -> dict:
        """The flags for scalar states of such a dtype."""
        flags = {"float64_state": float(scalars == torch.float64)} if self.update.scalars else {}
        return flags | ({"float64_rates": float(_default_scalar() == torch.float64)} if self.update.computed else {})

    @property
    def counts_matter(self) -> bool:
        """True if an update depends on the number of updates before it."""
        if type(self.optimizer) is torch.optim.SGD:
            return any(group["momentum"] and group["dampening"] for group in self.optimizer.param_groups)
        return self.update.counted

    def places(self) -> list:
        """Places of fed values in a group: (key, index in its tuple or -1, whether it must stay zero or non-zero)."""
        return [(place, -1, name in self.update.stays_zero) if isinstance(place, str) else (*place, False)
                for name, place in self.fed.items()]

    def written(self):
        """The options and members that sessions are made for."""
        return self.options, self.members, self.scalars

    def change(self):
        """The change of the optimizer that the written update does not cover; None if there is none."""
        if self.members != _members(self.optimizer):
            return MEMBERS
        if not self.runs_hooks and _has_hooks(self.optimizer):
            return _HOOKS
        return OPTIONS if self.options != _options(self.optimizer) else None

    def misfit(self, program, window):
        """The reason why the program cannot make the next update; or None.
        window: the parameters that have gradients since the last update."""
        return TURNS if window - {id(parameter) for parameter in program.learners.values()} else None

    def refuse_sparse(self, parameter) -> None:
        """Raises what the optimizer raises for a sparse gradient of the parameter."""
        group, tried = self.trained[id(parameter)], torch.zeros(1, 1, dtype=parameter.dtype, device=CPU, requires_grad=True)
        tried.grad = torch.zeros_like(tried).to_sparse()
        options = inspect.signature(type(self.optimizer)).parameters.keys() & group.keys() - {"params"}
        type(self.optimizer)([tried], **{name: group[name] for name in options}).step()

    def accumulation_steps(self, count: int) -> int:
        """The session's accumulation steps if the caller asks for `count`."""
        return count

    def bindings(self, parameter, is_divided: bool = False) -> dict:
        """Tensors of PyTorch's that a session's steps write to, by what the session calls them (".NAME" follows). Made where
        there is no state. Raises ValueError where they are of another shape, or would lose more than float32 has, and KeyError
        where the state lacks one.
        is_divided: the state is left out, as ranks have parts of it (StepShards)."""
        group = self.trained[id(parameter)]
        state, found = self.optimizer.state.get(parameter, {}), {}
        states = self.update.states(group, parameter)
        for name, start in () if is_divided else states.items():
            is_scalar = name in self.update.scalars
            shape = () if is_scalar else start if isinstance(start, tuple) else parameter.shape
            dtype = self._scalar_of[id(parameter)] if is_scalar else parameter.dtype
            held = state.get(name)
            if held is None and state and self.update.keeps_count:
                raise KeyError(name)  # as eager does: an option was switched on after the first update
            if held is None:
                start = start if isinstance(start, (int, float)) else 0
                start = complex(start, start) if dtype.is_complex else start
                is_placed = is_dtensor(parameter) and shape == parameter.shape  # the state lies where the parameter does
                held = (torch.full_like(parameter, start) if is_placed
                        else torch.full(shape, start, dtype=dtype, device=parameter.device))
            elif held.shape != torch.Size(shape) or _bits_of(dtype) < min(_bits_of(held.dtype), 32):
                raise ValueError(f"the optimizer's {name} is {held.dtype} {list(held.shape)}, its parameter "
                                 f"{parameter.dtype} {list(parameter.shape)}")
            found[name] = held.to(parameter.device, dtype).contiguous()
        self._bind_count(parameter, is_divided)
        if found:
            self.optimizer.state[parameter].update(found)
        accumulator = {} if self.gradients is None else {"accumulator": self.gradients.of(parameter)}
        return accumulator | {f"optimizer.{name}": tensor for name, tensor in found.items()}

    def held_count(self, parameter, is_divided):
        """The count of the parameter's updates that is held so far. PyTorch knows a first one by what the state lacks, where it
        does not count; divided state lacks it always."""
        state = self.optimizer.state.get(parameter, {})
        if self.update.keeps_count:
            return state.get("step", 0.0)
        states = self.update.states(self.trained[id(parameter)], parameter)
        has_states = all(state.get(name) is not None for name in states)
        return _counts_of(self.optimizer).get(parameter, float(bool(states))) if has_states or is_divided else 0.0

    def _bind_count(self, parameter, is_divided):
        """Has a float32 scalar count the parameter's updates."""
        held, key = (self.optimizer.state[parameter], "step") if self.update.keeps_count else (_counts_of(self.optimizer), parameter)
        count = self.held_count(parameter, is_divided)
        if not (isinstance(count, torch.Tensor) and count.dtype == torch.float32 and count.device.type == "cpu"
                and count.dim() == 0):
            count = torch.tensor(float(count), dtype=torch.float32, device="cpu")
        held[key] = count

    def take_count(self, parameter, count: float):
        """Sets the number of the parameter's updates, where PyTorch's state has none."""
        if not self.update.keeps_count:
            _counts_of(self.optimizer)[parameter] = torch.tensor(count, dtype=torch.float32, device="cpu")

    def count(self, parameter) -> torch.Tensor:
        """The number of the parameter's updates."""
        return self.optimizer.state[parameter]["step"] if self.update.keeps_count else _counts_of(self.optimizer)[parameter]

    def watch(self, watch, parameters) -> None:
        """Adds to a _core.Watch what bindings() goes by."""
        watch.item(vars(self.optimizer), "state", self.optimizer.state)
        watch.whole(self.optimizer.state)
        for parameter in parameters:
            if parameter in self.optimizer.state:
                watch.whole(self.optimizer.state[parameter])
        if self.gradients is not None:
            watch.whole(self.gradients.tensors)

    def begin(self, program, micro_steps: int) -> None:
        """Before a step of the program."""
        first, values = program.updates(), []
        for i, names in program.rows:
            values += [_read(self.optimizer.param_groups[i], place) for place in self.fed.values()]
            if program.has_offsets:
                values.append(float(self.count(program.learners[names[0]])) - first if names else 0.0)
        program.session.feed_coefficients(values)
        program.session.set_position(first, micro_steps)

    def end(self, program, micro_steps: int, window) -> float:
        """After a step of the program; `micro_steps` counts it. Returns the norm of the last update's gradients, NaN without clipping."""
        if program.session.updates != program.updates():  # with "fp16" an update may not happen
            foreach_add_(program.counts(), 1)
        return program.session.gradient_norm


def _counts_of(optimizer) -> dict:
    return _COUNTS.setdefault(optimizer, {})


def keeps_count(optimizer) -> bool:
    """True if the optimizer's state counts a parameter's updates, as "step"."""
    return type(optimizer) not in _UPDATES or _UPDATES[type(optimizer)].keeps_count


def _bits_of(dtype) -> int:
    return torch.finfo(dtype).bits


def _has_hooks(optimizer) -> bool:
    return any(hook is not _place_counts for hooks in step_hooks(optimizer) for hook in hooks.values())


def return_counts(optimizer) -> None:
    """Has PyTorch's own steps of the optimizer find the counts of updates where it has them. Ours are on the CPU, where
    they take no copy and no wait."""
    registered = any(hook is _place_counts for hooks in step_hooks(optimizer) for hook in hooks.values())
    if keeps_count(optimizer) and type(optimizer) in _UPDATES and not registered:
        optimizer.register_step_pre_hook(_place_counts)


def _place_counts(optimizer, *_) -> None:
    for group in optimizer.param_groups:
        if not (group.get("fused") or group.get("capturable")):
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if "step" in state and state["step"].device != parameter.device:
                state["step"] = state["step"].to(parameter.device)


def _members(optimizer) -> list:
    return [[id(p) for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]


def _options(optimizer) -> list:
    """The options that are written into each group's update: (its name, flags, which of the `stays_zero` coefficients
    are not zero). A group may hold other keys, such as those of schedulers."""
    update = _UPDATES[type(optimizer)]
    return [(update.name(group), {key: value(group) for key, value in update.flags.items()},
             tuple(bool(group[update.fed[key]]) for key in update.stays_zero)) for group in optimizer.param_groups]


class Stepping:
    """An optimizer that PyTorch steps: a session accumulates gradients, in tensors that are the parameters' .grad."""

    name, coefficients, fed = "sgd", {}, {}  # of an update that the session never comes to

    def __init__(self, optimizer, gradients: Gradients, clip_norm: float, accumulation_steps: int, reason: str):
        self.optimizer, self.clip_norm, self.count, self.reason = optimizer, clip_norm, accumulation_steps, reason
        self.trained = {id(p): g for g in optimizer.param_groups for p in g["params"] if p.requires_grad}
        self.gradients, self.members = gradients, _members(optimizer)
        if type(optimizer) is torch.optim.SGD:  # what was not updated yet has no momentum
            for parameter, count in _counts_of(optimizer).items():
                if not count:
                    optimizer.state.pop(parameter, None)

    def rows_of(self, learners, is_divided: bool = False) -> tuple[list, bool]:
        return [], False

    def groups_of(self, rows) -> list:
        return []

    def has_rows(self, program) -> bool:
        return True

    def written(self):
        return Stepping, self.members

    def change(self):
        return MEMBERS if self.members != _members(self.optimizer) else None

    def misfit(self, program, window):
        return None

    def refuse_sparse(self, parameter) -> None:
        """It gets gradients that are dense."""

    def accumulation_steps(self, count: int) -> int:
        return 2**30

    def bindings(self, parameter, is_divided: bool = False) -> dict:
        return {"accumulator": self.gradients.of(parameter)}

    def watch(self, watch, parameters) -> None:
        watch.whole(self.gradients.tensors)

    def begin(self, program, micro_steps: int) -> None:
        program.session.set_position(0, micro_steps % self.count)  # at 0 the session sets gradients, then it adds to them

    def end(self, program, micro_steps: int, window) -> float:
        """As Recipe's. window: the parameters that have gradients since the last update; the others get None, as after
        zero_grad()."""
        norm = math.nan
        if micro_steps % self.count:
            return norm
        given = []
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"]):
            parameter.grad = self.gradients.of(parameter) if id(parameter) in window else None
            if parameter.grad is not None:
                given.append(parameter)
        if self.count > 1:
            foreach_mul_([p.grad for p in given], 1 / self.count)
        if self.clip_norm:
            norm = torch.nn.utils.clip_grad_norm_(given, self.clip_norm).item()
        self.optimizer.step()
        return norm


def describe_optimizer(optimizer, gradients, *, clip_norm, accumulation_steps, changing=None):
    """Describes the optimizer for a training session. The result is a Recipe, or, if there is no such update op, a
    Stepping with a FallbackWarning. Raises ValueError if neither fits.

    changing: what a program would hold but changes between steps.
    """
    problem = changing or _no_recipe(optimizer) or (_HOOKS if _has_hooks(optimizer) else None)
    if problem is None:
        return _make_recipe(optimizer, gradients if accumulation_steps > 1 else None)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(f"{type(optimizer).__name__} evaluates the loss several times in a step (closure)")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError(f"{type(optimizer).__name__} takes sparse gradients alone, and a step's are dense")
    fall_back([(f"{type(optimizer).__name__}.step", problem, "compile_step")])
    return Stepping(optimizer, gradients, clip_norm, accumulation_steps, problem)


def describe_own_step(optimizer):
    """A Recipe for a step that runs the optimizer's hooks; or the reason why there is none."""
    return _no_recipe(optimizer) or _make_recipe(optimizer, None, runs_hooks=True)


def _no_recipe(optimizer):
    """The reason why there is no update op for the optimizer and its options; None if there is one."""
    if type(optimizer) not in _UPDATES:
        return "there is no such update op"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "its option differentiable"
    if any(group.get("adjust_lr_fn") not in (None, "original", *_MUON_RATES) for group in optimizer.param_groups):
        return "its option adjust_lr_fn"
    if type(optimizer) is torch.optim.Muon and _has_overwritten_momentum(optimizer):
        return "its momentum in bfloat16, which this PyTorch overwrites"
    if _UPDATES[type(optimizer)].is_real and any(p.is_complex() for group in optimizer.param_groups for p in group["params"]):
        return "complex parameters"
    held = next((dtypes for dtypes in _scalar_dtypes(optimizer) if dtypes not in ({torch.float32}, {torch.float64})), None)
    names = ", ".join(_UPDATES[type(optimizer)].scalars)
    return f"its state {names} has the dtypes {', '.join(sorted(map(str, held)))} in one group" if held else None


def _has_overwritten_momentum(muon) -> bool:
    """True if PyTorch overwrites a momentum of the optimizer by the update that it makes from it, as it does before 2.15."""
    return any(not group["nesterov"] and any(p.dtype == torch.bfloat16 for p in group["params"])
               for group in muon.param_groups) and _overwrites_momentum()


@functools.cache
def _overwrites_momentum() -> bool:
    with torch.inference_mode(False):
        parameter = torch.nn.Parameter(torch.zeros((1, 1), dtype=torch.bfloat16, device="cpu"))
        parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.Muon([parameter], momentum=0.75, nesterov=False)
        optimizer.step()
    return optimizer.state[parameter]["momentum_buffer"].item() != 0.25


def _default_scalar():
    """The dtype that PyTorch makes an optimizer's scalars in."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def _scalar_dtypes(optimizer) -> list:
    """The set of dtypes that the scalar states of each group have, or will have when they are made. load_state_dict() gives
    them their parameters' dtype."""
    names = _UPDATES[type(optimizer)].scalars
    return [{getattr(state[name], "dtype", torch.float32) for state in map(optimizer.state.get, group["params"]) if state
             for name in names if name in state} or {_default_scalar()} for group in optimizer.param_groups]


def _make_recipe(optimizer, gradients, **more) -> Recipe:
    trained = {id(p): group for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    return Recipe(optimizer, trained, gradients, **more)
