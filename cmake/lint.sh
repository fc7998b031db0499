#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the sources: the layout of C and C++ (clang-format), faults in Python (ruff) and the types of the public package
# (mypy). `cmake/setup.sh --style` installs the three; mypy needs a build, which has the types of the extension.
#
#   cmake/lint.sh          checks
#   cmake/lint.sh --fix    also applies clang-format, and mends what ruff can mend
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1:---fix} = --fix ]] || { echo "usage: cmake/lint.sh [--fix]" >&2; exit 2; }
[[ ! -f build/activate ]] || { set +u; . build/activate; set -u; }
failed=0
layout=(--dry-run -Werror)
[[ ${1:-} != --fix ]] || layout=(-i)
git ls-files -z '*.c' '*.cc' '*.h' '*.hpp' | xargs -0 clang-format "${layout[@]}" || failed=1
ruff check "$@" || failed=1
(cd build/python && mypy --config-file ../../pyproject.toml -p caesura) || failed=1
exit "$failed"
