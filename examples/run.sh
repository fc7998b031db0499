#!/usr/bin/env bash
# Sets up, builds, and runs the examples.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./cmake/setup.sh
. build/activate
cmake -S . -B build -G Ninja -C build/deps.cmake >build/configure.log || { cat build/configure.log; exit 1; }
cmake --build build
