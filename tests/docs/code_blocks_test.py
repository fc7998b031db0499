# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the README and of the pages runs, a page's blocks in order, in a fresh folder.

Code between `<!-- setup` and `-->` runs too, in its place; readers do not see it. Of the README's diffs the new side runs.
"""

import pathlib
import re
import sys
import types

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:```(?:python|diff)|<!-- setup)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)


def code_of(block):
    """The Python code of a block's text; of a diff, its new side, with empty lines for the others."""
    if not block[0].startswith("```diff"):
        return block[1]
    return "".join("\n" if line.startswith("-") else line[1:] or "\n" for line in block[1].splitlines(keepends=True))


def blocks(page):
    """(line, code) of each block; docs/internals/adding.md has diffs of files, which adding_test.py applies."""
    text = page.read_text()
    return [(text.count("\n", 0, block.start(1)) + 1, code_of(block)) for block in BLOCK.finditer(text)
            if not block[1].startswith("diff --git")]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(TOP)))
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # a module that can be imported: Dynamo looks the globals of its functions up there
    monkeypatch.setitem(sys.modules, "page", module)
    for line, code in blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), vars(module))
