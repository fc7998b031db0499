// SPDX-License-Identifier: Apache-2.0
// Changes of ONNX models that know what a field is: they keep the bytes a model, so that faults
// after the parser are reached. Bytes that are no model are changed as bytes.
#ifndef CAESURA_TESTS_FUZZ_MODEL_MUTATOR_H_
#define CAESURA_TESTS_FUZZ_MODEL_MUTATOR_H_

#include <cstddef>
#include <cstdint>

namespace caesura::fuzz {

// Both write at most `max_size` bytes and return their number.
size_t MutateModel(uint8_t* data, size_t size, size_t max_size, unsigned seed);
// The first model with a message of the second one's.
size_t CrossModels(const uint8_t* data, size_t size, const uint8_t* other, size_t other_size,
                   uint8_t* out, size_t max_size, unsigned seed);

}  // namespace caesura::fuzz

#endif  // CAESURA_TESTS_FUZZ_MODEL_MUTATOR_H_
