# SPDX-License-Identifier: Apache-2.0
"""No test sees the environment variables that another one has set: launchers of ranks leave theirs (MASTER_PORT, RANK).
All tests find fork_server.py."""

import os
import pathlib
import sys
from unittest import mock

import pytest

sys.path.append(str(pathlib.Path(__file__).parent / "python"))


@pytest.fixture(autouse=True)
def _environment():
    with mock.patch.dict(os.environ):
        yield
