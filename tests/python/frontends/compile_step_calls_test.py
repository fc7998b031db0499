# SPDX-License-Identifier: Apache-2.0
"""Calls of a compiled step that bypass Dynamo's bytecode notice changes; each is compared with eager PyTorch."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from compile_step_test import Net, batches, eager, same  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()


def pair(module, make=lambda p: torch.optim.AdamW(p, lr=1e-2)):
    """(module, optimizer) for eager, and (module, optimizer, step) with the same weights."""
    other = copy.deepcopy(module)
    optimizer = make(other.parameters())
    return (module, make(module.parameters())), (other, optimizer, caesura.compile_step(other, F.cross_entropy, optimizer))


def both(first, second, change=None, steps=3):
    """Runs steps on both sides, a change, and more steps; losses and weights must agree throughout."""
    for turn in range(2):
        data = batches(steps)
        expected = eager(*first, data)
        torch.testing.assert_close([second[2](*batch).item() for batch in data], expected, rtol=1e-4, atol=1e-6)
        same(second[0], first[0])
        if change is not None and turn == 0:
            for side in (first, second):
                change(*side[:2])


def test_the_second_call_goes_past_dynamo(monkeypatch):
    first, second = pair(Net())
    both(first, second)
    assert len(second[2]._calls) == 1
    monkeypatch.setattr(second[2], "_run", lambda *args, **kwargs: pytest.fail("dynamo was asked"))
    both(first, second)


def test_a_global_that_changes_and_is_named_as_an_attribute_is(monkeypatch):
    scope = Net.forward.__globals__
    monkeypatch.setitem(scope, "first", 0.0)
    first, second = pair(Net())
    both(first, second)
    monkeypatch.setattr(second[2], "_first", lambda *args, **kwargs: pytest.fail("more than the attribute was looked at"))
    both(first, second, lambda module, optimizer: scope.update(first=scope["first"] + 1))


@pytest.mark.parametrize("change", [
    lambda module, optimizer: setattr(module.first.weight, "data", module.first.weight.data * 0.5),
    lambda module, optimizer: module.load_state_dict({k: v * 0.9 for k, v in module.state_dict().items()}),
    lambda module, optimizer: optimizer.param_groups[0].update(lr=3e-3),
    lambda module, optimizer: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
    lambda module, optimizer: module.norm.__setattr__("eps", 0.1),
], ids=["data", "load", "rate", "optimizer", "attribute"])
def test_a_change_between_calls_is_noticed(change):
    first, second = pair(Net())
    both(first, second, change)


def test_parameters_that_are_frozen_and_thawed():
    first, second = pair(Net())
    both(first, second, lambda module, optimizer: module.norm.weight.requires_grad_(False))
    with caesura.strict():
        both(first, second, lambda module, optimizer: module.norm.weight.requires_grad_(True))


@pytest.mark.parametrize("options", [{"betas": (0.5, 0.9)}, {"weight_decay": 0.5}, {"eps": 1e-3}], ids=str)
def test_options_of_the_optimizer_may_change(options):
    first, second = pair(Net())
    with caesura.strict():
        both(first, second, lambda module, optimizer: optimizer.param_groups[0].update(options))


def test_a_cycle_of_rates_and_momenta():
    first, second = pair(Net(), lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9))
    cycles = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20) for o in (first[1], second[1])]
    with caesura.strict():
        for batch in batches(5):
            eager(*first, [batch])
            second[2](*batch)
            for cycle in cycles:
                cycle.step()
    same(second[0], first[0])


def test_the_mode_is_noticed():
    net = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4))
    step = caesura.compile_step(net, F.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.0))
    batch = batches(1)[0]
    assert len({step(*batch).item() for _ in range(4)}) == 4
    net.eval()
    losses = [step(*batch).item() for _ in range(3)]
    assert losses == pytest.approx([F.cross_entropy(net(batch[0]), batch[1]).item()] * 3, rel=1e-5)
    net.train()
    assert len({step(*batch).item() for _ in range(4)}) == 4


def test_what_the_forward_writes_is_written_in_every_call():
    class Counts(Net):
        calls = 0

        def forward(self, x):
            self.calls = self.calls + 1
            return super().forward(x)

    module = Counts()
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))
    for batch in batches(4):
        step(*batch)
    assert module.calls == 4 and not step._calls


def test_buffers_and_shapes_that_change():
    class Scaled(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return super().forward(x) * self.scale

    def change(module, optimizer):
        module.scale = torch.full((4,), 3.0)

    first, second = pair(Scaled())
    both(first, second, change)
    data = [batches(1, rows)[0] for rows in (5, 3, 8, 5, 3, 8)]
    expected = eager(*first, data)
    torch.testing.assert_close([second[2](*batch).item() for batch in data], expected, rtol=1e-4, atol=1e-6)
    same(second[0], first[0])


def test_a_later_capture_is_made_as_the_first():
    class Each(Net):
        def forward(self, x):
            y = super().forward(x)
            z = y * 2
            torch._foreach_add_([y, z], [z, y])  # which Dynamo's own capture adds at once
            return y + z

    first, second = pair(Each())
    data = [batches(1, rows)[0] for rows in (5, 5, 3)]
    expected = eager(*first, data)
    torch.testing.assert_close([second[2](*batch).item() for batch in data], expected, rtol=1e-4, atol=1e-6)
    assert second[2].micro_steps == 3


def normed():
    return torch.nn.Sequential(torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def test_batch_norms_count_their_batches_past_dynamo(monkeypatch):
    first, second = pair(normed())
    both(first, second)
    assert len(second[2]._calls) == 1
    with monkeypatch.context() as patch:
        patch.setattr(second[2], "_run", lambda *args, **kwargs: pytest.fail("dynamo was asked"))
        both(first, second, lambda module, optimizer: module[1].reset_running_stats())
    for module in (first[0], second[0]):
        assert module[1].num_batches_tracked.item() == 3 and module[1].num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("change", [
    lambda module, optimizer: setattr(module[1], "num_batches_tracked", torch.tensor(7)),
    lambda module, optimizer: setattr(module[1].num_batches_tracked, "data", torch.tensor(7)),
    lambda module, optimizer: module.eval(),
], ids=["counter", "data", "eval"])
def test_a_change_of_a_batch_norm_is_noticed(change):
    first, second = pair(normed())
    both(first, second, change)
    assert torch.equal(first[0][1].num_batches_tracked, second[0][1].num_batches_tracked)


def test_inputs_that_are_not_dense():
    first, second = pair(Net())
    x, y = torch.randn(6, 5).t(), torch.randint(0, 4, (5,))
    for _ in range(3):
        (expected,) = eager(*first, [(x, y)])
        assert second[2](x, y).item() == pytest.approx(expected, rel=1e-4)
    same(second[0], first[0])


def test_inputs_with_a_lazy_sign():
    first, second = pair(Net())
    both(first, second)
    x, y = torch.randn(5, 6), torch.randint(0, 4, (5,))
    lazy = torch._neg_view(x)  # as torch.complex(...).conj().imag gives it, but dense
    assert lazy.is_neg() and lazy.is_contiguous()
    for _ in range(3):
        (expected,) = eager(*first, [(-x, y)])
        assert second[2](lazy, y).item() == pytest.approx(expected, rel=1e-4)
    same(second[0], first[0])


def test_an_error_leaves_the_step_usable():
    first, second = pair(Net())
    both(first, second)
    for wrong in ("x", torch.randn(5, 7)):
        with pytest.raises((RuntimeError, TypeError), match="linear|multipl"):
            second[2](wrong, batches(1)[0][1])
    both(first, second)


def test_another_layer_in_the_place_of_one_is_refused():
    first, second = pair(Net())
    both(first, second)
    second[0].last = torch.nn.Linear(16, 4)
    with pytest.raises(caesura.StepRefused, match="another tensor"):
        second[2](*batches(1)[0])


def test_a_step_goes_when_nobody_holds_it():
    module = Net()
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.AdamW(module.parameters()))
    for batch in batches(3):
        step(*batch)
    assert step._calls
    gone = weakref.ref(step)
    del step, module
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("call", [lambda step, x, y: step(x, target=y), lambda step, x, y: step(target=y, x=x)], ids=["last", "keywords"])
def test_a_target_by_keyword(call, tmp_path):
    first, second = pair(Net())
    data = batches(4)
    expected = eager(*first, data)
    torch.testing.assert_close([call(second[2], *batch).item() for batch in data], expected, rtol=1e-4, atol=1e-6)
    same(second[0], first[0])
    assert len(second[2]._programs) == len(second[2]._calls) == 1
    loss, scores = call(second[2].evaluate, *data[0])
    torch.testing.assert_close(loss, F.cross_entropy(scores, data[0][1]))
    call(lambda *args, **kwargs: second[2].export(tmp_path, *args, **kwargs), *data[0])
    session = caesura.TrainingSession.open(tmp_path)
    assert session.step({"x": data[0][0], "target": data[0][1]}) == pytest.approx(loss.item(), rel=1e-5)


def test_a_call_without_a_target_is_refused_in_a_sentence():
    step = pair(Net())[1][2]
    (x, y), = batches(1)
    for call in (step, step.plan, step.evaluate):
        with pytest.raises(TypeError, match=r"has none: hand it over .*step\(\.\.\., target=\.\.\.\); got the keywords x, labels\. If"):
            call(x=x, labels=y)
    with pytest.raises(TypeError, match="got no arguments"):
        step()


def test_a_keyword_that_the_forward_has_is_the_forwards():
    class Shifted(Net):
        def forward(self, x, target=0.0):
            return super().forward(x) + target

    module = Shifted()
    step = caesura.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.1))
    (x, y), = batches(1)
    shift = torch.arange(4.0)
    expected = F.cross_entropy(module(x, shift), y).item()
    assert step(x, y, target=shift).item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(TypeError, match=r"the last argument, step\(inputs, target\); got the keywords x, target"):
        step(x=x, target=shift)
