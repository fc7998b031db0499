# SPDX-License-Identifier: Apache-2.0
"""Trains 14 kinds of PEFT's adapters on a small Llama and a small BERT as whole steps and through wrap, beside eager.

    python benchmarks/adapters.py                    all kinds
    python benchmarks/adapters.py DoRA LoHa          these

It needs peft (benchmarks/loops/requirements.txt). Each figure is the largest difference of three losses from eager's, relative to
them, "refused" with the reason, or "fell back" where calls are left to PyTorch.
"""

import copy
import sys
import warnings

import peft
import torch
import transformers

import caesura

MODELS = {  # the model, the layers that adapters go to, its norms, and its task
    "Llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        bos_token_id=1, eos_token_id=2)), ["q_proj", "v_proj"], ["input_layernorm"], "CAUSAL_LM"),
    "BERT": (lambda: transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)), ["query", "value"], ["LayerNorm"], "SEQ_CLS"),
}
KINDS = {  # by the names of the papers: a configuration for these layers, or norms
    "LoRA": lambda layers, norms: peft.LoraConfig(target_modules=layers),
    "DoRA": lambda layers, norms: peft.LoraConfig(target_modules=layers, use_dora=True),
    "AdaLoRA": lambda layers, norms: peft.AdaLoraConfig(target_modules=layers, total_step=100),
    "IA3": lambda layers, norms: peft.IA3Config(target_modules=layers, feedforward_modules=[]),
    "LoHa": lambda layers, norms: peft.LoHaConfig(target_modules=layers, init_weights=False),
    "LoKr": lambda layers, norms: peft.LoKrConfig(target_modules=layers, init_weights=False),
    "OFT": lambda layers, norms: peft.OFTConfig(target_modules=layers, oft_block_size=8),
    "BOFT": lambda layers, norms: peft.BOFTConfig(target_modules=layers, boft_block_size=4),
    "VeRA": lambda layers, norms: peft.VeraConfig(target_modules=layers, r=8),
    "FourierFT": lambda layers, norms: peft.FourierFTConfig(target_modules=layers, n_frequency=20),
    "HRA": lambda layers, norms: peft.HRAConfig(target_modules=layers),
    "LN tuning": lambda layers, norms: peft.LNTuningConfig(target_modules=norms),
    "prefix tuning": lambda layers, norms: peft.PrefixTuningConfig(num_virtual_tokens=4),
    "prompt tuning": lambda layers, norms: peft.PromptTuningConfig(num_virtual_tokens=4),
}
STEPS = 3


def make(model, kind):
    """The model with an adapter, and a batch."""
    torch.manual_seed(0)
    build, layers, norms, task = MODELS[model]
    config = KINDS[kind](layers, norms)
    config.task_type = task
    adapted = peft.get_peft_model(build(), config).train()
    tokens = torch.randint(2, 64, (2, 9))
    return adapted, {"input_ids": tokens, "labels": tokens if task == "CAUSAL_LM" else torch.tensor([0, 1])}


def losses(model, batch, route):
    """The losses of STEPS updates."""
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    torch.manual_seed(1)
    if route == "compile_step":
        step = caesura.compile_step(model, None, optimizer, masks="pytorch")
        return [step(**batch).item() for _ in range(STEPS)]
    found, forward = [], caesura.wrap(model) if route == "wrap" else model
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = forward(**batch).loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def compare(model, kind, route):
    torch._dynamo.reset()
    caesura.reports.reset()
    adapted, batch = make(model, kind)
    expected = losses(copy.deepcopy(adapted), batch, "eager")
    try:
        found = losses(adapted, batch, route)
    except caesura.StepRefused as error:
        return "refused: " + " ".join(str(error).split())
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, expected))
    return f"{worst:.1e}" + (", fell back" if caesura.stats().fallbacks else "")


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    columns = [(model, route) for model in MODELS for route in ("compile_step", "wrap")]
    print("| adapter |", " | ".join(f"{model}, {route}" for model, route in columns), "|")
    print("|---" * (1 + len(columns)) + "|")
    for kind in sys.argv[1:] or KINDS:
        print(f"| {kind} |", " | ".join(compare(model, kind, route) for model, route in columns), "|", flush=True)


if __name__ == "__main__":
    main()
