// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/bucket_layout.h"

#include <gtest/gtest.h>

namespace caesura::testing {
namespace {

TEST(BucketLayout, PartsCoverEachElementOnce) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    for (const std::vector<int64_t>& elements :
         {std::vector<int64_t>{1}, {16}, {5, 0, 17, 300}, {1000, 3}, {64, 64, 64}}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
        const BucketLayout layout(elements, dtype, ranks);
        const auto unit = static_cast<int64_t>(64 / DTypeSize(dtype));
        EXPECT_EQ(layout.part() % unit, 0);
        EXPECT_GT(layout.all(), layout.padding_offset());
        EXPECT_LE(layout.all(), layout.padding_offset() + ranks * unit + ranks);
        std::vector<std::vector<int>> seen;
        for (const int64_t count : elements) seen.emplace_back(count, 0);
        for (int r = 0; r < ranks; ++r) {
          for (const BucketLayout::Piece& piece : layout.Pieces(r)) {
            const int64_t in_block = layout.offset(piece.tensor) + piece.first;
            EXPECT_EQ(r * layout.part() + piece.at, in_block);
            EXPECT_LE(piece.at + piece.last - piece.first, layout.part());
            for (int64_t e = piece.first; e < piece.last; ++e) ++seen[piece.tensor][e];
          }
        }
        for (const auto& tensor : seen)
          for (const int times : tensor) EXPECT_EQ(times, 1);
      }
    }
  }
}

}  // namespace
}  // namespace caesura::testing
