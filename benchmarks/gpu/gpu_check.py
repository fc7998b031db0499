# SPDX-License-Identifier: Apache-2.0
"""The first minutes on a real GPU: checks of the CUDA provider in the order of their value, and one report.

    python benchmarks/gpu/gpu_check.py pack FOLDER     on the machine that has built caesura
    python3 FOLDER/gpu_check.py run --out OUT      on the machine with the GPU

A pack (at most 64 MiB) has programs, their libraries and the node tests. The other machine needs Linux on x86-64 with a
C library as new as here, a driver, Python 3, and NVIDIA's libraries where the system or that Python has them (PyTorch
brings them). It needs no network. With PyTorch, the time of a step stands beside PyTorch's.

Each stage has a limit of its own, and no failure ends the script. `OUT` has report.txt, report.json and a log a stage;
the reports are written anew after each stage. Ends with 0 if no stage has failed.

    python3 FOLDER/gpu_check.py run --out OUT --standins build    a rehearsal with small sizes, without a GPU
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

MEBIBYTES = 64
SKIPPED = 77  # the exit status of a stage that does not apply
PROGRAMS = ("caesura_tests", "gpt2_step")
ARCHIVE = "gpu_check.tar.xz"
# Parts of the C library and of the loader: a machine has its own.
OF_THE_SYSTEM = re.compile(r"(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|linux-vdso)\b")
STANDINS = {"cuda": "libcuda.so.1", "nvrtc": "libnvrtc.so.13", "cublaslt": "libcublasLt.so.13", "cudnn": "libcudnn.so.9"}

KERNELS = ("CudaProvider.*:CudaElementwise.*:CudaUpdate.*:CudaRowSums.*:CudaCastAll.*:CudaProducts.*:CudaLoss.*:CudaGather.*:"
           "CudaReduction.*:CudaAttention.*:CudaConv.*:CudaPool.*:CudaBatchNorm.*:CudaGradientSweep.*:NcclOnOneGpu.*:CudaNodeTests.*")
MODELS = "CudaTraining.*:CudaGate.*-*StepsStopAnywhere:*Checkpoints*"
RESUMED = "CudaTraining.StepsStopAnywhere:CudaTraining.Checkpoints*:CudaSplitModule.*"
# Sizes of GPT-2 with two layers, which the CPU computes in seconds.
TWO_LAYERS = ["--layers", "2", "--batch", "1", "--check"]
TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--time", "8", "--vocabulary", "11", "--batch", "2", "--steps", "2"]


# --- pack ---

def libraries_of(program: pathlib.Path) -> list:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    missing = re.findall(r"(\S+) => not found", listed)
    if missing:
        raise SystemExit(f"{program} needs {', '.join(missing)}, which ldd does not find: . build/activate")
    return [pathlib.Path(path) for name, path in re.findall(r"(\S+) => (/\S+)", listed) if not OF_THE_SYSTEM.match(name)]


def pack(folder: pathlib.Path, build: pathlib.Path) -> int:
    root = pathlib.Path(__file__).resolve().parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    for source in (pathlib.Path(__file__), root / "benchmarks/gpu/gpt2_step.py", root / "torch_bridge/python/caesura/bench/models.py"):
        shutil.copy(source, folder)
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(folder / ARCHIVE, "w:xz", preset=2) as archive:
        packed = set()
        for program in PROGRAMS:
            path = build / "bin" / program
            if not path.exists():
                raise SystemExit(f"{path} is not there: cmake --build {build} --target {' '.join(PROGRAMS)}")
            for file, place in [(path, "bin"), *((library, "lib") for library in libraries_of(path))]:
                if file.name in packed:
                    continue
                packed.add(file.name)
                stripped = pathlib.Path(scratch) / file.name
                subprocess.run(["strip", "-o", stripped, file], check=True)
                archive.add(stripped, f"{place}/{file.name}")
        nodes = build / "node_tests"
        if nodes.exists():
            for folder_of_one in sorted(nodes.iterdir()):
                archive.add(folder_of_one, f"node_tests/{folder_of_one.name}")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB")
    if size > MEBIBYTES << 20:
        raise SystemExit(f"a pack has at most {MEBIBYTES} MiB")
    return 0


# --- facts: run as a stage of its own ---

def version_of(library: str, function: str) -> str:
    """Returns the version that an NVIDIA library tells, or the reason why it tells none."""
    try:
        call = getattr(ctypes.CDLL(library), function)
    except (OSError, AttributeError) as error:
        return str(error)
    if function == "nvrtcVersion":
        major, minor = ctypes.c_int(), ctypes.c_int()
        call(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"
    if function in ("cuDriverGetVersion", "ncclGetVersion"):
        number = ctypes.c_int()
        call(ctypes.byref(number))
        return str(number.value)
    call.restype = ctypes.c_size_t
    return str(call())


def cudnn_device() -> str:
    """The GPU as cuDNN describes it: it takes the place of tests/core/ops/cuda/h100.json."""
    cudnn = ctypes.CDLL("libcudnn.so.9")
    handle, descriptor = ctypes.c_void_p(), ctypes.c_void_p()
    count, text = ctypes.c_int64(), ctypes.create_string_buffer(1 << 16)
    # CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR; its handle, of type 0; its JSON text, of type 24
    for name, *arguments in (("cudnnCreate", ctypes.byref(handle)), ("cudnnBackendCreateDescriptor", 38, ctypes.byref(descriptor)),
                             ("cudnnBackendSetAttribute", descriptor, 2701, 0, ctypes.c_int64(1), ctypes.byref(handle)),
                             ("cudnnBackendFinalize", descriptor),
                             ("cudnnBackendGetAttribute", descriptor, 2702, 24, ctypes.c_int64(len(text)), ctypes.byref(count), text)):
        status = getattr(cudnn, name)(*arguments)
        if status != 0:
            return f"{name}: status {status}"
    return text.raw[:count.value].rstrip(b"\0").decode()


def facts() -> int:
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, {os.uname().release}, {os.confstr('CS_GNU_LIBC_VERSION')}")
    smi = shutil.which("nvidia-smi")
    if smi is None:
        print("nvidia-smi is not there")
    else:
        asked = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_mode"
        subprocess.run([smi, f"--query-gpu={asked}", "--format=csv"], check=False)
    sys.stdout.flush()
    for library, function in (("libcuda.so.1", "cuDriverGetVersion"), ("libnvrtc.so.13", "nvrtcVersion"),
                              ("libnvrtc.so.12", "nvrtcVersion"), ("libcublasLt.so.13", "cublasLtGetVersion"),
                              ("libcublasLt.so.12", "cublasLtGetVersion"), ("libcudnn.so.9", "cudnnGetVersion"),
                              ("libnccl.so.2", "ncclGetVersion")):
        print(f"{library}: {version_of(library, function)}")
    try:
        print("cuDNN's device:", cudnn_device())
    except (OSError, AttributeError) as error:
        print("cuDNN's device:", error)
    return 0


# --- run ---

class Check:
    """One run: where its programs are, what they need of the environment, and the report until now."""

    def __init__(self, here: pathlib.Path, unpacked: pathlib.Path, out: pathlib.Path, seconds: float, only, standins):
        self.here, self.unpacked, self.out, self.only, self.small = here, unpacked, out, only, standins is not None
        self.end = time.monotonic() + seconds
        self.stages: list = []
        # NVIDIA's packages beside Python; our own libraries first.
        folders = [unpacked / "lib"] + [lib for path in sys.path for lib in sorted(pathlib.Path(path).glob("nvidia/*/lib"))]
        self.libraries = dict(os.environ, CAESURA_PROGRAM_CACHE=str(unpacked / "kernels"))
        if standins is not None:
            links = unpacked / "standins"
            links.mkdir()
            for name, link in STANDINS.items():
                (links / link).symlink_to(next(standins.resolve().rglob(f"libcaesura_standin_{name}.so")))
            folders.insert(0, links)
            self.libraries["LD_PRELOAD"] = str(links / "libcuda.so.1")  # kernels of the stand-in find it among global names
        self.libraries["LD_LIBRARY_PATH"] = ":".join([*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")])

    def program(self, name: str) -> str:
        return str(self.unpacked / "bin" / name)

    def call(self, command: list, log, limit: float, **environment):
        """The exit status of a command, None at its limit; its output goes to the file."""
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env={**self.libraries, **environment}, start_new_session=True)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None

    def stage(self, name: str, limit: float, run) -> None:
        """Runs a stage: `run(log, end)` returns its exit status, or None if it came to its limit."""
        if self.only and name not in self.only:
            return
        begin = time.monotonic()
        end = min(begin + limit, self.end)
        path = self.out / f"{len(self.stages) + 1:02d}_{name}.log"
        with open(path, "w+", errors="replace") as log:
            code = "none" if end - begin < 1 else run(log, end)
            log.seek(0)
            # Each logged line once, as layers are alike; passes say nothing about a GPU.
            lines = [line for line in log.read().splitlines() if not line.startswith("caesura: pass ")]
            lines = [line for i, line in enumerate(lines) if not (line.startswith("caesura: ") and line in lines[:i])]
        status = {0: "passed", None: "at its limit", SKIPPED: "skipped", "none": "no time left"}.get(code, "failed")
        figures = []
        for line in lines:
            if line.startswith("{"):
                try:
                    figures.append(json.loads(line))
                except ValueError:
                    pass
        self.stages.append({"stage": name, "status": status, "code": code, "seconds": round(time.monotonic() - begin, 1),
                            "figures": figures, "output": lines if len(lines) <= 160 else [*lines[:40], "...", *lines[-120:]]})
        print(f"{name}: {status}, {self.stages[-1]['seconds']} s", flush=True)
        self.write()

    def write(self) -> None:
        (self.out / "report.json").write_text(json.dumps({"standins": self.small, "stages": self.stages}, indent=1))
        summary = "".join(f"{s['stage']:<16} {s['status']:<14} {s['seconds']:6.1f} s\n" for s in self.stages)
        details = "".join(f"\n== {s['stage']}: {s['status']} ==\n" + "\n".join(s["output"]) + "\n" for s in self.stages)
        title = "Rehearsal on stand-ins, not on a GPU\n" if self.small else ""
        (self.out / "report.txt").write_text(title + summary + details)

    # --- stages ---

    def commands(self, *commands, **environment):
        """One after the other; the worst status is the stage's."""
        def run(log, end):
            codes = []
            for command in commands:
                log.write(f"$ {' '.join(pathlib.Path(command[0]).name if i == 0 else part for i, part in enumerate(command))}\n")
                log.flush()
                codes.append(self.call(command, log, max(0.1, end - time.monotonic()), **environment))
            return next((code for code in codes if code != 0), 0)
        return run

    def tests(self, patterns: str):
        """Each test in a process of its own: an error that ends a context does not reach the others. Some at a time."""
        def run(log, end):
            program, environment = self.program("caesura_tests"), {"CAESURA_TEST_GPU": "1", "OMP_NUM_THREADS": "2",
                                                                   "CAESURA_NODE_TESTS": str(self.unpacked / "node_tests")}
            listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={patterns}"], capture_output=True,
                                    text=True, env=self.libraries, check=False)
            suite, names = "", []
            for line in listed.stdout.splitlines():
                if re.match(r"\w+\.", line):
                    suite = line.split()[0]
                elif line.startswith("  ") and suite:
                    names.append(suite + line.split()[0])
            if not names:
                log.write(f"no test is called {patterns}: {listed.stderr}\n")
                return 1

            def one(name):
                with tempfile.TemporaryFile("w+", errors="replace") as own:
                    begin = time.monotonic()
                    code = self.call([program, f"--gtest_filter={name}", "--gtest_color=no"], own, max(0.1, end - begin), **environment)
                    own.seek(0)
                    text = own.read()
                if code == 0 and "[  SKIPPED ]" in text:
                    return code, f"skipped {name}\n"
                word = {0: "passed", None: "at its limit:"}.get(code, "failed")
                shown = "" if code == 0 else "\n".join(text.splitlines()[:60]) + "\n"
                return code, f"{word} {name}, {time.monotonic() - begin:.1f} s\n{shown}"

            codes = []
            with concurrent.futures.ThreadPoolExecutor(max(1, min(6, (os.cpu_count() or 1) // 2))) as pool:
                for code, text in pool.map(one, names):
                    codes.append(code)
                    log.write(text)
                    log.flush()
            log.write(f"{codes.count(0)} of {len(codes)} ended well\n")
            return 1 if any(code not in (0, None) for code in codes) else None if None in codes else 0
        return run

    def sanitizer(self):
        found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")

        def run(log, end):
            if found is None:
                log.write("compute-sanitizer is not there\n")
                return SKIPPED
            command = [found, "--error-exitcode", "9", self.program("caesura_tests"), "--gtest_filter=CudaUpdate.*:CudaProvider.Runs*"]
            return self.commands(command, CAESURA_TEST_GPU="1")(log, end)
        return run

    def run(self) -> int:
        step, torch_step = self.program("gpt2_step"), [sys.executable, str(self.here / "gpt2_step.py")]
        tiny = TINY if self.small else []
        precisions = ("fp32", "bf16", "fp16")
        self.stage("facts", 40, self.commands([sys.executable, __file__, "facts"]))
        self.stage("products", 90, self.commands(*([step, "--plan", "--precision", p, *tiny] for p in precisions), CAESURA_VERBOSE="2"))
        self.stage("kernels", 150, self.tests("CudaProvider.*:CudaUpdate.Norms*" if self.small else KERNELS))
        self.stage("sizes", 90, self.commands(*([step, *(tiny or TWO_LAYERS), "--check", "--precision", p] for p in precisions)))
        self.stage("models", 120, self.tests("CudaTraining.RefusedSteps*:CudaTraining.StepsWith*" if self.small else MODELS))
        self.stage("yield and resume", 60, self.tests("CudaTraining.Checkpoints*" if self.small else RESUMED))
        self.stage("GPT-2", 60, self.commands([step, *tiny], [step, "--precision", "fp32", *(tiny or ["--steps", "5"])]))
        self.stage("PyTorch eager", 60, self.commands([*torch_step, *tiny], LD_PRELOAD="", LD_LIBRARY_PATH=""))
        self.stage("PyTorch compile", 120, self.commands([*torch_step, "--compile", *tiny], LD_PRELOAD="", LD_LIBRARY_PATH=""))
        self.stage("sanitizer", 60, self.sanitizer())
        return 0 if all(s["status"] in ("passed", "skipped") for s in self.stages) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    packing = ways.add_parser("pack")
    packing.add_argument("folder", type=pathlib.Path)
    packing.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    running = ways.add_parser("run")
    running.add_argument("--out", type=pathlib.Path, required=True)
    running.add_argument("--seconds", type=float, default=570, help="for all stages together")
    running.add_argument("--only", nargs="+", metavar="STAGE", help="these stages: 'GPT-2' 'PyTorch eager'")
    running.add_argument("--standins", type=pathlib.Path, metavar="BUILD", help="a build whose stand-ins take the GPU's place")
    ways.add_parser("facts")
    arguments = parser.parse_args()
    if arguments.way == "facts":
        return facts()
    if arguments.way == "pack":
        return pack(arguments.folder, arguments.build)
    here = pathlib.Path(__file__).resolve().parent
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(here / ARCHIVE) as archive:
            archive.extractall(unpacked, filter="fully_trusted")
        return Check(here, pathlib.Path(unpacked), arguments.out, arguments.seconds, arguments.only, arguments.standins).run()


if __name__ == "__main__":
    sys.exit(main())
