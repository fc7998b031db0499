// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

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
  out.strides.reserve(permutation.size());
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

namespace {

// Row by row along the last dim; `dense` is read where `kToLayout`, and written otherwise.
template <size_t kBytes, bool kToLayout>
void CopyRows(char* strided, const Shape& shape, const std::vector<int64_t>& strides, char* dense) {
  const int last = shape.rank() - 1;
  const int64_t row = last < 0 ? 1 : shape[last];
  const int64_t step = last < 0 ? 0 : strides[last] * static_cast<int64_t>(kBytes);
  std::vector<int64_t> index(shape.rank(), 0);
  for (int64_t left = shape.elements(); left > 0; left -= row, dense += row * kBytes) {
    for (int64_t i = 0; i < row; ++i) {
      char* element = strided + i * step;
      std::memcpy(kToLayout ? element : dense + i * kBytes,
                  kToLayout ? dense + i * kBytes : element, kBytes);
    }
    for (int d = last - 1; d >= 0; --d) {
      if (index[d] + 1 < shape[d]) {
        ++index[d];
        strided += strides[d] * static_cast<int64_t>(kBytes);
        break;
      }
      strided -= strides[d] * static_cast<int64_t>(kBytes) * index[d];
      index[d] = 0;
    }
  }
}

template <bool kToLayout>
void CopyElements(char* strided, const Shape& shape, const Layout& layout, size_t element_bytes,
                  char* dense) {
  const std::vector<int64_t> strides = StridesOf(shape, layout);
  strided += layout.offset * static_cast<int64_t>(element_bytes);
  switch (element_bytes) {
    case 1: return CopyRows<1, kToLayout>(strided, shape, strides, dense);
    case 2: return CopyRows<2, kToLayout>(strided, shape, strides, dense);
    case 4: return CopyRows<4, kToLayout>(strided, shape, strides, dense);
    case 8: return CopyRows<8, kToLayout>(strided, shape, strides, dense);
    case 16: return CopyRows<16, kToLayout>(strided, shape, strides, dense);
    default: return;
  }
}

}  // namespace

void CopyDense(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
               void* to) {
  char* strided = const_cast<char*>(static_cast<const char*>(from));  // only read
  CopyElements<false>(strided, shape, layout, element_bytes, static_cast<char*>(to));
}

void CopyToLayout(const void* from, const Shape& shape, const Layout& layout, size_t element_bytes,
                  void* to) {
  char* dense = const_cast<char*>(static_cast<const char*>(from));  // only read
  CopyElements<true>(static_cast<char*>(to), shape, layout, element_bytes, dense);
}

}  // namespace caesura
