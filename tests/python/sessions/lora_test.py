# SPDX-License-Identifier: Apache-2.0
"""caesura.lora: adapters of ONNX models, trained, saved, loaded and merged; beside PEFT and onnxruntime where they are installed."""

import json
import pathlib

import numpy as np
import onnx
import onnx.parser
import pytest

import caesura

WEIGHTS = {"layers.0.weight": (6, 4), "layers.0.bias": (6,), "layers.1.weight": (3, 6)}


@pytest.fixture
def net(tmp_path, monkeypatch):
    """net.onnx in the current folder, as torch.onnx.export writes two Linear layers; a batch."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    net (float[N, 4] x) => (float[N, 3] y) {
      swapped = Transpose (w0) product = MatMul (x, swapped) h = Add (product, b0)
      active = Tanh (h) y = Gemm <transB = 1> (active, w1) }""")
    for node in model.graph.node:
        names = dict(zip(("w0", "b0", "w1"), WEIGHTS))
        node.input[:] = [names.get(name, name) for name in node.input]
    rng = np.random.default_rng(0)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
                                   for name, shape in WEIGHTS.items())
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "net.onnx")
    return {"x": rng.standard_normal((5, 4)).astype(np.float32), "target": rng.standard_normal((5, 3)).astype(np.float32)}


def session_of(model):
    return caesura.TrainingSession(model, loss="mse", optimizer=caesura.optim.SGD(lr=0.1))


def output(model, feeds):
    return caesura.onnxruntime.InferenceSession(model).run(None, {"x": feeds["x"]})[0]


def trained(net, steps=3):
    """A session with an adapter that some steps have changed."""
    session = session_of(caesura.lora("net.onnx", ["0", "layers.1"], rank=2, alpha=6, seed=3))
    for _ in range(steps):
        session.step(net)
    return session


def test_a_model_has_an_adapter_which_alone_trains(net):
    adapted = caesura.lora("net.onnx", "layers.*", rank=2)
    onnx.checker.check_model(onnx.load_from_string(adapted), full_check=True)
    assert np.array_equal(output(adapted, net), output("net.onnx", net))
    session = session_of(adapted)
    assert {name: value.shape for name, value in session.parameters().items()} == {
        "layers.0.lora_A.weight": (2, 4), "layers.0.lora_B.weight": (6, 2),
        "layers.1.lora_A.weight": (2, 6), "layers.1.lora_B.weight": (3, 2)}
    losses = [session.step(net) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert len(session_of(caesura.lora("net.onnx", "*", path="adapted.onnx")).parameters()) == 4
    assert len(caesura.TrainingSession(adapted, loss="mse", trainable=["*"]).parameters()) == 8  # with lora_scaling


def test_an_adapter_goes_to_a_folder_and_comes_back(net):
    session = trained(net)
    session.save_adapter("adapter")
    session.export("trained.onnx")
    config = json.loads(pathlib.Path("adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 6.0, ["layers.0", "layers.1"])
    expected = output("trained.onnx", net)
    assert np.array_equal(output(caesura.lora("net.onnx", adapter="adapter"), net), expected)
    other = session_of(caesura.lora("net.onnx", ["layers.0", "layers.1"], rank=2, alpha=6))
    other.load_adapter("adapter")
    assert all(np.array_equal(value, other.parameters()[name]) for name, value in session.parameters().items())
    merged = caesura.lora("trained.onnx", merge=True)
    assert [node.op_type for node in onnx.load_from_string(merged).graph.node] == ["Transpose", "MatMul", "Add", "Tanh", "Gemm"]
    assert np.allclose(output(merged, net), expected, atol=1e-6) and not np.allclose(expected, output("net.onnx", net), atol=1e-3)
    assert caesura.lora("net.onnx", adapter="adapter", merge=True) == merged


def test_what_does_not_fit_is_listed(net):
    with pytest.raises(ValueError, match=r"no layer is named 'fc'; the model has 'layers.0', 'layers.1'"):
        caesura.lora("net.onnx", "fc")
    with pytest.raises(ValueError, match="the model has no adapter"):
        session_of("net.onnx").save_adapter("adapter")
    with pytest.raises(FileNotFoundError, match="adapter_config.json"):
        caesura.lora("net.onnx", adapter="adapter")
    session = trained(net)
    session.save_adapter("adapter")
    other = session_of(caesura.lora("net.onnx", "layers.0", rank=2, alpha=6))
    with pytest.raises(ValueError, match="the model's adapter has no layer 'layers.1'"):
        other.load_adapter("adapter")


def test_damaged_files_raise_and_change_nothing(net):
    session = trained(net)
    session.save_adapter("adapter")
    before = session.parameters()
    file = pathlib.Path("adapter/adapter_model.safetensors")
    whole = file.read_bytes()
    for length in range(0, len(whole), 17):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="adapter_model.safetensors"):
            session.load_adapter("adapter")
    for at in range(0, whole.index(b"}") + 1, 3):  # the header; each change is an error, or in a name or the values
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 9]) + whole[at + 1:])
        try:
            session.load_adapter("adapter")
        except (ValueError, NotImplementedError):
            pass
    file.write_bytes(whole)
    session.load_adapter("adapter")
    assert all(np.array_equal(value, before[name]) for name, value in session.parameters().items())


def test_weights_in_whole_numbers_have_adapters_and_are_not_merged(net):
    model = onnx.load("net.onnx")
    weight = next(w for w in model.graph.initializer if w.name == "layers.0.weight")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.arange(-12, 12, dtype=np.int8).reshape(6, 4), "layers.0.weight"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), "scale"))
    model.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", ["layers.0.weight", "scale"], ["floats"]))
    model.graph.node[1].input[0] = "floats"
    adapted = caesura.lora(model, "layers.0", rank=2)
    session = session_of(adapted)
    losses = [session.step(net) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(NotImplementedError, match="layer 'layers.0': its weight 'layers.0.weight' is not floating but int8"):
        caesura.lora(adapted, merge=True)


def test_layers_in_4_bits_have_adapters_and_are_not_merged(tmp_path):
    rng = np.random.default_rng(0)
    node = onnx.helper.make_node("MatMulNBits", ["x", "fc.MatMul.weight_Q4", "scales"], ["y"], domain="com.microsoft", K=32, N=3,
                                 bits=4, block_size=32)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", size]) for name, size in (("x", 32), ("y", 3))]
    weights = {"fc.MatMul.weight_Q4": rng.integers(0, 256, (3, 1, 16)).astype(np.uint8), "scales": np.float32([0.1, 0.2, 0.3])}
    graph = onnx.helper.make_graph([node], "net", ends[:1], ends[1:],
                                   [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    adapted = caesura.lora(model, "fc", rank=2)
    session = caesura.TrainingSession(adapted, loss="mse", optimizer=caesura.optim.SGD(lr=1e-3))
    assert list(session.parameters()) == ["fc.lora_A.weight", "fc.lora_B.weight"]
    feeds = {"x": rng.standard_normal((5, 32)).astype(np.float32), "target": np.zeros((5, 3), np.float32)}
    losses = [session.step(feeds) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(NotImplementedError, match="layer 'fc': its weight 'fc.MatMul.weight_Q4' is not floating but uint8"):
        caesura.lora(adapted, merge=True)


def test_steps_and_files_are_pefts(net):
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")

    def module():
        made = torch.nn.Module()
        made.layers = torch.nn.ModuleList([torch.nn.Linear(4, 6), torch.nn.Linear(6, 3, bias=False)])
        made.forward = lambda x: made.layers[1](torch.tanh(made.layers[0](x)))
        tensors = {w.name: torch.from_numpy(onnx.numpy_helper.to_array(w).copy()) for w in onnx.load("net.onnx").graph.initializer}
        made.load_state_dict(tensors)
        return made

    session = trained(net, steps=0)
    session.save_adapter("start")
    theirs = peft.PeftModel.from_pretrained(module(), "start", is_trainable=True)
    optimizer = torch.optim.SGD([p for p in theirs.parameters() if p.requires_grad], lr=0.1)
    x, target = map(torch.from_numpy, (net["x"], net["target"]))
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(theirs(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert session.step(net) == pytest.approx(loss.item(), rel=1e-6)
    session.save_adapter("ours")
    again = peft.PeftModel.from_pretrained(module(), "ours")
    assert torch.allclose(again(x), theirs(x), atol=1e-6)
    theirs.save_pretrained("theirs")
    assert np.allclose(output(caesura.lora("net.onnx", adapter="theirs"), net), theirs(x).detach(), atol=1e-6)


def test_onnxruntimes_adapter_files(net):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = trained(net)
    session.save_adapter("net.onnx_adapter")
    caesura.lora("net.onnx", ["layers.0", "layers.1"], rank=2, alpha=6, path="adapted.onnx")
    options, adapter = onnxruntime.RunOptions(), onnxruntime.LoraAdapter()
    adapter.Load("net.onnx_adapter")
    options.add_active_adapter(adapter)
    found, = onnxruntime.InferenceSession("adapted.onnx").run(None, {"x": net["x"]}, options)
    assert np.allclose(found, session.predict({"x": net["x"]})[0], atol=1e-6)
    other = session_of("adapted.onnx")
    other.load_adapter("net.onnx_adapter")
    assert all(np.array_equal(value, other.parameters()[name]) for name, value in session.parameters().items())
    with pytest.raises(ValueError, match="'layers.1.lora_A.weight'"):
        session_of(caesura.lora("net.onnx", "layers.0", rank=2)).load_adapter("net.onnx_adapter")
    pathlib.Path("net.onnx_adapter").write_bytes(b"no adapter")
    with pytest.raises(ValueError, match="is no adapter of onnxruntime's"):
        other.load_adapter("net.onnx_adapter")


def test_onnxruntimes_files_need_onnxruntime(net, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        trained(net, steps=0).save_adapter("net.onnx_adapter")
