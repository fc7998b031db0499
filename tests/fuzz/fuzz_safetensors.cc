// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file. What is read can be written, and reads back as the same.
#include "core/files/safetensors.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/safetensors_mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura;
  fuzz::MemoryFile file(std::string(reinterpret_cast<const char*>(data), size));
  const Result<TensorFile> read = ReadSafetensors("file", file);
  if (!read.ok()) return 0;
  fuzz::MemoryFile copy;
  fuzz::Require(WriteSafetensors("file", *read, copy).ok(), "what was read can be written");
  const Result<TensorFile> again = ReadSafetensors("file", copy);
  fuzz::Require(again.ok() && again->metadata == read->metadata &&
                    again->tensors.size() == read->tensors.size(),
                "what was written reads back");
  for (const auto& [name, tensor] : read->tensors) {
    const auto found = again->tensors.find(name);
    fuzz::Require(found != again->tensors.end() && found->second.shape() == tensor.shape() &&
                      found->second.dtype() == tensor.dtype() &&
                      (tensor.bytes() == 0 ||
                       std::memcmp(found->second.raw(), tensor.raw(), tensor.bytes()) == 0),
                  "a tensor reads back as the same");
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return caesura::fuzz::MutateSafetensors(data, size, max_size, seed);
}
