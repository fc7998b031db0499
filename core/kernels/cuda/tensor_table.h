// SPDX-License-Identifier: Apache-2.0
// Many tensors for one launch: their addresses and sizes are an argument of the kernel, and each
// block takes chunks of kChunk elements, each of one tensor. Which chunks there are depends on the
// tensors' sizes only.
#ifndef CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_H_
#define CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/kernels/cuda/cuda_kernel.h"

namespace caesura {

class CudaTensorTable {
 public:
  static constexpr int64_t kChunk = 2048;
  static constexpr unsigned kThreads = 256;  // of a block
  // `struct Table`, or more than it: 3072 bytes, of the 4096 that a kernel's arguments may have.
  using Words = std::array<int64_t, 384>;

  // Tables for tensors of these sizes with `addresses` each, in their order: as many as it takes,
  // since a kernel's arguments are of limited size. Empty tensors are in none.
  static std::vector<CudaTensorTable> Make(const std::vector<int64_t>& elements, int addresses);
  // The numbers of `struct Table` in tensor_table.cuh, which is the type of the argument.
  static std::string Macros(int addresses);

  unsigned tensors() const { return static_cast<unsigned>(tensors_.size()); }
  int64_t chunks() const { return numbers_[1]; }
  // Blocks for the chunks, as many as a device runs at once: each takes several, in their order.
  CudaGrid Grid(const CudaDevice& device) const;
  // The argument with the addresses: address_of(tensor, k) is address `k` of a tensor, by its place
  // among `elements`.
  template <typename AddressOf>
  Words Argument(const AddressOf& address_of) const {
    Words out = numbers_;
    for (int k = 0; k < addresses_; ++k) {
      for (size_t t = 0; t < tensors_.size(); ++t) {
        const void* address = address_of(tensors_[t], k);
        out[FirstAddress(k) + t] = static_cast<int64_t>(reinterpret_cast<intptr_t>(address));
      }
    }
    return out;
  }

 private:
  static int MostTensors(int addresses);
  size_t FirstAddress(int k) const {
    return 2 + static_cast<size_t>(2 + k) * MostTensors(addresses_);
  }

  int addresses_ = 0;
  std::vector<int> tensors_;
  Words numbers_ = {};  // the argument, without addresses
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_H_
