// SPDX-License-Identifier: Apache-2.0
// BucketLayout: how the tensors of a bucket lie in one block that several ranks divide among them.
// Each tensor begins at a multiple of kBufferAlignment bytes. The block is padded, so that it has
// one part of equal size for each rank. A part may begin and end within a tensor.
#ifndef CAESURA_CORE_DISTRIBUTED_BUCKET_LAYOUT_H_
#define CAESURA_CORE_DISTRIBUTED_BUCKET_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "core/tensor/dtype.h"

namespace caesura {

// Offsets in elements. It never changes, so any thread may read it. Equal tensors, dtypes and
// numbers of ranks give equal layouts.
class BucketLayout {
 public:
  // Elements [first, last) of a tensor, which lie from element `at` of the rank's part on.
  struct Piece {
    int tensor;
    int64_t first, last, at;
  };

  // `elements`: of each tensor. REQUIRES: dtype has a fixed size; one tensor or more; ranks > 0.
  BucketLayout(std::vector<int64_t> elements, DType dtype, int ranks);

  int ranks() const { return ranks_; }
  // Elements of each rank's part.
  int64_t part() const { return part_; }
  // Elements of the block, the parts of all ranks.
  int64_t all() const { return part_ * ranks_; }
  // The first element of tensor `i`, and its number of elements.
  int64_t offset(int i) const { return offsets_[i]; }
  int64_t elements(int i) const { return elements_[i]; }
  int tensors() const { return static_cast<int>(elements_.size()); }
  // The first element of the padding. There is always some.
  int64_t padding_offset() const { return padding_offset_; }
  // The pieces of tensors that lie in the part of a rank.
  std::vector<Piece> Pieces(int rank) const;

  bool operator==(const BucketLayout&) const = default;

 private:
  std::vector<int64_t> elements_, offsets_;
  int ranks_;
  int64_t part_ = 0, padding_offset_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_BUCKET_LAYOUT_H_
