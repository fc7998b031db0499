#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lays out the C++ sources (clang-format), and checks the Python ones (ruff, mypy).
#
#   cmake/format.sh            lays out, and mends what ruff can mend
#   cmake/format.sh --check    changes nothing, and fails where something is left to do
#   cmake/format.sh --tidy     also runs clang-tidy on all sources of the library (a build must be there; half an hour)
#
# The tools come with `cmake/setup.sh --style`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  ""|--check|--tidy) ;;
  *) echo "usage: cmake/format.sh [--check|--tidy]" >&2; exit 2 ;;
esac
[[ -f build/activate ]] && { set +u; . build/activate; set -u; }
mapfile -t cpp < <(git ls-files '*.cc' '*.h' '*.c' | grep -v '^tests/fuzz/corpus')
failed=0
if [[ ${1:-} = --check ]]; then
  printf '%s\0' "${cpp[@]}" | xargs -0 -P "$(nproc)" -n 50 clang-format --dry-run --Werror || failed=1
  ruff check || failed=1
else
  printf '%s\0' "${cpp[@]}" | xargs -0 -P "$(nproc)" -n 50 clang-format -i
  ruff check --fix || failed=1
fi
mypy || failed=1
if [[ ${1:-} = --tidy ]]; then
  git ls-files 'core/*.cc' 'graph_transforms/*.cc' 'training/*.cc' |
    xargs -P "$(nproc)" -n 1 clang-tidy -p build --quiet || failed=1
fi
exit "$failed"
