# SPDX-License-Identifier: Apache-2.0
"""A module, and changes of everything that its calls depend on. Each change is a context that undoes it."""

import collections
import contextlib
import enum
import math
import types
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

SCALE, TABLE, PAIR = 2.0, {"a": 1.0, "b": 0.5}, [1.0, 0.25]


class Tools:
    pass


TOOLS = Tools()
TOOLS.offset = 0.5


class Mode(enum.Enum):
    PLAIN = 1
    TWICE = 2


def helper(x, factor=1.5, *, shift=0.25):
    return x * factor + shift


def other_helper(x, factor=1.5, *, shift=0.25):
    return x * factor - shift


def make(bias):
    def inner(x):
        return x + bias
    return inner


inner = make(0.25)


class Config:
    kind = "plain"

    def __init__(self):
        self.width, self.names = 3, {"first": 1.0, "second": 2.0}

    @property
    def half(self):
        return self.width / 2


class Layer(nn.Module):
    gain = 1.25

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.act(self.linear(x)) * self.gain

    def act(self, x):
        return F.relu(x) + x.tanh()


class Other(Layer):
    def forward(self, x):
        return super().forward(x) * 3


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class Positive(nn.Module):
    def forward(self, x):
        return x.exp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.more, self.norm = Layer(), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sigmoid()), nn.BatchNorm1d(4)
        self.by_name, self.config = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Tanh()}), Config()
        self.number, self.flag, self.none, self.factors = 1.5, True, None, [1.0, 2.0]
        self.named, self.ordered = {"p": 1.0, "q": 2.0}, collections.OrderedDict(p=1.0, q=2.0)
        self.choices, self.mode, self.function, self.pair = {1, 2}, Mode.PLAIN, F.gelu, (1.0, 2.0)
        self.register_buffer("mask", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x, extra=None):
        h = self.layer(x)
        for layer in self.more:
            h = layer(h)
        for name, layer in self.by_name.items():
            h = layer(h)
        h = self.norm(h + x) * self.mask * self.weight * SCALE
        h = helper(h) + inner(h) * TABLE["a"] + PAIR[1] * TOOLS.offset
        for i, (name, value) in enumerate(self.named.items()):
            h = h + i * value
        for i, (name, value) in enumerate(self.ordered.items()):
            h = h * (1 + 0.1 * i * value)
        h = h * self.number + sum(self.factors) + len(self.choices) + self.pair[1] + self.config.half
        h = h + list(self.config.names.values())[0] + math.sqrt(4.0)
        if self.flag and self.none is None and self.config.kind == "plain" and self.mode is Mode.PLAIN:
            h = h + torch.sin(h)
        if getattr(self.weight, "scaled", False):
            h = h * 5
        if hasattr(self, "late"):
            h = h * 7
        return self.function(h) if extra is None else self.function(h) * extra


@contextlib.contextmanager
def attribute(owner, name, value):
    """Calls setattr() as users do, and undoes it in the same way."""
    missing = object()
    before = vars(owner).get(name, missing) if not isinstance(owner, nn.Module) else getattr(owner, name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name) if before is missing else setattr(owner, name, before)


@contextlib.contextmanager
def item(container, key, value):
    before = container[key]
    container[key] = value
    yield
    container[key] = before


@contextlib.contextmanager
def ended(handle):
    yield
    handle.remove()


@contextlib.contextmanager
def done(do, undo):
    do()
    try:
        yield
    finally:
        undo()


@contextlib.contextmanager
def reordered(mapping):
    """Moves the first entry to the end."""
    rows = list(mapping.items())
    mapping.clear()
    mapping.update(rows[1:] + rows[:1])
    yield
    mapping.clear()
    mapping.update(rows)


def doubled(module, dx, dy):
    return tuple(None if d is None else d * 2 for d in dx)


class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is F.linear else result


def scaled(module, inputs, output):
    return output * 2


def widened(module, inputs):
    return tuple(x * 2 for x in inputs)


@contextlib.contextmanager
def parametrized(layer):
    before = layer.weight
    torch.nn.utils.parametrize.register_parametrization(layer, "weight", Positive())
    yield
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    layer.weight = before


@contextlib.contextmanager
def data(tensor, value):
    before, tensor.data = tensor.data, value
    yield
    tensor.data = before


def code(function, other):
    before = function.__code__
    return done(lambda: setattr(function, "__code__", other.__code__), lambda: setattr(function, "__code__", before))


def replaced_function(x, *rest, **named):
    return torch._C._nn.linear(x, *rest, **named) * 1.5


CHANGES = {
    # modules
    "submodule replaced": lambda m: attribute(m, "layer", Other()),
    "submodule replaced in a list": lambda m: item(m.more, 1, nn.ReLU()),
    "submodule added": lambda m: done(lambda: m.more.append(nn.Tanh()), lambda: m.more.__delitem__(-1)),
    "submodules reordered": lambda m: reordered(m.more._modules),
    "submodules of a dict reordered": lambda m: reordered(m.by_name._modules),
    "class of a submodule": lambda m: attribute_class(m.layer, Other),
    "class of a submodule of PyTorch's": lambda m: attribute_class(m.more[0], Doubled),
    "class of the module": lambda m: attribute_class(m, Inverted),
    "class of an object": lambda m: attribute_class(m.config, OtherConfig),
    "forward of an instance": lambda m: done(lambda: setattr(m.layer, "forward", lambda x: x * 2), lambda: delattr(m.layer, "forward")),
    "forward of a class": lambda m: mock.patch.object(Layer, "forward", lambda self, x: self.linear(x) * 2),
    "forward of PyTorch's class": lambda m: mock.patch.object(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight) * 2),
    "method of a class": lambda m: mock.patch.object(Layer, "act", lambda self, x: x * 3),
    "method of an instance": lambda m: done(lambda: setattr(m.layer, "act", lambda x: x * 3), lambda: delattr(m.layer, "act")),
    "attribute of a class": lambda m: mock.patch.object(Layer, "gain", 4.0),
    "attribute of a class of a plain object": lambda m: mock.patch.object(Config, "kind", "other"),
    "property of a class": lambda m: mock.patch.object(Config, "half", property(lambda self: 9.0)),
    "hook": lambda m: ended(m.layer.register_forward_hook(scaled)),
    "hook before": lambda m: ended(m.layer.register_forward_pre_hook(widened)),
    "hook of the module": lambda m: ended(m.register_forward_hook(scaled)),
    "hook of PyTorch's module": lambda m: ended(m.more[1].register_forward_hook(scaled)),
    "hook of all modules": lambda m: ended(nn.modules.module.register_module_forward_hook(scaled)),
    "backward hook": lambda m: ended(m.layer.register_full_backward_hook(doubled)),
    "backward hook before": lambda m: ended(m.layer.register_full_backward_pre_hook(lambda module, dy: tuple(d * 2 for d in dy))),
    "hook of a gradient": lambda m: ended(m.weight.register_hook(lambda dw: dw * 2)),
    "evaluation": lambda m: done(m.eval, m.train), "evaluation of a part": lambda m: done(m.norm.eval, m.norm.train),
    "parametrization": lambda m: parametrized(m.more[0]),
    # tensors
    "frozen": lambda m: done(lambda: m.weight.requires_grad_(False), lambda: m.weight.requires_grad_(True)),
    "all frozen": lambda m: done(lambda: m.requires_grad_(False), lambda: m.requires_grad_(True)),
    "dtype": lambda m: done(m.double, m.float),
    "parameter replaced": lambda m: attribute(m, "weight", nn.Parameter(torch.full((4,), 3.0))),
    "parameter removed": lambda m: attribute(m.more[0], "bias", None),
    "buffer replaced": lambda m: attribute(m, "mask", torch.full((4,), 3.0)),
    "buffer of another shape": lambda m: attribute(m, "mask", torch.full((3, 4), 3.0)),
    "data": lambda m: data(m.weight, torch.full((4,), 3.0)), "data of another shape": lambda m: data(m.weight, torch.ones(1)),
    "data of other strides": lambda m: data(m.layer.linear.weight, torch.randn(4, 4).t()),
    "parameters tied": lambda m: attribute(m.more[0], "weight", m.layer.linear.weight),
    "attribute of a parameter": lambda m: done(lambda: setattr(m.weight, "scaled", True), lambda: delattr(m.weight, "scaled")),
    # attributes
    "number": lambda m: attribute(m, "number", 3.5), "flag": lambda m: attribute(m, "flag", False),
    "none": lambda m: attribute(m, "none", 1), "tuple": lambda m: attribute(m, "pair", (1.0, 5.0)),
    "list's item": lambda m: item(m.factors, 0, 9.0), "list's end": lambda m: done(lambda: m.factors.append(9.0), m.factors.pop),
    "dict's item": lambda m: item(m.named, "p", 9.0), "dict's order": lambda m: reordered(m.named),
    "another key": lambda m: done(lambda: m.named.update(r=1.0), lambda: m.named.pop("r")),
    "set": lambda m: done(lambda: m.choices.add(3), lambda: m.choices.remove(3)),
    "enum": lambda m: attribute(m, "mode", Mode.TWICE), "function": lambda m: attribute(m, "function", F.silu),
    "object's number": lambda m: attribute(m.config, "width", 7),
    "object's dict": lambda m: item(m.config.names, "first", 9.0),
    "object's dict's order": lambda m: reordered(m.config.names), "object replaced": lambda m: attribute(m, "config", OtherConfig()),
    "new attribute": lambda m: attribute(m, "late", 1),
    # code and globals
    "global number": lambda m: mock.patch.dict(globals(), SCALE=5.0), "global dict": lambda m: item(TABLE, "a", 9.0),
    "global list": lambda m: item(PAIR, 1, 9.0), "global object": lambda m: attribute(TOOLS, "offset", 9.0),
    "global function": lambda m: mock.patch.dict(globals(), helper=other_helper),
    "global class": lambda m: mock.patch.dict(globals(), Mode=types.SimpleNamespace(PLAIN=Mode.TWICE)),
    "code of a function": lambda m: code(helper, other_helper),
    "default": lambda m: mock.patch.object(helper, "__defaults__", (4.0,)),
    "keyword's default": lambda m: mock.patch.object(helper, "__kwdefaults__", {"shift": 4.0}),
    "keyword's default in place": lambda m: item(helper.__kwdefaults__, "shift", 4.0),
    "closure": lambda m: done(lambda: setattr(inner.__closure__[0], "cell_contents", 5.0),
                              lambda: setattr(inner.__closure__[0], "cell_contents", 0.25)),
    "builtin shadowed": lambda m: done(lambda: globals().update(sum=lambda values: 9.0), lambda: globals().pop("sum")),
    # PyTorch's and Python's functions
    "F.linear": lambda m: mock.patch.object(F, "linear", replaced_function),
    "F.relu": lambda m: mock.patch.object(F, "relu", lambda x: x.abs()),
    "F.batch_norm": lambda m: mock.patch.object(F, "batch_norm", lambda x, *rest: x * 2),
    "torch.sin": lambda m: mock.patch.object(torch, "sin", torch.cos),
    "torch.tanh": lambda m: mock.patch.object(torch, "tanh", torch.sin),
    "a method of tensors": lambda m: mock.patch.object(torch.Tensor, "tanh", torch.Tensor.sin),
    "math.sqrt": lambda m: mock.patch.object(math, "sqrt", lambda x: 9.0),
    "F of a module of PyTorch's": lambda m: mock.patch.object(nn.modules.linear, "F", types.SimpleNamespace(linear=replaced_function)),
    # modes
    "no_grad": lambda m: torch.no_grad(), "inference_mode": lambda m: torch.inference_mode(),
    "autocast": lambda m: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda m: done(lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
    "deterministic": lambda m: done(lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
    "threads": lambda m: done(lambda n=torch.get_num_threads(): torch.set_num_threads(n + 1),
                              lambda n=torch.get_num_threads(): torch.set_num_threads(n)),
    "mode of functions": lambda m: Functions(), "default device": lambda m: torch.device("cpu"),
}


class Inverted(Net):
    def forward(self, x, extra=None):
        return -super().forward(x, extra)


class OtherConfig(Config):
    @property
    def half(self):
        return 11.0


def attribute_class(value, cls):
    before = type(value)
    return done(lambda: setattr(value, "__class__", cls), lambda: setattr(value, "__class__", before))


# Changes of the call's arguments.
CALLS = {
    "another shape": lambda x: ((x[:2],), {}), "another dtype": lambda x: ((x.double(),), {}),
    "other strides": lambda x: ((x.t().contiguous().t(),), {}), "a gradient": lambda x: ((x.clone().requires_grad_(),), {}),
    "one more": lambda x: ((x, 2.0), {}), "by name": lambda x: ((x,), {"extra": 2.0}), "another number": lambda x: ((x, 3.0), {}),
    "a tensor": lambda x: ((x, x), {}), "another tensor": lambda x: ((x, x + 1), {}), "a subclass": lambda x: ((nn.Parameter(x),), {}),
}


def outcome(module, call, args, kwargs):
    """Returns results and gradients, or the type of the error."""
    torch.manual_seed(0)
    module.zero_grad()
    statistics = {name: value.clone() for name, value in module.named_buffers()}
    try:
        y = call(*args, **kwargs)
        if y.requires_grad:
            y.sum().backward()
        found = [y.detach().clone(), *(None if p.grad is None else p.grad.clone() for p in module.parameters())]
    except RuntimeError as error:
        return type(error)
    finally:
        with torch.no_grad():
            for name, value in module.named_buffers():
                if name in statistics:
                    value.copy_(statistics[name])
    return found


def difference(actual, expected) -> str:
    if not isinstance(actual, list) or not isinstance(expected, list):
        same = isinstance(actual, type) and isinstance(expected, type) and issubclass(actual, expected)
        return "" if same else f"{actual} in place of {expected}"
    for a, b in zip(actual, expected, strict=True):
        if (a is None) != (b is None):
            return f"gradient {a} in place of {b}"
        if a is not None:
            rtol = 0.05 if torch.is_autocast_enabled("cpu") else 1e-3
            try:
                torch.testing.assert_close(a, b, rtol=rtol, atol=rtol)
            except AssertionError as error:
                return " ".join(str(error).split())
    return ""
