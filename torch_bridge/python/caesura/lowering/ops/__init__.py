# SPDX-License-Identifier: Apache-2.0
"""Lowering rules for ATen calls, one file for each op family."""
