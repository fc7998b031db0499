// SPDX-License-Identifier: Apache-2.0
// Any bytes as an ONNX model: reading, making a session, one run.
#include "tests/fuzz/bounded_run.h"
#include "tests/fuzz/model_mutator.h"
#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  caesura::fuzz::ReadAndRun(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return caesura::fuzz::MutateModel(data, size, max_size, seed);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data, size_t size, const uint8_t* other,
                                            size_t other_size, uint8_t* out, size_t max_size,
                                            unsigned seed) {
  return caesura::fuzz::CrossModels(data, size, other, other_size, out, max_size, seed);
}
