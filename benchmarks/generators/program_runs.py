# SPDX-License-Identifier: Apache-2.0
"""Runs a program of programs.py in eager and through caesura, and compares all that a caller can see."""

import contextlib
import copy
import dataclasses
import functools
import os
import pickle
import random
import re
import tempfile
from unittest import mock

import torch
from operators import TOLERANCE, compare
from generators.program_draw import LARGEST, draw, load
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode

import caesura
from caesura.frontends import compile_step, wrap
from caesura.runtime import graph_executor

CALLS = 3
CAPTURED = 40  # graphs in three calls, at most: those with breaks have up to 20
ROUTES = ("wrap", "step")
RATE = 0.1
STATES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step")  # of an optimizer
MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
# Outcomes of a program, from bad to good. silent: it differs from eager. failed: it raises an error that eager does not raise.
BAD = ("silent", "failed")
OUTCOMES = (*BAD, "refused", "left to PyTorch", "partly ours", "ours", "as eager fails", "left out")
UNSETTLED = "rounding decides: eager's own result changes as much with inputs that are changed by rounding"
MODIFIED = "modified by an inplace operation"
SHAKEN = 8  # such runs


@dataclasses.dataclass
class Outcome:
    outcome: str
    reason: str = ""


def value_of(tensor):
    """A tensor as it is now."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.layout != torch.strided else tensor).clone()


def strides_of(tensor):
    return tuple(step for step, size in zip(tensor.stride(), tensor.shape) if size > 1)


def shared(tensors):
    """(i, j, distance in bytes) of those that share memory."""
    held = [(i, t) for i, t in enumerate(tensors) if t.numel() and t.layout == torch.strided]
    return [(i, j, a.data_ptr() - b.data_ptr()) for i, a in held for j, b in held
            if j < i and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()]


def weights_of(y):
    return torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)


def loss_of(outputs, scale):
    """Reads no shapes: Dynamo (2.13 to 2.15) has those of before where a tensor was transposed in place."""
    flat = [y.reshape(-1) for y in outputs if y.is_floating_point()]
    return sum((y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype)).sum() for y in flat) * scale


def state_of(module, when):
    values = [(f"{name} {when}", value_of(t)) for name, t in (*module.named_parameters(), *module.named_buffers())]
    values += [(f"{name}.requires_grad {when}", p.requires_grad) for name, p in module.named_parameters()]
    values += [(f"{name} {when}", value_of(t)) for name, t in vars(module).items() if isinstance(t, torch.Tensor)]
    return values


def module_of(program):
    torch.manual_seed(0)
    module = program["Program"]()
    return module if program["DTYPE"] == torch.float32 else module.to(program["DTYPE"])  # which no tensor without values takes


def called(program, make):
    """Makes three calls. Returns what a caller sees of them, as (name, value), and the error that ended them or None.

    make: takes a module and returns what is called.
    """
    module, values, handles = module_of(program), [], []
    try:
        call, optimizer = make(module), torch.optim.SGD(module.parameters() if any(True for _ in module.parameters()) else [torch.zeros(1)])
        for i in range(CALLS):
            program["before"](module, optimizer, handles, i)
            torch.manual_seed(100 + i)
            x, y = program["inputs"](i)
            with MODES[program["OPTIONS"]["modes"][i]](), autocast(program):
                ys = list(call(x, y))
            tensors = [*ys, x, y, *module.parameters(), *module.buffers()]
            values += [(f"output {k} of call {i}", value_of(t)) for k, t in enumerate(ys)]
            values += [(f"{what} of output {k} of call {i}", f(t)) for k, t in enumerate(ys) for what, f in (
                ("the strides", strides_of), ("requires_grad", lambda t: t.requires_grad))]
            values.append((f"memory shared by {len(ys)} outputs, the inputs and state after call {i}", shared(tensors)))
            program["after"](ys, i)
            taking = [t for t in ys if t.requires_grad and t.grad_fn is not None]
            if taking:
                torch.autograd.backward(taking, [weights_of(t) for t in taking])
            values += [(f"the gradient of {name} after call {i}", value_of(t.grad)) for name, t in
                       (*module.named_parameters(), ("x", x), ("y", y)) if t.is_leaf]
            values += [(f"output {k} after call {i}", value_of(t)) for k, t in enumerate(ys)]
            values += [(f"{name} after call {i}", value_of(t)) for name, t in (("x", x), ("y", y))]
            values += state_of(module, f"after call {i}")
            values.append((f"the random state after call {i}", torch.get_rng_state()))
            if i == 0 or program["OPTIONS"]["zeroed"] == "None":
                module.zero_grad(set_to_none=program["OPTIONS"]["zeroed"] == "None")
    except Exception as error:
        return values, error
    finally:
        for handle in handles:
            handle.remove()
    return values, None


def autocast(program):
    return torch.autocast("cpu", torch.bfloat16) if program["OPTIONS"]["autocast"] else contextlib.nullcontext()


def trained(program, make):
    """Makes three steps. Returns the same of them as called(). make: returns the function of a step."""
    o, values, handles = program["OPTIONS"], [], []
    module = module_of(program)
    try:
        optimizer = eval(f"torch.optim.{o['optimizer'].split(',')[0]}(p, lr=RATE{o['optimizer'].partition(',')[1]}"
                         f"{o['optimizer'].partition(',')[2]})", {"torch": torch, "p": list(module.parameters()), "RATE": RATE})
        step = make(module, optimizer, o)
        for i in range(CALLS):
            program["before"](module, optimizer, handles, i)
            torch.manual_seed(100 + i)
            x, y = (t.detach() for t in program["inputs"](i))
            values.append((f"the loss of step {i}", value_of(step(x, y, torch.tensor(1.5, dtype=x.dtype)))))
            values += state_of(module, f"after step {i}")
            if (i + 1) % o["accumulation"] == 0:
                values += [(f"{key} of {name} after step {i}", value_of(optimizer.state[p].get(key) if p in optimizer.state else None))
                           for name, p in module.named_parameters() for key in STATES]
            values += [(f"{name} after step {i}", value_of(t)) for name, t in (("x", x), ("y", y))]
            values.append((f"the random state after step {i}", torch.get_rng_state()))
    except Exception as error:
        return values, error
    finally:
        for handle in handles:
            handle.remove()
    return values, None


def eager_step(module, optimizer, options):
    calls, count = [], options["accumulation"]

    def step(x, y, scale):
        if len(calls) % count == 0:
            optimizer.zero_grad()
        calls.append(1)
        loss = loss_of(module(x, y), scale)
        loss.backward()
        if len(calls) % count == 0:
            for p in module.parameters():
                p.grad = None if p.grad is None else p.grad / count  # the mean of the calls' gradients
            if options["clip_norm"]:
                torch.nn.utils.clip_grad_norm_(module.parameters(), options["clip_norm"])
            optimizer.step()
        return loss
    return step


def our_step(module, optimizer, options):
    return caesura.compile_step(module, loss_of, optimizer, threads=options["threads"], clip_norm=options["clip_norm"],
                                accumulation_steps=options["accumulation"])


def our_call(module, options):
    compiler = options["compiler"]
    if compiler == "torch.compile":
        module.compile(backend="caesura")  # torch.compile(module) would call the hooks of all modules once more, which PyTorch warns of
        return module
    wrapped = caesura.wrap(module, dynamic=True if compiler == "dynamic" else None)
    if compiler == "copied":  # a copy has parameters of its own: only what is called is looked at
        copied = pickle.loads(pickle.dumps(wrapped)) if type(module).__module__ == "torch" else copy.deepcopy(wrapped)
        assert type(copied) is not type(module)
    return wrapped


def eager(route, program):
    if route == "wrap":
        return called(program, lambda module: module)
    return trained(program, eager_step)


def ours(route, program):
    if route == "wrap":
        return called(program, lambda module: our_call(module, program["OPTIONS"]))
    return trained(program, our_step)


def drawn(seed, only=None):
    """The program of a seed: mostly one that runs in eager. Few may fail there."""
    for attempt in range(20):
        try:
            program = draw(seed, only, attempt)
        except Exception:  # of eager's, where a draft's gradients are taken
            continue
        if seed % 20 == 0 or not any(eager(route, load(program.source(), f"program_{seed}.py", "float32"))[1] for route in ROUTES):
            break
    return program


@contextlib.contextmanager
def forced(options, folder):
    """Rules that begin at some size begin at the program's."""
    with mock.patch.object(graph_executor, "_PART", options["part"]), mock.patch.object(wrap, "_CALLS", options["captures"]), \
            mock.patch.object(compile_step, "_CALLS", options["captures"]), \
            mock.patch.dict(os.environ, CAESURA_PROGRAM_CACHE=folder if options["disk"] else "off"):
        yield


def difference(found, expected, precise, same_in_double, shaken):
    """None, or how the first difference from `expected` reads. precise: returns the same of a run in float64, for programs whose
    rounding grows. same_in_double: returns True if ours and eager's are the same in float64. shaken: as is_unsettled() takes it."""
    for at, ((name, a), (other, b)) in enumerate(zip(found, expected)):
        if name != other:
            return f"{name} where eager has {other}"
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if (a is None) != (b is None) or (not isinstance(a, torch.Tensor) and a != b):
                return "{} is {}, not {}".format(name, *("a tensor" if isinstance(v, torch.Tensor) else v for v in (a, b)))
            continue
        if name.startswith("the loss of") and LARGEST < abs(b.item()) < float("inf"):
            return None  # it grows from step to step, and so does its rounding
        problem, distance, _ = compare(name, a, b, TOLERANCE.get(b.dtype, 0.0))
        if problem and b.dtype == torch.float32 and 0 < distance < 1e-2:
            truth = precise()
            if at < len(truth) and truth[at][0] == name and truth[at][1] is not None:
                exact = truth[at][1]
                own, theirs = ((t.double() - exact).abs().nan_to_num().max().item() for t in (a, b))
                if own <= 10 * theirs or same_in_double():
                    continue
        if problem:
            return UNSETTLED if is_unsettled(at, found, expected, shaken) else problem
    return None


def is_unsettled(at, found, expected, shaken):
    """True if ours and eager's value number `at` differ only in elements that rounding decides: by ties, signs, differences of what is
    equal. There eager with inputs changed by rounding, of which shaken() returns some runs, is as far from eager's own. Adam
    divides a gradient by its own size: one that the tolerance does not tell from 0 moves a parameter by the whole rate."""
    (name, a), (_, b) = found[at], expected[at]
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    means = [dict(values).get(f"exp_avg of {name}") for values in (found, expected)]
    if all(isinstance(mean, torch.Tensor) for mean in means):
        a = torch.where(torch.stack(means).abs().amax(0) < TOLERANCE[b.dtype], b, a)
    for run in shaken():
        if at < len(run) and isinstance(run[at][1], torch.Tensor) and run[at][1].shape == b.shape:
            a = torch.where((a.double() - b.double()).abs() <= 10 * (run[at][1].double() - b.double()).abs(), b, a)
    return compare("", a, b, TOLERANCE.get(b.dtype, 0.0))[0] is None


def shake(program, seed):
    """Changes what made() gives, and what parameters become, by up to two roundings. Numbers that a program names, as the bound of a
    function, stay."""
    made, before, generator, first = program["made"], program["before"], torch.Generator().manual_seed(seed), []

    def factor(value):
        return 1 + torch.finfo(value.dtype).eps * torch.randint(-2, 3, value.shape, generator=generator).to(value.dtype)

    def shaken(*shape):
        value = made(*shape)
        return value * factor(value)

    def shaken_before(module, optimizer, handles, call):
        parameters = [p.detach() for p in module.parameters()]
        first.extend(p.clone() for p in parameters if call == 0)
        for p, old in zip(parameters, first):
            p.mul_(torch.where(p == old, 1, factor(p)))
        before(module, optimizer, handles, call)

    program["made"], program["before"] = shaken, shaken_before
    return program


def draws_dropout(source):
    """True if a step of the program has masks of its own (docs/differences.md)."""
    return re.search(r"F\.dropout\(.*, 0\.5, (True|self.training)\)", source) is not None


def why_left_out(route, source, program, outcome, found, others):
    """The reason why a program with such an outcome tells nothing about caesura, None if it does."""
    what = outcome.reason.split(" is ")[0]
    if outcome.outcome == "silent" and writes_data_that_gradients_need(route, source):
        if what.startswith("the gradient of") or difference(found, with_values_kept(route, program), *others) is None:
            return "a write through .data to what a gradient needs"
    if what.startswith("the strides of"):  # which a capture has from tensors without values
        with FakeTensorMode():
            values, _ = eager(route, load(source, "fake.py", "float32"))
        if dict(values).get(what) == dict(found)[what]:
            return "PyTorch's tensors without values have other strides than eager's"
    if outcome.outcome == "failed" and MODIFIED in outcome.reason:
        torch._dynamo.reset()
        if called(load(source, "compiled.py", "float32"), lambda module: torch.compile(module, backend="aot_eager"))[1] is not None:
            return "torch.compile fails, too: one node of autograd saves values for all results of a graph"
    return None


def writes_data_that_gradients_need(route, source):
    """True if eager's backward would raise, did it notice what is written through .data (docs/differences.md)."""
    noticed = load(re.sub(r"\.data\b(?! =)", ".detach()", source), "noticed.py", "float32")
    return ".data" in source and MODIFIED in str(eager(route, noticed)[1])


def with_values_kept(route, program):
    """Returns eager's results with gradients of the values that the forward had: ours are such."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        return eager(route, program)[0]


def check(route, source, name="program.py"):
    """The Outcome of a program's source on a route."""
    random.seed(0)
    program = load(source, name, "float32")
    options = program["OPTIONS"]
    if options["dtype"] != "float32":
        program["DTYPE"] = torch.float64
    expected, error = eager(route, program)
    if route == "step" and draws_dropout(source):
        return Outcome("left out", "dropout masks of a step are its own")

    @functools.cache
    def precise():
        return eager(route, load(source, name, "float64"))[0]

    @functools.cache
    def same_in_double():
        torch._dynamo.reset()
        found, our_error = ours(route, load(source, name, "float64"))
        return our_error is None and difference(found, precise(), precise, bool, list) is None

    @functools.cache
    def shaken():
        return [eager(route, shake(load(source, name, str(program["DTYPE"]).split(".")[1]), seed))[0] for seed in range(SHAKEN)]

    others = precise, same_in_double, shaken
    with tempfile.TemporaryDirectory() if options["disk"] else contextlib.nullcontext("off") as folder, forced(options, folder):
        outcomes = []
        for again in range(1 + options["disk"]):
            torch._dynamo.reset()
            caesura.reports.reset()
            random.seed(0)
            before = counters["stats"]["unique_graphs"]
            found, our_error = ours(route, program)
            outcomes.append(judged(found, our_error, expected, error, others, again))
            captured = counters["stats"]["unique_graphs"] - before
            if captured > CAPTURED:
                outcomes.append(Outcome("failed", f"{captured} graphs were captured"))
    outcome = min(outcomes, key=lambda o: OUTCOMES.index(o.outcome))
    why = outcome.outcome in BAD and why_left_out(route, source, program, outcome, found, others)
    return Outcome("left out", why) if why else outcome


def judged(found, our_error, expected, error, others, again):
    when = ", from disk" if again else ""
    report = caesura.stats()
    reason = "; ".join(f"{call}: {why}" for call, why in report.fallbacks)
    if isinstance(our_error, caesura.StepRefused) and error is not None:
        return Outcome("as eager fails", "StepRefused")
    named = isinstance(our_error, RuntimeError) and error is None and str(our_error).startswith("caesura: ")
    if named or isinstance(our_error, caesura.StepRefused) and our_error.__cause__ is None:  # otherwise an error that nobody foresaw
        return Outcome("refused", " ".join(str(our_error).split())[:300])
    problem = difference(found, expected, *others)
    if problem == UNSETTLED:
        return Outcome("left out", problem)
    if problem:
        return Outcome("silent", problem + when)
    if error is not None and our_error is None:
        if "backward through the graph a second time" in str(error) and any(name.startswith("the loss of step") for name, _ in expected):
            return Outcome("left out", "a step's gradients end at what an earlier one left in a buffer")
        return Outcome("silent", f"no error, where eager has {type(error).__name__}: {str(error)[:160]}{when}")
    if our_error is not None and error is None:
        return Outcome("failed", f"{type(our_error).__name__}: {' '.join(str(our_error).split())[:240]}{when}")
    if error is not None:
        if len(found) != len(expected):
            return Outcome("silent", f"{len(found)} values before the error, not {len(expected)}: {type(our_error).__name__}: "
                           f"{str(our_error)[:200]}, not {type(error).__name__}: {str(error)[:200]}{when}")
        return Outcome("as eager fails", type(our_error).__name__)
    if not reason:
        return Outcome("ours")
    return Outcome("partly ours" if report.kernel_calls else "left to PyTorch", reason)
