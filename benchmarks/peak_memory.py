# SPDX-License-Identifier: Apache-2.0
"""Predicts what a first step adds to a process's memory, and measures it, for the workloads of python -m caesura.bench.

    python benchmarks/peak_memory.py                            tiny-mlp, mlp, chargpt, llama, resnet18, gpt2
    python benchmarks/peak_memory.py chargpt --route session    one of them, by one route

Each line is its own process. It makes the model and the step, asks for memory(), and takes a step. "Grown" is the high-water mark of
resident memory within the step, minus what was resident before it; files (code) are not in it, and have a column of their own.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

WORKLOADS = ["tiny-mlp", "mlp", "chargpt", "llama", "resnet18", "gpt2"]


def status(key):
    """Bytes of an entry of this process's /proc/self/status."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def compile_step(workload, x, y):
    """(memory, what the first step adds by it, the step)."""
    import torch

    import caesura

    module = workload.module()
    batch = torch.from_numpy(x), torch.from_numpy(y)
    step = caesura.compile_step(module, torch.nn.functional.cross_entropy, torch.optim.AdamW(module.parameters(), lr=3e-4))
    memory = step.memory(*batch)
    return memory, memory.arena, lambda: float(step(*batch))


def session(folder, x, y):
    """The same of the workload's ONNX model; the optimizer's state is written to first in the first step."""
    import caesura

    made = caesura.TrainingSession(folder / "model.onnx", class_axis=-1)
    feeds = {"x": x, "target": y}
    memory = made.memory(feeds)
    return memory, memory.arena + memory.optimizer_state, lambda: made.step(feeds)


def measure(name, route, folder):
    """Prints what a route's first step was predicted to take, and took. "export" writes the model for the session."""
    from caesura.bench.export import write_onnx
    from caesura.bench.worker import reset_peak
    from caesura.bench.workloads import find

    if route == "export":
        write_onnx({"workload": name}, folder)
        return
    x, y = find(name).batches()[0]
    memory, predicted, step = compile_step(find(name), x, y) if route == "compile_step" else session(folder, x, y)
    reset_peak()
    before, files = status("VmRSS"), status("RssFile")
    step()
    files = status("RssFile") - files
    print(json.dumps({"memory": memory, "predicted": predicted, "grown": status("VmHWM") - before - files, "files": files}))


def run(*arguments):
    """The last line that this file prints in a process of its own."""
    ended = subprocess.run([sys.executable, "-W", "ignore", __file__, *arguments], text=True, capture_output=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr)
    return ended.stdout.splitlines()[-1:] or [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=WORKLOADS, help="of python -m caesura.bench")
    parser.add_argument("--route", nargs="*", default=["compile_step", "session"])
    parser.add_argument("--of", help="a route, in this process")
    parser.add_argument("--folder", type=pathlib.Path, help="with the workload's model.onnx")
    options = parser.parse_args()
    if options.of:
        measure(options.workloads[0], options.of, options.folder)
        return
    print("| workload | route | parameters | gradients | optimizer state | arena | peak | first step predicted | grown | ratio | code |")
    print("|---" * 11 + "|")
    for name in options.workloads:
        with tempfile.TemporaryDirectory() as folder:
            if "session" in options.route:
                run(name, "--of", "export", "--folder", folder)
            for route in options.route:
                found = json.loads(run(name, "--of", route, "--folder", folder)[0])
                numbers = [f"{n / 1e6:.2f}" for n in (*found["memory"], found["predicted"], found["grown"])]
                print("|", " | ".join([name, route, *numbers, f"{found['grown'] / found['predicted']:.3f}", f"{found['files'] / 1e6:.2f}"]),
                      "|", flush=True)


if __name__ == "__main__":
    main()
