#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheels of caesura-train and its source distribution, into dist/.
#
#   cmake/wheel.sh [--check] [PYTHON...]
#
# PYTHON: a wheel for each, which must have its headers and pip; without any, one for the environment's Python. That of 3.11
#         is for 3.11 alone (cp311), that of a newer one for all from 3.12 on (cp312-abi3).
# --check also installs each wheel into an empty environment (5 GB, for a while), without PyTorch and then with each release of
#         it, and runs the command and the quick starts there, those in C++ too.
#
# A wheel has a bridge to each minor release of PyTorch (1 GB each is fetched once, for headers and libraries to link with).
# oneDNN and protobuf are inside, and libgomp for where PyTorch, which brings one, is not installed. The platform tag is the
# oldest C library that the machine's own libraries allow; auditwheel finds it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
most_bytes=24000000
torches=(2.13.0 2.14.1 2.15.0)  # as compat.SEEN: a new one goes into pyproject.toml's range, too
check="" pythons=()
for argument in "$@"; do
  case $argument in
    --check) check=yes ;;
    -*) echo "usage: cmake/wheel.sh [--check] [PYTHON...]" >&2; exit 2 ;;
    *) pythons+=("$(command -v "$argument")") ;;
  esac
done

./cmake/setup.sh
set +u; . build/activate; set -u
[[ ${#pythons[@]} -gt 0 ]] || pythons=("$(command -v python)")
python -c 'import auditwheel' 2>/dev/null || python -m pip install -q -r cmake/requirements-wheel.txt
bridges=""
for release in "${torches[@]}"; do
  folder=${CAESURA_PREFIX:-$HOME/.cache/caesura}/bridges/$release
  if [[ ! -e $folder/fetched ]]; then
    echo "wheel: fetching PyTorch $release"
    rm -rf "$folder"
    python -m pip install -q --no-deps --target "$folder" "torch==$release"
    find "$folder/torch/lib" -name '*cuda*' -delete  # which no bridge links
    touch "$folder/fetched"
  fi
  bridges+=";$folder/torch"
done
# Releases are built on Debian 12. A library that needs a newer system is an error there.
platform=auto
! grep -q bookworm /etc/os-release || platform=manylinux_2_34_x86_64
excluded=(--exclude libgomp.so.1)  # it is in the package, and would come in again for oneDNN
for library in libtorch libtorch_cpu libc10 libopenvino; do excluded+=(--exclude "$library.so*"); done
export CC=${CC:-cc} CXX=${CXX:-c++}  # the names that CMake takes, so that ccache finds what build/ has compiled

# In an empty environment, from an empty folder: check_wheel WHEEL PYTHON
check_wheel() (
  exec 2>&1
  wheel=$1 sources=$PWD folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  unset PYTHONPATH
  export OMP_WAIT_POLICY=passive  # threads that wait take no time from others on a busy machine
  "$2" -m venv "$folder/env"
  PATH=$folder/env/bin:$PATH
  cd "$folder"
  run() { printf '\n$ %s\n' "$*" >&2; "$@"; }
  quick_start() { run python "$sources/tests/docs/quick_start.py" "$1"; }
  # build FOLDER TARGET...: builds the C++ project in FOLDER against the wheel alone.
  build() {
    local project=$1; shift
    run cmake -S "$sources/$project" -B "$project" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_PREFIX_PATH="$(python -c 'import caesura; print(caesura.__path__[0])')" >/dev/null
    run cmake --build "$project" --target "$@" >"$project.log" || { cat "$project.log"; return 1; }
  }
  mkdir tests
  run pip install -q "$wheel"
  run caesura env
  quick_start start
  quick_start onnx
  build tests/consumer consumer
  CAESURA_PLUGIN_PATH=tests/consumer run tests/consumer/consumer
  run pip install -q onnxscript scikit-learn
  for torch in "${torches[@]}"; do
    run pip install -q "torch==$torch"
    run caesura env
    quick_start page
    build examples continue_step train_libtorch_loop
    run python "$sources/examples/python/export_step.py" data
    run examples/continue_step data
    run python "$sources/examples/digits/export_digits.py" data >/dev/null
    run examples/train_libtorch_loop data
    rm -r data examples
  done
)

export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p dist
python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")' >build/sdist.log 2>&1 ||
  { tail -n 25 build/sdist.log >&2; exit 1; }
for python in "${pythons[@]}"; do
  rm -rf build/wheelhouse && mkdir -p build/wheelhouse
  CMAKE_ARGS="-C build/deps.cmake -DCAESURA_BRIDGES=${bridges:1}" \
    "$python" -m pip wheel -q --no-deps . -w build/wheelhouse
  python -m auditwheel repair --plat "$platform" --only-plat --strip --zip-compression-level 9 "${excluded[@]}" -w dist \
    build/wheelhouse/caesura_train-*.whl 2>&1 | tail -n 1
  wheel=$(ls -t "$PWD"/dist/caesura_train-*.whl | head -n 1)
  bytes=$(stat -c %s "$wheel")
  echo "wheel: $wheel ($bytes bytes)"
  python -m auditwheel show "$wheel" | tr '\n' ' ' | grep -o 'This constrains the platform tag to "[^"]*"'
  [[ $bytes -le $most_bytes ]] || { echo "wheel: more than $most_bytes bytes" >&2; exit 1; }
  [[ -z $check ]] || check_wheel "$wheel" "$python"
done
