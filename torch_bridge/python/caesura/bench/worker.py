# SPDX-License-Identifier: Apache-2.0
"""The process that trains one workload in one system, a round at a time.

    python -m caesura.bench.worker SYSTEM FOLDER             serves: one line of JSON up when ready, then one a round
    python -m caesura.bench.worker SYSTEM FOLDER --capture   only makes what the system loads, in FOLDER

FOLDER is what export.prepare wrote. Ready: first steps, losses, memory. Then each line on stdin holds how many steps to
take (0: as many as make a round) and is answered with {"seconds": of all of them, "steps": how many}. A failure is
a line {"error": text}, and the end of the process. Standard output is the protocol's: what a library prints goes to
stderr.
"""

import importlib
import json
import os
import pathlib
import sys
import time

import numpy as np

from .processes import available_bytes
from .systems import SYSTEMS

LOSSES = 5             # steps whose losses are compared; the first of them is the first step
ROUND_SECONDS = 0.02   # a round takes at least so long
WARM_SECONDS = 0.3


def resident_bytes(key: str = "VmRSS") -> int:
    """Linux: memory of this process now, or its peak ("VmHWM")."""
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pass  # the peak is then that of the whole process


class Runner:
    """A loaded system and its batches, with what its first steps were like."""

    def __init__(self, load, system: str, folder: pathlib.Path, job: dict):
        with np.load(folder / "batches.npz") as file:
            arrays = [(file[f"x{i}"], file[f"y{i}"]) for i in range(job["batches"])]
        # The host of a virtual machine takes back memory that lies free there; what it takes to bring it again, up to 2 ms
        # a megabyte, is no system's own. So about as much as a step needs is touched, and let go, before the clock starts.
        np.ones(min(2**29 + 32 * job["parameters"], available_bytes() // 2), np.uint8)
        reset_peak()
        before, began = resident_bytes(), time.perf_counter()
        self._step, make_batch = load(system, folder, job)
        self._batches = [make_batch(x, y) for x, y in arrays]
        losses = [float(self._step(*self._batches[0]))]
        first_step = time.perf_counter() - began
        load_peak = resident_bytes("VmHWM") - before
        reset_peak()
        losses += [float(self._step(*self._batches[i % len(self._batches)])) for i in range(1, LOSSES)]
        self._warm()
        self.ready = {"first_step_seconds": first_step, "losses": losses, "load_peak_bytes": load_peak,
                      "step_peak_bytes": resident_bytes("VmHWM") - before, "steps": self.steps}

    def _warm(self) -> None:
        """Steps until times have settled; sets how many make a round."""
        began, taken, times = time.perf_counter(), 0, []
        while taken < 3 or (time.perf_counter() - began < WARM_SECONDS and taken < 200):
            times.append(self.round(1))
            taken += 1
        self.steps = max(1, round(ROUND_SECONDS / sorted(times)[len(times) // 2] + 0.5))

    def answer(self, steps: int) -> dict:
        steps = steps or self.steps
        if steps > 1:
            self.round((steps + 1) // 2)  # another process had the caches
        return {"seconds": self.round(steps), "steps": steps}

    def round(self, steps: int) -> float:
        """Seconds of that many steps. The last one's loss is fetched, so that nothing is left running."""
        batches, step, count = self._batches, self._step, len(self._batches)
        began = time.perf_counter()
        for i in range(steps):
            loss = step(*batches[i % count])
        float(loss)
        return time.perf_counter() - began


def serve(module, system: str, folder: pathlib.Path, job: dict, say) -> None:
    own = getattr(module, "Runner", None)
    runner = own(system, folder, job) if own else Runner(module.load, system, folder, job)
    say(runner.ready)
    for line in sys.stdin:
        say(runner.answer(int(line)))


def main() -> int:
    system, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict) -> None:
        protocol.write(json.dumps(answer) + "\n")
        protocol.flush()

    try:
        job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        module = importlib.import_module("." + SYSTEMS[system].module, __package__ + ".systems")
        if "--capture" in sys.argv:
            began = time.perf_counter()
            module.capture(system, folder, job)
            say({"capture_seconds": time.perf_counter() - began})
        else:
            serve(module, system, folder, job, say)
        return 0
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is its answer
        say({"error": " ".join(f"{type(error).__name__}: {error}".split())[:1000]})
        return 1


if __name__ == "__main__":
    sys.exit(main())
