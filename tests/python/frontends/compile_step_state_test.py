# SPDX-License-Identifier: Apache-2.0
"""compile_step of modules that stop gradients, write to buffers, and keep tensors in attributes."""

import copy
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from compile_step_test import batches, eager, same  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)
        self.register_buffer("mean", torch.ones(8))
        self.seen = None

    def forward(self, x):
        return self.last(self.first(x))


class NoGrad(Net):
    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            z = self.first(x * 2)
            z.add_(1)
            z[0] = y[1]
            w = torch.zeros_like(y)
            w[1] = y[0]
            values, _ = y.max(1)
            with torch.enable_grad():
                u = y * 3
        return self.last(y * z.sin() + u * w + values[:, None])


class Inference(Net):
    def forward(self, x):
        with torch.inference_mode():
            z = self.first(x)
        return self.last(self.first(x) + z)


class Data(Net):
    def forward(self, x):
        y = self.first(x)
        return self.last(y * y.data + self.first.weight.data.sum(1))


@torch.no_grad()
def teacher(module, x):
    return module.first(x).softmax(-1)


class Distills(Net):
    def forward(self, x):
        y = self.first(x)
        return self.last(y) + (y - teacher(self, x)).square().mean() * torch.arange(4)


class Averages(Net):
    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return self.last(y * self.mean)


class Rolls(Net):
    """Replaces the buffer by another tensor in every call."""

    def forward(self, x):
        y = self.first(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return self.last(y * self.mean)


class Unread(Net):
    """Nothing reads the values of two norms, of which one reads the other's."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8))

    def forward(self, x):
        y = self.first(x)
        self.norms(y)
        return self.last(y)


class Overwritten(Unread):
    """Writes over the values of two norms, whose shapes alone are read."""

    def forward(self, x):
        y = self.first(x)
        z = self.norms[0](y)
        z.zero_()
        return self.last(y + z + torch.ones_like(self.norms[1](y)))


class Spectral(Net):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.utils.parametrizations.spectral_norm(self.first)


class Keeps(Net):
    """Writes to the attribute and never reads it."""

    def forward(self, x):
        y = self.first(x)
        self.seen = y.detach()
        return self.last(y)


class Carries(Net):
    def forward(self, x):
        y = self.first(x)
        if self.seen is not None:
            y = y + self.seen
        self.seen, self.input, self.count = y.detach(), x, 3
        return self.last(y)


class Logs(Net):
    """Appends to a list, and makes another one for each call."""

    def __init__(self):
        super().__init__()
        self.log, self.made = [], None

    def forward(self, x):
        y = self.first(x)
        self.log.append(("mean", y.mean().detach(), {"on": True}))
        self.made = [y.detach().sum(0), len(x)]
        return self.last(y)


class ReadsWhatWasWritten(Net):
    def forward(self, x):
        y = self.first(x)
        before = y.detach()
        y.relu_()
        return self.last(y * before)


class WritesUnseen(Net):
    def forward(self, x):
        y = self.first(x)
        with torch.no_grad():
            y[0].mul_(2)
        return self.last(y)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()



def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


def compiled(module, **options):
    return caesura.compile_step(module, F.cross_entropy, sgd(module), **options)


MODULES = [NoGrad, Inference, Data, Distills, Averages, Rolls, Unread, Overwritten, Spectral, Keeps, Carries, ReadsWhatWasWritten,
           WritesUnseen]


@pytest.mark.parametrize("make", MODULES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("outside", [True, False], ids=["", "under no_grad"])
def test_does_as_eager(make, outside):
    torch.manual_seed(0)
    module = make()
    other, data = copy.deepcopy(module), batches(5, rows=6)
    losses = eager(module, sgd(module), data)
    step = compiled(other)
    with torch.set_grad_enabled(outside):  # the grad mode outside must not matter
        assert [step(x, y).item() for x, y in data] == pytest.approx(losses, rel=1e-5)
    same(module, other)
    if module.seen is not None:
        assert torch.allclose(module.seen, other.seen, atol=1e-6)
    if make is Carries:
        assert other.input is data[-1][0] and other.count == 3


@pytest.mark.parametrize("make", [Keeps, Logs], ids=lambda make: make.__name__)
def test_results_in_attributes_need_no_dynamo(make, monkeypatch):
    torch.manual_seed(0)
    module = make()
    other, data = copy.deepcopy(module), batches(6, rows=6)
    step, plain = compiled(other, dynamic=False), sgd(module)
    for i, (x, y) in enumerate(data):
        if i == 3:
            monkeypatch.setattr(type(step), "_first", lambda *args: pytest.fail("it went through Dynamo"))
        for net in (module, other):
            if make is Logs:
                net.log = []
        (expected,), loss = eager(module, plain, [(x, y)]), step(x, y)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        if make is Logs:
            torch.testing.assert_close(other.log[0][1], module.log[0][1])
            torch.testing.assert_close(other.made[0], module.made[0])
            assert other.log[0][::2] == ("mean", {"on": True}) and len(other.log) == 1 and other.made[1] == len(x)
        else:
            torch.testing.assert_close(other.seen, module.seen)
    same(module, other)


def test_buffers_in_bfloat16_and_over_micro_steps():
    torch.manual_seed(0)
    module = Averages()
    other, data = copy.deepcopy(module), batches(4, rows=6)
    step = compiled(other, precision="bf16", accumulation_steps=2)
    before = copy.deepcopy(other)
    for k, (x, y) in enumerate(data):
        step(x, y)
        with torch.no_grad():
            before.mean.mul_(0.9).add_(before.first(x).mean(0), alpha=0.1)
        assert torch.allclose(other.mean, before.mean, atol=2e-2)  # bfloat16 has 8 bits
        if k % 2:
            before.load_state_dict(other.state_dict())
    assert other.mean.dtype == torch.float32


SCRIPT = """
import sys, numpy as np
import caesura
folder, data = sys.argv[1], np.load(sys.argv[2])
session = caesura.TrainingSession.open(folder)
for x, y in zip(data["x"], data["y"]):
    print(session.step({"x": x, "target": y}))
session.save(folder + "/state.safetensors")
"""


@pytest.mark.parametrize("make", [Averages, Distills], ids=lambda make: make.__name__)
def test_steps_on_disk_write_to_buffers_and_stop_gradients(tmp_path, make):
    """An exported step continues in a new process with the same results."""
    torch.manual_seed(0)
    module = make()
    other, data = copy.deepcopy(module), batches(6, rows=6)
    losses = eager(module, sgd(module), data)
    step = compiled(other)
    assert [step(x, y).item() for x, y in data[:3]] == pytest.approx(losses[:3], rel=1e-5)
    step.export(tmp_path / "step", *data[0])
    np.savez(tmp_path / "data.npz", x=torch.stack([x for x, _ in data[3:]]), y=torch.stack([y for _, y in data[3:]]))
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "step"), str(tmp_path / "data.npz")],
                         capture_output=True, text=True, check=True)
    assert [float(line) for line in ran.stdout.split()] == pytest.approx(losses[3:], rel=1e-5)
    caesura.load(tmp_path / "step", other)
    same(module, other)


class WritesToItsInput(Net):
    def forward(self, x):
        y = x[:, :3].mul_(2)
        x[0] = self.last.bias[0].detach()
        return super().forward(x) + y.mean()


def test_writes_to_an_argument_reach_it():
    torch.manual_seed(0)
    module = WritesToItsInput()
    other, data = copy.deepcopy(module), batches(2, rows=6) * 2
    given = copy.deepcopy(data)  # the later steps begin with what the first ones have written
    losses = eager(module, sgd(module), data)
    step = compiled(other)
    assert [step(x, y).item() for x, y in given] == pytest.approx(losses, rel=1e-5)
    same(module, other)
    for (x, _), (expected, _) in zip(given, data):
        torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("make", [Keeps, WritesToItsInput])
def test_attributes_and_arguments_are_not_exported(tmp_path, make):
    with pytest.raises(ValueError, match="leaves tensors in attributes of the module or in arguments"):
        compiled(make()).export(tmp_path, *batches(1, rows=6)[0])


def test_a_capture_changes_nothing():
    module = Carries()
    before = copy.deepcopy(module.state_dict())
    compiled(module).plan(*batches(1, rows=6)[0])
    assert module.seen is None and not hasattr(module, "count")
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))


class WritesToParameters(Net):
    def forward(self, x):
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class WritesToData(Net):
    def forward(self, x):
        self.last.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


@pytest.mark.parametrize("make, why", [
    (WritesToParameters, "clamp_ writes, past the gradients, to what depends on a parameter"),
    (WritesToData, "clamp_ writes, past the gradients"),
], ids=lambda value: value.__name__ if isinstance(value, type) else "")
def test_refuses_what_gradients_or_files_would_not_see(make, why):
    module = make()
    before = copy.deepcopy(module.state_dict())
    x, y = batches(1, rows=6)[0]
    given = x.clone()
    with pytest.raises(caesura.StepRefused, match=why):
        compiled(module)(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))
    assert torch.equal(x, given) and module.seen is None


# --- norms ------------------------------------------------------------------------------------------------------

NORMS = {
    # Its statistics average a batch norm's. They begin equal to weights and biases, and move apart.
    "instance norm": lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "instance norm, plain": lambda: torch.nn.InstanceNorm2d(3, track_running_stats=True),
    "batch norm, plain": lambda: torch.nn.BatchNorm2d(3, affine=False),
    "batch norm without statistics": lambda: torch.nn.BatchNorm2d(3, track_running_stats=False),
}


class Normed(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Conv2d(2, 3, 3), norm, torch.nn.Conv2d(3, 2, 3)

    def forward(self, x):
        return (self.last(self.norm(self.first(x))) * torch.arange(4.0)).square().mean()


def steps_as_eager(module, x_of):
    other = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (module, other)]
    step = caesura.compile_step(other, None, optimizers[1])
    for _ in range(4):
        x = x_of()
        optimizers[0].zero_grad()
        loss = module(x)
        loss.backward()
        optimizers[0].step()
        assert step(x).item() == pytest.approx(loss.item(), rel=1e-5)
    for (name, a), b in zip(module.state_dict().items(), other.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")
    return other, optimizers[1]


@pytest.mark.parametrize("make", NORMS.values(), ids=NORMS)
def test_norms(make):
    torch._dynamo.reset()
    steps_as_eager(Normed(make()), lambda: torch.randn(2, 2, 8, 8))


def test_channels_last():
    torch._dynamo.reset()
    module = Normed(torch.nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    other, optimizer = steps_as_eager(module, lambda: torch.randn(2, 2, 8, 8).to(memory_format=torch.channels_last))
    assert other.first.weight.is_contiguous()
    state = optimizer.state_dict()
    state["state"][0]["momentum_buffer"] = state["state"][0]["momentum_buffer"].to(memory_format=torch.channels_last)
    optimizer.load_state_dict(state)
    caesura.compile_step(other, None, optimizer)(torch.randn(2, 2, 8, 8))
