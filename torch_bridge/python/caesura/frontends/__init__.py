# SPDX-License-Identifier: Apache-2.0
"""The ways in: `wrap`, `compile_step`, the backend of torch.compile, and steps written to files."""
