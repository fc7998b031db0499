# SPDX-License-Identifier: Apache-2.0
"""The step that gpt2_step.cc times, in PyTorch on a GPU: forward, cross-entropy, backward, clipping, fused AdamW.

Prints figures as a JSON object. Ends with 77 where there is no PyTorch or no GPU for it.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import sys
import time


def models():
    """caesura's models of PyTorch's, which lie beside this file in a pack (gpu_check.py)."""
    here = pathlib.Path(__file__).resolve().parent
    path = next(p for p in (here / "models.py", here.parents[1] / "torch_bridge/python/caesura/bench/models.py") if p.exists())
    spec = importlib.util.spec_from_file_location("models", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 768), ("heads", 12), ("time", 1024), ("vocabulary", 50257), ("batch", 8),
                          ("steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=("bf16", "fp32", "tf32"), default="bf16",
                        help="fp32: without TF32")
    parser.add_argument("--compile", nargs="?", const="reduce-overhead", metavar="MODE", help="torch.compile in this mode; "
                        "none named: reduce-overhead, which has CUDA graphs")
    given = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("there is no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        return 77
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = given.precision == "tf32"
    torch.set_default_device("cuda")
    shapes = models()
    net = shapes.Gpt(shapes.GptSizes(layers=given.layers, width=given.width, heads=given.heads, time=given.time,
                                     vocabulary=given.vocabulary, activation="gelu-tanh", tied=True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, eps=1e-6, weight_decay=0.1, fused=True)
    tokens, following = torch.randint(given.vocabulary, (2, given.batch, given.time))

    def loss_of(tokens, following):
        with torch.autocast("cuda", torch.bfloat16, enabled=given.precision == "bf16"):
            return torch.nn.functional.cross_entropy(net(tokens), following.flatten())

    if given.compile:
        loss_of = torch.compile(loss_of, mode=given.compile)
    times, loss = [], 0.0
    untimed = max(3, given.steps // 4)
    for i in range(untimed + given.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        value = loss_of(tokens, following)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        loss = value.item()  # waits, as caesura's step does
        if i == 0:
            print(f"first step: {time.perf_counter() - begin:.1f} s, loss {loss:.5f}", flush=True)
        if i >= untimed:
            times.append(1e3 * (time.perf_counter() - begin))
    system = f"torch.compile, {given.compile}" if given.compile else "PyTorch eager"
    print(json.dumps({"system": system, "version": torch.__version__, "precision": given.precision,
                      "batch": given.batch, "time": given.time, "milliseconds": statistics.median(times), "fastest": min(times),
                      "slowest": max(times), "tokens_per_second": 1e3 * given.batch * given.time / statistics.median(times),
                      "loss": loss}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
