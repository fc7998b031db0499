# SPDX-License-Identifier: Apache-2.0
"""Exported steps of real models contain only standard ops, and a command without PyTorch trains them."""

import subprocess

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import caesura  # noqa: E402
from caesura.bench import models  # noqa: E402

TEXT = {"vocab_size": 64, "max_position_embeddings": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64}


def gpt2():
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config), None


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, num_key_value_heads=2)), None


def bert():
    config = transformers.BertConfig(**TEXT, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return transformers.BertForMaskedLM(config), None


def resnet():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        models.ResidualBlock(8, 8, 1), models.ResidualBlock(8, 16, 2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(16, 5)), torch.nn.functional.cross_entropy


def data(loss, count):
    if loss is not None:
        return {"input": torch.randn(count, 3, 12, 12), "target": torch.randint(0, 5, (count,))}
    ids = torch.randint(0, 64, (count, 16))
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.fixture(scope="module")
def command():
    libraries = subprocess.run("ldd $(command -v caesura)", shell=True, capture_output=True, text=True, check=True).stdout
    assert "libcaesura" in libraries
    assert "torch" not in libraries and "libc10" not in libraries and "python" not in libraries.replace("/python/lib/", "")
    return "caesura"


@pytest.mark.parametrize("make", [gpt2, llama, bert, resnet])
def test_an_exported_step_needs_no_pytorch(make, command, tmp_path):
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, loss = make()
    module.train()
    everything = data(loss, 16)
    batch = {name: tensor[:4] for name, tensor in everything.items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    with caesura.strict():
        step = caesura.compile_step(module, loss, optimizer)
        arguments = ((), batch) if loss is None else (tuple(batch.values()), {})
        step.export(tmp_path / "step", *arguments[0], **arguments[1])
    model = onnx.load(tmp_path / "step" / "model.onnx")
    onnx.checker.check_model(model)
    # BERT's embedding gives its padding row no gradient.
    ours = {node.op_type for node in model.graph.node if node.domain}
    assert ours == ({"Detach"} if make is bert else set()), "nodes that are not standard"

    np.savez(tmp_path / "data.npz", **{name: tensor.numpy() for name, tensor in everything.items()})
    log = tmp_path / "log.csv"
    done = subprocess.run([command, "train", str(tmp_path / "step"), "--data", str(tmp_path / "data.npz"), "--batch", "4",
                           "--steps", "60", "--validation-part", "0", "--log", str(log), "--checkpoint",
                           str(tmp_path / "step" / "state.safetensors")], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split(",")[2]) for line in log.read_text().splitlines()[1:] if line.split(",")[2]]
    assert losses[-1] < 0.8 * losses[0]

    assert caesura.load(tmp_path / "step", module, optimizer) == 60
    with torch.no_grad():  # the weights that came back are those of a trained module
        ours = step(*arguments[0], **arguments[1])
    assert float(ours) < losses[0]
