# SPDX-License-Identifier: Apache-2.0
"""Writes reference/command.md from `caesura --help` and each subcommand's help; docs/build.sh calls it."""

import pathlib
import re
import subprocess
import sys


def help_of(*words):
    return subprocess.run(["caesura", *words, "--help"], capture_output=True, text=True, check=True).stdout.strip()


def main(path):
    top = help_of()
    commands = re.findall(r"^  ([a-z][a-z-]*) {2,}", top.split("Subcommands:")[1], re.M)
    parts = ["# The caesura command", "", "```text", top, "```"]
    for command in commands:
        parts += ["", f"## caesura {command}", "", "```text", help_of(command), "```"]
    pathlib.Path(path).write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
