// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_CORE_KERNELS_CAPPED_PRODUCT_H_
#define CAESURA_CORE_KERNELS_CAPPED_PRODUCT_H_

#include <cstdint>
#include <vector>

namespace caesura {

// The product of numbers that are not negative; 2^62 where it is more. For work that is only
// compared, and for sizes of several tensors' dims, which no shape bounds.
inline int64_t CappedProduct(const std::vector<int64_t>& factors) {
  constexpr int64_t kMost = int64_t{1} << 62;
  int64_t product = 1;
  bool capped = false;
  for (int64_t factor : factors) {
    if (factor == 0) return 0;
    capped = capped || __builtin_mul_overflow(product, factor, &product) || product > kMost;
  }
  return capped ? kMost : product;
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CAPPED_PRODUCT_H_
