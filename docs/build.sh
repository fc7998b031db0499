#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation site into build/docs, with warnings as errors. Needs a build (./examples/run.sh or ./tests/run.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
set +u; . build/activate; set -u
python -c 'import sphinx, myst_parser, pydata_sphinx_theme' 2>/dev/null ||
  python -m pip install -q --disable-pip-version-check -r cmake/requirements-docs.txt
python docs/command_reference.py docs/reference/command.md
python -m sphinx -q -W -E -a --keep-going -b html docs build/docs
echo "docs: build/docs/index.html"
