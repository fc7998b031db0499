# SPDX-License-Identifier: Apache-2.0
"""Each test run makes its own captures; no program comes from an earlier run."""

import os

os.environ["CAESURA_PROGRAM_CACHE"] = "off"
