#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job: sets up, builds, trains a convolutional net on handwritten digits and a character GPT on Python's own
# sources, both in C++, and draws their loss curves; the first net once more in a loop of LibTorch's, where LibTorch is;
# and layers around a frozen model that OpenVINO, and another that LibTorch, runs as one node. Results are in
# build/examples.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./cmake/setup.sh --openvino
. build/activate
cmake -S . -B build -G Ninja -C build/deps.cmake -DCAESURA_ASSERTS=OFF >build/configure.log || { cat build/configure.log; exit 1; }
targets=()
has() { grep -q "CAESURA_$1:BOOL=ON" build/CMakeCache.txt; }
around=()
if has TORCH; then targets+=(train_libtorch_loop); around+=(torch); fi
if has OPENVINO; then around+=(openvino); fi
# Gradients of a model whose runtime has none (OpenVINO's) are run by our own.
for runtime in "${around[@]}"; do targets+=("caesura_runtime_$runtime" caesura_runtime_caesura caesura_command train_around); done
folder=build/examples
mkdir -p "$folder"
# It trains before the rest is compiled: with a library that has its kernels only.
echo "compiling the first example: 10 to 15 minutes of CPU time the first time, shared by $(nproc) cores"
cmake --build build --target first_example
echo "exporting its model from PyTorch"
[[ -f $folder/digits.onnx ]] || python examples/digits/export_digits.py "$folder" >"$folder/export.log" 2>&1
build/bin/first_example "$folder"
echo "compiling the whole library: the rest of 20 to 35 minutes of CPU time the first time"
cmake --build build --target train_chargpt
[[ -f $folder/corpus.txt ]] || python examples/chargpt/export_chargpt.py "$folder" >"$folder/export.log" 2>&1
build/bin/train_chargpt "$folder"
[[ ${#targets[@]} -eq 0 ]] || echo "compiling the command and what calls PyTorch and OpenVINO: 3 to 6 minutes of CPU time the first time"
if [[ ${#targets[@]} -gt 0 ]]; then cmake --build build --target "${targets[@]}"; fi
if has TORCH; then build/bin/train_libtorch_loop "$folder"; fi
if [[ ${#around[@]} -gt 0 ]]; then python examples/model_op/export_around.py "$folder/around" >"$folder/export.log" 2>&1; fi
for runtime in "${around[@]}"; do build/bin/train_around "$folder/around" "$runtime"; done
python examples/plot_losses.py "$folder"
