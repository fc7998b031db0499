# SPDX-License-Identifier: Apache-2.0
"""The process that tests fork processes from: it has imported what takes seconds, and has made a first capture."""

import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
from unittest import mock

PRELOADED = ("pytest", "preloaded", "first_capture")


def context():
    """Returns multiprocessing's context whose processes are forks of the server. The environment variables of a fork are
    those of the first call. In a process that is such a fork itself, this is the server that it comes from."""
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
