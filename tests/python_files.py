# SPDX-License-Identifier: Apache-2.0
"""Runs files of Python tests, each in a process of its own. The processes are forks of one that has imported PyTorch and
captured a step, so that a file costs hardly more than its tests, and no file sees what another one left behind.

    python tests/python_files.py JOBS REPORTS FILE...

JOBS processes run at a time, the longest files first. REPORTS, a folder, gets a JUnit report of each file. The output of
a file is printed when it ends, with the CPU seconds since the last one's end, which are the file's if JOBS is 1. The exit
status is 1 if a file failed.
"""

import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.append(str(TESTS / "python"))
# A test that hangs for ten minutes ends its process, with the stacks of all threads.
OPTIONS = ("-q", "--show-capture=stderr", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=600", "-o",
           "faulthandler_exit_on_timeout=true", "--durations=5")
# Short files with long tests, which begin first, before those with many lines: so all cores are in use to the end.
FIRST = ("modules_test", "operators_test", "examples_test", "bench_test", "code_blocks_test", "rank_faults_test", "lint_test",
         "extreme_numbers_test")


def run(path, report, log, cwd, environment):
    """The body of a file's process."""
    import pytest
    multiprocessing.set_start_method(None, force=True)  # a data loader's workers are forks, as outside of a fork server
    from fork_server import settle
    settle(cwd, environment, log, log)
    sys.argv[:] = ["pytest", path]
    code = pytest.main([*OPTIONS, f"--junitxml={report}", path])
    sys.stdout.flush()
    sys.exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else code)


def main(jobs, reports, files):
    from fork_server import context, cpu_seconds, stop
    processes, running, failed, spent = context(), {}, [], 0.0
    waiting = sorted(files, key=lambda path: (pathlib.Path(path).stem in FIRST, os.path.getsize(path)))
    while waiting or running:
        while waiting and len(running) < jobs:
            path = waiting.pop()
            name = path.removesuffix(".py").replace("/", "-")
            report, log = (os.path.join(reports, f"pytest-{name}.{kind}") for kind in ("xml", "log"))
            process = processes.Process(target=run, args=(path, report, log, os.getcwd(), dict(os.environ)))
            process.start()
            running[process.sentinel] = process, path, log, time.monotonic()
        for sentinel in multiprocessing.connection.wait(list(running)):
            process, path, log, began = running.pop(sentinel)
            process.join()
            before, spent = spent, cpu_seconds()
            print(f"\n-- {path}: exit status {process.exitcode}, {time.monotonic() - began:.0f} s, {spent - before:.1f} CPU-s",
                  flush=True)
            if os.path.exists(log):
                print(pathlib.Path(log).read_text(errors="replace"), flush=True)
            if process.exitcode:
                failed.append(path)
    stop()
    print(f"{len(files)} files of Python tests in {spent / 60:.1f} CPU-min, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
