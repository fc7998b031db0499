# SPDX-License-Identifier: Apache-2.0
"""Captures kept on disk, so that another process need not capture them again."""
