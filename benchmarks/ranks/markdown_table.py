# SPDX-License-Identifier: Apache-2.0
"""Rows of Markdown tables."""


def row(cells):
    return f"| {' | '.join(cells)} |\n"


def header(names):
    return row(names) + "|" + "---|" * len(names) + "\n"
