# SPDX-License-Identifier: Apache-2.0
"""caesura.gradient: gradients and Hessian-vector products of exported models beside PyTorch's, and what is refused."""

import io

import numpy as np
import onnx
import onnx.parser
import pytest

import caesura
from caesura import onnxruntime

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


class Potential(nn.Module):
    """An energy of the distances between points."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))

    def forward(self, positions):
        pairs = positions[:, [0, 0, 0, 1, 1, 2]] - positions[:, [1, 2, 3, 2, 3, 3]]
        return self.net((pairs ** 2).sum(-1).sqrt()).sum()


class Block(nn.Module):
    """A transformer's block with a softmax of its own."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) / 3, -1) @ v)  # PyTorch exports a root of 8 as float32
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def convolutional():
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.AvgPool2d(2),
                         nn.Conv2d(4, 4, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3), nn.LogSoftmax(-1)), (4, 5)),
    "potential": (Potential, (3, 4, 3)),
    "block": (Block, (2, 5, 8)),
    "convolutional": (convolutional, (2, 2, 6, 6)),
}


def exported(module, x):
    batch = {0: torch.export.Dim("batch")}
    program = torch.onnx.export(module, (x,), dynamo=True, optimize=False, verbose=False, input_names=["x"],
                                output_names=["y"], dynamic_shapes=(batch,))
    return program.model_proto


def graphs(graph):
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


@pytest.mark.parametrize("name", MODELS)
def test_beside_pytorch(name):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    module = make().double().eval()
    model = exported(module, torch.randn(*shape, dtype=torch.float64))
    plain = caesura.gradient(model, by="x", hessian_product=True, plain=True)
    onnx.checker.check_model(onnx.load_from_string(plain), full_check=True)
    assert {node.domain for graph in graphs(onnx.load_from_string(plain).graph) for node in graph.node} == {""}
    made = caesura.gradient(model, by="x", hessian_product=True), plain
    sessions = [onnxruntime.InferenceSession(one) for one in made]
    for batch in (shape[0], shape[0] + 3):  # sizes are symbolic
        x = torch.randn(batch, *shape[1:], dtype=torch.float64, requires_grad=True)
        y, direction = module(x), torch.randn_like(x)
        weights = torch.randn_like(y) if y.ndim else torch.ones_like(y)
        dx, = torch.autograd.grad(y, x, weights, create_graph=True)
        product, = torch.autograd.grad(dx, x, direction)
        feeds = {"x": x.detach(), "x_direction": direction}
        if y.ndim:
            feeds["y_gradient"] = weights
        for session in sessions:
            results = session.run(["y", "x_gradient", "x_hessian_product"], feeds)
            for found, expected in zip(results, (y, dx, product)):
                torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)


def parsed(text):
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> ' + text)


CUBE = """g (float[N] x, float[N] a, int64[N] i) => (float[N] y, int64[1] size) {
  z = Mul (x, x) y = Mul (z, a) size = Shape (i) }"""
FEEDS = {"x": np.float32([1, 2]), "a": np.float32([3, 4]), "i": np.int64([0, 0])}


def test_forms_of_the_model_and_of_the_result(tmp_path):
    onnx.save(parsed(CUBE), tmp_path / "cube.onnx")
    of_bytes = caesura.gradient(parsed(CUBE).SerializeToString(), of="y", by="x", sum=True)
    for model in (parsed(CUBE), tmp_path / "cube.onnx"):
        assert caesura.gradient(model, "y", ["x"], sum=True) == of_bytes
    path = caesura.gradient(parsed(CUBE), "y", "x", sum=True, path=tmp_path / "slope.onnx")
    assert path == str(tmp_path / "slope.onnx")
    for model in (of_bytes, path):
        session = onnxruntime.InferenceSession(model)
        assert [v.name for v in session.get_outputs()] == ["y", "size", "x_gradient"]
        assert session.run(["x_gradient"], FEEDS)[0].tolist() == [6, 16]
    onnx.checker.check_model(onnx.load(io.BytesIO(of_bytes)))


def test_weights_scale_and_names():
    session = onnxruntime.InferenceSession(caesura.gradient(parsed(CUBE), "y", ["a", "x"], scale=-2, names=["da", "dx"]))
    assert [v.name for v in session.get_inputs()] == ["x", "a", "i", "y_gradient"]
    da, dx = session.run(["da", "dx"], {**FEEDS, "y_gradient": np.float32([1, 10])})
    assert da.tolist() == [-2, -80] and dx.tolist() == [-12, -320]


@pytest.mark.parametrize("arguments, message", [
    ({}, "of: the model has several outputs: 'y', 'size'"),
    ({"of": "z"}, "of: the model has no output 'z'; it has 'y', 'size'"),
    ({"of": "size"}, "of: expected a floating tensor, got 'size' of type int64"),
    ({"of": "y", "by": "b"}, "by: the model has no input or initializer 'b'; its inputs are 'x', 'a', 'i'"),
    ({"of": "y", "by": "i"}, "by: expected a floating tensor, got 'i' of type int64"),
    ({"of": "y", "by": "x", "names": ["p", "q"]}, "names: expected 1, one for each of by, got 2"),
    ({"of": "y", "by": "x", "names": "z"}, "the model has a value 'z' already"),
])
def test_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=f"gradient: {message}"):
        caesura.gradient(parsed(CUBE), **arguments)


def test_an_output_that_does_not_depend_on_the_input_is_refused():
    model = parsed("g (float[2] x, float[2] unused) => (float[2] y) { y = Exp (x) }")
    with pytest.raises(ValueError, match="gradient: no output depends on 'unused'"):
        caesura.gradient(model)


def test_nodes_without_a_gradient_are_listed():
    model = parsed("g (float[4] x) => (float[N] y) { y, i, j, k = Unique (x) }")
    with pytest.raises(NotImplementedError, match=r"1 node has no gradient:\n  \[Unique"):
        caesura.gradient(model)


def test_energy_and_forces_train():
    """A potential is trained by its energy and forces; losses and parameters are those of PyTorch's loop."""
    torch.manual_seed(0)
    module = Potential().double()
    x, measured = torch.randn(2, 8, 4, 3, dtype=torch.float64)
    potential = caesura.gradient(exported(module, x), by="x", scale=-1, names="forces")
    session = caesura.TrainingSession(potential, loss="mse", target="total", also=["forces=measured*10"],
                                      optimizer=caesura.optim.SGD(lr=1e-3))
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    for _ in range(10):
        x.requires_grad_()
        energy = module(x)
        forces = -torch.autograd.grad(energy, x, create_graph=True)[0]
        loss = functional.mse_loss(energy, torch.ones_like(energy)) + 10 * functional.mse_loss(forces, measured)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        feeds = {"x": x.detach(), "total": np.float64(1), "measured": measured}
        assert session.step(feeds) == pytest.approx(loss.item(), rel=1e-10)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(session.parameters()[name], parameter.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_a_plain_gradient_is_by_parameters_too(tmp_path):
    """Parameters are inputs with defaults, and the gradient of the gradient is one of its file."""
    text = "g (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.5, -2}> { h = MatMul (x, w) y = Tanh (h) }"
    first = caesura.gradient(parsed(text), by=["w", "x"], sum=True, plain=True)
    mixed = caesura.gradient(first, of="w_gradient", by=["x"], names=["d2"], plain=True, path=tmp_path / "mixed.onnx")
    feeds = {"x": np.float32([[1, 2], [3, -1]]), "w_gradient_gradient": np.float32([[1], [10]])}
    for w in (None, np.float32([[0.25], [0.125]])):
        run = onnxruntime.InferenceSession(mixed)
        found = dict(zip([v.name for v in run.get_outputs()], run.run(None, feeds | ({} if w is None else {"w": w}))))
        x = torch.tensor(feeds["x"], requires_grad=True)
        parameter = torch.tensor(np.float32([[0.5], [-2]]) if w is None else w, requires_grad=True)
        dw, dx = torch.autograd.grad(torch.tanh(x @ parameter).sum(), [parameter, x], create_graph=True)
        second, = torch.autograd.grad(dw, x, torch.tensor(feeds["w_gradient_gradient"]))
        for name, expected in {"w_gradient": dw, "x_gradient": dx, "d2": second}.items():
            torch.testing.assert_close(torch.tensor(found[name]), expected.detach(), rtol=1e-5, atol=1e-6)


def test_layers_that_training_changes_are_refused_where_a_gradient_is_held():
    torch.manual_seed(0)
    module = convolutional().eval()
    model = caesura.gradient(exported(module, torch.randn(2, 2, 6, 6)), by="x", sum=True)
    with pytest.raises(NotImplementedError, match="BatchNormalization .* computes something else in training"):
        caesura.TrainingSession(model, loss="mse", prediction="x_gradient")
