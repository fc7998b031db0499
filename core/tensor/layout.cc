// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/layout.h"

#include <cstring>

namespace caesura {

std::vector<int64_t> StridesOf(const Shape& shape, const Layout& layout) {
  return layout.dense() ? shape.Strides() : layout.strides;
}

Layout Simplified(const Shape& shape, Layout layout) {
  if (layout.dense() || layout.offset != 0) return layout;
  const std::vector<int64_t> dense = shape.Strides();
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] != 1 && layout.strides[d] != dense[d]) return layout;
  }
  return {};
}

Layout Permuted(const Shape& shape, const Layout& layout, const std::vector<int64_t>& permutation) {
  const std::vector<int64_t> strides = StridesOf(shape, layout);
  Layout out{{}, layout.offset};
  for (int64_t d : permutation) out.strides.push_back(strides[d]);
  return out;
}

std::optional<Layout> Reshaped(const Shape& from, const Layout& layout, const Shape& to) {
  if (layout.dense()) return Layout();
  if (from.elements() == 0) return std::nullopt;
  struct Block {
    int64_t elements, stride;
  };
  std::vector<Block> blocks;  // innermost first; neighbours that step evenly are one
  for (int d = from.rank() - 1; d >= 0; --d) {
    if (from[d] == 1) continue;
    if (!blocks.empty() && layout.strides[d] == blocks.back().stride * blocks.back().elements) {
      blocks.back().elements *= from[d];
    } else {
      blocks.push_back({from[d], layout.strides[d]});
    }
  }
  Layout out{std::vector<int64_t>(to.rank(), 0), layout.offset};
  int d = to.rank() - 1;
  for (const Block& block : blocks) {
    int64_t taken = 1;
    for (; d >= 0 && taken < block.elements; --d) {
      if (block.elements % (taken * to[d]) != 0) return std::nullopt;
      out.strides[d] = block.stride * taken;
      taken *= to[d];
    }
    if (taken != block.elements) return std::nullopt;
  }
  return out;
}

void CopyDense(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes, void* to) {
  const std::vector<int64_t> strides = StridesOf(shape, layout);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    int64_t rest = i, at = layout.offset;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      at += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    std::memcpy(static_cast<char*>(to) + i * element_bytes, static_cast<const char*>(from) + at * element_bytes,
                element_bytes);
  }
}

}  // namespace caesura
