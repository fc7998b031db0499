#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel of caesura-train for this Python and this PyTorch, into dist/.
#
#   cmake/wheel.sh           makes it
#   cmake/wheel.sh --check   also installs it into an empty environment, without PyTorch and then with it, and runs the
#                            command and the quick start there
#
# The wheel's platform tag is the oldest C library that the machine's own libraries allow (auditwheel says which). oneDNN
# and protobuf are inside; libgomp is the system's, since a process must have only one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ${1:---check} = --check ]] || { echo "usage: cmake/wheel.sh [--check]" >&2; exit 2; }

./cmake/setup.sh
set +u; . build/activate; set -u
python -c 'import auditwheel' 2>/dev/null ||
  python -m pip install -q --disable-pip-version-check -r cmake/requirements-wheel.txt
export CC=${CC:-cc} CXX=${CXX:-c++}  # the names that CMake takes, so that ccache finds what build/ has compiled
rm -rf build/wheelhouse && mkdir -p build/wheelhouse dist
python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation . -w build/wheelhouse
excluded=(--exclude libgomp.so.1)
for library in libtorch libtorch_cpu libtorch_python libc10 libopenvino; do excluded+=(--exclude "$library.so*"); done
python -m auditwheel repair --plat auto --only-plat "${excluded[@]}" -w dist build/wheelhouse/caesura_train-*.whl 2>&1 | tail -n 1
wheel=$(ls -t dist/caesura_train-*.whl | head -n 1)
echo "wheel: $wheel ($(du -h "$wheel" | cut -f 1))"
[[ ${1:-} = --check ]] || exit 0

# --- in an empty environment, from an empty folder ---------------------------------------------------------------
wheel=$PWD/$wheel blocks=$PWD/tests/docs/quick_start.py
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
torch=$(python -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null || true)
deactivate
unset PYTHONPATH
began=$SECONDS
python3 -m venv "$folder/env"
PATH=$folder/env/bin:$PATH
cd "$folder"
run() { printf '\n$ %s\n' "$*"; "$@"; }
run pip install -q --disable-pip-version-check "$wheel"
run caesura --version
run python "$blocks" onnx
[[ -z $torch ]] || run pip install -q --disable-pip-version-check "torch==$torch" onnxscript
[[ -z $torch ]] || run python "$blocks" readme
echo "from the wheel to the trained models: $((SECONDS - began)) s"
