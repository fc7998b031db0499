# SPDX-License-Identifier: Apache-2.0
"""Draws the programs of programs.py: draw(seed) gives a Program, whose source() is Python.

A statement is drawn after the statements before it have run in eager, on the program's first inputs. So it is of variables
that exist, and of shapes that fit.
"""

import dataclasses
import itertools
import linecache
import random
import re
import sys
import types

import torch
from generators import program_states  # noqa: F401  it adds to the table
from generators.program_features import FEATURES, HELPERS, Statement

HEAD = """import abc
import typing

import torch
import torch.utils.checkpoint
from torch import nn
import torch.nn.functional as F

DTYPE = torch.float32


def made(*shape):
    return torch.randn(*shape, dtype=torch.float32).to(DTYPE)
"""
LARGEST = 1e3  # of a value: a program whose values grow compares rounding
# Options of a program: the choices of each, with their weights. The first choice is the plainest one.
OPTIONS = {
    "bases": {"nn.Module": 20, "abc.ABC, nn.Module": 1, "typing.Generic[typing.TypeVar('T')], nn.Module": 1},
    "compiler": {"wrap": 14, "torch.compile": 2, "dynamic": 2, "copied": 1},
    "modes": {("grad",) * 3: 12, ("no_grad",) * 3: 2, ("grad", "no_grad", "grad"): 1, ("no_grad", "grad", "grad"): 1,
              ("grad", "inference", "grad"): 1},
    "inputs": {"plain": 12, "leaves": 6, "transposed": 1, "same": 0.5, "growing": 2},
    "dtype": {"float32": 6, "float64": 1},
    "part": {1 << 20: 3, 1: 1, 24: 1},           # bytes of gradients that a backward hands out at a time
    "captures": {8: 4, 1: 1},                     # that calls go back and forth between
    "disk": {False: 9, True: 1},                  # whether programs are kept, and the calls done again by what was kept
    "autocast": {False: 20, True: 1},             # the forward turns off what the caller has on
    "optimizer": {"SGD": 8, "SGD, momentum=0.9, weight_decay=0.1": 2, "Adam": 2, "AdamW": 1, "Adam, amsgrad=True": 0.5},
    "threads": {1: 9, 2: 1},
    "accumulation": {1: 14, 2: 1},
    "clip_norm": {0.0: 14, 1.0: 1},
    "zeroed": {"None": 9, "zeros": 1},            # gradients, between the calls
}
PLAIN = {name: next(iter(of)) for name, of in OPTIONS.items()}


@dataclasses.dataclass
class Program:
    """setup, body: of __init__ and forward. before, after: the calls. outputs: names of what the forward returns. shape: of
    its inputs."""
    seed: int
    options: dict
    shape: tuple
    setup: list
    body: list
    before: list
    after: list
    outputs: list

    def statements(self):
        return [t for s in (*self.setup, *self.body, *self.before, *self.after) for t in s.all()]

    def features(self):
        """The names that this program counts for: the features of its statements, and its options other than the plainest."""
        found = {s.feature for s in self.statements() if s.feature}
        return found | {f"{name}: {value if isinstance(value, str) else repr(value)}" for name, value in self.options.items()
                        if value != PLAIN[name]}

    def source(self):
        """The module Program, inputs(call), before(module, optimizer, handles, call), after(ys, call) and OPTIONS."""
        o, text = self.options, "\n".join(s.text for s in self.statements())
        named = [name for name in HELPERS if re.search(rf"\b{name}\b", text)]
        lines = [f"OPTIONS = { {name: value for name, value in o.items() if value != PLAIN[name]} }", "",
                 *(f"\n{HELPERS[name]}\n" for name in named), "", f"class Program({o['bases']}):",
                 "    def __init__(self):", "        super().__init__()", *(line for s in self.setup for line in s.lines(8)), "",
                 "    def forward(self, x, y):"]
        indent = 8
        if o["autocast"]:
            lines.append("        with torch.autocast('cpu', enabled=False):")
            indent = 12
        lines += [line for s in self.body for line in s.lines(indent)]
        lines += [f"{' ' * indent}return {', '.join(self.outputs)},", ""]
        lines += ["", "def inputs(call):", f"    x, y = {self._inputs()}"]
        if o["inputs"] == "leaves":
            lines.append("    x.requires_grad_(), y.requires_grad_(call != 1)")
        lines += ["    return x, y", ""]
        for name, statements, given in (("before", self.before, "module, optimizer, handles"), ("after", self.after, "ys")):
            lines += ["", f"def {name}({given}, call):"]
            for s in statements:
                lines += [f"    if call == {s.call}:", *s.lines(8)]
            lines += [] if statements else ["    pass"]
            lines.append("")
        return HEAD + "\n" + "\n".join(lines)

    def _inputs(self):
        shape, kind = list(self.shape), self.options["inputs"]
        made = ", ".join(map(str, shape))
        if kind == "transposed":
            return f"made({', '.join(map(str, reversed(shape)))}).permute({', '.join(map(str, reversed(range(len(shape)))))}), made({made})"
        if kind == "growing":
            made = ", ".join([f"{shape[0]} + call", *map(str, shape[1:])])
        return f"(made({made}),) * 2" if kind == "same" else f"made({made}), made({made})"


_NUMBERS, _LOADED = itertools.count(), []


def load(source, name, dtype):
    """The names that a program's source defines. Its lines are known to tracebacks and to Dynamo."""
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    module = types.ModuleType(f"program_{next(_NUMBERS)}")  # Dynamo finds globals by a module's name
    while _LOADED:
        sys.modules.pop(_LOADED.pop())
    sys.modules[module.__name__], namespace = module, vars(module)
    _LOADED.append(module.__name__)
    exec(compile(source, name, "exec"), namespace)
    namespace["OPTIONS"] = PLAIN | namespace["OPTIONS"]
    namespace["DTYPE"] = getattr(torch, dtype)
    return namespace


class Draft:
    """A program while it is drawn."""

    def __init__(self, rng, shape, options):
        self.rng, self.shape, self.options, self.setup, self.outputs = rng, shape, options, [], []
        self.env = {"__name__": "draft"}
        exec(HEAD, self.env)
        for source in HELPERS.values():
            exec(source, self.env)
        self.module = self.env["self"] = torch.nn.Module()
        torch.manual_seed(0)
        self.env.update(x=self.env["made"](*shape), y=self.env["made"](*shape), call=0)
        self.last_part, self.taken, self.before_it = "", 0, []

    # --- variables ---

    def variables(self):
        """Names of tensors, in the order of their making."""
        return [name for name, value in self.env.items() if re.fullmatch(r"x|y|v\d+", name) and isinstance(value, torch.Tensor)]

    def tensor(self, name):
        return eval(name, self.env)

    def shape_of(self, name):
        return tuple(self.tensor(name).shape)

    def pick(self, floating=True, least=0, shape=None, written=False, needs_grad=False):
        """The name of a variable. least: its dims. written: one that is written to, mostly no input. None without one."""
        if not floating or written or needs_grad or shape is not None:
            names = self.variables()
        else:
            names = self.variables() + [n for n in self.parts("w") if self.rng.random() < 0.15]

        def fits(name):
            value = self.tensor(name)
            return (value.is_floating_point() == floating and value.dim() >= least and (shape is None or tuple(value.shape) == shape)
                    and (not needs_grad or value.requires_grad) and 0 < value.numel() <= 64 and value.layout == torch.strided)

        names = [name for name in names if fits(name)]
        if written and self.rng.random() < 0.97:  # which compile_step refuses
            names = [name for name in names if self.storage(name) not in map(self.storage, "xy")]
        if shape is not None and not names:
            raise LookupError
        if len(names) > 4 and self.rng.random() < 0.6:
            names = names[-4:]
        if not names:
            raise LookupError
        return self.rng.choice(names)

    def learns(self, name):
        """True if a parameter gets a gradient of the variable."""
        value, parameters = self.tensor(name), list(self.module.parameters())
        try:
            return value.requires_grad and bool(parameters) and any(
                g is not None for g in torch.autograd.grad(value.sum(), parameters, retain_graph=True, allow_unused=True))
        except RuntimeError:  # eager's backward fails
            return True

    def storage(self, name):
        return self.tensor(name).untyped_storage().data_ptr()

    def broadcast(self, a, b):
        """The shape of both, False if they have none."""
        try:
            return tuple(torch.broadcast_shapes(self.shape_of(a), self.shape_of(b)))
        except RuntimeError:
            return False

    def fresh(self):
        self.taken += 1
        return f"v{self.free + self.taken - 1}"

    def new(self, text, floating=True):
        return f"v{self.free} = {text}"

    @property
    def free(self):
        return max((int(name[1:]) + 1 for name in self.variables() if name[0] == "v"), default=0)

    def extra(self, text):
        """A line before the statement that is being drawn."""
        exec(text, self.env)
        self.before_it.append(text)

    # --- parts of the module ---

    def parts(self, kind):
        names = [s.text.split(" = ")[0] if " = " in s.text else "self." + s.text.split('"')[1] for s in self.setup]
        return [name for name in names if re.fullmatch(rf"self\.{kind}\d+", name)]

    def part(self, kind, text, fits, buffer=False):
        """A part of the module: one that it has, or a new one."""
        old = [name for name in self.parts(kind) if fits(self.tensor(name))]
        if old and self.rng.random() < 0.75:
            self.last_part = self.rng.choice(old)
            return self.last_part
        name = f"{kind}{len(self.parts(kind))}"
        line = f'self.register_buffer("{name}", {text})' if buffer else f"self.{name} = {text}"
        exec(line, self.env)
        self.setup.append(Statement("", line))
        self.last_part = f"self.{name}"
        return self.last_part

    def parameter(self, shape):
        shape = tuple(shape)
        return self.part("w", f"nn.Parameter(made({', '.join(map(str, shape)) or '()'}))", lambda w: tuple(w.shape) == shape)

    def buffer(self):
        shape = self.shape_of(self.pick())
        return self.part("b", f"made({', '.join(map(str, shape)) or '()'})", lambda b: True, buffer=True)

    def submodules(self):
        return [name for name, _ in self.module.named_children()]

    def outside(self, kind):
        """The text of a parameter or buffer of the module, from outside of it."""
        names = [n for n, t in (self.module.named_parameters() if kind == "parameter" else self.module.named_buffers())
                 if t.is_floating_point()]
        if not names and kind == "parameter":
            raise LookupError
        return names and "module." + re.sub(r"\.(\d+)\b", r"[\1]", self.rng.choice(names))

    # --- statements ---

    def block(self, text, lines=None):
        """A block of drawn statements, or of the given lines."""
        with eval(text.removeprefix("with ").removesuffix(":"), self.env):
            if lines is not None:
                for line in lines:
                    exec(line, self.env)
                return Statement("", text, [Statement("", line) for line in lines])
            body, free = [], self.taken
            for _ in range(self.rng.choice([1, 1, 2, 3])):
                body += self.statement(depth=1)
            self.taken = free
        return Statement("", text, body or [Statement("", "pass")])

    def statement(self, depth=0, place="forward", only=None):
        """Draws statements and runs them: mostly one, none if none was found."""
        names = [name for name in FEATURES[place] if only is None or re.search(only, name)]
        weights = [FEATURES[place][name][0] for name in names]
        for _ in range(8):
            (name,) = self.rng.choices(names, weights)
            if depth and name in ("no_grad", "enable_grad", "inference_mode", "set_grad") and self.rng.random() < 0.7:
                continue
            self.taken, self.before_it = 0, []
            before = dict(self.env)
            try:
                made = FEATURES[place][name][1](self)
                if not made:
                    continue
                if isinstance(made, str) and place == "forward":
                    exec(made, self.env)
                if self.is_tame(name):
                    made = made if isinstance(made, Statement) else Statement(name, made)
                    made.feature = name
                    return [Statement(name, text) for text in self.before_it] + [made]
            except (LookupError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError, NotImplementedError):
                pass
            self.env.clear()
            self.env.update(before)
        return []

    def is_tame(self, name):
        """True if all variables are small enough, and numbers."""
        for variable in self.variables():
            value = self.tensor(variable)
            if value.is_nested or value.numel() > 64:
                return False
            if value.is_floating_point() and name not in ("special", "infinite") and not (value.abs() < LARGEST).all():
                if not value.isnan().any():
                    return False
        return True


def draw(seed, only=None, attempt=0):
    """The program of a seed. only: a regular expression that some of its statements' features contain."""
    rng = random.Random(f"{seed} {attempt}")
    shape = tuple(rng.choice([1, 2, 2, 3, 3, 4]) for _ in range(rng.choice([2, 2, 2, 3, 3, 4])))
    options = {name: rng.choices(list(of), list(of.values()))[0] for name, of in OPTIONS.items()}
    draft, body = Draft(rng, shape, options), []
    for i in range(rng.randint(4, 12)):
        body += draft.statement(only=only if only and i % 2 == 0 else None)
    names = [n for n in draft.variables() if 0 < draft.tensor(n).numel()]
    learning = [n for n in names if draft.learns(n)] or [draft.parameter(shape)]
    draft.outputs = [rng.choice(learning), *(rng.choice(names[-5:]) for _ in range(rng.choice([0, 1, 1, 2, 3])))]
    if rng.random() < 0.15:
        draft.outputs.append(rng.choice([*draft.parts("b"), *draft.parts("w"), "x"]))
    before = [s for call in (1, 2) if rng.random() < 0.4 for s in draft.statement(place="before")[:1] if setattr(s, "call", call) is None]
    after = [s for call in (0, 2) if rng.random() < 0.1 for s in draft.statement(place="after")[:1] if setattr(s, "call", call) is None]
    return without_unnamed(Program(seed, options, shape, draft.setup, body, before, after, draft.outputs))


def without_unnamed(program):
    """The program without parts of the module that no statement names."""
    text = "\n".join([*(s.text for s in (*(t for s in program.body for t in s.all()), *program.before)), *program.outputs])
    names = [re.search(r'(?:self\.|")([a-z]+\d+)\b', s.text)[1] for s in program.setup]
    setup = [s for name, s in zip(names, program.setup) if re.search(rf"\b{name}\b", text)]
    return dataclasses.replace(program, setup=setup)


# --- smaller programs -------------------------------------------------------------------------------------------

def smaller(program):
    """Yields programs that have a statement, an output or an option less."""
    for name, value in PLAIN.items():
        if program.options[name] != value:
            yield dataclasses.replace(program, options={**program.options, name: value})
    for field in ("before", "after", "body"):
        for smaller_list in _without_one(getattr(program, field)):
            yield without_unnamed(dataclasses.replace(program, **{field: smaller_list}))
    for i in range(len(program.outputs)):
        if len(program.outputs) > 1:
            yield without_unnamed(dataclasses.replace(program, outputs=program.outputs[:i] + program.outputs[i + 1:]))


def _without_one(statements):
    """The lists that lack one statement, from the last to the first, or have a block's statements in place of the block."""
    for i in reversed(range(len(statements))):
        rest, statement = (statements[:i], statements[i + 1:]), statements[i]
        yield rest[0] + rest[1]
        if statement.body:
            yield rest[0] + statement.body + rest[1]
            for body in _without_one(statement.body):
                if body:
                    yield [*rest[0], dataclasses.replace(statement, body=body), *rest[1]]
