# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a captured graph: views and writes, gradients, layouts, the split into forward and backward."""
