// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dtype.h"

namespace caesura {
namespace {

struct DTypeRow {
  const char* name;
  uint8_t size;
  uint8_t file_bits;
};

// Indexed by DType.
constexpr DTypeRow kRows[kDTypeCount] = {
    {"undefined", 0, 0},      {"float32", 4, 32},   {"uint8", 1, 8},
    {"int8", 1, 8},           {"uint16", 2, 16},    {"int16", 2, 16},
    {"int32", 4, 32},         {"int64", 8, 64},     {"string", sizeof(std::string), 0},
    {"bool", 1, 8},           {"float16", 2, 16},   {"float64", 8, 64},
    {"uint32", 4, 32},        {"uint64", 8, 64},    {"complex64", 8, 64},
    {"complex128", 16, 128},  {"bfloat16", 2, 16},  {"float8e4m3fn", 1, 8},
    {"float8e4m3fnuz", 1, 8}, {"float8e5m2", 1, 8}, {"float8e5m2fnuz", 1, 8},
    {"uint4", 1, 4},          {"int4", 1, 4},       {"float4e2m1", 1, 4},
    {"float8e8m0", 1, 8},     {"uint2", 1, 2},      {"int2", 1, 2},
};

const DTypeRow& Row(DType dtype) {
  const int i = static_cast<int>(dtype);
  return kRows[i < kDTypeCount ? i : 0];
}

}  // namespace

size_t DTypeSize(DType dtype) { return Row(dtype).size; }
int DTypeFileBits(DType dtype) { return Row(dtype).file_bits; }
const char* DTypeName(DType dtype) { return Row(dtype).name; }
DType DTypeFromName(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == kRows[i].name) return static_cast<DType>(i);
  }
  return DType::kUndefined;
}
bool IsDifferentiable(DType dtype) { return kFloatTypes.Contains(dtype); }

bool IsFloating(DType dtype) {
  constexpr DTypeSet kSmall = {DType::kFloat8E4M3FN,   DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                               DType::kFloat8E5M2FNUZ, DType::kFloat4E2M1,     DType::kFloat8E8M0};
  return (kFloatTypes | kSmall).Contains(dtype);
}

bool IsInteger(DType dtype) {
  constexpr DTypeSet kSmall = {DType::kInt4, DType::kUInt4, DType::kInt2, DType::kUInt2};
  return (kSignedTypes | kUnsignedTypes | kSmall).Contains(dtype);
}

std::string DTypeSet::ToString() const {
  std::string out;
  for (int i = 1; i < kDTypeCount; ++i) {
    if (!Contains(static_cast<DType>(i))) continue;
    if (!out.empty()) out += ", ";
    out += DTypeName(static_cast<DType>(i));
  }
  return out;
}

}  // namespace caesura
