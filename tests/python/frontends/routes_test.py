# SPDX-License-Identifier: Apache-2.0
"""A module's plan has the same ops and fusions as exported ONNX and as a captured step."""

import collections
import os
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

import caesura  # noqa: E402
from caesura.bench import models  # noqa: E402

TIME, VOCABULARY = 16, 40
GPT = models.GptSizes(layers=2, width=32, heads=4, time=TIME, vocabulary=VOCABULARY)
LLAMA = models.LlamaSizes(layers=2, width=32, hidden=64, heads=4, kv_heads=2, time=TIME, vocabulary=VOCABULARY)
# Extra ops of the exporter's graph in each of the two layers: repeated keys that only shape computations still read.
# (The mask of causal attention is folded; the captured op has it as an attribute.)
EXPORTED_ALONE = {"gpt": {}, "llama": {"Expand": 2}}


def ops(plan: str) -> collections.Counter:
    """Counts the steps of each op in a plan."""
    return collections.Counter(re.findall(r"^\d+ compute \[(?:[\w.]+::)?(\w+) ", plan, re.M))


@pytest.mark.parametrize("name, build", [("gpt", lambda: models.Gpt(GPT)), ("llama", lambda: models.Llama(LLAMA))])
def test_both_routes_end_in_the_same_plan(name, build, tmp_path):
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = build().train()
    tokens, target = torch.randint(0, VOCABULARY, (4, TIME)), torch.randint(0, VOCABULARY, (4 * TIME,))
    with caesura.strict():
        step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters()))
        captured, captured_bytes = step.plan(tokens, target)

    torch.onnx.export(module, (tokens,), tmp_path / "module.onnx", dynamo=True, optimize=False, verbose=False,
                      input_names=["tokens"], output_names=["scores"])
    session = caesura.TrainingSession(tmp_path / "module.onnx", optimizer=caesura.optim.AdamW())
    assert session.parameters().keys() == dict(module.named_parameters()).keys()  # no rotary tables: they are buffers
    exported, exported_bytes = session.plan({"tokens": tokens, "target": target})

    assert ops(captured)["FusedRows"] > 5 and ops(captured)["FusedMatMul"] > 5 and ops(captured)["AttentionGrad"] == 2
    assert ops(captured) - ops(exported) == collections.Counter()
    assert ops(exported) - ops(captured) == collections.Counter(EXPORTED_ALONE[name])
    assert captured_bytes <= exported_bytes


def _transformer(name: str) -> torch.nn.Module:
    """Makes a small transformers model. All parameters differ, because the exporter merges equal ones."""
    torch.manual_seed(0)
    shared = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    if name == "llama":
        module = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **shared))
    else:
        module = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=4, n_positions=160, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **shared))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return module


class _Scores(torch.nn.Module):
    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module

    def forward(self, tokens):
        return self.module(input_ids=tokens, use_cache=False).logits.flatten(0, 1)


# The exporter folds the mask of 16 tokens; that of 160 is too large. CAESURA_LONG: both, of both models.
@pytest.mark.parametrize("name, time", [("gpt2", 160), ("llama", 16)] +
                         [("gpt2", 16), ("llama", 160)] * bool(os.environ.get("CAESURA_LONG")))
def test_an_export_for_inference_trains_what_the_module_trains(name, time, tmp_path, capfd):
    module = _Scores(_transformer(name)).train()
    tokens, target = torch.randint(0, 64, (2, time)), torch.randint(0, 64, (2 * time,))
    torch.onnx.export(module, (tokens,), tmp_path / "module.onnx", dynamo=True, verbose=False, input_names=["tokens"])
    capfd.readouterr()
    session = caesura.TrainingSession(tmp_path / "module.onnx", optimizer=caesura.optim.SGD(lr=0.5))
    assert "optimize=False" in capfd.readouterr().err
    assert len(session.parameters()) == len(list(module.parameters()))  # no mask, no rotary table
    plan, _ = session.plan({"tokens": tokens, "target": target})
    assert ops(plan)["AttentionGrad"] == 2 and " late " not in plan

    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(module(tokens), target)
        loss.backward()
        assert session.step({"tokens": tokens, "target": target}) == pytest.approx(loss.item(), rel=2e-5)
        optimizer.step()
        optimizer.zero_grad()
