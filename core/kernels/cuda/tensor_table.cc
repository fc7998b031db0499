// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/tensor_table.h"

#include "core/cuda/cuda_source.h"

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

std::string CudaTensorTable::Macros(int addresses) {
  return CudaMacros({{"TENSORS", std::to_string(MostTensors(addresses))},
                     {"ADDRESSES", std::to_string(addresses)},
                     {"CHUNK", std::to_string(kChunk)},
                     {"THREADS", std::to_string(kThreads)}});
}

CudaGrid CudaTensorTable::Grid(const CudaDevice& device) const {
  const int64_t most = int64_t{8} * device.multiprocessors();
  return {static_cast<unsigned>(std::clamp<int64_t>(chunks(), 1, most)), kThreads};
}

}  // namespace caesura
