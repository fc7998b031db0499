#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheels of caesura-train and its source distribution, into dist/.
#
#   cmake/wheel.sh [--check] [PYTHON...]
#
# PYTHON: a wheel for each, which must have its headers and pip; without any, one for the environment's Python. That of 3.11
#         is for 3.11 alone (cp311), that of a newer one for all from 3.12 on (cp312-abi3).
# --check also installs each wheel into an empty environment, without PyTorch and then with the environment's release of it,
#         and runs the command and the quick start there.
#
# A wheel has a bridge to each minor release of PyTorch (1 GB each is fetched once, for headers and libraries to link with).
# oneDNN and protobuf are inside, and libgomp for where PyTorch, which brings one, is not installed. The platform tag is the
# oldest C library that the machine's own libraries allow; auditwheel finds it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
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
  wheel=$1 blocks=$PWD/tests/docs/quick_start.py folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  torch=$(python -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null || true)
  began=$SECONDS
  unset PYTHONPATH
  "$2" -m venv "$folder/env"
  PATH=$folder/env/bin:$PATH
  cd "$folder"
  run() { printf '\n$ %s\n' "$*"; "$@"; }
  run pip install -q "$wheel"
  run caesura --version
  run python "$blocks" onnx
  [[ -z $torch ]] || run pip install -q "torch==$torch" onnxscript
  [[ -z $torch ]] || run python "$blocks" readme
  echo "from the wheel to the trained models: $((SECONDS - began)) s"
)

export PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p dist
python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")' >build/sdist.log 2>&1 ||
  { tail -n 25 build/sdist.log >&2; exit 1; }
for python in "${pythons[@]}"; do
  rm -rf build/wheelhouse && mkdir -p build/wheelhouse
  CMAKE_ARGS="-C build/deps.cmake -DCAESURA_BRIDGES=${bridges:1}" \
    "$python" -m pip wheel -q --no-deps . -w build/wheelhouse
  python -m auditwheel repair --plat "$platform" --only-plat "${excluded[@]}" -w dist build/wheelhouse/caesura_train-*.whl 2>&1 |
    tail -n 1
  wheel=$(ls -t "$PWD"/dist/caesura_train-*.whl | head -n 1)
  echo "wheel: $wheel ($(du -h "$wheel" | cut -f 1))"
  [[ -z $check ]] || check_wheel "$wheel" "$python"
done
