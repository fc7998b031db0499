# SPDX-License-Identifier: Apache-2.0
"""The links of every .md file lead to a file and to a heading that it has; so do the paths in backquotes."""

import pathlib
import re

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["", ".github/ISSUE_TEMPLATE", "benchmarks", "core/**", "docs/**", "graph_transforms", "tests/*", "torch_bridge", "training"]
PAGES = sorted({page for folder in FOLDERS for page in TOP.glob(f"{folder}/*.md".lstrip("/"))})


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """The anchors of the page's headings, as GitHub and MyST name them."""
    found = []
    for heading in re.findall(r"^#+ (.*)$", without_code(page), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        earlier = sum(re.sub(r"-\d+$", "", other) == slug for other in found)
        found.append(f"{slug}-{earlier}" if earlier else slug)
    return found


def names(page):
    return str(page.relative_to(TOP))


def test_every_page_is_looked_at():
    outside = {"build", "dist", "node_modules"}
    every = [page for page in TOP.rglob("*.md")
             if not any(part.startswith(("build", ".pytest")) or part in outside for part in page.relative_to(TOP).parts)]
    assert [names(page) for page in every if page not in PAGES] == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page):
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(page)):
        if re.match(r"\w+:", target):
            continue
        to = page.parent / target if target else page
        leaves_site = page.is_relative_to(TOP / "docs") and not to.resolve().is_relative_to(TOP / "docs") and to.suffix == ".md"
        if not to.exists() or leaves_site or (anchor and anchor not in anchors(to)):
            broken.append(target + "#" * bool(anchor) + anchor)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_named_files_exist(page):
    roots = [TOP, TOP / "torch_bridge" / "python", TOP / "torch_bridge" / "python" / "caesura"]
    missing = []
    for path in re.findall(r"`(?:\./)?((?:[\w.-]+/)+[\w-]*(?:\.[a-z]+)?)`", page.read_text()):
        first = path.split("/")[0]
        inside = [root for root in roots if (root / first).exists() and not first.startswith("build")]
        if inside and not any((root / path).exists() for root in inside):
            missing.append(path)
    assert missing == []


def test_the_readme_is_short():
    lines = (TOP / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 120] == []
    assert any(line.startswith("| version |") for line in lines[:14])  # the end of the status box
