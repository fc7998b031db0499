# SPDX-License-Identifier: Apache-2.0
"""Worker processes: where their interpreters are, and how they are asked for a round."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from .systems import SYSTEMS

HERE = pathlib.Path(__file__).resolve().parent
INSTALL = "cmake/setup.sh --peers"


class PeerError(Exception):
    """A system that is not installed, or cannot train the workload; `install` is the command that brings it."""

    def __init__(self, text: str, install: str = ""):
        super().__init__(text)
        self.install = install


def peers_folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("CAESURA_PREFIX", "~/.cache/caesura")).expanduser() / "peers"


def available_bytes() -> int:
    """Memory that processes can have before others are swapped or killed."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))


def command_of(system: str) -> list:
    """The command that starts the system's worker, without arguments. Raises PeerError if it is not installed."""
    python, home = pathlib.Path(sys.executable), SYSTEMS[system].home
    if home:
        python = peers_folder() / home / "bin" / "python"
        if not python.exists():
            raise PeerError(f"not installed in {peers_folder() / home}", INSTALL)
    package = "caesura.bench" if SYSTEMS[system].imports_caesura else "bench"
    return [str(python), "-m", package + ".worker", system]


def environment(system: str, threads: int, folder: pathlib.Path, compile_cache: str) -> dict:
    env = dict(os.environ, PYTHONWARNINGS="ignore", JAX_PLATFORMS="cpu")
    env.update({name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CAESURA_NUM_THREADS")})
    env["TORCHINDUCTOR_CACHE_DIR"] = compile_cache or str(folder / f"inductor-{system}")
    env["CAESURA_PROGRAM_CACHE"] = str(pathlib.Path(compile_cache, "programs")) if compile_cache else "off"
    if not SYSTEMS[system].imports_caesura:
        alone = folder / "alone"  # this package under the name `bench`; caesura's typing and onnxruntime are not those of the system
        alone.mkdir(exist_ok=True)
        if not (alone / "bench").exists():
            (alone / "bench").symlink_to(HERE)
        env["PYTHONPATH"] = str(alone)
    return env


class Worker:
    """A process that trains; raises PeerError from each call when it has failed."""

    def __init__(self, system: str, folder: pathlib.Path, threads: int, compile_cache: str = "", capture: bool = False):
        self.system = system
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        cores = sorted(os.sched_getaffinity(0))[:threads]  # for thread pools that ignore the variables
        self._process = subprocess.Popen(
            command_of(system) + [str(folder)] + ["--capture"] * capture, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, text=True, env=environment(system, threads, folder, compile_cache),
            preexec_fn=lambda: os.sched_setaffinity(0, cores))

    def answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["no message"]
            raise PeerError(f"its process ended ({self._process.wait()}): {last[0][:200]}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def round(self) -> dict:
        try:
            self._process.stdin.write("0\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; answer() says how
        return self.answer()

    def close(self) -> None:
        try:
            self._process.stdin.close()  # the worker's loop ends with its input
            self._process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
