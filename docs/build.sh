#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the documentation site into build/docs, with warnings as errors; a broken link within the site is one. Needs a build
# (./examples/run.sh or ./tests/run.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
./cmake/setup.sh --docs
set +u; . build/activate; set -u
python docs/command_reference.py docs/reference/command.md
python docs/option_reference.py docs/reference/options.md
python docs/cpp_reference.py build/docs-doxygen docs/reference/cpp
python -m sphinx -q -W -E -a --keep-going -b html docs build/docs
echo "docs: build/docs/index.html"
