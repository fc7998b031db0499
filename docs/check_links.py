# SPDX-License-Identifier: Apache-2.0
"""Checks the links of a built site: each leads to a file of it and to an anchor that the file has.

    check_links.py SITE   prints each broken link; docs/build.sh calls it

Links to other sites are not followed.
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    """The anchors of a page and the targets of its links, pictures, scripts and styles."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.targets = {""}, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.targets += [given[name] for name in ("href", "src") if given.get(name)]


def broken_links(site):
    """Yields (page, target) of each link that leads nowhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    for path, page in pages.items():
        for target in page.targets:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not to.is_file() or (to in pages and urllib.parse.unquote(parts.fragment) not in pages[to].anchors):
                yield path.relative_to(site), target


if __name__ == "__main__":
    found = [f"{page}: {target} leads nowhere" for page, target in broken_links(pathlib.Path(sys.argv[1]).resolve())]
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(bool(found))
