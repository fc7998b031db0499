# SPDX-License-Identifier: Apache-2.0
"""The ways in: `wrap`, `compile_step`, the backend of torch.compile, and steps written to files.

Importing it raises ImportError where PyTorch lacks something that captures need.
"""

from caesura.capture import compat

compat.check()
