#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets with libFuzzer and sanitizers, and runs them one after the other on one core.
#
#   tests/fuzz/run.sh SECONDS [TARGET...]     each target for SECONDS; all targets where none is named
#
# Prints a line a target, as the table in README.md has them, and fails where anything was found. What a target has learned
# stays in build-fuzz/fuzz/corpus, findings are in build-fuzz/fuzz/findings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:?usage: tests/fuzz/run.sh SECONDS [TARGET...]}
shift
targets=("$@")
[[ $# -gt 0 ]] || targets=(model kernels checkpoint snapshot npz safetensors adapter dlpack)
build=build-fuzz
clang=19

BUILD_DIR=build ./cmake/setup.sh --fuzz
cmake -S . -B $build -G Ninja -C build/deps.cmake -DCMAKE_CXX_COMPILER=clang++-$clang -DCMAKE_C_COMPILER=clang-$clang \
  -DCAESURA_FUZZ=ON -DCMAKE_BUILD_TYPE=Sanitize -DCMAKE_CXX_FLAGS=-O1 -DCAESURA_TORCH=OFF -DCAESURA_OPENVINO=OFF \
  -DCAESURA_PYTHON=OFF -DCAESURA_EXAMPLES=OFF -DCAESURA_BENCHMARKS=OFF >$build.log
cmake --build $build --target "${targets[@]/#/fuzz_}"

mkdir -p $build/fuzz/findings
export OMP_NUM_THREADS=1 TIMEFORMAT='%U %S'
found=0
printf '%-12s %8s %12s %8s %9s %7s %9s\n' target CPU-s executions edges features corpus findings
for target in "${targets[@]}"; do
  corpus=$build/fuzz/corpus/$target log=$build/fuzz/$target.log
  dictionary=tests/fuzz/$target.dict options=()
  [[ ! -f $dictionary ]] || options=(-dict="$dictionary")
  mkdir -p "$corpus"
  before=$(find $build/fuzz/findings -name "$target-*" | wc -l)
  # Each batch of inputs is a process of its own, so that a finding ends only its batch.
  time=$({ time $build/bin/fuzz_"$target" -fork=1 -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 \
    -timeout=60 -report_slow_units=60 \
    -rss_limit_mb=3000 -max_len=16384 -max_total_time="$seconds" -artifact_prefix="$build/fuzz/findings/$target-" \
    "${options[@]}" \
    "$corpus" $build/fuzz/seeds/"$target" >"$log" 2>&1 || true; } 2>&1)
  after=$(find $build/fuzz/findings -name "$target-*" | wc -l)
  found=$((found + after - before))
  awk -v target="$target" -v time="$time" -v findings=$((after - before)) '
    /^#[0-9]+: cov:/ { runs = substr($1, 2) + 0; edges = $3; features = $5; corpus = $7 }
    END {
      split(time, part, " ")
      printf "%-12s %8.0f %12d %8d %9d %7d %9d\n", target, part[1] + part[2], runs, edges, features, corpus, findings
    }
  ' "$log"
done
[[ $found = 0 ]] || { echo "$found findings in $build/fuzz/findings; README.md says how to look at one" >&2; exit 1; }
