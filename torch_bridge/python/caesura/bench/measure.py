# SPDX-License-Identifier: Apache-2.0
"""One workload in all systems, in turns."""

import contextlib
import pathlib
import tempfile
import time

from .export import prepare
from .processes import PeerError, Worker, available_bytes
from .statistics import largest_difference, ratio, spread
from .systems import SYSTEMS
from .workloads import Workload

PAUSE_SECONDS = 0.05  # spinning threads of the previous system go to sleep in this time
COMPARED = ("caesura", "bound")  # the others' times are compared with these in each lap
REFERENCES = ("eager", "eager-fused", "eager-foreach")  # the first that ran gives the losses to compare with


class _Turns:
    """The workers of one workload and what they answered; a system that fails drops out, with its "error"."""

    def __init__(self, folder: pathlib.Path, threads: int, compile_cache: str):
        self.results = {}
        self._workers, self._captured = {}, {}
        self._folder, self._threads, self._compile_cache = folder, threads, compile_cache

    def start(self, system: str) -> None:
        with self._dropping(system):
            seconds = [self._capture(other) for other in SYSTEMS[system].captures]
            self._workers[system] = self._worker(system)
            self.results[system] = {"rounds": [], **self._workers[system].answer()}
            if seconds:
                self.results[system]["capture_seconds"] = sum(seconds)

    def round(self, number: int) -> None:
        """Round `number` begins with another system than the last one, and goes in the other direction."""
        systems = list(self._workers)
        first = number % max(1, len(systems))
        for system in (systems[first:] + systems[:first])[::-1 if number % 2 else 1]:
            time.sleep(PAUSE_SECONDS)
            with self._dropping(system):
                self.results[system]["rounds"].append(self._workers[system].round())

    def has_room(self) -> bool:
        """True if the machine's memory has room for twice the largest process so far."""
        largest = max((r.get(key, 0) for r in self.results.values() for key in ("load_peak_bytes", "step_peak_bytes")), default=0)
        return available_bytes() > 2 * largest

    def close(self) -> None:
        """Ends the processes; others may be started."""
        for worker in self._workers.values():
            worker.close()
        self._workers, self.results = {}, {}

    @contextlib.contextmanager
    def _dropping(self, system: str):
        try:
            yield
        except PeerError as error:
            self.results[system] = {"error": str(error), **({"install": error.install} if error.install else {})}
            if system in self._workers:
                self._workers.pop(system).close()

    def _worker(self, system: str, capture: bool = False) -> Worker:
        return Worker(system, self._folder, self._threads, self._compile_cache, capture)

    def _capture(self, system: str) -> float:
        """Seconds of the system's capture, which is made once."""
        if system not in self._captured:
            with contextlib.closing(self._worker(system, capture=True)) as worker:
                self._captured[system] = worker.answer()["capture_seconds"]
        return self._captured[system]


def run_workload(workload: Workload, systems: list, rounds: int, threads: int, compile_cache: str = "",
                 progress=lambda text: None) -> dict:
    """Results by system, ready for JSON. Systems that memory has no room for wait for another lap, beside COMPARED again."""
    results, waiting = {}, list(systems)
    with tempfile.TemporaryDirectory(prefix="caesura-bench-") as name:
        job = prepare(workload, pathlib.Path(name), threads)
        with contextlib.closing(_Turns(pathlib.Path(name), threads, compile_cache)) as turns:
            while waiting:
                again = [s for s in COMPARED if s in results]
                while again or (waiting and (len(turns.results) <= len(COMPARED) or turns.has_room())):
                    system = (again or waiting).pop(0)
                    progress(f"{workload.name}: {system}: first steps")
                    turns.start(system)
                for i in range(rounds):
                    progress(f"{workload.name}: round {i + 1} of {rounds}" + (f", {len(waiting)} systems wait" if waiting else ""))
                    turns.round(i)
                lap = _summary(turns.results, results)
                results |= {s: r for s, r in lap.items() if s not in results}
                turns.close()
    progress("")
    return {"name": workload.name, "about": workload.about, "parameters": job["parameters"],
            "dtype": "bfloat16" if workload.bfloat16 else "float32", "matrix_flops": job["matrix_flops"],
            "systems": results}


def _summary(results: dict, before: dict) -> dict:
    """Adds to each system what follows from its rounds and from the others'. before: of laps before this one."""
    times = {system: [r["seconds"] / r["steps"] for r in result["rounds"]]
             for system, result in results.items() if result.get("rounds")}
    reference = next((r[s]["losses"] for s in REFERENCES for r in (before, results) if "losses" in r.get(s, {})), None)
    bound = results.get("bound", {}).get("rounds")
    for system, seconds in times.items():
        result = results[system]
        result["seconds"] = spread(seconds)._asdict()
        if system == "bound":
            parts = ("products", "copy", "bytes_per_second")
            result.update({key: spread([r[key] for r in bound]).median for key in parts})
            continue
        if "caesura" in times and system != "caesura":
            result["caesura_ratio"] = ratio(times["caesura"], seconds)._asdict()
        if "bound" in times:
            result["share_of_bound"] = ratio(times["bound"], seconds).median
        if reference:
            result["loss_difference"] = largest_difference(result["losses"], reference)
    return results
