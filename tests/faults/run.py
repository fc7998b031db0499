#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants faults into a copy of the tree, and looks whether the tests find them (README.md)."""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The copies, by the first word of a fault's tests. Those under sanitizers hold the faults that are looked for there, and no others.
COPIES = {"cpp": "plain", "capped": "plain", "python": "plain", "tsan": "tsan", "asan": "asan"}
SANITIZERS = {"tsan": "thread", "asan": "address,undefined"}
CAPPED = {"CAESURA_MAX_ISA": "x86-64-v3"}
SANITIZED = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1", "OMP_NUM_THREADS": "1"}
BASELINE = 0  # the number of no fault

HELP = """
how it works:
  --build copies the tree to build/faults, writes all C++ faults into the copy, each behind its number, and builds it once.
  Then a run sets CAESURA_FAULT=n; a Python fault is written into the copied package for the time of its runs.
  A fault is found if a test fails, crashes or takes too long.

examples:
  tests/faults/run.py --build             all faults: half an hour for the build, minutes for the faults
  tests/faults/run.py --only 7,31 --own   two faults, by the tests of their folders alone
  tests/faults/run.py --only 0            no fault: the tests that belong to the faults pass
  tests/faults/run.py --list              the table

after a change of the sources: the test in tests/python/faults_test.py says which rows of faults.toml no longer fit.
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A row of faults.toml (README.md has the fields)."""

    number: int
    file: str
    original: str
    tests: str
    user: str
    faulty: str | None = None

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def stage(self) -> str:
        return self.tests.split()[0]


def read_faults() -> list:
    return [Fault(**row) for row in tomllib.loads((HERE / "faults.toml").read_text())["fault"]]


def planted(text: str, fault: Fault) -> str:
    """The text of the fault's file with the fault in it. Raises ValueError unless the original text is there exactly once."""
    if text.count(fault.original) != 1:
        raise ValueError(f"fault {fault.number}: expected its original text once in {fault.file}, "
                         f"found it {text.count(fault.original)} times: {fault.original.strip()!r}")
    on, faulty = f"::caesura_fault({fault.number})", fault.faulty
    if not fault.is_python:
        if faulty is None:
            faulty = f"if (!{on}) {{ {fault.original} }}"
        elif "FAULT" in faulty:
            faulty = faulty.replace("FAULT", on)
        else:
            faulty = f"({on} ? ({faulty}) : ({fault.original}))"
    return text.replace(fault.original, faulty or "")


def plant_all(file: str, faults: list) -> str:
    """The text of a C++ file with all of its faults, each behind its number. Lines keep their numbers."""
    text = (ROOT / file).read_text()
    for fault in faults:
        text = planted(text, fault)
    return f'#include "tests/faults/fault.h"  {text}'


# --- the copies ---

def copy_tree(tree: pathlib.Path, faults: list) -> None:
    """Brings the copy up to date. Files that are as they should be keep their times, so that they are not built again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    of_file = {}
    for fault in faults:
        if not fault.is_python:
            of_file.setdefault(fault.file, []).append(fault)
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, tree / name
        if not source.is_file():
            target.unlink(missing_ok=True)
            continue
        content = plant_all(name, of_file[name]).encode() if name in of_file else source.read_bytes()
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(source, target)


def build(kind: str, tree: pathlib.Path, jobs: int) -> None:
    """Configures and builds a copy, as tests/run.sh does."""
    def run(*command):
        subprocess.run(list(map(str, command)), cwd=tree, check=True, stdin=subprocess.DEVNULL)
    run("env", "BUILD_DIR=build", "./cmake/setup.sh", "--openvino", "--cuda")
    configure = ["cmake", "-S", ".", "-G", "Ninja", "-C", "build/deps.cmake", "-DCAESURA_EXAMPLES=OFF", "-DCAESURA_BENCHMARKS=OFF"]
    if kind == "plain":
        asserts = ["-DCAESURA_ASSERTS=ON"] if "CAESURA_ASSERTS" in (ROOT / "CMakeLists.txt").read_text() else []
        run(*configure, "-B", "build", *asserts)
        run("ninja", "-C", "build", f"-j{jobs}")
        return
    run(*configure, "-B", "build", f"-DCAESURA_SANITIZE={SANITIZERS[kind]}", "-DCMAKE_BUILD_TYPE=Sanitize",
        "-DCMAKE_CXX_FLAGS=-O1 -DCAESURA_BASELINE_ONLY", "-DCAESURA_OPENVINO=OFF")
    run("ninja", "-C", "build", f"-j{jobs}", "executor_tests" if kind == "tsan" else "input_tests")


# --- the stages ---

def own_stage(tests: str, tree: pathlib.Path):
    """(name, command, environment) of a fault's own tests."""
    stage, *arguments = tests.split()
    if stage == "python":
        return stage, python_command(*arguments), {}
    program, tests_filter = arguments
    command = [str(tree / "build" / "bin" / program), f"--gtest_filter={tests_filter}"]
    return stage, command, {"capped": CAPPED, "tsan": SANITIZED, "asan": SANITIZED}.get(stage, {})


def other_stages(fault: Fault, tree: pathlib.Path):
    """The stages of the short lane that follow where a fault's own tests have not found it."""
    if not fault.is_python:
        yield "cpp", ["ctest", "--test-dir", str(tree / "build"), "--stop-on-failure", "-E", "^consumer$"], {}
        yield "capped", [str(tree / "build" / "bin" / "caesura_tests"), "--gtest_filter=-Cuda*"], CAPPED
    # Not those that look at the sources, which are changed; and without the files that need a process of their own (tests/run.sh).
    ignored = ("*source_test.py", "*lint_test.py", "*faults_test.py", "*openvino_provider*", "*cuda_modules*")
    yield "python", python_command(*(f"--ignore-glob={name}" for name in ignored), "tests/python", "tests/training/command"), {}


def python_command(*arguments):
    return [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *arguments]


def run_stage(command, environment, number: int, tree: pathlib.Path, log: pathlib.Path, limit: float):
    """What a stage has found: the name of a test, or how it ended; None where all tests pass."""
    environment = os.environ | {
        "CAESURA_FAULT": str(number), "GTEST_FAIL_FAST": "1", "GTEST_BRIEF": "1", "OMP_WAIT_POLICY": "passive",
        "PATH": f"{tree}/build/bin:{os.environ['PATH']}", "PYTHONPATH": f"{tree}/build/python"} | environment
    with open(log, "ab") as output:
        process = subprocess.Popen(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"no end after {limit:.0f} s"
    text = log.read_text(errors="replace")
    if code == 0:
        return "no test fits the filter" if "] 0 tests from" in text else None
    return failed_test(text) or f"exit {code}"


def failed_test(output: str) -> str:
    """The first test that failed, as the output of GoogleTest, pytest, ctest or a sanitizer names it."""
    patterns = (r"^(?:FAILED|ERROR) (tests/.*?)(?: - |$)", r"\[  FAILED  \] ([\w/.<>]+)", r"^(WARNING: ThreadSanitizer: [\w -]+)",
                r"^==\d+==ERROR: (AddressSanitizer: [\w-]+)", r"^(\S+: runtime error: .{0,60})", r"^\s+\d+ - (\w+) \(")
    for pattern in patterns:
        if found := re.search(pattern, output, re.M):
            return found[1]
    return ""


def look_for(fault: Fault, folder: pathlib.Path, only_own: bool, limit: float) -> dict:
    """Runs the stages up to the first failure."""
    tree = folder / COPIES[fault.stage]
    log = folder / "logs" / f"{fault.number}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    file, text = tree / fault.file, None
    if fault.is_python:
        text = file.read_text()
        file.write_text(planted(text, fault))
    began, found = time.monotonic(), None
    try:
        for i, (stage, command, environment) in enumerate([own_stage(fault.tests, tree), *other_stages(fault, tree)]):
            found = run_stage(command, environment, fault.number, tree, log, limit)
            if found is not None or only_own:
                break
    finally:
        if text is not None:
            file.write_text(text)
    seconds = round(time.monotonic() - began, 1)
    return {"stage": stage, "own": i == 0, "test": found, "seconds": seconds}


def check_baseline(faults: list, folder: pathlib.Path, limit: float) -> bool:
    """True if the faults' own tests pass without a fault."""
    good = True
    for tests in dict.fromkeys(fault.tests for fault in faults):
        tree = folder / COPIES[tests.split()[0]]
        _, command, environment = own_stage(tests, tree)
        log = folder / "logs" / "0.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        began = time.monotonic()
        found = run_stage(command, environment, BASELINE, tree, log, limit)
        good = good and found is None
        print(f"{'passes' if found is None else 'FAILS: ' + found:<12} {time.monotonic() - began:6.1f} s  {tests}", flush=True)
    return good


def table(faults: list, results: dict) -> str:
    """The results as Markdown."""
    lines = ["| fault | file | found by | test | s |", "|---|---|---|---|---|"]
    for fault in faults:
        if result := results.get(str(fault.number)):
            stage = result["stage"] + ("" if result["own"] else ", not its own tests")
            lines.append(f"| {fault.number} | {fault.file} | {stage if result['test'] else '**escaped**'} | {result['test'] or ''} "
                         f"| {result['seconds']:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true", help="make or update the copies and build them first")
    parser.add_argument("--only", metavar="N,...", help="these faults; 0: the tests without a fault (default: all, after 0)")
    parser.add_argument("--own", action="store_true", help="only the tests of a fault's folder, not the stages after them")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "faults", help="where the copies are (build/faults)")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at a time (1)")
    parser.add_argument("--limit", type=float, default=1200, help="seconds of a stage, after which it counts as failed (1200)")
    parser.add_argument("--list", action="store_true", help="print the faults and end")
    options = parser.parse_args()
    faults = read_faults()
    if options.list:
        for fault in faults:
            print(f"{fault.number:>3}  {fault.file}: {fault.user}\n     {fault.tests}")
        return 0
    numbers = [fault.number for fault in faults]
    chosen = [BASELINE, *numbers] if options.only is None else [int(number) for number in options.only.split(",")]
    if unknown := set(chosen) - {BASELINE, *numbers}:
        parser.error(f"there is no fault {', '.join(map(str, sorted(unknown)))}: expected 0 to {max(numbers)}")
    looked_for = [fault for fault in faults if fault.number in chosen]
    folder = options.folder.resolve()
    if options.build:
        for kind in sorted({COPIES[fault.stage] for fault in looked_for or faults}):
            copy_tree(folder / kind, [f for f in faults if kind == "plain" or COPIES[f.stage] == kind])
            build(kind, folder / kind, options.jobs)
    if BASELINE in chosen and not check_baseline(looked_for or faults, folder, options.limit):
        print("tests fail without a fault: nothing can be said of the faults", file=sys.stderr)
        return 1
    record = folder / "results.json"  # of earlier runs, too
    results = json.loads(record.read_text()) if record.exists() else {}
    for fault in looked_for:
        result = results[str(fault.number)] = look_for(fault, folder, options.own, options.limit)
        print(f"fault {fault.number:>2} {fault.file}: {result['test'] or 'ESCAPED'} ({result['stage']}, {result['seconds']} s)", flush=True)
        record.write_text(json.dumps(results, indent=1))
    print(table(faults, results))
    escaped = [f for f in looked_for if results[str(f.number)]["test"] is None]
    for fault in escaped:
        print(f"fault {fault.number} escaped: {fault.user}")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
