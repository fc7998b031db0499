# SPDX-License-Identifier: Apache-2.0
"""step.export() and caesura.load(): a step that continues elsewhere gives the results of one that stays."""

import copy
import errno
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import caesura  # noqa: E402
from caesura import onnxruntime  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4 * 36, 5)

    def forward(self, image):
        return self.last(F.relu(self.norm(self.conv(image))).flatten(1))


@pytest.fixture()
def parts():
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = Net()
    optimizer = torch.optim.AdamW([{"params": module.conv.parameters(), "weight_decay": 0.0},
                                   {"params": [*module.norm.parameters(), *module.last.parameters()], "lr": 3e-3}], lr=1e-2)
    return module, optimizer, caesura.compile_step(module, F.cross_entropy, optimizer, clip_norm=1.0, dynamic=True)


def batches(count):
    return [(torch.randn(6, 1, 8, 8), torch.randint(0, 5, (6,))) for _ in range(count)]


def test_export_training_trains_the_module_elsewhere(parts, tmp_path):
    module, optimizer, step = parts
    data = batches(5)
    [step(*batch) for batch in data[:2]]
    step.export_training(tmp_path / "step.onnx", *data[0])
    step.export(tmp_path / "step", *data[0])
    subprocess.run(["caesura", "convert", "--training", tmp_path / "step", tmp_path / "converted.onnx"], check=True)
    assert onnx.load(tmp_path / "converted.onnx") == onnx.load(tmp_path / "step.onnx")
    run = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    names, state = [output.name for output in run.get_outputs()], {}
    for i, (image, target) in enumerate(data[2:], 3):
        feeds = {"image": image.numpy(), "target": target.numpy(), "caesura.step": np.array(i)}
        found = dict(zip(names, run.run(None, feeds | state)))
        np.testing.assert_allclose(found["caesura.loss"], float(step(image, target)), rtol=1e-4)
        state = {name.removeprefix("updated."): value for name, value in found.items() if name.startswith("updated.")}
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
    optimizer.zero_grad()


SCRIPT = """
import sys, json, numpy as np
import caesura
assert "torch" not in sys.modules
folder, arrays = sys.argv[1], np.load(sys.argv[2])
session = caesura.TrainingSession.open(folder)
print(json.dumps([session.step({"image": x, "target": y}) for x, y in zip(arrays["x"], arrays["y"])]))
session.save(folder + "/state.safetensors")
assert "torch" not in sys.modules
"""


def test_goes_on_elsewhere_and_comes_back(parts, tmp_path):
    module, optimizer, step = parts
    data = batches(6)
    [step(*batch) for batch in data[:2]]
    step.export(tmp_path / "step", *data[0])
    stayed = [step(*batch).item() for batch in data[2:]]
    here = {name: value.clone() for name, value in module.state_dict().items()}
    moments = {name: optimizer.state[p]["exp_avg"].clone() for name, p in module.named_parameters()}

    np.savez(tmp_path / "data.npz", x=np.stack([x.numpy() for x, _ in data[2:]]), y=np.stack([y.numpy() for _, y in data[2:]]))
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "step"), str(tmp_path / "data.npz")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(stayed, rel=1e-6)

    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    assert caesura.load(tmp_path / "step", module, optimizer) == 6
    for name, value in module.state_dict().items():
        if "num_batches" not in name:  # PyTorch keeps the counter
            torch.testing.assert_close(value, here[name], rtol=1e-6, atol=1e-7)
    for name, p in module.named_parameters():
        torch.testing.assert_close(optimizer.state[p]["exp_avg"], moments[name], rtol=1e-5, atol=1e-8)
        assert optimizer.state[p]["step"] == 6


def test_export_changes_nothing_and_holds_plain_ops(parts, tmp_path):
    module, _, step = parts
    before = copy.deepcopy(module.state_dict())
    x, y = batches(1)[0]
    step.export(tmp_path / "step", x, y)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values()))
    model = onnx.load(tmp_path / "step" / "model.onnx")
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} == {""}
    assert [i.name for i in model.graph.input] == ["image", "target"] and [o.name for o in model.graph.output] == ["loss"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    names = {i.name for i in model.graph.initializer}
    assert {"conv.weight", "last.bias", "norm.running_mean"} <= names
    step(x, y)
    step.export(tmp_path / "step", x, y)
    written = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "step" / "model.onnx").graph.initializer}
    np.testing.assert_array_equal(written["conv.weight"], module.conv.weight.detach().numpy())  # the latest weights


def test_the_command_trains_it(parts, tmp_path):
    _, _, step = parts
    x, y = torch.randn(64, 1, 8, 8), torch.randint(0, 5, (64,))
    step.export(tmp_path / "step", x[:8], y[:8])
    np.savez(tmp_path / "data.npz", image=x.numpy(), target=y.numpy())
    done = subprocess.run(["caesura", "train", str(tmp_path / "step"), "--data", str(tmp_path / "data.npz"), "--batch", "8",
                           "--steps", "40", "--validation-part", "0", "--log", str(tmp_path / "log.csv")],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split(",")[2]) for line in (tmp_path / "log.csv").read_text().splitlines()[1:] if line.split(",")[2]]
    assert losses[-1] < 0.8 * losses[0]  # the log shows smoothed losses


@pytest.mark.parametrize("change, message", [
    (lambda facts: facts.pop("optimizer"), "'optimizer'"),
    (lambda facts: facts.update(clip_norm="much", accumulation_steps=0), "'clip_norm', 'accumulation_steps'"),
    (lambda facts: facts.update(optimizer="adagrad"), "adagrad"),
    (lambda facts: facts["coefficients"].update(warmth=1), "warmth"),
    (lambda facts: facts.update(groups=[1]), "'groups'"),
])
def test_metadata_is_not_believed(parts, tmp_path, change, message):
    _, _, step = parts
    step.export(tmp_path / "step", *batches(1)[0])
    model = onnx.load(tmp_path / "step" / "model.onnx")
    facts = json.loads(model.metadata_props[0].value)
    change(facts)
    model.metadata_props[0].value = json.dumps(facts)
    onnx.save(model, tmp_path / "step" / "model.onnx")
    with pytest.raises(ValueError, match=message):
        caesura.TrainingSession.open(tmp_path / "step")


def test_a_step_of_another_module_is_refused_whole(parts, tmp_path):
    module, optimizer, step = parts
    step.export(tmp_path / "step", *batches(1)[0])
    other = Net()
    other.last = torch.nn.Linear(4 * 36, 7)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="last.weight"):
        caesura.load(tmp_path / "step", other)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), other.state_dict().values()))


def test_a_full_disk_leaves_the_old_step(parts, tmp_path, monkeypatch):
    _, _, step = parts
    batch = batches(1)[0]
    step.export(tmp_path, *batch)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(model, path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx, "save", full)
    with pytest.raises(OSError, match="No space left on device: '.*/model.onnx'"):
        step.export(tmp_path, *batch)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


class Centred(torch.nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("centre", torch.full((3,), 0.5))

    def forward(self, y, target):
        return F.mse_loss((y - self.centre) * self.scale, target)


class Asks(torch.nn.Module):
    """Its arguments have the names of export()'s, report()'s and restore()'s own."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(3, 3)

    def forward(self, path, step):
        return self.last(path) + step


def test_a_loss_has_parameters_and_arguments_have_any_name(tmp_path):
    torch._dynamo.reset()
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        module, loss_fn, own = Asks(), Centred(), torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([*module.parameters(), *loss_fn.parameters(), own], lr=0.1)
        made.append((module, loss_fn, optimizer))
    (module, loss_fn, optimizer), other = made
    x, y, target = torch.randn(3, 4, 3)
    step = caesura.compile_step(module, loss_fn, optimizer)
    step.report(tmp_path / "page.html", target, path=x, step=y)
    step.save(tmp_path / "run.ckpt")
    step.restore(tmp_path / "run.ckpt", target, path=x, step=y)
    step.export(tmp_path / "step", target, path=x, step=y)
    with pytest.raises(ValueError, match="loss_fn.scale"):
        caesura.load(tmp_path / "step", other[0])
    assert caesura.load(tmp_path / "step", other[0], other[2], other[1]) == 1
    for a, b in zip([*module.parameters(), loss_fn.scale], [*other[0].parameters(), other[1].scale]):
        assert torch.equal(a, b) and torch.equal(optimizer.state[a]["exp_avg"], other[2].state[b]["exp_avg"])


class Cloud:
    """Points [rows, 3] that belong together."""

    def __init__(self, rows):
        self.points, self.name = torch.randn(rows, 3), f"{rows} points"


class OfClouds(torch.nn.Module):
    """Writes to parts of tensors, along an axis whose size changes too."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(3, 2)

    def forward(self, clouds, weights):
        losses = []
        for cloud in clouds:
            wide = torch.ones(len(cloud.points), 4)
            wide[:, 1:3] = self.last(cloud.points)
            wide[1:3] = 2 * wide[1:3]
            losses.append(wide.tanh().square().mean())
        return (torch.stack(losses) * weights).sum()


def test_tensors_in_objects_have_names(tmp_path):
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = OfClouds()
    eager = copy.deepcopy(module)
    optimizer, plain = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, eager))
    step = caesura.compile_step(module, None, optimizer)
    data = [([Cloud(rows), Cloud(rows + 4)], torch.rand(2)) for rows in (4, 6, 7, 9, 5)]
    for i, batch in enumerate(data):
        if i == 3:
            step.export(tmp_path / "step", *batch)
            session = caesura.TrainingSession.open(tmp_path / "step")
        if i >= 3:
            clouds, weights = batch
            feeds = {f"clouds_{k}_points": cloud.points.numpy() for k, cloud in enumerate(clouds)}
            away = session.step({"weights": weights.numpy(), **feeds})
        plain.zero_grad()
        loss = eager(*batch)
        loss.backward()
        plain.step()
        here = float(step(*batch))
        assert here == pytest.approx(loss.item(), rel=1e-5)
        assert i < 3 or away == here


def test_a_file_of_something_else_is_no_step(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(2)}, tmp_path / "state.safetensors")
    with pytest.raises(ValueError, match="state.safetensors is no step's"):
        caesura.load(tmp_path, Net())
