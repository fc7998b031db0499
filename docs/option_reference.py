# SPDX-License-Identifier: Apache-2.0
"""Writes reference/options.md from the table of training options (training/session/option_table.h); docs/build.sh calls it."""

import pathlib
import sys

from caesura import _core


def main(path):
    rows, conflicts = _core.training_options()
    lines = ["# Training options", "",
             "The options of `TrainingSession`, `compile_step`, `Ranks`, `caesura train` and, by `SetOption`, of C++.", "",
             "| option | meaning | values | default |", "|---|---|---|---|"]
    for row in rows:
        values = ", ".join(f"`{choice}`" for choice in row["choices"] if choice)
        lines.append(f"| `{row['name']}` | {row['sentence']} | {values} | `{row['default']!r}` |")
    lines += ["", "## Options that do not go together", "", "| option | not with | where | why |", "|---|---|---|---|"]
    lines += [f"| `{one}` | `{other}` | {'among ranks' if among_ranks else 'everywhere'} | {reason} |"
              for one, other, among_ranks, reason in conflicts]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
