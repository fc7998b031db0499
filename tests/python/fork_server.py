# SPDX-License-Identifier: Apache-2.0
"""The process that tests fork processes from: it has imported what takes seconds, and has made a first capture."""

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
from unittest import mock

PRELOADED = ("pytest", "preloaded", "first_capture")


def context():
    """Returns multiprocessing's context whose processes are forks of the server, which is started if there is none. In a
    process that is such a fork itself, this is the server that it comes from."""
    server = multiprocessing.forkserver._forkserver
    if server._forkserver_address is None:
        # Python 3.11 does not tell the server this process's sys.path, and a module that it cannot import is left out.
        path = os.pathsep.join(filter(None, (str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        multiprocessing.set_forkserver_preload(list(PRELOADED))
        with mock.patch.dict(os.environ, PYTHONPATH=path):
            server.ensure_running()
    elif server._forkserver_pid is None:  # multiprocessing would start another one
        server.ensure_running = lambda: None
    return multiprocessing.get_context("forkserver")


def cpu_seconds() -> float:
    """Returns what the server has taken, and its forks that have ended."""
    stat = pathlib.Path(f"/proc/{multiprocessing.forkserver._forkserver._forkserver_pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def stop() -> None:
    """Ends the server that this process has started. Its CPU time counts as this process's from then on."""
    server = multiprocessing.forkserver._forkserver
    os.kill(server._forkserver_pid, signal.SIGKILL)  # it would not end by itself while a fork is left
    os.waitpid(server._forkserver_pid, 0)


def settle(folder, environment, out, error):
    """Gives a fork of the server what a new process has of its own."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, error)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)


def _run(script, arguments, *place):
    settle(*place)
    sys.argv[:] = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


class Program:
    """A script, a path or Python code, that runs as `python script arguments...` would, but in a fork of the server: it
    spares the six seconds of CPU time that a new process with PyTorch takes."""

    def __init__(self, script, *arguments):
        self._folder = tempfile.TemporaryDirectory()
        out, error, code = (os.path.join(self._folder.name, name) for name in ("out", "error", "code.py"))
        if isinstance(script, str):
            pathlib.Path(code).write_text(script)
        self._arguments = [str(code if isinstance(script, str) else script), *map(str, arguments)]
        self._process = context().Process(target=_run, args=(self._arguments[0], self._arguments[1:], os.getcwd(),
                                                             dict(os.environ), out, error))
        self._process.start()
        self._files = out, error

    def result(self, timeout=600) -> subprocess.CompletedProcess:
        """Waits for the program's end, which must come within `timeout` seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
        texts = [pathlib.Path(file).read_text() if os.path.exists(file) else "" for file in self._files]
        self._folder.cleanup()
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout, *texts)
        return subprocess.CompletedProcess(self._arguments, self._process.exitcode, *texts)
