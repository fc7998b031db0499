# SPDX-License-Identifier: Apache-2.0
"""How far PyTorch modules train through caesura: transformers' architectures, tiny and with random weights.

    python benchmarks/architectures.py                        all of them (an hour or two)
    python benchmarks/architectures.py --only llama,bert      those whose model type contains one of these
    python benchmarks/architectures.py --task causal masked   those tasks
    python benchmarks/architectures.py --json result.json     also as a file, written as it goes; goes on from it

Each architecture and task is one process: the module runs in eager PyTorch and through caesura.wrap (same weights, same
inputs, dropout 0, float32), and the loss and every gradient are compared. Printed for each: agree, differ, left to eager
(agrees, but most of its time is spent in calls that stay with PyTorch, or in frames that dynamo refused), error, or not
runnable in eager, with a reason.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import time

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
TOLERANCE = 1e-3  # of a gradient's largest element
KERNEL_SHARE = 0.5  # below it the architecture counts as left to eager

# Sizes by the name that configurations give them.
SMALL = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "embedding_size": 32, "word_embed_proj_dim": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8,
    "intermediate_size": 64, "n_inner": 64, "d_ff": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "hidden_dim": 64, "d_inner": 64, "vocab_size": 128, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "type_vocab_size": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_intermediate_size": 32,
    "num_experts_per_tok": 2, "image_size": 32, "patch_size": 8, "num_channels": 3, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "sliding_window": 16, "shared_expert_intermediate_size": 32,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_labels": 3, "attention_window": 8, "block_size": 4, "lru_width": 32, "state_size": 8, "n_group": 1, "topk_group": 1,
}


def shrink(config):
    """Makes a configuration tiny, its parts included, and takes its dropout away."""
    for name, value in list(vars(config).items()):
        if name.startswith("_"):
            continue
        if hasattr(value, "to_dict"):
            shrink(value)
        elif name in SMALL and isinstance(value, int) and not isinstance(value, bool):
            _set(config, name, min(value, SMALL[name]))
        elif isinstance(value, float) and ("drop" in name):
            _set(config, name, 0.0)
    layers = getattr(config, "num_hidden_layers", None)
    kinds = getattr(config, "layer_types", None)
    if kinds and layers and len(kinds) > layers:
        _set(config, "layer_types", (list(dict.fromkeys(kinds)) * layers)[:layers])
    return config


def _set(config, name, value):
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        pass


def inputs_for(task, config):
    """A batch for the task, with labels."""
    import torch

    text = getattr(config, "text_config", config)
    vocabulary = getattr(text, "vocab_size", 128) or 128
    if task == "image":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else size[0]
        return {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), size, size), "labels": torch.tensor([0, 1])}
    if getattr(text, "pad_token_id", None) is None:
        _set(text, "pad_token_id", 0)
    ids = torch.randint(3, vocabulary, (2, 16))
    ids[:, -1] = end if isinstance(end := getattr(text, "eos_token_id", 2), int) else 2  # some heads look for it
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if task == "classification":
        return batch | {"labels": torch.tensor([0, 1])}
    return batch | {"labels": ids.clone()}


def run_one(task, model_type, class_name):
    """(verdict, detail) of one architecture."""
    import copy
    import warnings

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    try:
        cls = getattr(transformers, class_name)
        config = shrink(cls.config_class())
        batch = inputs_for(task, config)
        model = cls(config).train()
        reference = copy.deepcopy(model)
        loss = reference(**batch).loss
        loss.backward()
        again = copy.deepcopy(model)
        other = again(**batch).loss
        if other.item() != loss.item() or not torch.isfinite(loss):
            return "not runnable in eager", "two eager runs differ, or the loss is not finite"
    except Exception as error:  # noqa: BLE001 - whatever a model's own code raises
        return "not runnable in eager", f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"

    import caesura

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.time()
        result = caesura.wrap(model)(**batch)
        result.loss.backward()
        seconds = time.time() - began
    problems = compare(model, reference, result.loss, loss)
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    if problems:
        return "differ", "; ".join(problems[:3])
    report = caesura.report()
    detail = f"{seconds:.1f} s, {breaks} breaks, kernels {report.kernel_share:.0%}"
    if report.fallbacks:
        detail += ", left: " + ", ".join(f"{op} ({why})" for op, why in list(report.fallbacks)[:6])
    if report.kernel_calls == 0 or report.kernel_share < KERNEL_SHARE:
        return "left to eager", detail
    return "agree", detail


def compare(model, reference, loss, expected):
    import torch

    problems = []
    if not torch.allclose(loss, expected, rtol=1e-4, atol=1e-6):
        problems.append(f"loss {loss.item():.6g}, eager {expected.item():.6g}")
    largest = max((p.grad.abs().max().item() for p in reference.parameters() if p.grad is not None), default=0.0)
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        if q.grad is None and p.grad is not None and not p.grad.any():
            continue  # torch.compile's own habit: zeros for what no output that was used depends on
        if (p.grad is None) != (q.grad is None):
            problems.append(f"{name}: gradient {'missing' if p.grad is None else 'where eager has none'}")
        elif q.grad is not None:
            # Where the true gradient is zero, both sides hold the rounding of what cancels.
            away = (p.grad - q.grad).abs().max().item()
            if not away <= TOLERANCE * q.grad.abs().max().item() + 1e-6 * largest:
                problems.append(f"{name}: gradient off by {away:.3g} of {q.grad.abs().max().item():.3g}")
    return problems


def cases(tasks, only):
    from transformers.models.auto import modeling_auto

    for task in tasks:
        for model_type, classes in getattr(modeling_auto, TASKS[task]).items():
            class_name = classes if isinstance(classes, str) else classes[0]
            if not only or any(part in model_type for part in only):
                yield task, model_type, class_name


def in_process(task, model_type, class_name, seconds):
    command = [sys.executable, __file__, "--one", task, model_type, class_name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    except subprocess.TimeoutExpired:
        return "error", f"no end after {seconds} s"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("VERDICT "):
            return tuple(json.loads(line[len("VERDICT "):]))
    return "error", (done.stderr.strip().splitlines() or ["no output"])[-1][:300]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=list(TASKS), choices=list(TASKS), help="tasks to run (default: all)")
    parser.add_argument("--only", default="", help="parts of model types, separated by commas")
    parser.add_argument("--json", type=pathlib.Path, help="results so far; read, and written after each")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one architecture (default: 300)")
    parser.add_argument("--every", type=int, default=1, help="run only every n-th architecture")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("VERDICT " + json.dumps(run_one(*options.one)), flush=True)
        return
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for task, model_type, class_name in list(cases(options.task, [o for o in options.only.split(",") if o]))[::options.every]:
        key = f"{task}/{model_type}"
        if key not in results:
            results[key] = in_process(task, model_type, class_name, options.timeout)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
        print(f"{key:<44} {results[key][0]:<22} {results[key][1]}", flush=True)
    count = collections.Counter(verdict for verdict, _ in results.values())
    runs = sum(count.values()) - count["not runnable in eager"]
    print(", ".join(f"{n} {verdict}" for verdict, n in count.most_common()))
    if runs:
        print(f"agree: {count['agree']} of {runs} that run in eager ({count['agree'] / runs:.1%})")


if __name__ == "__main__":
    main()
