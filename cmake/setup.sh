#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what caesura needs and is missing, then writes $BUILD_DIR/deps.cmake and $BUILD_DIR/activate.
#
#   cmake/setup.sh              everything for build, tests and examples
#   cmake/setup.sh --openvino   also OpenVINO, for the provider and the model runtime on it (0.2 GB)
#   cmake/setup.sh --style      also the tools that check the sources: clang-format, clang-tidy, ruff,
#                               import-linter, mypy (0.2 GB)
#   cmake/setup.sh --docs       also what docs/build.sh needs: Doxygen, Sphinx (0.1 GB)
#   cmake/setup.sh --cuda       also cuBLAS, cuDNN and NCCL, which need a GPU only when they compute (1.6 GB)
#   cmake/setup.sh --peers      also other runtimes, to compare with, apart from the environment (3 GB, 10 minutes)
#   cmake/setup.sh --fuzz       also clang with libFuzzer, for tests/fuzz/run.sh (0.6 GB)
#
# Options may be combined. What an option has installed stays, and later runs find it.
#
# CAESURA_PREFIX (~/.cache/caesura)  where the Python environment and the onnx library are kept
# BUILD_DIR      (build)             where the two files go
# CAESURA_PYTHON                     the Python to start from (the first fit one on PATH)
#
# A second run finds its stamps and ends at once. Two runs at the same time wait for each other.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=${CAESURA_PREFIX:-$HOME/.cache/caesura}
build=${BUILD_DIR:-build}
[[ $build = /* ]] || build=$root/$build
onnx_version=1.23.2   # as in requirements.txt
torch_minimum=2.13    # an older torch of the user's is left alone
logs=$prefix/logs
options=("$@")
for option in "$@"; do
  [[ $option =~ ^--(openvino|style|docs|cuda|peers|fuzz)$ ]] ||
    { echo "usage: cmake/setup.sh [--openvino] [--style] [--docs] [--cuda] [--peers] [--fuzz]" >&2; exit 2; }
done

say()  { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Runs a long command into a log; on failure shows the end of that log.
logged() {
  local log=$logs/$1.log; shift
  "$@" >"$log" 2>&1 && return
  tail -n 25 "$log" >&2
  return 1
}

# --- System packages ---------------------------------------------------------------------------------------

# Headers and commands, each with the Debian package that brings it.
headers=(
  google/protobuf/message.h:libprotobuf-dev
  gtest/gtest.h:libgtest-dev
  gmock/gmock.h:libgmock-dev
  benchmark/benchmark.h:libbenchmark-dev
  CLI/CLI.hpp:libcli11-dev
  nlohmann/json.hpp:nlohmann-json3-dev
  utf8proc.h:libutf8proc-dev
  zlib.h:zlib1g-dev
)
commands=(g++:g++ ninja:ninja-build protoc:protobuf-compiler git:git)
# Files of clang beside its program, and the package.
clang=/usr/lib/llvm-19/lib/clang/19
files=()
wants() { [[ " ${options[*]} " = *" --$1 "* ]]; }
! wants docs || commands+=(doxygen:doxygen)
if wants fuzz; then
  commands+=(clang++-19:clang-19)
  files+=("$clang/lib/linux/libclang_rt.fuzzer-x86_64.a:libclang-rt-19-dev" "$clang/include/omp.h:libomp-19-dev")
fi

# Prints the Debian packages whose command or header is not there.
missing_packages() {
  local entry
  for entry in "${commands[@]}"; do
    command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
  done
  for entry in "${files[@]}"; do
    [[ -e ${entry%%:*} ]] || echo "${entry#*:}"
  done
  if ! command -v g++ >/dev/null; then
    printf '%s\n' "${headers[@]#*:}"
  else
    for entry in "${headers[@]}"; do
      printf '#if !__has_include(<%s>)\nMISSING %s\n#endif\n' "${entry%%:*}" "${entry#*:}"
    done | g++ -std=c++20 -x c++ -E -P - | sed -n 's/^MISSING //p' | tr -d ' '
  fi
  has_environment || find_python >/dev/null || printf 'python3-dev\npython3-venv\n'
}

# Prints the first Python that is new enough, can make an environment, and can build extensions.
find_python() {
  local candidate
  for candidate in ${CAESURA_PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    "$candidate" - 2>/dev/null <<'PY' && return
import ensurepip, os, sys, sysconfig, venv
ok = sys.version_info >= (3, 11) and os.path.exists(sysconfig.get_path("include") + "/Python.h")
print(sys.executable) if ok else sys.exit(1)
PY
  done
  return 1
}

has_environment() { [[ -x $venv/bin/python && -x $venv/bin/pip ]]; }

install_packages() {
  local missing how=()
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  # Welcome, but no reason to install anything by themselves; without mpirun the tests of its ranks are skipped.
  command -v ccache >/dev/null || missing+=(ccache)
  command -v mpirun >/dev/null || missing+=(openmpi-bin)
  local need="${missing[*]}"
  command -v apt-get >/dev/null ||
    fail "this system has no apt-get: please install, under the names it uses, what Debian calls: $need."
  if [[ $(id -u) != 0 ]]; then
    sudo -n true 2>/dev/null ||
      fail "not allowed to install packages: please run 'sudo apt-get install $need' and start again."
    how=(sudo -n)
  fi
  say "installing Debian packages: $need"
  how+=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
  logged apt-update "${how[@]}" update || say "apt-get update failed, trying with the lists at hand"
  logged apt-install "${how[@]}" install --no-install-recommends "${missing[@]}" ||
    fail "apt-get could not install (is there a network?): please run 'apt-get install $need' and start again."
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -eq 0 ]] ||
    fail "still missing after installation: ${missing[*]}; this release of the system is too old (Debian 12 and later fit)."
}

# --- Python environment ------------------------------------------------------------------------------------

# Links a torch of the user's, with the GPU libraries it asks for, into the environment, and prints what else it asks
# for, a requirement a line. Nothing of the user's is ever written to. False if there is no torch, or an older one.
borrow_torch() {
  "$1" - "$torch_minimum" "$site" 2>/dev/null <<'PY'
import importlib.metadata as metadata, os, re, sys
import torch
minimum, site = sys.argv[1:]
number = lambda text: tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:2])
if number(torch.__version__) < number(minimum):
    sys.exit(1)

def link(distribution):
    for top in {os.path.normpath(str(f)).split(os.sep)[0] for f in distribution.files or []} - {"..", "__pycache__"}:
        target = os.path.join(site, top)
        if not os.path.lexists(target):
            os.symlink(distribution.locate_file(top), target)
    for requirement in distribution.requires or []:
        name = re.match(r"[\w.-]+", requirement).group()
        if re.match(r"nvidia|cuda|.*triton", name):
            try:
                link(metadata.distribution(name))
            except metadata.PackageNotFoundError:
                pass  # meant for another platform
        elif "extra ==" not in requirement:
            print(requirement)

link(metadata.distribution("torch"))
PY
}

make_environment() {
  local wanted base borrowed=$venv/borrowed-torch.txt requirements=(-r "$root/cmake/requirements.txt")
  wanted=$(cat "$root"/cmake/requirements{,-torch}.txt | sha256sum)
  has_environment && [[ $(cat "$venv/stamp" 2>/dev/null) = "$wanted" && -e $site/torch ]] && return
  if ! has_environment || [[ -L $site/torch && ! -e $site/torch ]]; then
    base=$(find_python)
    say "making a Python environment from $base"
    rm -rf "$venv"
    logged venv "$base" -m venv "$venv" || fail "$base could not make an environment in $venv."
    site=$(environment_packages)
    borrow_torch "$base" >"$borrowed" || rm "$borrowed"
  fi
  rm -f "$venv/stamp"
  if [[ -e $borrowed ]]; then
    requirements+=(-r "$borrowed")
    say "taking the torch at $(readlink "$site/torch")"
  else
    requirements+=(-r "$root/cmake/requirements-torch.txt")
  fi
  say "installing Python packages (PyTorch, onnx, oneDNN, ...), 1 to 5 minutes"
  # --no-compile: a module is compiled where it is first imported; most of these never are.
  logged pip "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile "${requirements[@]}" ||
    fail "pip could not install cmake/requirements*.txt (log: $logs/pip.log): please check the network or the index pip uses."
  echo "$wanted" >"$venv/stamp"
}

environment_packages() { echo "$venv"/lib/python3*/site-packages; }

# Installs requirements-$1.txt into the environment where it is not there yet.
install_extra() {
  local wanted
  wanted=$(sha256sum <"$root/cmake/requirements-$1.txt")
  [[ $(cat "$venv/stamp-$1" 2>/dev/null) = "$wanted" ]] && return
  say "installing the Python packages of --$1"
  logged "pip-$1" "$venv/bin/python" -m pip install --disable-pip-version-check -r "$root/cmake/requirements-$1.txt" ||
    fail "pip could not install cmake/requirements-$1.txt (log: $logs/pip-$1.log)"
  echo "$wanted" >"$venv/stamp-$1"
}

# Runs "$3 FOLDER REQUIREMENTS" where the folder $1 is not yet as requirements-$2.txt says.
install_apart() {
  local target=$prefix/$1 requirements=$root/cmake/requirements-$2.txt wanted
  wanted=$(sha256sum <"$requirements")
  [[ $(cat "$target/stamp" 2>/dev/null) = "$wanted" ]] && return
  say "installing cmake/requirements-$2.txt into $target"
  rm -rf "$target"
  if "$3" "$target" "$requirements"; then
    echo "$wanted" >"$target/stamp"
  else
    say "cmake/requirements-$2.txt could not be installed (logs: $logs/apart-*.log): what uses it is left out"
    rm -rf "$target"
  fi
}

install_packages_only() {
  logged apart-pip "$venv/bin/python" -m pip install --disable-pip-version-check --target "$1" --no-deps -r "$2"
}

install_environment() {
  logged apart-venv "${3:-$venv/bin/python}" -m venv "$1" &&
    logged apart-pip "$1/bin/python" -m pip install --disable-pip-version-check -r "$2"
}

# Its wheel is for Python 3.8 to 3.11, and ORTModule builds its extension for PyTorch.
install_onnxruntime_training() {
  local candidate
  for candidate in "$venv/bin/python" python3.11 python3.10 "$HOME"/.pyenv/versions/3.1[01].*/bin/python; do
    "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' 2>/dev/null || continue
    install_environment "$1" "$2" "$candidate" || return 1
    MAX_JOBS=1 logged apart-ortmodule nice "$1/bin/python" -m onnxruntime.training.ortmodule.torch_cpp_extensions.install ||
      say "ORTModule's extension did not build (log: $logs/apart-ortmodule.log): only on-device training is there"
    return 0
  done
  say "no Python 3.10 or 3.11 for onnxruntime-training"
  return 1
}

install_peers() {
  install_apart peers/onnxruntime onnxruntime install_packages_only
  install_apart peers/jax jax install_environment
  install_apart peers/onnxruntime-training onnxruntime-training install_onnxruntime_training
}

# --- The onnx C++ library ----------------------------------------------------------------------------------

onnx_options=(
  -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_STANDARD=20
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DBUILD_SHARED_LIBS=OFF
  -DONNX_BUILD_PYTHON=OFF
  -DONNX_BUILD_TESTS=OFF
  -DONNX_ML=ON
  -DONNX_USE_PROTOBUF_SHARED_LIBS=ON
)

fetch_onnx() {
  [[ -f $1/CMakeLists.txt ]] && return
  local sdists=$prefix/sdists
  mkdir -p "$sdists" "$1"
  # pip asks the package for its metadata before it hands the file over; the build back end is all that takes. (With
  # ":all:" pip would build that from sources, too.)
  "$venv/bin/python" -m pip download --disable-pip-version-check --no-deps --no-binary onnx \
    --dest "$sdists" "onnx==$onnx_version"
  tar -xzf "$sdists/onnx-$onnx_version.tar.gz" -C "$1" --strip-components=1
}

# Sets $onnx to the folder that holds, or will hold, the library.
name_onnx() {
  local recipe
  recipe="${onnx_options[*]} $(protoc --version) $(g++ -dumpversion) $(<"$root/cmake/onnx_unity.cmake")"
  onnx=$prefix/onnx-$onnx_version-$(sha256sum <<<"$recipe" | cut -c1-10)
}

build_onnx() {
  [[ -f $onnx/stamp ]] && return
  local source=$prefix/src/onnx-$onnx_version
  say "building the onnx $onnx_version C++ library once, 1 to 3 minutes of CPU time"
  logged onnx-fetch fetch_onnx "$source" || fail "the sources of onnx $onnx_version could not be fetched with pip."
  local launcher=()
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  logged onnx-configure "$venv/bin/cmake" -S "$source" -B "$onnx/build" -G Ninja \
    -DCMAKE_INSTALL_PREFIX="$onnx" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_PROJECT_INCLUDE="$root/cmake/onnx_unity.cmake" \
    "${onnx_options[@]}" "${launcher[@]}" ||
    fail "onnx $onnx_version did not configure (log: $logs/onnx-configure.log)."
  logged onnx-build "$venv/bin/cmake" --build "$onnx/build" --target install ||
    fail "onnx $onnx_version did not build (log: $logs/onnx-build.log)."
  rm -rf "$onnx/build"
  touch "$onnx/stamp"
}

# --- What the build reads ----------------------------------------------------------------------------------

# Replaces a file only where it changes.
write() {
  local new
  new=$(cat)
  [[ -f $1 && $(cat "$1") = "$new" ]] || printf '%s\n' "$new" >"$1"
}

# Prints the folder if it is there.
folder() { [[ ! -d $1 ]] || echo "$1"; }

write_deps() {
  local kernels=$prefix/test-kernels  # CUDA kernels that tests have compiled; those of old sources go
  [[ ! -d $kernels ]] || find "$kernels" -type f -mtime +14 -delete
  local launcher="" options="env;CCACHE_BASEDIR=$root;CCACHE_NOHASHDIR=1"  # what one checkout has compiled, others find
  command -v ccache >/dev/null && launcher="set(CMAKE_CXX_COMPILER_LAUNCHER \"$options;ccache\" CACHE STRING \"\")"
  write "$build/deps.cmake" <<EOF
# Where the dependencies are: cmake -S . -B build -G Ninja -C build/deps.cmake. Written by cmake/setup.sh.
set(CMAKE_PREFIX_PATH "$onnx;$venv" CACHE STRING "" FORCE)
set(ONNX_DIR "$onnx/lib/cmake/ONNX" CACHE PATH "" FORCE)
set(dnnl_DIR "$venv/lib/cmake/dnnl" CACHE PATH "" FORCE)
set(Torch_DIR "$site/torch/share/cmake/Torch" CACHE PATH "" FORCE)
set(nanobind_DIR "$site/nanobind/cmake" CACHE PATH "" FORCE)
set(DLPACK_INCLUDE_DIR "$site/tvm_ffi/include" CACHE PATH "" FORCE)
set(CUDA_HEADERS_DIR "$(folder "$prefix/cuda/nvidia/cu13/include")" CACHE PATH "" FORCE)
set(CUDA_LIBRARIES_DIR "$(folder "$prefix/cuda-libraries/nvidia")" CACHE PATH "" FORCE)
set(CAESURA_TEST_KERNELS "$kernels" CACHE PATH "" FORCE)
if(NOT SKBUILD)  # a wheel's is the one that builds it
  set(Python_EXECUTABLE "$venv/bin/python" CACHE FILEPATH "" FORCE)
endif()
set(OpenVINO_DIR "$site/openvino/cmake" CACHE PATH "" FORCE)
set(CAESURA_TORCH $([[ -e $site/torch ]] && echo ON || echo OFF) CACHE BOOL "" FORCE)
set(CAESURA_OPENVINO $([[ -e $site/openvino/cmake ]] && echo ON || echo OFF) CACHE BOOL "" FORCE)
$launcher
EOF
}

# The ONNX node tests as files, for 'caesura conformance': the wheel holds only what makes them.
write_node_tests() {
  local cases=$prefix/node_tests-$onnx_version
  if [[ ! -e $cases.done ]]; then  # -P: the package has a typing.py, which is not the standard one
    logged node_tests "$venv/bin/python" -P "$root/torch_bridge/python/caesura/conformance.py" --write "$cases" ||
      fail "cannot write the ONNX node tests to $cases; the log is $logs/node_tests.log"
    touch "$cases.done"
  fi
  ln -sfn "$cases" "$build/node_tests"
}

write_activate() {
  write "$build/activate" <<EOF
# Enters the environment of this build: . build/activate; 'deactivate' leaves it. Written by cmake/setup.sh.
. "$venv/bin/activate"
export PATH="$build/bin:\$PATH"
export PYTHONPATH="$build/python\${PYTHONPATH:+:\$PYTHONPATH}"
EOF
}

mkdir -p "$logs" "$build" 2>/dev/null || \
  fail "cannot write to $prefix or $build: please set CAESURA_PREFIX and BUILD_DIR to folders of yours."
exec 9>"$prefix/lock"
flock -n 9 || { say "another set-up is at work in $prefix, waiting for it"; flock 9; }

venv=$prefix/python
[[ -z ${CAESURA_PYTHON:-} ]] || find_python >/dev/null ||
  fail "CAESURA_PYTHON ($CAESURA_PYTHON) does not fit: it must be 3.11 or newer, with venv and the headers."
install_packages
name_onnx
site=$(environment_packages)
make_environment
build_onnx
! wants openvino || install_extra openvino
! wants style || install_extra style
! wants docs || install_extra docs
install_apart cuda cuda install_packages_only
! wants cuda || install_apart cuda-libraries cuda-libraries install_packages_only
! wants peers || install_peers
write_deps
write_activate
write_node_tests
say "ready ($prefix)"
