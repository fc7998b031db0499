# SPDX-License-Identifier: Apache-2.0
"""One workload in all systems, in turns."""

import pathlib
import tempfile

from .processes import PeerError, Worker
from .statistics import largest_difference, ratio, spread
from .systems import SYSTEMS
from .workloads import Workload

REFERENCE = "eager"  # whose losses the others' are compared with


def run_workload(workload: Workload, systems: list, rounds: int, threads: int, compile_cache: str = "",
                 progress=lambda text: None) -> dict:
    """Results by system, ready for JSON. A system that fails has an "error" there; the others go on."""
    from .export import prepare

    with tempfile.TemporaryDirectory(prefix="caesura-bench-") as name:
        folder = pathlib.Path(name)
        job = prepare(workload, folder, threads)
        results, workers = {}, {}
        try:
            for system in systems:
                progress(f"{workload.name}: {system}: first steps")
                _attempt(results, system, lambda: _start(workers, results, system, folder, threads, compile_cache))
            for i in range(rounds):
                progress(f"{workload.name}: round {i + 1} of {rounds}")
                for system in list(workers)[::1 if i % 2 else -1]:
                    _attempt(results, system, lambda: results[system]["rounds"].append(workers[system].round()))
                    if "error" in results[system]:
                        workers.pop(system).close()
        finally:
            for worker in workers.values():
                worker.close()
    progress("")
    return {"name": workload.name, "about": workload.about, "parameters": job["parameters"],
            "dtype": "bfloat16" if workload.bfloat16 else "float32",
            "matrix_flops": sum(2 * p["count"] * p["batch"] * p["m"] * p["k"] * p["n"] for p in job["products"]),
            "systems": _summary(results)}


def _attempt(results: dict, system: str, call) -> None:
    try:
        call()
    except PeerError as error:
        results[system] = {"error": str(error), **({"install": error.install} if error.install else {})}


def _start(workers, results, system, folder, threads, compile_cache) -> None:
    result = {"rounds": []}
    for capture in [True, False] if SYSTEMS[system].captures else [False]:
        worker = Worker(system, folder, threads, compile_cache, capture)
        try:
            result.update(worker.answer())
        except PeerError:
            worker.close()
            raise
        if capture:
            worker.close()
    workers[system], results[system] = worker, result


def _summary(results: dict) -> dict:
    """Adds to each system what follows from its rounds and from the others'."""
    times = {system: [r["seconds"] / r["steps"] for r in result["rounds"]]
             for system, result in results.items() if result.get("rounds")}
    bound = results.get("bound", {}).get("rounds")
    for system, seconds in times.items():
        result = results[system]
        result["seconds"] = spread(seconds)._asdict()
        if system == "bound":
            result.update({key: spread([r[key] for r in bound]).median for key in ("products", "copy", "bytes_per_second")})
            continue
        if "caesura" in times and system != "caesura":
            result["caesura_ratio"] = ratio(times["caesura"], seconds)._asdict()
        if "bound" in times:
            result["share_of_bound"] = ratio(times["bound"], seconds).median
        if results.get(REFERENCE, {}).get("losses"):
            result["loss_difference"] = largest_difference(result["losses"], results[REFERENCE]["losses"])
    return results
