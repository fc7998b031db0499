# SPDX-License-Identifier: Apache-2.0
"""Every Python block of the README and of the pages runs, a page's blocks in order, in a fresh folder.

Code between `<!-- setup` and `-->` runs too, in its place; readers do not see it.
"""

import pathlib
import re
import sys
import types

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?:```python|<!-- setup)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)


def blocks(page):
    """(line, code) of each block."""
    text = page.read_text()
    return [(text.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(TOP)))
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page")  # a module that can be imported: Dynamo looks the globals of its functions up there
    monkeypatch.setitem(sys.modules, "page", module)
    for line, code in blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), vars(module))
