# SPDX-License-Identifier: Apache-2.0
"""Changes of the optimizer, its state and its parameters between calls of a compiled step act as in eager."""

import copy
import re
import warnings

import pytest

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

import caesura  # noqa: E402
from caesura.runtime.optimizers import Recipe  # noqa: E402
from compile_step_test import Net, batches, fresh, same  # noqa: E402, F401


def adam(module, **options):
    return torch.optim.Adam(module.parameters(), lr=0.05, **options)


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), lr=0.1, **({"momentum": 0.9} | options))


class OwnAdagrad(torch.optim.Adagrad):
    """A class without an update op, so PyTorch steps it."""


def adagrad(module):
    return OwnAdagrad(module.parameters(), lr=0.1)


def only_first(make):
    return lambda module: make(module.first)


class Side:
    """A module with its optimizer, trained by eager or by a step."""

    def __init__(self, module, make, accumulate=1, **options):
        self.module, self.optimizer, self.accumulate, self.calls = module, make(module), accumulate, 0
        self.step = self.eager
        if options.pop("compiled", False):
            self.step = caesura.compile_step(module, F.cross_entropy, self.optimizer, accumulation_steps=accumulate,
                                             **options)

    def eager(self, x, y):
        if self.calls % self.accumulate == 0:
            self.module.zero_grad()
        loss = F.cross_entropy(self.module(x), y)
        (loss / self.accumulate).backward()
        self.calls += 1
        if self.calls % self.accumulate == 0:
            self.optimizer.step()
        return loss.detach()


def beside_eager(make, change=None, module=None, sizes=(5,) * 7, at=3, accumulate=1, kept=True):
    """kept: True if the update must stay in the program; False if PyTorch's optimizer must take over, and warn."""
    module = module or Net()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", caesura.FallbackWarning)
        sides = Side(module, make, accumulate), Side(copy.deepcopy(module), make, accumulate, compiled=True)
        for i, rows in enumerate(sizes):
            for side in sides if change is not None and i == at else ():
                change(side.module, side.optimizer)
            ((x, y),) = batches(1, rows)
            x = x.to(next(module.parameters()).dtype)
            losses = [side.step(x, y).item() for side in sides]
            assert losses[1] == pytest.approx(losses[0], rel=1e-4), i
    same(sides[1].module, sides[0].module, atol=1e-5)
    assert kept != any(issubclass(w.category, caesura.FallbackWarning) for w in given)
    return sides


# --- options and groups -----------------------------------------------------------------------------------------

def test_adam_that_decouples_its_decay_is_adamw():
    beside_eager(lambda module: adam(module, weight_decay=0.2, decoupled_weight_decay=True))


def with_the_rest(module, optimizer):
    parameters = [*module.norm.parameters(), *module.last.parameters()]
    for parameter in parameters:
        parameter.grad = None  # a step computes no gradients for parameters outside of all groups
    optimizer.add_param_group({"params": parameters, "lr": 0.02})


def with_a_new_layer(module, optimizer):
    torch.manual_seed(1)
    module.last = nn.Sequential(module.last, nn.Linear(4, 4))
    optimizer.add_param_group({"params": module.last[1].parameters()})


def without_one(module, optimizer):
    optimizer.param_groups[0]["params"].pop(0)


def another_group(module, optimizer):
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.5}


def another_list(module, optimizer):
    optimizer.param_groups[0]["params"] = list(module.first.parameters())


def one_moved(module, optimizer):
    optimizer.add_param_group({"params": [optimizer.param_groups[0]["params"].pop()], "lr": 0.5, "weight_decay": 0.1})


@pytest.mark.parametrize("make, change, kept", [
    (only_first(sgd), with_the_rest, True), (sgd, with_a_new_layer, True),
    (only_first(adam), with_the_rest, True),  # the counts of updates differ from then on
    *((adam, change, True) for change in (without_one, another_group, another_list, one_moved))])
def test_groups_that_change(make, change, kept):
    beside_eager(make, change, kept=kept)


@pytest.mark.parametrize("make, change, kept", [(only_first(sgd), with_the_rest, True), (sgd, without_one, False)])
def test_groups_that_change_within_a_window(make, change, kept):
    """The gradients of earlier calls in the window are kept."""
    beside_eager(make, change, accumulate=2, sizes=(5,) * 8, kept=kept)


def loads_another_decay(module, optimizer):
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0].update(weight_decay=0.5, betas=(0.5, 0.9))
    optimizer.load_state_dict(state)


def test_options_that_are_loaded():
    beside_eager(adam, loads_another_decay)


@pytest.mark.parametrize("schedule", [lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
                                      lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)])
def test_schedules_made_behind_the_step(schedule):
    """A schedule stores "initial_lr" in the groups; no update reads it."""
    made = {}

    def change(module, optimizer):
        made[id(optimizer)] = schedule(optimizer)
        optimizer.register_state_dict_pre_hook(lambda o: made[id(o)].step())

    sides = beside_eager(sgd, change, at=0)
    for _ in range(3):
        for side in sides:
            side.optimizer.state_dict()  # steps the schedule
        (batch,) = batches(1)
        assert sides[1].step(*batch).item() == pytest.approx(sides[0].step(*batch).item(), rel=1e-4)
    same(sides[1].module, sides[0].module, atol=1e-5)
    assert isinstance(sides[1].step._recipe, Recipe)


def test_no_warning_of_a_schedule_where_the_program_is_from_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("CAESURA_PROGRAM_CACHE", str(tmp_path))
    (batch,) = batches(1)
    for found in (False, True):
        torch._dynamo.reset()
        side = Side(Net(), sgd, compiled=True)
        schedule = torch.optim.lr_scheduler.StepLR(side.optimizer, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            side.step(*batch)
            schedule.step()
        side.step(*batch)
        assert side.step._programs[0].is_captured != found


def test_refuses_an_optimizer_of_sparse_gradients():
    module = Net()
    with pytest.raises(caesura.StepRefused, match="SparseAdam takes sparse gradients alone"):
        caesura.compile_step(module, F.cross_entropy, torch.optim.SparseAdam(module.parameters()))


# --- hooks ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_refuses_hooks_that_come_later(register):
    side = Side(Net(), adam, compiled=True)
    data = batches(6)
    [side.step(*batch) for batch in data[:3]]
    before = copy.deepcopy(side.module.state_dict())
    side.module.norm.register_forward_hook(lambda *_: None).remove()  # a hook of another kind
    handle = getattr(side.module.last.weight, register)(lambda _: None)
    for _ in range(2):
        with pytest.raises(caesura.StepRefused, match="gradient hooks .* last.weight"):
            side.step(*data[3])
    assert all(torch.equal(a, b) for a, b in zip(before.values(), side.module.state_dict().values()))
    handle.remove()
    [side.step(*batch) for batch in data[3:]]
    assert side.optimizer.state[side.module.last.weight]["step"] == 6


# --- the state --------------------------------------------------------------------------------------------------

def edit(change):
    return lambda module, optimizer: change(module.last.weight, optimizer.state)


def edit_all(change):
    return lambda module, optimizer: [change(p, optimizer.state) for p in module.parameters()]


def replaced(key, make):
    return lambda p, state: state[p].update({key: make(state[p][key])})


@pytest.mark.parametrize("make, change, kept", [
    (adam, edit(replaced("exp_avg", torch.zeros_like)), True),
    (adam, edit(replaced("exp_avg", lambda t: (t * 2).t().contiguous().t())), True),
    (adam, edit(lambda p, state: state[p]["exp_avg_sq"].mul_(4)), True),
    (adam, edit_all(replaced("step", lambda t: t * 5)), True),
    (adam, edit_all(replaced("step", lambda t: torch.tensor(20.0, dtype=torch.float64))), True),
    (adam, edit_all(lambda p, state: state[p]["step"].fill_(0)), True),
    (adam, edit_all(lambda p, state: state[p].clear()), True),
    (adam, edit_all(lambda p, state: state.update({p: {}})), True),
    (adam, edit_all(lambda p, state: state.pop(p)), True),
    (adam, edit(replaced("step", torch.zeros_like)), True),
    (adam, edit(lambda p, state: state[p]["step"].fill_(0)), True),
    (adam, edit(lambda p, state: state[p].clear()), True),
    (adam, edit(lambda p, state: state.pop(p)), True),
    (sgd, edit(lambda p, state: state.pop(p)), True),
    (sgd, edit(replaced("momentum_buffer", torch.ones_like)), True),
    (lambda module: sgd(module, dampening=0.5), edit_all(replaced("momentum_buffer", lambda t: None)), True),
    (lambda module: sgd(module, dampening=0.5), edit(replaced("momentum_buffer", lambda t: None)), True),
    (lambda module: sgd(module, dampening=0.5), lambda module, optimizer: optimizer.load_state_dict(
        {**optimizer.state_dict(), "state": {i: {"momentum_buffer": s["momentum_buffer"]}
                                             for i, s in optimizer.state_dict()["state"].items()}}), True),
])
def test_state_that_is_edited(make, change, kept):
    beside_eager(make, change, kept=kept)


def test_state_that_is_edited_where_pytorch_steps():
    beside_eager(adagrad, edit_all(lambda p, state: state[p]["sum"].zero_()), kept=False)


def test_a_module_that_becomes_float64():
    sides = [Side(module, sgd, compiled=compiled) for module, compiled in ((Net(), False), (Net(), True))]
    sides[1].module.load_state_dict(sides[0].module.state_dict())
    for of_type in (torch.float32, torch.float64, torch.float32):
        for side in sides:
            side.module.to(of_type)
        for x, y in batches(3):
            losses = [side.step(x.to(of_type), y).item() for side in sides]
            assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        same(sides[1].module, sides[0].module, atol=1e-5)


def nadam(module):
    return torch.optim.NAdam(module.parameters(), lr=0.01)


def asgd(module):
    return torch.optim.ASGD(module.parameters(), lr=0.05, lambd=0.01, t0=2)


def equal_scalars(sides, rel):
    """Our scalar states and eager's are equal to `rel`, and of the same dtype."""
    for ours, eagers in zip(sides[1].module.parameters(), sides[0].module.parameters()):
        for name in {"mu_product", "eta", "mu"} & sides[0].optimizer.state[eagers].keys():
            mine, expected = sides[1].optimizer.state[ours][name], sides[0].optimizer.state[eagers][name]
            assert mine.dtype == expected.dtype and float(mine) == pytest.approx(float(expected), rel=rel)


@pytest.mark.parametrize("make", [nadam, asgd])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scalar_states_have_their_parameters_dtype_once_loaded(make, dtype):
    def change(module, optimizer):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert {s[n].dtype for s in optimizer.state.values() for n in s.keys() & {"mu_product", "eta"}} == {dtype}

    sides = beside_eager(make, change, Net().to(dtype))
    equal_scalars(sides, 1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("make", [nadam, asgd])
def test_scalar_states_under_a_float64_default(make):
    torch.set_default_dtype(torch.float64)
    try:
        sides = beside_eager(make)
    finally:
        torch.set_default_dtype(torch.float32)
    assert sides[1].module.first.weight.dtype == torch.float64
    equal_scalars(sides, 1e-14)


class PartlyDouble(Net):
    def __init__(self):
        super().__init__()
        self.first.double()

    def forward(self, x):
        return self.last(self.norm(F.gelu(self.first(x.double())).float()))


@pytest.mark.parametrize(("groups", "kept"), [(1, False), (2, True)])
def test_scalar_states_of_two_dtypes(groups, kept):
    def make(module):
        first, others = list(module.first.parameters()), [*module.norm.parameters(), *module.last.parameters()]
        return torch.optim.NAdam([{"params": first}, {"params": others}] if groups == 2 else first + others, lr=0.01)

    equal_scalars(beside_eager(make, lambda _, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
                               PartlyDouble(), kept=kept), 1e-6)


def test_refuses_state_of_another_shape():
    side = Side(Net(), sgd, compiled=True)
    (batch,) = batches(1)
    side.step(*batch)
    side.optimizer.state[side.module.last.weight]["momentum_buffer"] = torch.zeros(3)
    before = copy.deepcopy(side.module.state_dict())
    with pytest.raises(caesura.StepRefused, match=r"momentum_buffer is torch.float32 \[3\], its parameter .* \[4, 16\]"):
        side.step(*batch)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), side.module.state_dict().values()))


# --- parameters by turns ----------------------------------------------------------------------------------------

class Turns(nn.Module):
    """Each call uses one of two layers, after a trunk with parameters or without."""

    def __init__(self, has_trunk=False):
        super().__init__()
        self.trunk = nn.Linear(6, 6) if has_trunk else nn.Identity()
        self.first, self.other, self.calls = nn.Linear(6, 4), nn.Linear(6, 4), 0

    def forward(self, x):
        self.calls += 1
        return (self.other if self.calls in (2, 4, 5) else self.first)(self.trunk(x))


def adafactor(module):
    return torch.optim.Adafactor(module.parameters(), lr=0.05)


def dampened(module):
    return sgd(module, dampening=0.5)


@pytest.mark.parametrize("make, has_trunk, kept", [
    (adam, False, True), (sgd, False, True), (dampened, False, True), (sgd, True, True), (adam, True, True),
    (dampened, True, True), (adafactor, True, True), (nadam, True, True), (adagrad, False, False)])
def test_parameters_that_take_turns(make, has_trunk, kept):
    sides = beside_eager(make, module=Turns(has_trunk), kept=kept)
    if make in (adam, adafactor, nadam):
        for p, q in zip(sides[0].module.parameters(), sides[1].module.parameters()):
            assert sides[0].optimizer.state[p]["step"] == sides[1].optimizer.state[q]["step"]


@pytest.mark.parametrize("make", [adam, adagrad])
def test_parameters_that_take_turns_within_a_window(make):
    beside_eager(make, module=Turns(), accumulate=2, sizes=(5,) * 8, kept=False)


def test_a_parameter_that_is_frozen_while_pytorch_steps():
    beside_eager(adagrad, lambda module, optimizer: module.last.weight.requires_grad_(False), kept=False)


@pytest.mark.parametrize("make", [adam, sgd, dampened])
def test_two_steps_with_one_optimizer(make):
    """The second step is made after the first has run; then they take turns."""
    losses = F.cross_entropy, lambda y, target: F.cross_entropy(y * 2, target)
    modules = [Net() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    optimizers, steps = [make(module) for module in modules], []
    for turn in (0, 0, 0, 1, 1, 0, 1, 0, 0, 1):
        if turn == len(steps):
            steps.append(caesura.compile_step(modules[1], losses[turn], optimizers[1]))
        ((x, y),) = batches(1)
        optimizers[0].zero_grad()
        losses[turn](modules[0](x), y).backward()
        optimizers[0].step()
        steps[turn](x, y)
    same(modules[1], modules[0], atol=1e-5)
    counts = {float(state["step"]) for state in optimizers[1].state.values()} if make is adam else {10.0}
    assert counts == {10.0} and all(len(step._calls) == 1 for step in steps)


# --- accumulation -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("make, kept", [(adam, True), (sgd, True), (adagrad, False)])
def test_sizes_that_change_within_a_window(make, kept):
    beside_eager(make, accumulate=2, sizes=(5, 3, 5, 3, 3, 5, 5, 5), kept=kept)


def test_scales_that_differ_within_a_window():
    """Each program has its own loss scale with "fp16"."""
    module = Net()
    sides = [Side(module, sgd), Side(copy.deepcopy(module), sgd, 2, compiled=True, precision="fp16")]
    (first, second), step = (batches(1, rows)[0] for rows in (5, 3)), sides[1].step
    for batch in (first, second):  # makes both programs
        step(*batch)
    sides[1].module.load_state_dict(module.state_dict())
    sides[1].optimizer.state.clear()
    step(*first)
    for gradient in step._gradients.tensors.values():
        gradient.mul_(4)
    step._loss_scale *= 4  # as if the first program had this scale
    step(*second)
    (F.cross_entropy(module(first[0]), first[1]) / 2 + F.cross_entropy(module(second[0]), second[1]) / 2).backward()
    sides[0].optimizer.step()
    same(sides[1].module, module, atol=3e-3)


# --- what an optimizer refuses ------------------------------------------------------------------------------------------

class Rows(torch.nn.Module):
    """tied: the embedding has a dense gradient, too."""

    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.tied, self.rows, self.last = tied, torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 5)

    def forward(self, places):
        found = self.rows(places)
        return F.linear(found, self.rows.weight) if self.tied else self.last(found)


SPARSE = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "SGD with decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_sparse_gradients_are_refused_as_in_eager(make, tied):
    torch._dynamo.reset()
    places, target = torch.tensor([[0, 1], [1, 3]]), torch.ones(2, 2, 5)
    plain, ours = Rows(tied), Rows(tied)
    first, second = make(list(plain.parameters())), make(list(ours.parameters()))
    step = caesura.compile_step(ours, F.mse_loss, second)
    for _ in range(2):
        F.mse_loss(plain(places), target).backward()
        try:
            first.step()
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                step(places, target)
            assert all(map(torch.equal, ours.parameters(), Rows(tied).parameters()))
            return
        first.zero_grad()
        step(places, target)
    for p, q in zip(plain.parameters(), ours.parameters()):
        torch.testing.assert_close(q, p)


@pytest.mark.parametrize("make, option, value", [
    (lambda p: torch.optim.Adam(p, lr=0.1), "amsgrad", True),
    (lambda p: torch.optim.RMSprop(p, lr=0.1), "centered", True),
    (lambda p: torch.optim.RMSprop(p, lr=0.1), "momentum", 0.9),
], ids=["amsgrad", "centered", "momentum"])
def test_an_option_that_needs_state_is_refused_midway_as_in_eager(make, option, value):
    torch._dynamo.reset()
    told = []
    for is_ours in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 3)
        optimizer = make(module.parameters())
        step = caesura.compile_step(module, F.mse_loss, optimizer)

        def run():
            if is_ours:
                step(torch.ones(2, 3), torch.ones(2, 3))
            else:
                F.mse_loss(module(torch.ones(2, 3)), torch.ones(2, 3)).backward()
                optimizer.step()
        run()
        optimizer.param_groups[0][option] = value
        with pytest.raises(KeyError) as error:
            run()
        told.append(str(error.value))
    assert told[0] == told[1]
