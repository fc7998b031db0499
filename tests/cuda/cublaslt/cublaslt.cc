// SPDX-License-Identifier: Apache-2.0
// cublasLt.h: products, by way of the stand-in driver's streams.
#include "cublaslt/header.h"
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#include "cublaslt/descriptors.h"
#include "standin.h"

using namespace standin_cublaslt;

namespace {

int refusals = 0;
struct Handle {
  int unused = 0;
};

// A field of a descriptor, by its attribute.
struct Field {
  int attribute;
  std::size_t offset, bytes;
};
#define FIELD(ATTRIBUTE, STRUCT, MEMBER) \
  {ATTRIBUTE, offsetof(STRUCT, MEMBER), sizeof(STRUCT::MEMBER)}
constexpr Field kLayoutFields[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, Layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, Layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, Layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, Layout, columns),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, Layout, leading),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Layout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, Layout, stride)};
constexpr Field kDescriptionFields[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, Description, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, Description, scale),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, Description, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, Description, transpose_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, Description, transpose_b),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSC, Description, transpose_c),
    FIELD(CUBLASLT_MATMUL_DESC_FILL_MODE, Description, fill),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, Description, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, Description, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, Description, bias_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, Description, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, Description, aux_leading),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, Description, aux_stride),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, Description, aux_type),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, Description, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, Description, sm_count),
    FIELD(CUBLASLT_MATMUL_DESC_FAST_ACCUM, Description, fast_accumulation)};
constexpr Field kPreferenceFields[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, Preference, search),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Preference, most_workspace),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, Preference, reductions),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, Preference, align_a),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, Preference, align_b),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, Preference, align_c),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, Preference, align_d),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, Preference, most_waves),
    FIELD(CUBLASLT_MATMUL_PREF_IMPL_MASK, Preference, implementations)};
#undef FIELD

template <std::size_t N>
cublasStatus_t Set(void* object, const Field (&fields)[N], int attribute, const void* from,
                   std::size_t bytes) {
  for (const Field& field : fields) {
    if (field.attribute != attribute) continue;
    if (object == nullptr || from == nullptr || bytes != field.bytes) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::memcpy(static_cast<char*>(object) + field.offset, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <std::size_t N>
cublasStatus_t Get(const void* object, const Field (&fields)[N], int attribute, void* to,
                   std::size_t bytes, std::size_t* written) {
  for (const Field& field : fields) {
    if (field.attribute != attribute) continue;
    if (written != nullptr) *written = field.bytes;
    if (bytes == 0 && written != nullptr) return CUBLAS_STATUS_SUCCESS;
    if (object == nullptr || to == nullptr || bytes < field.bytes) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::memcpy(to, static_cast<const char*>(object) + field.offset, field.bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

template <typename T, typename Opaque>
T Unpack(const Opaque* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}
template <typename T, typename Opaque>
cublasStatus_t Pack(Opaque* to, std::size_t bytes, const T& value) {
  if (to == nullptr || bytes < sizeof(Opaque)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<void*>(to), &value, sizeof value);
  return CUBLAS_STATUS_SUCCESS;
}

bool IsAligned(const void* pointer, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// The alignment of a pointer, as far as an algorithm makes use of it.
std::uint32_t Useful(std::uint32_t alignment, const Layout& layout) {
  return std::clamp<std::uint32_t>(alignment, static_cast<std::uint32_t>(Bytes(layout.type)), 16);
}

cublasStatus_t MakeProduct(const cublasLtMatmulDescOpaque_t* description,
                           const cublasLtMatrixLayoutOpaque_t* a,
                           const cublasLtMatrixLayoutOpaque_t* b,
                           const cublasLtMatrixLayoutOpaque_t* c,
                           const cublasLtMatrixLayoutOpaque_t* d, Product& product) {
  if (description == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  product.description = Unpack<Description>(description);
  product.a = Unpack<Layout>(a);
  product.b = Unpack<Layout>(b);
  product.c = Unpack<Layout>(c);
  product.d = Unpack<Layout>(d);
  return Check(product);
}

double Scalar(const void* at, int type) {
  if (type == CUDA_R_64F) return *static_cast<const double*>(at);
  return *static_cast<const float*>(at);
}

}  // namespace

extern "C" {

void standin_cublaslt_refuse(int n) { refusals = n; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (standin_called("cublasLtCreate") != 0) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion(void) { return 130100; }
std::size_t cublasLtGetCudartVersion(void) { return 13000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS unknown";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t bytes,
                                                 cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t columns, std::int64_t leading) {
  Layout made;
  made.type = type;
  made.rows = rows;
  made.columns = columns;
  made.leading = leading;
  return Pack(layout, bytes, made);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  *layout = new cublasLtMatrixLayoutOpaque_t;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, leading);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* from, std::size_t bytes) {
  return Set(layout, kLayoutFields, attribute, from, bytes);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, void* to,
                                                std::size_t bytes, std::size_t* written) {
  return Get(layout, kLayoutFields, attribute, to, bytes, written);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, std::size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  Description made;
  made.compute = compute;
  made.scale = scale;
  return Pack(description, bytes, made);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  *description = new cublasLtMatmulDescOpaque_t;
  return cublasLtMatmulDescInit_internal(*description, sizeof **description, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* from, std::size_t bytes) {
  return Set(description, kDescriptionFields, attribute, from, bytes);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, void* to,
                                              std::size_t bytes, std::size_t* written) {
  return Get(description, kDescriptionFields, attribute, to, bytes, written);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     std::size_t bytes) {
  return Pack(preference, bytes, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof **preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* from, std::size_t bytes) {
  return Set(preference, kPreferenceFields, attribute, from, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void* to, std::size_t bytes,
                                                    std::size_t* written) {
  return Get(preference, kPreferenceFields, attribute, to, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  *returned = 0;
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (standin_called("cublasLtMatmulAlgoGetHeuristic") != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (preference == nullptr || requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  Product product;
  const cublasStatus_t status = MakeProduct(description, a, b, c, d, product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (refusals > 0) {
    --refusals;
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto wish = Unpack<Preference>(preference);
  Algorithm algorithm;
  algorithm.magic = kMagic;
  algorithm.workspace = std::min<std::uint64_t>(wish.most_workspace, 4096);
  constexpr std::uint32_t kInTypeOfD =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  algorithm.rounds_parts = (wish.reductions & kInTypeOfD) != 0 && product.k >= 512;
  algorithm.align_a = Useful(wish.align_a, product.a);
  algorithm.align_b = Useful(wish.align_b, product.b);
  algorithm.align_c = Useful(wish.align_c, product.c);
  algorithm.align_d = Useful(wish.align_d, product.d);
  results[0] = {};
  std::memcpy(static_cast<void*>(&results[0].algo), &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* at_a, cublasLtMatrixLayout_t a,
                              const void* at_b, cublasLtMatrixLayout_t b, const void* beta,
                              const void* at_c, cublasLtMatrixLayout_t c, void* at_d,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  auto product = std::make_unique<Product>();
  Product& p = *product;
  const cublasStatus_t status = MakeProduct(description, a, b, c, d, p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (alpha == nullptr || beta == nullptr || at_a == nullptr || at_b == nullptr ||
      at_d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Algorithm algorithm;
  if (algo != nullptr) {
    std::memcpy(static_cast<void*>(&algorithm), algo, sizeof algorithm);
    if (algorithm.magic != kMagic || algorithm.workspace > workspace_bytes) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  // As cuBLASLt 13.1 on an H100 answers: any workspace that is given is aligned, used or not.
  if (!IsAligned(workspace, 256) || (workspace_bytes > 0 && workspace == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!IsAligned(at_a, Useful(algorithm.align_a, p.a)) ||
      !IsAligned(at_b, Useful(algorithm.align_b, p.b)) ||
      !IsAligned(at_c, Useful(algorithm.align_c, p.c)) ||
      !IsAligned(at_d, Useful(algorithm.align_d, p.d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  p.rounds_parts = algorithm.rounds_parts != 0;
  p.at_a = at_a;
  p.at_b = at_b;
  p.at_c = at_c;
  p.at_d = at_d;
  std::vector<standin_range> ranges = {{at_a, Span(p.a), 0}, {at_b, Span(p.b), 0}};
  bool reads_c = at_c != nullptr;
  if (p.description.pointer_mode == CUBLASLT_POINTER_MODE_HOST) {
    p.alpha = Scalar(alpha, p.description.scale);
    p.beta = Scalar(beta, p.description.scale);
    reads_c = p.beta != 0;
  } else if (p.description.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    p.device_alpha = alpha;
    p.device_beta = beta;
    ranges.push_back({alpha, Bytes(p.description.scale), 0});
    ranges.push_back({beta, Bytes(p.description.scale), 0});
  } else {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (reads_c && at_c == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (reads_c) ranges.push_back({at_c, Span(p.c), 0});
  if (const std::uint64_t length = p.bias_length(); length > 0) {
    if (p.description.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    const std::uint64_t stride = static_cast<std::uint64_t>(p.description.bias_stride);
    const std::uint64_t count = length + stride * static_cast<std::uint64_t>(p.d.batch - 1);
    ranges.push_back(
        {p.description.bias, count * Bytes(p.bias_type()), p.Has(CUBLASLT_EPILOGUE_BIAS) ? 0 : 1});
  }
  if ((p.description.epilogue & 128) != 0) {
    if (p.description.aux == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    const bool reads = p.Has(CUBLASLT_EPILOGUE_DRELU) || p.Has(CUBLASLT_EPILOGUE_DGELU);
    ranges.push_back({p.description.aux, AuxSpan(p), reads ? 0 : 1});
  }
  ranges.push_back({at_d, Span(p.d), 1});
  if (workspace_bytes > 0) ranges.push_back({workspace, workspace_bytes, 1});
  const int error = standin_enqueue(
      stream, "cublasLtMatmul", ranges.data(), ranges.size(),
      [](void* argument) {
        Compute(*static_cast<Product*>(argument));
        return 0;
      },
      [](void* argument) { delete static_cast<Product*>(argument); }, product.release());
  return error == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
