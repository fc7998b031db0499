#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up, builds, runs all tests, and closes with "N passed, N failed".
#
#   tests/run.sh          what every change must pass
#   tests/run.sh --long   also the full sweeps (CAESURA_LONG=1)
#
# A stage that breaks counts as one failure and does not keep the next ones from running.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

for argument in "$@"; do
  case $argument in
    --long) export CAESURA_LONG=1 ;;
    *) echo "usage: tests/run.sh [--long]" >&2; exit 2 ;;
  esac
done

build=build
cores=$(nproc)
results=$PWD/$build/test-results
stages=0
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}  # tests run side by side; idle threads must not spin
rm -rf "$results"
mkdir -p "$results"

# Sets cpu to the seconds of CPU time that all commands so far took, user and system.
count_cpu() {
  times >"$results/times"
  cpu=$(awk -F '[ms ]+' 'NR == 2 {printf "%.0f", $1 * 60 + $2 + $3 * 60 + $4}' "$results/times")
}

# stage NAME COMMAND...: runs a function that leaves its reports in $out; times it, remembers how it ended.
stage() {
  local name=$1 began=$SECONDS rc=0 before
  shift
  stages=$((stages + 1))
  out=$results/$(printf '%02d' "$stages")
  mkdir -p "$out/gtest"
  printf '\n== %s\n' "$name"
  count_cpu; before=$cpu
  "$@" </dev/null || rc=$?
  count_cpu
  printf '== %s: %s, %d s, %d s of CPU time\n' "$name" "$([[ $rc = 0 ]] && echo done || echo "failed ($rc)")" \
    $((SECONDS - began)) $((cpu - before))
  printf '%s\n' "$name" "$rc" $((SECONDS - began)) $((cpu - before)) >"$out/stage"
  return "$rc"
}

set_up() { BUILD_DIR=$build ./cmake/setup.sh --openvino --style --cuda; }

# build_in FOLDER [CMAKE OPTION...]
build_in() {
  local folder=$1
  shift
  cmake -S . -B "$folder" -G Ninja -C "$build/deps.cmake" "$@" &&
    cmake --build "$folder" -- -k 0
}

# ctest_in FOLDER [CTEST OPTION...]
ctest_in() {
  local folder=$1
  shift
  GTEST_OUTPUT="xml:$out/gtest/" ctest --test-dir "$folder" --parallel "$cores" --timeout 1800 \
    --output-on-failure --no-tests=ignore --output-junit "$out/ctest.xml" "$@"
}

# python_tests REPORT PATH...: a test that hangs for ten minutes ends its process, with the stacks of all threads.
python_tests() {
  local report=$out/$1 rc=0
  shift
  python -m pytest -q --show-capture=stderr -o cache_dir="$build/.pytest_cache" -o faulthandler_timeout=600 \
    -o faulthandler_exit_on_timeout=true --durations=5 --junitxml="$report" "$@" || rc=$?
  [[ $rc = 5 ]] && return 0  # no Python test in the tree
  return "$rc"
}

# A process a file. Most of the time is tracing, which takes one thread; one more than cores, as ranks that lose one wait.
python_files() {
  local files
  mapfile -t files < <(find tests -name '*_test.py')
  python tests/python_files.py $((cores + 1)) "$out" "${files[@]}"
}

# sanitized FOLDER SANITIZERS TARGET...: without optimisation beyond -O1 and, in the short form, without loops for newer
# instruction sets, which is what the build's time goes into.
# Without OpenVINO, which opens a part of its own with RTLD_DEEPBIND: AddressSanitizer ends a process that does.
sanitized() {
  local folder=$1 sanitizers=$2
  shift 2
  cmake -S . -B "$folder" -G Ninja -C "$build/deps.cmake" -DCMAKE_BUILD_TYPE=Sanitize \
    -DCMAKE_CXX_FLAGS="-O1 $([[ -n ${CAESURA_LONG:-} ]] || echo -DCAESURA_BASELINE_ONLY)" \
    -DCAESURA_SANITIZE="$sanitizers" -DCAESURA_OPENVINO=OFF -DCAESURA_EXAMPLES=OFF -DCAESURA_BENCHMARKS=OFF &&
    cmake --build "$folder" --target "$@" -- -k 0
}

# The given test programs, with their parts for CUDA and with the leak check.
address_sanitizer() {
  sanitized build-asan address,undefined "$@" &&
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
      ctest_in build-asan -R "^($(IFS='|'; echo "$*"))(_cuda_[0-9])?\$"
}

# Reads what comes from outside, and the stand-ins for CUDA's libraries (tests/cuda), where CUDA's headers are.
input_sanitizer() {
  local tests=(input_tests)
  ! grep -q '^CUDA_HEADERS_DIR:PATH=.' "$build/CMakeCache.txt" || tests+=(caesura_cuda_tests)
  address_sanitizer "${tests[@]}"
}

# Each fuzz target on its seeds and on a fixed number of changed ones (tests/fuzz/README.md).
fuzz_seeds() {
  local targets=(fuzz_model fuzz_checkpoint fuzz_snapshot fuzz_npz fuzz_safetensors fuzz_adapter fuzz_dlpack)
  sanitized build-asan address,undefined "${targets[@]}" &&
    ctest_in build-asan -R "^($(IFS='|'; echo "${targets[*]}"))\$"
}

# Who goes first, from Python. The interpreter is not instrumented and keeps what it has to its end: no leak check.
python_address_sanitizer() {
  sanitized build-asan address,undefined caesura_python &&
    LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libstdc++.so)" \
      ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 PYTHONPATH="$PWD/build-asan/python" \
      python_tests pytest.xml tests/python/frontends/{lifetime,wrap_calls}_test.py \
      tests/python/sessions/tensor_exchange_test.py tests/python/cache/call_cache_test.py
}

# States in threads, on the CPU and on the stand-ins for CUDA, and a race that must be found. One OpenMP thread a kernel:
# libgomp is not instrumented.
thread_sanitizer() {
  local tests=(executor_tests planted_race)
  ! grep -q '^CUDA_LIBRARIES_DIR:PATH=.' "$build/CMakeCache.txt" || tests+=(cuda_threads_tests)
  [[ -z ${CAESURA_LONG:-} ]] || tests+=(rank_tests)
  sanitized build-tsan thread "${tests[@]}" &&
    OMP_NUM_THREADS=1 ctest_in build-tsan -R "^($(IFS='|'; echo "${tests[*]}"))\$"
}

# Adds up the reports of all stages. GoogleTest cases count one by one: a ctest test is counted through the
# report of the program of the same name, or as one where there is none (a script, one case, a crash).
tally() {
  python3 - "$results" <<'PY'
import collections, pathlib, sys
import xml.etree.ElementTree as xml

def cases(path):
    """Counts (passed, failed, skipped) in a JUnit file."""
    count = collections.Counter()
    for case in xml.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            count["failed"] += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            count["skipped"] += 1
        else:
            count["passed"] += 1
    return count

def ctest_cases(folder):
    total = collections.Counter()
    for test in xml.parse(folder / "ctest.xml").iter("testcase"):
        report = folder / "gtest" / (test.get("name") + ".xml")
        skip = test.find("skipped")  # also what ctest says of a program that was not built
        skipped = test.get("status") == "disabled" or (skip is not None and skip.get("message", "").startswith("SKIP_"))
        broken = test.get("status") != "run" and not skipped
        inner = cases(report) if report.exists() else None
        if inner and not (broken and not inner["failed"]):
            total += inner
        elif inner:
            total += inner + collections.Counter(failed=1)  # a failure outside the cases: a leak, a bad exit
        else:
            total["failed" if broken else "skipped" if skipped else "passed"] += 1
    return total

total = collections.Counter()
print()
for folder in sorted(stage.parent for stage in pathlib.Path(sys.argv[1]).glob("*/stage")):
    name, code, seconds, cpu = (folder / "stage").read_text().splitlines()
    count = collections.Counter()
    try:
        if (folder / "ctest.xml").exists():
            count += ctest_cases(folder)
        for report in folder.glob("pytest*.xml"):
            count += cases(report)
    except xml.ParseError as error:
        print(f"{name}: unreadable report: {error}")
    if code != "0" and not count["failed"]:
        count["failed"] += 1
    print(f"{name:<32} {seconds:>5} s {cpu:>5} CPU-s {count['passed']:>6} passed {count['failed']:>4} failed {count['skipped']:>4} skipped")
    total += count
skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
sys.exit(1 if total["failed"] or not total["passed"] else 0)
PY
}

# --- The stages: one a line --------------------------------------------------------------------------------

if stage "set-up" set_up; then
  set +u; . "$build/activate"; set -u
  stage "build" build_in "$build" -DCAESURA_ASSERTS=ON
  stage "C++ tests" ctest_in "$build"
  stage "Python tests" python_files
  stage "ThreadSanitizer" thread_sanitizer
  stage "AddressSanitizer, UBSan: input" input_sanitizer
  if [[ -n ${CAESURA_LONG:-} ]]; then
    stage "AddressSanitizer, UBSan: all" address_sanitizer caesura_tests
    stage "AddressSanitizer, UBSan: bridge" address_sanitizer caesura_torch_tests
    stage "AddressSanitizer: Python" python_address_sanitizer
    stage "AddressSanitizer, UBSan: fuzz" fuzz_seeds
    stage "clang-tidy" ./cmake/lint.sh --tidy
    stage "documentation site" ./docs/build.sh
    stage "wheel" ./cmake/wheel.sh --check
    stage "libFuzzer" ./tests/fuzz/run.sh "${CAESURA_FUZZ_SECONDS:-60}"
  fi
fi
tally
