# SPDX-License-Identifier: Apache-2.0
"""Runs lowered graphs and steps: programs of caesura's kernels, and calls of PyTorch's between them."""
