# SPDX-License-Identifier: Apache-2.0
"""Checks that transformers' architectures train through caesura as in eager PyTorch: tiny models, random weights.

    python benchmarks/architectures.py                        all of them (an hour or two)
    python benchmarks/architectures.py --only llama,bert      model types that contain one of these
    python benchmarks/architectures.py --task causal masked   only these tasks
    python benchmarks/architectures.py --results all.jsonl    also write results to a file, and resume from it
    python benchmarks/architectures.py --steps                through caesura.compile_step: whole steps

Each architecture and task is one process: the module runs in eager PyTorch and through caesura.wrap (same weights,
same inputs, dropout 0, float32). The loss and every gradient are compared, and again in float64 if they differ.
It prints one verdict for each, with a reason: agree; differ; mostly eager (agrees, but more than half of the captured
graphs' time is spent in calls that stay with PyTorch); left to eager (Dynamo captured no graph); error; chaotic
(eager's own losses in float32 and float64 differ, or its gradients are only rounding, so no comparison is possible);
captured otherwise (torch.compile with its eager backend differs from eager in the same way, because the module behaves
differently when it is traced); or not runnable in eager. --steps compares 5 losses of SGD, and may refuse a module.
"""

import argparse
import collections
import copy
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import time

TASKS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}
TOLERANCE = 1e-3  # of a gradient's largest element; the loss is ten times as close
TOLERANCE64 = 1e-4  # the same in float64: an epsilon in an ONNX attribute is a float32; MobileNet V2 makes 3.5e-5 of that
CHAOTIC = 1e-2  # relative distance between eager's losses in float32 and float64 from which no comparison is possible
VANISHED = 1e-20  # of the loss: smaller gradients are only rounding
SLACK = 10  # allowed multiple of eager's own float32 error for a net that float32 is too coarse for
KERNEL_SHARE = 0.5  # an architecture with a smaller share counts as mostly eager

# Sizes by their names in configurations: first the counts of layers and the like, then the widths.
COUNTS = {
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "vocab_size": 128, "decoder_vocab_size": 128,
    "vocab_size_per_layer_input": 128, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "type_vocab_size": 2,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "image_size": 32,
    "num_channels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "sliding_window": 16, "num_labels": 3, "attention_window": 8, "block_size": 4, "n_group": 1, "topk_group": 1,
    "num_kv_shared_layers": 0, "zero_expert_num": 2, "moe_topk": 2, "num_blocks": 2, "encoder_hash_byte_group_vocab": 128,
    "mamba_chunk_size": 16, "chunk_size": 16,
    "attn_layer_period": 2, "attn_layer_offset": 1, "first_k_dense_replace": 1,
}
WIDTHS = {
    "hidden_size": 32, "hidden_size_global": 32,
    "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "embedding_size": 32, "word_embed_proj_dim": 32,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "intermediate_size": 64, "n_inner": 64,
    "d_ff": 64, "ffn_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "hidden_dim": 64, "d_inner": 64,
    "moe_intermediate_size": 32, "expert_ffn_hidden_size": 32, "ffn_hidden_size": 64, "patch_size": 8,
    "shared_expert_intermediate_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "index_head_dim": 8, "index_n_heads": 4, "lru_width": 32, "state_size": 8,
    "rotary_dim": 8, "coordinate_size": 4, "shape_size": 8, "expand": 1, "mamba_n_heads": 8, "mamba_d_head": 8,
    "mamba_d_ssm": 64, "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1,
    "hidden_size_per_layer_input": 16, "laurel_rank": 8, "kv_channels": 8, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_head_dim": 8,
    "linear_num_heads": 4, "n_groups": 1, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 4,
    "moe_shared_expert_intermediate_size": 32, "shared_intermediate_size": 32,
}
STEPS, LEARNING_RATE = 5, 0.01  # of --steps
# Sizes of stages, one number each.
STAGES = {"depths": 1, "num_heads": 2}
LISTS = {"axial_pos_embds_dim": [8, 24], "axial_pos_shape": [4, 4]}
# Values that some configurations leave unset although their models need them.
NEEDED = {
    "vocab_size": 128, "head_dim": 8, "num_key_value_heads": 4, "mask_token_id": 3, "default_language": "en_XX",
    "decoder_start_token_id": 1, "pad_token_id": 0, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "layer_types": ["full_attention"], "attn_layer_indices": [1], "indexer_n_heads": 2, "indexer_kv_heads": 1,
    "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 4,
}
PER_LAYER = ("layer_types", "block_types")  # lists of kinds


def smaller(name, value, sizes):
    """Returns a configuration's value made smaller; dropout becomes 0."""
    if "drop" in name and isinstance(value, float):
        return 0.0
    if "drop" in name and isinstance(value, (list, tuple)) and all(isinstance(v, float) for v in value):
        return [0.0] * len(value)
    if name in sizes and isinstance(value, int) and not isinstance(value, bool):
        return min(value, sizes[name])
    if name in LISTS:
        return LISTS[name]
    if name in STAGES and isinstance(value, (list, tuple)):
        return [min(v, STAGES[name]) if isinstance(v, int) else v for v in value]
    return value


def shrink(config, sizes, extra=(), needed=NEEDED):
    """Rebuilds `config`, and the configurations in it, with smaller sizes, so that derived values follow."""
    layers = getattr(config, "num_hidden_layers", None)
    given = dict(extra)
    kinds = 2
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("transformers_version", "model_type", "dtype"):
            continue
        if hasattr(value, "to_dict"):
            given[name] = shrink(value, sizes, needed=needed)
        elif isinstance(value, (list, tuple)) and (name in PER_LAYER or len(value) == layers) and all(
                isinstance(v, (str, int)) for v in value):
            given[name] = list(dict.fromkeys(value))  # each kind once
            kinds = max(kinds, len(given[name]))
        elif value is None and name in needed:
            given[name] = needed[name]
        elif (small := smaller(name, value, sizes)) is not value:
            given[name] = small
    for name, value in given.items():
        if name in COUNTS and "layers" in name and name != "num_kv_shared_layers":
            given[name] = min(getattr(config, name), kinds)
        elif name in PER_LAYER or isinstance(value, list) and len(getattr(config, name) or ()) == layers:
            given[name] = (value * kinds)[:kinds]
    return type(config)(**given)


def inputs_for(task, config, cls, count=2, length=16):
    """Returns a batch of that many samples for the task, with labels."""
    import torch

    text = getattr(config, "text_config", config)
    vocabulary = getattr(text, "vocab_size", 128) or 128
    classes = torch.arange(count) % 2
    if task == "image" and cls.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 32)
        size = size if isinstance(size, int) else size[0]
        return {"pixel_values": torch.randn(count, getattr(config, "num_channels", 3), size, size), "labels": classes}
    ids = torch.randint(3, vocabulary, (count, length))
    ids[:, -1] = end if isinstance(end := getattr(text, "eos_token_id", 2), int) else 2  # some heads look for it
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if task == "image":
        return {"input_ids": ids, "labels": classes}
    if task == "classification":
        return batch | {"labels": classes}
    return batch | {"labels": ids.clone()}


def build(task, class_name, sizes, needed=NEEDED, **batch_sizes):
    """Returns (model, batch) of an architecture at those sizes. Errors of the model's code are passed on."""
    import torch
    import transformers

    cls = getattr(transformers, class_name)
    extra = {"decoder_start_token_id": 1} if task in ("seq2seq", "classification") else {}
    if task == "causal":
        extra["is_decoder"] = True
    torch.manual_seed(0)
    config = shrink(cls.config_class(), sizes, extra, needed)
    batch = inputs_for(task, config, cls, **batch_sizes)
    return cls(config).train(), batch


def runnable(task, class_name):
    """Returns (model, batch, copy with eager's gradients, its loss). Errors of the model's code are passed on."""
    import torch

    errors = []
    # Widths that do not fit each other stay as they are. Models that depend on the image size get large images.
    small = COUNTS | WIDTHS
    tries = (small, COUNTS, small | {"image_size": 224}, COUNTS | {"image_size": 224}) if task == "image" else (
        small, small | {"num_key_value_heads": 4}, COUNTS)
    for sizes in tries:
        try:
            model, batch = build(task, class_name, sizes)
            model.initial = copy.deepcopy(model.state_dict())
            reference = copy.deepcopy(model)
            loss = reference(**batch).loss
            loss.backward()
            other = copy.deepcopy(model)(**batch).loss
            if other.item() != loss.item() or not torch.isfinite(loss):
                raise RuntimeError("two eager runs differ, or the loss is not finite")
            return model, batch, reference, loss
        except Exception as error:  # noqa: BLE001 - whatever a model's own code raises
            errors.append(error)
    raise errors[0]


def other_sizes(task, model, reference, wrapped):
    """Lists the differences when the wrapped model continues with batches of other sizes."""
    import torch

    problems = []
    for count, length in ((3, 11), (2, 21), (4, 11)):
        batch = inputs_for(task, model.config, type(model), count, length)
        try:
            reference.zero_grad()
            torch.manual_seed(count)  # some draw random numbers
            loss = reference(**batch).loss
            loss.backward()
        except Exception:  # noqa: BLE001 - sizes that the model does not take
            continue
        model.zero_grad()
        torch.manual_seed(count)
        result = wrapped(**batch)
        result.loss.backward()
        problems += [f"{count} x {length}: {problem}" for problem in compare(model, reference, result.loss, loss)]
    return problems


def run_one(task, model_type, class_name, changing=False, steps=False):
    """(verdict, detail) of one architecture."""
    import warnings

    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        model, batch, reference, loss = runnable(task, class_name)
    except Exception as error:  # noqa: BLE001
        return "not runnable in eager", f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"

    if steps:
        return run_steps(model, batch, reference)
    import caesura

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.time()
        wrapped = caesura.wrap(model)
        result = wrapped(**batch)
        result.loss.backward()
        seconds = time.time() - began
    problems = compare(model, reference, result.loss, loss)
    judged = ""
    largest = max(size(p.grad) for p in reference.parameters() if p.grad is not None)
    if problems and largest < VANISHED * loss.abs().item():
        return "chaotic", f"eager's gradients vanish: the largest is {largest:.2g}"
    if problems:  # float32 may be too coarse for this net: eager itself is then as far from the truth
        try:
            exact, in_double = in_float64(model, batch)
        except RuntimeError:  # PyTorch has no such kernel in float64
            exact, in_double = None, []
        if exact is not None and abs(loss.item() - exact.loss.item()) > CHAOTIC * abs(exact.loss.item()):
            return "chaotic", f"eager's loss is {loss.item():.6g} in float32, {exact.loss.item():.6g} in float64"
        if not in_double and not compare(model, reference, result.loss, loss, own_errors(reference, batch, loss, exact)):
            way = "in float64" if exact is not None else "but for rounding"
            judged, problems = f", {way} (eager's own float32 is as far off: {problems[0]})", []
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    if problems and not compare(model, *captured(reference, batch, result.loss)):
        return "captured otherwise", f"so does torch.compile with the eager backend: {problems[0]}"
    if changing and not problems and not judged:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problems = other_sizes(task, model, reference, wrapped)
    if problems:
        return "differ", "; ".join(problems[:3])
    report = caesura.stats()
    detail = f"{seconds:.1f} s, {breaks} breaks, kernels {report.kernel_share:.0%}{judged}"
    if report.fallbacks:
        detail += ", left: " + ", ".join(f"{op} ({why})" for op, why in list(report.fallbacks)[:6])
    if report.kernel_calls == 0:
        return "left to eager", detail
    return "agree" if report.kernel_share >= KERNEL_SHARE else "mostly eager", detail


def run_steps(model, batch, reference):
    """run_one's (verdict, detail), through compile_step."""
    import warnings

    import caesura
    import torch

    reference.load_state_dict(model.initial)
    expected = train_in_eager(reference, batch)
    model.load_state_dict(model.initial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.time()
        step = caesura.compile_step(model, None, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE))
        try:
            losses = [step(**batch).item()]
        except caesura.StepRefused as refused:
            lines = [line.strip() for line in str(refused).splitlines() if line.strip()]
            return "refused", " ".join(lines[1:3])[:200]
        seconds = time.time() - began
        losses += [step(**batch).item() for _ in range(STEPS - 1)]
    least = max(1e-6, 0.01 * abs(expected[0]))  # a loss of almost zero is only rounding
    off = [abs(a - b) / max(abs(b), least) for a, b in zip(losses, expected)]
    detail = f"{seconds:.1f} s, losses within {max(off):.1e}"
    left = [f"{op} ({why})" for op, why in caesura.stats().fallbacks]
    if left:
        detail += ", left: " + ", ".join(left[:6])
    if max(off) <= 0.1 * TOLERANCE:
        return "agree", detail
    exact = copy.deepcopy(reference).double()
    exact.load_state_dict(model.initial)
    try:
        in_double = train_in_eager(exact, {name: x.double() if x.is_floating_point() else x for name, x in batch.items()})
    except RuntimeError as error:  # PyTorch has no such kernel in float64
        return "differ", f"{detail}; not in float64: {error}"
    own = max(abs(a - b) / max(abs(b), least) for a, b in zip(expected, in_double))
    return ("chaotic" if own > 0.1 * max(off) else "differ"), f"{detail}; eager's own float32 within {own:.1e}"


def train_in_eager(module, batch):
    """The losses of STEPS steps."""
    import torch

    optimizer, losses = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE), []
    for _ in range(STEPS):
        loss = module(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def captured(reference, batch, loss):
    """Returns the arguments of `compare` after the model, computed by torch.compile with its eager backend."""
    import torch

    other = copy.deepcopy(reference)
    other.zero_grad()
    torch._dynamo.reset()
    expected = torch.compile(other, backend="eager")(**batch).loss
    expected.backward()
    return other, loss, expected


def in_float64(model, batch):
    """Runs the module in float64. Returns (eager's copy with its gradients and loss, the differences of caesura's)."""
    import caesura

    batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
    exact, wrapped = copy.deepcopy(model).double(), copy.deepcopy(model).double()
    for copied in (exact, wrapped):
        copied.load_state_dict(model.initial)
        copied.zero_grad()
    exact.loss = exact(**batch).loss
    exact.loss.backward()
    result = caesura.wrap(wrapped)(**batch)
    result.loss.backward()
    return exact, compare(wrapped, exact, result.loss, exact.loss, tolerance=TOLERANCE64)


def size(tensor):
    """The largest absolute value."""
    return tensor.abs().max().item() if tensor.numel() else 0.0


def own_errors(reference, batch, loss, exact):
    """Returns eager's own float32 error: name to the largest distance in that gradient, "" to that of the loss.

    The distance is to float64's result, if there is one, and to results with weights changed by one rounding. Such a
    change can switch a ReLU whose input is about zero.
    """
    import torch

    def distances(module, its_loss):
        grads = {name: p.grad for name, p in module.named_parameters()}
        return {"": (loss - its_loss).abs().item()} | {
            name: size(q.grad - grads[name]) for name, q in reference.named_parameters()
            if q.grad is not None and grads[name] is not None}

    errors = {} if exact is None else distances(exact, exact.loss)
    for _ in range(4):
        moved = copy.deepcopy(reference)
        moved.zero_grad()
        with torch.no_grad():
            for p in moved.parameters():
                p.mul_(1 + torch.finfo(p.dtype).eps / 2 * torch.randn_like(p))
        moved_loss = moved(**batch).loss
        moved_loss.backward()
        for name, distance in distances(moved, moved_loss).items():
            errors[name] = max(errors.get(name, 0.0), distance)
    return errors


def compare(model, reference, loss, expected, errors=None, tolerance=TOLERANCE):
    """Lists the differences as texts. errors: eager's own errors, of which SLACK times as much is allowed."""
    problems, errors = [], errors or {}
    allowed = 0.1 * tolerance * expected.abs().item() + 1e-3 * tolerance + SLACK * errors.get("", 0.0)
    if not (loss - expected).abs().item() <= allowed:
        problems.append(f"loss {loss.item():.6g}, eager {expected.item():.6g}")
    largest = max((size(p.grad) for p in reference.parameters() if p.grad is not None), default=0.0)
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        if q.grad is None and p.grad is not None and not p.grad.any():
            continue  # as torch.compile: zeros for parameters that no used output depends on
        if (p.grad is None) != (q.grad is None):
            problems.append(f"{name}: gradient {'missing' if p.grad is None else 'where eager has none'}")
        elif q.grad is not None:
            # If the true gradient is zero, both sides hold only rounding errors.
            allowed = tolerance * size(q.grad) + 1e-3 * tolerance * largest
            allowed += SLACK * errors.get(name, 0.0)
            away = size(p.grad - q.grad)
            if not away <= allowed:
                problems.append(f"{name}: gradient off by {away:.3g} of {size(q.grad):.3g}")
    return problems


def cases(tasks, only):
    from transformers.models.auto import modeling_auto

    for task in tasks:
        for model_type, classes in getattr(modeling_auto, TASKS[task]).items():
            class_name = classes if isinstance(classes, str) else classes[0]
            if not only or any(part in model_type for part in only):
                yield task, model_type, class_name


def in_process(run, case, seconds):
    """Returns the result of `run` for one case, or ("error", why). A forked process runs it; PyTorch is imported once.

    seconds: CPU time, so that a busy machine does not matter.
    """
    def child():
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        sender.send(run(*case))

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child)
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(100 * seconds) else ("error", "waits for something")
    except EOFError:  # its traceback is on stderr
        process.join()
        ended = -process.exitcode in (signal.SIGXCPU, signal.SIGKILL)
        return "error", f"no end after {seconds} s" if ended else f"the process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def read_results(path):
    """Case to (verdict, detail), from the lines of an earlier run."""
    if not path or not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {line["case"]: (line["verdict"], line["detail"]) for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=list(TASKS), choices=list(TASKS), help="tasks to run (default: all)")
    parser.add_argument("--only", default="", help="parts of model types, separated by commas")
    parser.add_argument("--results", type=pathlib.Path, help="a file of JSON lines: cases in it are not run again, others appended")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of computing for one architecture (default: 300)")
    parser.add_argument("--every", type=int, default=1, help="run only every n-th architecture")
    parser.add_argument("--changing", action="store_true", help="also go on with batches of other sizes and lengths")
    parser.add_argument("--steps", action="store_true", help="whole steps, through caesura.compile_step")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import caesura.backend  # noqa: F401 - imported once for all cases
    import torch._dynamo  # noqa: F401
    import transformers  # noqa: F401

    results = read_results(options.results)
    for task, model_type, class_name in list(cases(options.task, [o for o in options.only.split(",") if o]))[::options.every]:
        key = f"{task}/{model_type}"
        if key not in results:
            case = (task, model_type, class_name, options.changing, options.steps)
            results[key] = in_process(run_one, case, options.timeout)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps({"case": key, "verdict": results[key][0], "detail": results[key][1]}) + "\n")
        print(f"{key:<44} {results[key][0]:<22} {results[key][1]}", flush=True)
    count = collections.Counter(verdict for verdict, _ in results.values())
    runs = sum(count.values()) - count["not runnable in eager"] - count["chaotic"]
    print(", ".join(f"{n} {verdict}" for verdict, n in count.most_common()))
    if runs:
        print(f"agree: {count['agree']} of {runs} that run in eager ({count['agree'] / runs:.1%})")


if __name__ == "__main__":
    main()
