# SPDX-License-Identifier: Apache-2.0
"""Operators that a captured graph can hold in the place of code that it cannot."""
