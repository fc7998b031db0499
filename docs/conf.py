# SPDX-License-Identifier: Apache-2.0
"""The documentation site; docs/build.sh builds it."""

import pathlib
import re

_top = pathlib.Path(__file__).resolve().parent.parent
project = "caesura"
author = "The caesura authors"
release = re.search(r"project\(caesura VERSION ([\d.]+)", (_top / "CMakeLists.txt").read_text()).group(1)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "breathe"]
breathe_projects = {"caesura": str(_top / "build" / "docs-doxygen" / "xml")}
breathe_default_project = "caesura"
breathe_show_include = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = "caesura"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sidebars = {page: [] for page in ("index", "install")}  # which have nothing to list beside them
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "header_links_before_dropdown": 8}
