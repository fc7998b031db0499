# SPDX-License-Identifier: Apache-2.0
"""Measures the training speed of transformers' architectures through caesura.wrap: small models with random weights.

    python benchmarks/architecture_speed.py                        all of them (some hours)
    python benchmarks/architecture_speed.py --every 10             every tenth
    python benchmarks/architecture_speed.py --only llama,convnext  those whose model type contains one of these
    python benchmarks/architecture_speed.py --compile              compare with torch.compile too

Uses the models of architectures.py at a larger size: width 256, two layers or two blocks a stage, 4 sequences of 128
tokens or 4 images of 224 x 224 pixels, float32, dropout 0. Each model runs in its own process, in which the module in
eager PyTorch and its copy through caesura.wrap take turns. It prints medians in ms, the ratio of the copy's time to
eager's in the same turn (its median, and the sign test's 95% interval), the capture time, and the calls that PyTorch
ran. Use an idle machine.
"""

import argparse
import copy
import os
import statistics
import time
import warnings

import architectures

WIDTHS = {name: {32: 256, 64: 1024}.get(size, size) for name, size in architectures.WIDTHS.items()} | dict.fromkeys(
    ["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"], 8) | {
    "num_key_value_heads": 4, "head_dim": 32, "d_kv": 32, "rotary_dim": 16, "patch_size": 16, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64, "kv_lora_rank": 64, "kv_channels": 32,
    "moe_intermediate_size": 256, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "mamba_d_head": 32, "state_size": 16,
}
COUNTS = architectures.COUNTS | {
    "vocab_size": 2048, "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256, "image_size": 224,
    "sliding_window": 64, "attention_window": 32, "mamba_chunk_size": 32, "chunk_size": 32, "block_size": 16,
}
NEEDED = architectures.NEEDED | {"head_dim": 32, "num_key_value_heads": 8, "vocab_size": 2048}
BATCH, LENGTH = 4, 128
SECONDS = 300  # of computing, for one architecture


def runnable(task, class_name):
    """Returns (model, batch) for the sizes. Errors of the model's own code are passed on."""
    errors = []
    for sizes in (COUNTS | WIDTHS, COUNTS | WIDTHS | {"num_key_value_heads": 8}, COUNTS):
        try:
            model, batch = architectures.build(task, class_name, sizes, NEEDED, count=BATCH, length=LENGTH)
            model(**batch).loss.backward()
            model.zero_grad()
            return model, batch
        except Exception as error:  # noqa: BLE001 - whatever a model's own code raises
            errors.append(error)
    raise errors[0]


def turn(module, batch) -> float:
    """Seconds of a forward and its backward."""
    began = time.perf_counter()
    module(**batch).loss.backward()
    seconds = time.perf_counter() - began
    module.zero_grad()
    return seconds


def run_one(task, model_type, class_name, seconds, compiled):
    """A line of results."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        model, batch = runnable(task, class_name)
    except Exception as error:  # noqa: BLE001
        return f"not runnable in eager: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"

    import caesura
    from caesura.bench.statistics import ratio

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = {"wrap": caesura.wrap(copy.deepcopy(model)), "eager": model}
        if compiled:
            modules["compile"] = torch.compile(copy.deepcopy(model))
        captured = time.perf_counter()
        turn(modules["wrap"], batch)
        captured = time.perf_counter() - captured
        for _ in range(2):
            for module in modules.values():
                turn(module, batch)
        times = {name: [] for name in modules}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["eager"]) < 6:
            for name, module in modules.items():
                times[name].append(turn(module, batch))
    line = ", ".join(f"{name} {1e3 * statistics.median(t):.1f}" for name, t in times.items()) + " ms"
    for peer in list(modules)[1:]:
        median, low, high = ratio(times["wrap"], times[peer])
        line += f"; of {peer} {median:.2f} [{low:.2f}, {high:.2f}]"
    left = ", ".join(f"{op} ({why})" for op, why in list(caesura.stats().fallbacks)[:4])
    return f"{line}; captured in {captured:.0f} s" + (f"; left: {left}" if left else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=list(architectures.TASKS), choices=list(architectures.TASKS),
                        help="tasks to run (default: all)")
    parser.add_argument("--only", default="", help="parts of model types, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="run only every n-th architecture")
    parser.add_argument("--seconds", type=float, default=5, help="of turns for one architecture (default: 5)")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["CAESURA_PROGRAM_CACHE"] = "off"
    import caesura.backend  # noqa: F401 - imported once for all cases
    import torch._dynamo  # noqa: F401
    import transformers  # noqa: F401

    cases = architectures.cases(options.task, [o for o in options.only.split(",") if o])
    for task, model_type, class_name in list(cases)[::options.every]:
        result = architectures.in_process(run_one, (task, model_type, class_name, options.seconds, options.compile), SECONDS)
        print(f"{task + '/' + model_type:<42} {result if isinstance(result, str) else ': '.join(result)}", flush=True)


if __name__ == "__main__":
    main()
