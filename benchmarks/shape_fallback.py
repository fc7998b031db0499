#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts copies and waits of real models on a device, for each mode of the CPU fallback of shape chains.

It exports small Llama, GPT-2, BERT and T5 models with dynamic batch and sequence, and captures the same models through
torch.compile with symbolic sizes ("captured": the forward's programs, "captured f+b": the backward's as well). It
prints the counts of benchmarks/shape_fallback.cc for a run of each.

usage: shape_fallback.py [--program build/bin/shape_fallback] [model ...]
"""

import argparse
import collections
import json
import pathlib
import subprocess
import tempfile

import torch
import transformers

import caesura
from caesura.runtime.graph_executor import Program

BATCH, SEQUENCE = 2, 100  # ids of 200 elements: data, not shapes
SIZES = {"vocab_size": 96}


def llama():
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=128, use_cache=False, **SIZES)
    return transformers.LlamaForCausalLM(config), ["input_ids", "attention_mask"]


def gpt2():
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, use_cache=False, **SIZES)
    return transformers.GPT2LMHeadModel(config), ["input_ids", "attention_mask"]


def bert():
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                                     max_position_embeddings=128, **SIZES)
    return transformers.BertForMaskedLM(config), ["input_ids", "attention_mask"]


def t5():
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False,
                                   decoder_start_token_id=0, attn_implementation="eager", **SIZES)
    return transformers.T5ForConditionalGeneration(config), ["input_ids", "attention_mask", "decoder_input_ids"]


MODELS = {"llama": llama, "gpt2": gpt2, "bert": bert, "t5": t5}


class Logits(torch.nn.Module):
    """Takes tensors in order and returns only the first output, as an exporter needs it."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs)))[0]


def export(name, path):
    model, names = MODELS[name]()
    inputs = tuple(torch.ones(BATCH, SEQUENCE, dtype=torch.int64) for _ in names)
    batch, sequence = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("sequence", min=4, max=120)
    program = torch.onnx.export(Logits(model.eval(), names), inputs, dynamo=True, input_names=names,
                                dynamic_shapes=(tuple({0: batch, 1: sequence} for _ in names),), verbose=False)
    program.save(str(path))
    return [f"{given}={BATCH},{SEQUENCE}" for given in names]


def capture(name, folder):
    """Runs forward and backward once through caesura.wrap. Returns (path, inputs) of the forward's and all programs."""
    runs, run = [], Program.__call__

    def recording(program, values):
        runs.append((program.model, [v if isinstance(v, int) else list(v.shape) for v in values]))
        return run(program, values)

    model, names = MODELS[name]()
    module = caesura.wrap(Logits(model.train(False), names), dynamic=True)
    Program.__call__ = recording
    try:
        loss = module(*(torch.ones(BATCH, SEQUENCE, dtype=torch.int64) for _ in names)).sum()
        forward = len(runs)
        loss.backward()
    finally:
        Program.__call__ = run
    programs = []
    for number, (proto, values) in enumerate(runs):
        path = folder / f"{name}_{number}.onnx"
        path.write_bytes(proto.SerializeToString())
        programs.append((path, [f"{given.name}:={value}" if isinstance(value, int) else
                                f"{given.name}={','.join(map(str, value))}"
                                for given, value in zip(proto.graph.input, values)]))
    return programs[:forward], programs


def measure(program, path, inputs):
    run = subprocess.run([program, str(path), *inputs], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"{path.stem}: {run.stderr.strip()}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def show(name, row):
    print(f"{name:6} {row['pass']:16} {row['shapes']:8} {row['mode']:8} {row['nodes']:6} {row['moved']:6} "
          f"{row['kernels']:8} {row['to_device']:5} ({row['to_device_bytes']:6} B) {row['to_host']:5} "
          f"({row['to_host_bytes']:6} B) {row['waits']:6}")


def main():
    parser = argparse.ArgumentParser()
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--program", default=str(root / "build/bin/shape_fallback"))
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    print(f"{'model':6} {'pass':16} {'shapes':8} {'mode':8} {'nodes':>6} {'moved':>6} {'kernels':>8} {'to device':>16} "
          f"{'to host':>16} {'waits':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = pathlib.Path(folder) / f"{name}.onnx"
            shapes = export(name, path)
            for row in measure(options.program, path, shapes):
                show(name, row)
            for label, programs in zip(("captured", "captured f+b"), capture(name, pathlib.Path(folder))):
                sums = collections.defaultdict(collections.Counter)
                for path, inputs in programs:
                    for row in measure(options.program, path, inputs):
                        if row["shapes"] == "inputs" and row["pass"] == "forward":
                            sums[row["mode"]].update({k: v for k, v in row.items() if isinstance(v, int)})
                for mode, row in sums.items():
                    show(name, {**row, "pass": label, "shapes": "inputs", "mode": mode})


if __name__ == "__main__":
    main()
