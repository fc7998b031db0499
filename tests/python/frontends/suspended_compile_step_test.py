# SPDX-License-Identifier: Apache-2.0
"""Compiled steps that are stopped in the middle of a call, and end in this process or in another one, with the same bits.

CAESURA_LONG=1: before every 16th node; otherwise before fewer.
"""

import os
import signal
import threading

import pytest
import torch
from fork_server import Program

import caesura

# Arguments: begin FOLDER, or end FOLDER STOPS.
CHILD = '''
import os, signal, sys
import torch
from safetensors.torch import load_file, save_file
import caesura

class Net(torch.nn.Module):
    """Attention, dropout, batch norm, and a count of calls."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(17, 16)
        self.block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, tokens):
        return self.head(self.norm(self.block(self.embed(tokens)).mean(1)))

def made(wrapped=True):
    torch.manual_seed(3)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net = caesura.wrap(net) if wrapped else net
    step = caesura.compile_step(net, torch.nn.functional.cross_entropy, optimizer, clip_norm=1.0, threads=1)
    return net, optimizer, step, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)

def batch(n):
    torch.manual_seed(1000 + n)
    data = torch.randint(17, (6, 7)), torch.randint(5, (6,))
    torch.manual_seed(n)
    return data

def state(net, optimizer):
    return {k: v.clone() for k, v in net.state_dict().items()} | {
        f"{i}.{k}": v.clone() for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()}
'''
MAIN = '''
mode, folder = sys.argv[1:3]
net, optimizer, step, scheduler = made()
if mode == "begin":
    step(*batch(0))
    scheduler.step()
    step.save(f"{folder}/initial", {"done": 1})
    expected = [float(step(*batch(n))) for n in (1, 2, 3)]
    save_file(state(net, optimizer) | {"losses": torch.tensor(expected)}, f"{folder}/expected")
    step.restore(f"{folder}/initial", *batch(0))
    step.suspend_at(0)
    try:
        step(*batch(1))
    except caesura.Suspended as stopped:
        nodes = int(str(stopped).split()[-1])
    step.restore(f"{folder}/initial", *batch(0))
    torch.set_num_threads(1)  # a fork has no others
    every = 16 if os.environ.get("CAESURA_LONG") else 48
    stops = [*range(0, nodes, every), nodes - 1]
    for at in stops:
        killed = os.fork()
        if killed == 0:
            step.suspend_at(at)
            try:
                step(*batch(1))
            except caesura.Suspended:
                step.save(f"{folder}/{at}", {"at": at})
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(killed, 0)[1] == signal.SIGKILL
    print(nodes, *stops)
    raise SystemExit
after = load_file(f"{folder}/expected")
expected = after.pop("losses").tolist()
for at in map(int, sys.argv[3:]):
    assert step.restore(f"{folder}/{at}", *batch(0)) == {"at": at}
    assert step.suspended and step.step_differences == []
    losses = [float(step.resume())] + [float(step(*batch(n))) for n in (2, 3)]
    assert losses == expected, (at, losses, expected)
    found = state(net, optimizer)
    assert found.keys() == after.keys()
    for name, value in after.items():
        assert torch.equal(found[name], value), (at, name)
'''


def test_a_process_that_is_killed_inside_of_a_call_is_ended_by_another(tmp_path):
    (tmp_path / "child.py").write_text(CHILD + MAIN)

    def child(*arguments):
        return Program(tmp_path / "child.py", *arguments).result()

    begun = child("begin", tmp_path)
    assert begun.returncode == 0, begun.stderr
    nodes, *stops = map(int, begun.stdout.split())
    assert nodes > 60 and len(stops) > 2
    print(f"{len(stops)} of {nodes} nodes")
    ended = child("end", tmp_path, *stops)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module", name="scope")
def _scope():
    scope = {}
    exec(CHILD, scope)  # the same net as the processes'
    return scope


@pytest.fixture(name="step")
def _step(scope):
    return scope["made"]()


def test_waits_and_goes_on(step, scope):
    """By each way to stop a call, on the first call and on later ones."""
    net, optimizer, step, _ = step
    plain, its, undisturbed, _ = scope["made"]()
    batch = scope["batch"]
    step.suspend = True
    with pytest.raises(caesura.Suspended):
        step(*batch(0))
    assert step.suspended and step.suspend
    with pytest.raises(ValueError, match="a step waits"):
        step(*batch(1))
    with pytest.raises(caesura.Suspended):
        step.resume()
    step.suspend = False
    losses = [float(step.resume())]
    step.suspend_after(0)
    with pytest.raises(caesura.Suspended):
        step(*batch(1))
    step.suspend_after(None)
    losses.append(float(step.resume()))
    with step.suspend_on(signal.SIGUSR1):
        threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGUSR1)).run()
        with pytest.raises(caesura.Suspended):
            step(*batch(2))
    step.suspend = False
    losses.append(float(step.resume()))
    assert losses == [float(undisturbed(*batch(n))) for n in range(3)]
    for name, value in scope["state"](plain, its).items():
        assert torch.equal(scope["state"](net, optimizer)[name], value), name
    with pytest.raises(ValueError, match="no step waits"):
        step.resume()


def test_is_given_up(step, scope):
    net, optimizer, step, _ = step
    batch, state = scope["batch"], scope["state"]
    step.plan(*batch(0))
    step(*batch(0))
    before = state(net, optimizer)
    step.suspend_at(20)
    with pytest.raises(caesura.Suspended, match="before step 20 of"):
        step(*batch(1))
    step.drop()
    assert all(torch.equal(value, before[name]) for name, value in state(net, optimizer).items())
    step(*batch(1))


def test_accumulates(scope):
    """Calls that wait between two of one update; the first by Dynamo, the last two past it."""
    losses, states = [], []
    for stops in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        step = caesura.compile_step(net, torch.nn.functional.cross_entropy, optimizer, accumulation_steps=2, threads=1)
        losses.append([])
        for n in range(4):
            torch.manual_seed(n)
            inputs = torch.randn(5, 4), torch.randint(3, (5,))
            if stops and n != 1:
                assert bool(step._calls) == (n > 1)
                step.suspend_at(3)
                with pytest.raises(caesura.Suspended):
                    step(*inputs)
                losses[-1].append(float(step.resume()))
            else:
                losses[-1].append(float(step(*inputs)))
        states.append({k: v.clone() for k, v in net.state_dict().items()})
    assert losses[0] == losses[1]
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value)


def test_parameters_with_other_numbers_of_updates(tmp_path):
    """A part that is thawed later: another step goes on from the checkpoint, whose call waits; no file has such a step for C++."""
    def made(freezes):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        net[0].requires_grad_(not freezes)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        return net, optimizer, caesura.compile_step(net, torch.nn.functional.cross_entropy, optimizer, threads=1)

    batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(5)]
    net, optimizer, step = made(freezes=True)
    step(*batches[0])
    step(*batches[1])
    net[0].requires_grad_(True)
    step(*batches[2])
    with pytest.raises(ValueError, match="other numbers of updates .*: it cannot be exported"):
        step.export(tmp_path / "folder", *batches[2])
    step.suspend_at(3)
    with pytest.raises(caesura.Suspended):
        step(*batches[3])
    step.save(tmp_path / "step")
    losses = [float(step.resume()), float(step(*batches[4]))]
    other, its, another = made(freezes=False)
    another(*batches[0])
    another.restore(tmp_path / "step", *batches[0])
    assert losses == [float(another.resume()), float(another(*batches[4]))]
    assert [float(its.state[p]["step"]) for p in other.parameters()] == [3, 3, 5, 5]
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_restores_the_random_state_and_refuses_what_does_not_fit(step, scope, tmp_path):
    _, _, step, _ = step
    batch = scope["batch"]
    with pytest.raises(ValueError, match="nothing to save"):
        step.save(tmp_path / "step")
    with pytest.raises(FileNotFoundError):
        step.restore(tmp_path / "none", *batch(0))
    (tmp_path / "text").write_text("no checkpoint")
    with pytest.raises(ValueError, match="text': a header of"):
        step.restore(tmp_path / "text", *batch(0))
    data = batch(0)
    step(*data)
    step.save(tmp_path / "step")
    drawn = torch.rand(3)
    torch.manual_seed(99)
    step.restore(tmp_path / "step", *data)
    assert torch.equal(torch.rand(3), drawn)
    other = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(other.parameters())
    stranger = caesura.compile_step(other, torch.nn.functional.cross_entropy, optimizer)
    before = other.weight.clone()
    with pytest.raises(ValueError, match="does not fit the step"):
        stranger.restore(tmp_path / "step", torch.randn(2, 4), torch.randint(3, (2,)))
    assert torch.equal(other.weight, before)


def test_a_step_that_leaves_results_stops_between_two_calls():
    class Leaves(torch.nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    net = Leaves(4, 3)
    step = caesura.compile_step(net, torch.nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), lr=0.1), dynamic=False)
    batch = torch.randn(2, 4), torch.randint(3, (2,))
    before = net.weight.clone()
    step.suspend = True
    with pytest.raises(caesura.Suspended, match="has not begun"):
        step(*batch)
    assert not step.suspended and not hasattr(net, "last") and torch.equal(net.weight, before)
    step.suspend = False
    for _ in range(2):  # the second without Dynamo
        step(*batch)
    assert net.last.shape == (2, 3) and not torch.equal(net.weight, before)
    before, net.last = net.weight.clone(), None
    step.suspend = True
    with pytest.raises(caesura.Suspended, match="has not begun"):
        step(*batch)
    assert not step.suspended and net.last is None and torch.equal(net.weight, before)


def test_state_that_was_replaced_is_noticed(step, scope):
    _, optimizer, step, _ = step
    batch = scope["batch"]
    step(*batch(0))
    step.suspend = True
    with pytest.raises(caesura.Suspended):
        step(*batch(1))
    step.suspend = False
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="replaced while the step waited"):
        step.resume()
    step.drop()
    step(*batch(1))


@pytest.mark.parametrize("facts", ["", "[]", '{"version": 2}', '{"version": 1, "micro_steps": "many"}'])
def test_damaged_facts_are_refused(step, scope, tmp_path, facts):
    net, optimizer, step, _ = step
    batch, state = scope["batch"], scope["state"]
    step(*batch(0))
    step._programs[0].session.save(str(tmp_path / "step"), {"caesura.compiled_step": facts})
    step(*batch(1))
    before = state(net, optimizer)
    with pytest.raises(ValueError, match="facts of a compiled step are damaged"):
        step.restore(tmp_path / "step", *batch(0))
    assert all(torch.equal(value, before[name]) for name, value in state(net, optimizer).items())
