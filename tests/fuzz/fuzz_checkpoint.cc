// SPDX-License-Identifier: Apache-2.0
// Any bytes as a checkpoint. The mutator sets the checksum right, so that what stands after it is
// reached.
#include <zlib.h>

#include "core/files/safetensors.h"
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/safetensors_mutator.h"
#include "training/files/checkpoint.h"

namespace caesura::fuzz {
namespace {

// As a checkpoint has it: over metadata, then names, types, dims and bytes of the tensors.
std::string Checksum(const TensorFile& contents) {
  std::string all;
  for (const auto& [key, text] : contents.metadata) {
    if (key != "caesura.crc32") all += key + '\0' + text + '\0';
  }
  for (const auto& [name, tensor] : contents.tensors) {
    all += name + '\0' + DTypeName(tensor.dtype()) + tensor.shape().ToString() + '\0';
    if (tensor.bytes() > 0) all.append(static_cast<const char*>(tensor.raw()), tensor.bytes());
  }
  return std::to_string(crc32_z(0, reinterpret_cast<const Bytef*>(all.data()), all.size()));
}

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura;
  fuzz::MemoryFile file(std::string(reinterpret_cast<const char*>(data), size));
  const Result<Checkpoint> read = RestoreCheckpoint("file", file);
  if (!read.ok()) return 0;
  fuzz::MemoryFile copy;
  fuzz::Require(SaveCheckpoint(*read, "file", copy).ok(),
                "a checkpoint that was read can be saved");
  const Result<Checkpoint> again = RestoreCheckpoint("file", copy);
  fuzz::Require(again.ok() && again->parameters.size() == read->parameters.size() &&
                    again->optimizer_state.size() == read->optimizer_state.size() &&
                    again->properties.size() == read->properties.size(),
                "a checkpoint that was saved can be restored");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace caesura;
  size = fuzz::MutateSafetensors(data, size, max_size, seed);
  const std::string all(reinterpret_cast<const char*>(data), size);
  fuzz::MemoryFile file(all);
  const Result<TensorFile> contents = ReadSafetensors("file", file);
  if (!contents.ok() || contents->metadata.count("caesura.crc32") == 0) return size;
  std::string header = fuzz::HeaderOf(data, size);
  const std::string rest = all.substr(fuzz::kHeaderLengthBytes + header.size());
  const std::string key = "\"caesura.crc32\":\"";
  const size_t at = header.find(key);
  if (at == header.npos) return size;
  const size_t end = header.find('"', at + key.size());
  header.replace(at + key.size(), end - at - key.size(), fuzz::Checksum(*contents));
  const uint64_t length = header.size();
  const std::string out = std::string(reinterpret_cast<const char*>(&length), 8) + header + rest;
  if (out.size() > max_size) return size;
  std::memcpy(data, out.data(), out.size());
  return out.size();
}
