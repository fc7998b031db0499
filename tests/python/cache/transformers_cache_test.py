# SPDX-License-Identifier: Apache-2.0
"""Calls and steps of transformers' models from disk."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import caesura  # noqa: E402
from module_cache_test import agree, hit, traced  # noqa: E402
from program_cache_test import folder  # noqa: E402, F401


def transformers_model(name):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2, eos_token_id=2))
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(
            **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0, dropout_rate=0.0))


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_transformers_models(name):
    """Calls are kept although outputs are dict dataclasses with a cache, and forwards set and reset attributes."""
    module, ids = transformers_model(name), torch.randint(3, 64, (2, 16))
    assert [hit(module, input_ids=ids, labels=ids, rtol=1e-3) for _ in range(2)] == [False, True]

    def run():
        plain, wrapped = copy.deepcopy(module), caesura.wrap(copy.deepcopy(module))
        for _ in range(2):
            other = torch.randint(3, 64, (2, 16))
            agree(wrapped, plain, input_ids=other, labels=other, rtol=1e-3)
        out = wrapped(input_ids=other, labels=other)
        assert type(out) is type(plain(input_ids=other, labels=other)) and out["loss"] is out.loss and out[0] is out.loss

    assert traced(run) == 0


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_compiled_steps_of_transformers_models(name):
    module, ids, losses = transformers_model(name), torch.randint(3, 64, (2, 16)), []
    for _ in range(2):
        torch._dynamo.reset()
        other = copy.deepcopy(module)
        step = caesura.compile_step(other, None, torch.optim.AdamW(other.parameters(), lr=1e-2))
        losses.append([step(input_ids=ids, labels=ids).item() for _ in range(4)])
        assert len(step._calls) == 1
    assert [p.is_captured for p in step._programs] == [False]
    plain, expected = copy.deepcopy(module), []
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for _ in range(4):
        loss = plain(input_ids=ids, labels=ids).loss
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[0] == losses[1] == pytest.approx(expected, rel=1e-4)
