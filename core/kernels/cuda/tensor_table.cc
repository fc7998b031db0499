// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/tensor_table.h"

namespace caesura {

int CudaTensorTable::MostTensors(int addresses) {
  return (static_cast<int>(std::tuple_size_v<Words>) - 2) / (2 + addresses);
}

std::vector<CudaTensorTable> CudaTensorTable::Make(const std::vector<int64_t>& elements,
                                                   int addresses) {
  const int most = MostTensors(addresses);
  std::vector<CudaTensorTable> out;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] == 0) continue;
    if (out.empty() || static_cast<int>(out.back().tensors_.size()) == most) {
      out.emplace_back().addresses_ = addresses;
    }
    CudaTensorTable& table = out.back();
    const size_t place = 2 + table.tensors_.size();
    table.numbers_[place] = table.numbers_[1];
    table.numbers_[place + most] = elements[i];
    table.numbers_[0] += 1;
    table.numbers_[1] += (elements[i] + kChunk - 1) / kChunk;
    table.tensors_.push_back(static_cast<int>(i));
  }
  return out;
}

std::string CudaTensorTable::Source(int addresses) {
  const std::string most = "[" + std::to_string(MostTensors(addresses)) + "]";
  return "#define CHUNK " + std::to_string(kChunk) +
         "ll\nstruct Table {\n  i64 tensors, chunks;\n  i64 first" + most + ", elements" + most +
         ";\n  char* at[" + std::to_string(addresses) + "]" + most + ";\n};\n" + R"(
// The tensor that a chunk is of, and the part of it that the chunk is.
__device__ inline int TensorOf(const Table& table, i64 chunk, i64* begin, i64* end) {
  int tensor = 0;
  while (tensor + 1 < table.tensors && table.first[tensor + 1] <= chunk) ++tensor;
  *begin = (chunk - table.first[tensor]) * CHUNK;
  *end = *begin + CHUNK < table.elements[tensor] ? *begin + CHUNK : table.elements[tensor];
  return tensor;
}
)";
}

CudaGrid CudaTensorTable::Grid(const CudaDevice& device) const {
  const int64_t most = int64_t{16} * device.multiprocessors();
  return {static_cast<unsigned>(std::clamp<int64_t>(chunks(), 1, most)), 256};
}

}  // namespace caesura
