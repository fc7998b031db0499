# SPDX-License-Identifier: Apache-2.0
"""PEFT's LoRA on a small Llama in transformers' Trainer, with accumulation."""

import torch
import transformers
from peft import LoraConfig, get_peft_model

from caesura.integrations.transformers import CaesuraCallback, CaesuraTrainer


def run(loop):
    config = transformers.LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128)
    base = transformers.LlamaForCausalLM(config)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(512, (64, 64))]
    if loop.route == "step":
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0, fused=True)
        step = loop.step(model, None, optimizer, accumulation_steps=2, clip_norm=1.0)
        while True:
            for at in range(0, 64, 8):
                for part in (rows[at : at + 4], rows[at + 4 : at + 8]):
                    ids = torch.stack([row["input_ids"] for row in part])
                    loop.record(step(input_ids=ids, labels=ids) / 2)  # as the Trainer divides it
                loop.done()
    loop.hook()
    arguments = transformers.TrainingArguments("out", max_steps=10**6, use_cpu=True, report_to=[], save_strategy="no", learning_rate=1e-3,
                                               per_device_train_batch_size=4, gradient_accumulation_steps=2, optim="adamw_torch_fused",
                                               disable_tqdm=True, train_sampling_strategy="sequential",
                                               torch_compile=loop.route in ("compile", "autotune"))
    if loop.route == "loop":
        trainer = CaesuraTrainer(model, arguments, train_dataset=rows, step_options={"masks": "pytorch"})
        loop.watch(trainer)
    else:
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[CaesuraCallback()] if loop.route == "wrap" else [])
    trainer.train()
