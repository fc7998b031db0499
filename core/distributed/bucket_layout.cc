// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/bucket_layout.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "core/tensor/tensor.h"

namespace caesura {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

BucketLayout::BucketLayout(std::vector<int64_t> elements, DType dtype, int ranks)
    : elements_(std::move(elements)), ranks_(ranks) {
  assert(dtype != DType::kUndefined && dtype != DType::kString);
  assert(!elements_.empty() && ranks > 0);
  const auto unit = static_cast<int64_t>(kBufferAlignment / DTypeSize(dtype));
  for (const int64_t count : elements_) {
    offsets_.push_back(padding_offset_);
    padding_offset_ = RoundUp(padding_offset_ + count, unit);
  }
  part_ = RoundUp((padding_offset_ + ranks_) / ranks_, unit);
}

std::vector<BucketLayout::Piece> BucketLayout::Pieces(int rank) const {
  std::vector<Piece> pieces;
  const int64_t begin = part_ * rank, end = begin + part_;
  for (int i = 0; i < tensors(); ++i) {
    const int64_t first = std::max(begin, offsets_[i]);
    const int64_t last = std::min(end, offsets_[i] + elements_[i]);
    if (first < last) pieces.push_back({i, first - offsets_[i], last - offsets_[i], first - begin});
  }
  return pieces;
}

}  // namespace caesura
