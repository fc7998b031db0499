#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the sources: the layout of C, C++ and CUDA (clang-format), faults in Python (ruff), the imports between the parts of
# the package (import-linter) and the types of its public parts (mypy). `cmake/setup.sh --style` installs the four; mypy needs a
# build, which has the types of the extension.
#
#   cmake/lint.sh          checks
#   cmake/lint.sh --fix    also applies clang-format, and mends what ruff can mend
#   cmake/lint.sh --tidy [FILE...]   looks for mistakes in C++ (clang-tidy, .clang-tidy), in all sources if none is named: 40
#                                    minutes of one core; needs a configured build
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1:---fix} =~ ^--(fix|tidy)$ ]] || { echo "usage: cmake/lint.sh [--fix | --tidy [FILE...]]" >&2; exit 2; }
[[ ! -f build/activate ]] || { set +u; . build/activate; set -u; }
if [[ ${1:-} = --tidy ]]; then
  shift
  # OpenMP's header is the compiler's; its others would clash with clang's own.
  tidy=(clang-tidy --quiet -p build --extra-arg=-idirafter --extra-arg="$(dirname "$(g++ -print-file-name=include/omp.h)")")
  { if [[ $# -gt 0 ]]; then printf '%s\0' "$@"; else git ls-files -z '*.cc' ':!tests' ':!examples' ':!benchmarks'; fi } |
    xargs -0 -n 4 -P "$(nproc)" "${tidy[@]}"
  exit
fi
failed=0
layout=(--dry-run -Werror)
[[ ${1:-} != --fix ]] || layout=(-i)
git ls-files -z '*.c' '*.cc' '*.cuh' '*.h' '*.hpp' | xargs -0 clang-format "${layout[@]}" || failed=1
ruff check "$@" || failed=1
PYTHONPATH=torch_bridge/python lint-imports --no-logo --no-cache || failed=1
(cd build/python && mypy --config-file ../../pyproject.toml -p caesura) || failed=1
exit "$failed"
