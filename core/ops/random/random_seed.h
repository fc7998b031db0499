// SPDX-License-Identifier: Apache-2.0
// The attribute `seed` of ONNX's random ops (a float; an integer for Dropout): where it is given,
// it takes the place of the session's seed in the key. Step and subsequence stay, so that runs and
// nodes differ.
#ifndef CAESURA_CORE_OPS_RANDOM_RANDOM_SEED_H_
#define CAESURA_CORE_OPS_RANDOM_RANDOM_SEED_H_

#include <cstring>

#include "core/kernels/kernel.h"

namespace caesura {

struct SeedOverride {
  bool given = false;
  uint64_t seed = 0;

  explicit SeedOverride(const KernelInfo& info) {
    if (const float* real = info.node().FindAttr<float>("seed")) {
      uint32_t bits;
      std::memcpy(&bits, real, sizeof(bits));
      given = true;
      seed = bits;
    } else if (const int64_t* integer = info.node().FindAttr<int64_t>("seed")) {
      given = true;
      seed = static_cast<uint64_t>(*integer);
    }
  }

  RandomKey Apply(RandomKey key) const {
    if (given) key.seed = seed;
    return key;
  }
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RANDOM_RANDOM_SEED_H_
