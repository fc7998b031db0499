// SPDX-License-Identifier: Apache-2.0
// Any bytes as an adapter's folder: the configuration, a zero byte, the safetensors file. An error
// names one of the two files; an adapter that is read has whole matrices of its rank.
#include "tests/fuzz/memory_file.h"
#include "tests/fuzz/safetensors_mutator.h"
#include "training/adapters/adapter_files.h"

namespace caesura::fuzz {
namespace {

struct Parts {
  std::string config, tensors;
};

Parts PartsOf(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(all.find('\0'), all.size());
  return {all.substr(0, zero), all.substr(std::min(zero + 1, all.size()))};
}

class AdapterFolder : public MemoryFile {
 public:
  explicit AdapterFolder(Parts parts)
      : config_(std::move(parts.config)), tensors_(std::move(parts.tensors)) {}
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return (path == "folder/adapter_config.json" ? config_ : tensors_).Open(path);
  }

 private:
  MemoryFile config_, tensors_;
};

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura;
  fuzz::AdapterFolder folder(fuzz::PartsOf(data, size));
  const Result<Adapter> read = ReadAdapter("folder", folder);
  if (!read.ok()) {
    fuzz::Require(read.status().message().find("folder/adapter_") != std::string::npos,
                  "an error names the file");
    return 0;
  }
  fuzz::Require(read->rank >= 1 && !read->layers.empty(), "an adapter has layers");
  for (const auto& [name, layer] : read->layers) {
    fuzz::Require(layer.a.shape().rank() == 2 && layer.b.shape().rank() == 2 &&
                      layer.a.shape()[0] == read->rank && layer.b.shape()[1] == read->rank,
                  "matrices are of the adapter's rank");
  }
  return 0;
}

// Changes one of the two files.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace caesura;
  auto [config, tensors] = fuzz::PartsOf(data, size);
  fuzz::Random random(seed);
  std::string& part = random.Below(3) == 0 ? config : tensors;
  const bool is_tensors = &part == &tensors;
  const size_t old_size = part.size();
  part.resize(old_size + 64);
  auto* const bytes = reinterpret_cast<uint8_t*>(part.data());
  if (!is_tensors && random.Below(2) == 0) {
    part.resize(old_size);
    fuzz::MutateHeader(&part, random);
  } else {
    part.resize(is_tensors ? fuzz::MutateSafetensors(bytes, old_size, part.size(), seed)
                           : LLVMFuzzerMutate(bytes, old_size, part.size()));
  }
  const std::string out = config + '\0' + tensors;
  if (out.size() > max_size) return size;
  std::memcpy(data, out.data(), out.size());
  return out.size();
}
