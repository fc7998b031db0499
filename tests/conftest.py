# SPDX-License-Identifier: Apache-2.0
"""No test sees the environment variables that another one has set: launchers of ranks leave theirs (MASTER_PORT, RANK)."""

import os
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def _environment():
    with mock.patch.dict(os.environ):
        yield
