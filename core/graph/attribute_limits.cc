// SPDX-License-Identifier: Apache-2.0
#include "core/graph/attribute_limits.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "core/graph/op_schema.h"

namespace caesura {
namespace {

struct Limits {
  int64_t least, most;
};

// Twice such a number still fits 32 bits, which onnx's inference and oneDNN calculate with in
// places; the product of two fits 64 bits.
constexpr int64_t kLarge = int64_t{1} << 30;
constexpr int64_t kMostSamples = 1024;
constexpr Limits kUsual = {-kLarge, kLarge};
constexpr Limits kPositive = {1, kLarge};
constexpr Limits kNotNegative = {0, kLarge};
// Values that are compared, copied or clamped, and never counted with.
constexpr Limits kAny = {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};

// By attribute name, which means the same in all ops that have it.
const std::unordered_map<std::string_view, Limits>& Table() {
  static const auto* table = new std::unordered_map<std::string_view, Limits>{
      // labels, keys and constants
      {"cats_int64s", kAny},
      {"classlabels_int64s", kAny},
      {"classlabels_ints", kAny},
      {"default_int64", kAny},
      {"ignore_index", kAny},
      {"imputed_value_int64s", kAny},
      {"int64_vocabulary", kAny},
      {"keys_int64s", kAny},
      {"pool_int64s", kAny},
      {"replaced_value_int64", kAny},
      {"seed", kAny},
      {"value_int", kAny},
      {"value_ints", kAny},
      {"values_int64s", kAny},
      // ends of ranges: the largest number means "to the end"
      {"end", kAny},
      {"ends", kAny},
      {"max_gram_length", kAny},
      {"max_skip_count", kAny},
      {"maxsplit", kAny},
      {"start", kAny},
      {"starts", kAny},
      // divisors and sizes of windows
      {"blocksize", kPositive},
      {"dilations", kPositive},
      {"group", kPositive},
      {"kernel_shape", kPositive},
      {"num_groups", kPositive},
      {"num_outputs", kPositive},
      {"offset_group", kPositive},
      {"strides", kPositive},
      // counts
      {"batch_dims", kNotNegative},
      {"block_size", kNotNegative},
      {"ngram_indexes", kNotNegative},
      // a bin's points are the square of it
      {"sampling_ratio", {0, kMostSamples}},
  };
  return *table;
}

bool IsLimited(const std::string& domain) {
  return IsClosedDomain(domain) || domain == kCaesuraDomain;
}

}  // namespace

std::string AttributeFault(const std::string& domain, const AttributeMap& attributes) {
  if (!IsLimited(domain)) return {};
  for (const auto& [name, attribute] : attributes) {
    const auto* one = std::get_if<int64_t>(&attribute);
    const auto* many = std::get_if<std::vector<int64_t>>(&attribute);
    if (one == nullptr && many == nullptr) continue;
    const int64_t* first = one != nullptr ? one : many->data();
    const int64_t* end = first + (one != nullptr ? 1 : many->size());
    if (std::all_of(first, end, [](int64_t v) { return v >= 1 && v <= kMostSamples; }))
      continue;  // as all limits allow
    const auto row = Table().find(name);
    const Limits limits = row == Table().end() ? kUsual : row->second;
    const int64_t* bad =
        std::find_if(first, end, [&](int64_t v) { return v < limits.least || v > limits.most; });
    if (bad == end) continue;
    return "attribute '" + name + "': expected " + std::to_string(limits.least) + " to " +
           std::to_string(limits.most) + ", got " + std::to_string(*bad);
  }
  return {};
}

}  // namespace caesura
