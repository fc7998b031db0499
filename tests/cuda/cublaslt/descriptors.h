// SPDX-License-Identifier: Apache-2.0
// What lies in cuBLASLt's opaque descriptors.
#pragma once
#include "cublaslt/header.h"
#include <cstdint>

namespace standin_cublaslt {

struct Layout {
  std::int32_t type = 0, order = CUBLASLT_ORDER_COL, batch = 1;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0, stride = 0;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

struct Description {
  std::int32_t compute = 0, scale = 0;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = 0, transpose_b = 0, transpose_c = 0;  // CUBLAS_OP_N
  std::int32_t fill = CUBLAS_FILL_MODE_FULL, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t bias_stride = 0, aux_leading = 0, aux_stride = 0;
  std::int32_t aux_type = -1, bias_type = -1;  // that of D
  std::int32_t sm_count = 0;
  std::int8_t fast_accumulation = 0;
};
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t));

struct Preference {
  std::int32_t search = 0;
  std::uint32_t reductions = 0xffffffff;
  std::uint64_t most_workspace = 0;
  std::uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;
  float most_waves = 0;
  std::uint64_t implementations = ~std::uint64_t{0};
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

/// What an algorithm was chosen for.
struct Algorithm {
  std::uint64_t magic = 0, workspace = 0;
  std::uint32_t align_a = 1, align_b = 1, align_c = 1, align_d = 1;
  /// Parts of sums are rounded to the type of D before they are added up, where the preferences
  /// allow it: cuBLASLt 13.1 does so on an H100.
  std::uint32_t rounds_parts = 0;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
inline constexpr std::uint64_t kMagic = 0x6361657375726121;

/// One product, all of it known.
struct Product {
  Description description;
  Layout a, b, c, d;
  bool rounds_parts = false;
  const void *at_a = nullptr, *at_b = nullptr, *at_c = nullptr;
  void* at_d = nullptr;
  double alpha = 1, beta = 0;
  const void *device_alpha = nullptr, *device_beta = nullptr;
  std::uint64_t m = 0, n = 0, k = 0;

  bool Has(int epilogue) const { return (description.epilogue & epilogue) == epilogue; }
  int bias_type() const { return description.bias_type < 0 ? d.type : description.bias_type; }
  int aux_type() const { return description.aux_type < 0 ? d.type : description.aux_type; }
  /// Elements of the bias, or of the gradient of one; 0 without.
  std::uint64_t bias_length() const;
};
inline constexpr int kBiasGradient = 16;  // of DRELU_BGRAD and DGELU_BGRAD

/// Bytes of one element; 0 for a type that is not known.
std::size_t Bytes(int type);
/// Bytes from the first to the last element.
std::size_t Span(const Layout& layout);
std::size_t AuxSpan(const Product& product);

/// Fills in m, n and k; the code of a product that makes no sense, or is not supported.
cublasStatus_t Check(Product& product);

void Compute(const Product& product);

}  // namespace standin_cublaslt
