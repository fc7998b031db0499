// SPDX-License-Identifier: Apache-2.0
// Any bytes as an .npz archive, and as a .npy array. An array that was read can be written and
// reads back.
#include "core/files/npy.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

void CheckArray(const Tensor& tensor) {
  const Result<std::string> bytes = TensorToNpy(tensor);
  if (!bytes.ok()) return;  // strings
  const Result<Tensor> again = TensorFromNpy(*bytes);
  Require(again.ok() && again->shape() == tensor.shape() && again->dtype() == tensor.dtype(),
          "an array reads back");
  Require(tensor.bytes() == 0 || std::memcmp(again->raw(), tensor.raw(), tensor.bytes()) == 0,
          "an array reads back as the same");
}

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (const Result<Tensor> one = TensorFromNpy(bytes); one.ok()) fuzz::CheckArray(*one);
  fuzz::MemoryFile file(bytes);
  const auto arrays = ReadNpz("file", {.max_bytes = size_t{1} << 26}, file);
  if (!arrays.ok()) return 0;
  for (const auto& [name, tensor] : *arrays) fuzz::CheckArray(tensor);
  return 0;
}
