# SPDX-License-Identifier: Apache-2.0
"""For all tests: captures are their own, no program comes from a run before."""

import os

os.environ["CAESURA_PROGRAM_CACHE"] = "off"
