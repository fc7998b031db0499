// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/lt_product.h"

#include <algorithm>
#include <cassert>

#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/kernels/cuda/strided_walk.h"

namespace caesura {
namespace {

namespace lt = cublas_lt;

// NVIDIA recommends this from Hopper on.
constexpr uint64_t kMaxWorkspace = 32 << 20;
// cuBLASLt 13.1 refuses others.
constexpr uintptr_t kWorkspaceAlignment = 256;
// Buffers of plans have it; views and a caller's tensors may not.
constexpr uint32_t kVectorBytes = 16;

std::optional<lt::DataType> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return lt::kReal32F;
    case DType::kFloat64: return lt::kReal64F;
    case DType::kFloat16: return lt::kReal16F;
    case DType::kBFloat16: return lt::kReal16BF;
    default: return std::nullopt;
  }
}

// A matrix of ours, `rows` x `columns`, as cuBLASLt sees its transpose.
struct Operand {
  uint64_t rows, columns;  // of the layout, which counts columns first
  int64_t leading;
  lt::Operation operation;
};

std::optional<Operand> AsOperand(int64_t rows, int64_t columns, MatrixStrides strides) {
  const auto r = static_cast<uint64_t>(rows), c = static_cast<uint64_t>(columns);
  // A single row or column may lie at any distance: the library wants one that holds it.
  if ((strides.col == 1 || columns == 1) && (strides.row >= columns || rows == 1))
    return Operand{c, r, rows == 1 ? columns : strides.row, lt::kNone};
  if ((strides.row == 1 || rows == 1) && (strides.col >= rows || columns == 1))
    return Operand{r, c, columns == 1 ? rows : strides.col, lt::kTranspose};
  return std::nullopt;
}

}  // namespace

struct LtProduct::Descriptors {
  explicit Descriptors(std::shared_ptr<CudaDevice> on) : device(std::move(on)) {}
  ~Descriptors() {
    const auto& calls = device->libraries().cublas_lt;
    for (lt::MatrixLayout layout : {a, b, c}) {
      if (layout != nullptr) calls.MatrixLayoutDestroy(layout);
    }
    if (product != nullptr) calls.MatmulDescDestroy(product);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  // Creates `product`; its operands are in the library's order.
  void Describe(const GemmSpec& spec, lt::Operation a_is, lt::Operation b_is, lt::DataType c_type) {
    const auto& calls = device->libraries().cublas_lt;
    const bool doubles = spec.dtype == DType::kFloat64;
    const bool tf32 = device->tf32() && spec.dtype == DType::kFloat32;
    Check(calls.MatmulDescCreate(&product,
                                 doubles ? lt::kCompute64F
                                 : tf32  ? lt::kCompute32FFastTf32
                                         : lt::kCompute32F,
                                 doubles ? lt::kReal64F : lt::kReal32F));
    auto describe = [&](lt::MatmulDescAttribute attribute, auto value) {
      if (product == nullptr) return;
      Check(calls.MatmulDescSetAttribute(product, attribute, &value, sizeof value));
    };
    describe(lt::kDescTransA, static_cast<int32_t>(a_is));
    describe(lt::kDescTransB, static_cast<int32_t>(b_is));
    if (!spec.bias) return;
    describe(lt::kDescEpilogue, static_cast<int32_t>(lt::kBias));
    describe(lt::kDescBiasDataType, static_cast<int32_t>(c_type));
  }

  void LayOut(lt::MatrixLayout* layout, lt::DataType type, const Operand& operand, int32_t batch,
              int64_t batch_stride) {
    const auto& calls = device->libraries().cublas_lt;
    Check(calls.MatrixLayoutCreate(layout, type, operand.rows, operand.columns, operand.leading));
    if (batch == 1 || *layout == nullptr) return;
    Check(calls.MatrixLayoutSetAttribute(*layout, lt::kLayoutBatchCount, &batch, sizeof batch));
    Check(calls.MatrixLayoutSetAttribute(*layout, lt::kLayoutBatchStride, &batch_stride,
                                         sizeof batch_stride));
  }

  // Sets algorithms[i], for pointers that are multiples of `alignment`.
  void Choose(size_t i, uint32_t alignment) {
    if (status != lt::kSuccess) return;
    const auto& calls = device->libraries().cublas_lt;
    lt::Preference preference = nullptr;
    Check(calls.MatmulPreferenceCreate(&preference));
    auto prefer = [&](lt::PreferenceAttribute attribute, auto value) {
      Check(calls.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    prefer(lt::kMaxWorkspaceBytes, kMaxWorkspace);
    // Otherwise parts of the sums of a product of halves may be rounded to half precision.
    prefer(lt::kReductionSchemes, static_cast<uint32_t>(lt::kInComputeType));
    for (const auto attribute :
         {lt::kMinAlignmentA, lt::kMinAlignmentB, lt::kMinAlignmentC, lt::kMinAlignmentD})
      prefer(attribute, alignment);
    int found = 0;
    Check(calls.MatmulAlgoGetHeuristic(device->cublas_lt(), product, a, b, c, c, preference, 1,
                                       &algorithms[i], &found));
    if (status == lt::kSuccess && found == 0) status = lt::kNotSupported;
    calls.MatmulPreferenceDestroy(preference);
  }

  std::shared_ptr<CudaDevice> device;
  lt::Status status = lt::kSuccess;  // the first answer that was another one
  lt::MatmulDesc product = nullptr;
  lt::MatrixLayout a = nullptr, b = nullptr, c = nullptr;  // of the library: a is our B
  // For pointers that are multiples of kVectorBytes, and for all others.
  std::array<lt::HeuristicResult, 2> algorithms = {};
  // The bias is an attribute of `product`: runs on several threads take turns.
  mutable std::mutex mutex;

 private:
  void Check(lt::Status answer) {
    if (status == lt::kSuccess) status = answer;
  }
};

std::vector<LtProduct::Place> LtProduct::PlacesOf(const GemmSpec& spec,
                                                  const StridedWalk& batches) {
  std::vector<Place> places = {{spec.a_offset, spec.b_offset, spec.c_offset}};
  for (size_t d = 0; d + 1 < batches.dims.size(); ++d) {
    std::vector<Place> next;
    for (const Place& place : places) {
      for (int64_t i = 0; i < batches.dims[d]; ++i) {
        next.push_back({place.a + i * batches.strides[0][d], place.b + i * batches.strides[1][d],
                        place.c + i * batches.strides[2][d]});
      }
    }
    places = std::move(next);
  }
  return places;
}

Result<LtProduct> LtProduct::Create(KernelInfo& info, const CudaDevicePtr& device, GemmSpec spec) {
  assert(spec.m > 0 && spec.n > 0 && spec.k > 0 && spec.c_dtype != DType::kUndefined);
  assert(std::count(spec.batch.begin(), spec.batch.end(), 0) == 0);
  const auto type = TypeOf(spec.dtype), c_type = TypeOf(spec.c_dtype);
  if (!type || !c_type) return info.Refuse("cuBLASLt has no product of this type");
  const auto a = AsOperand(spec.m, spec.k, spec.a), b = AsOperand(spec.k, spec.n, spec.b);
  const auto c = AsOperand(spec.m, spec.n, spec.c);
  if (!a || !b || !c || c->operation != lt::kNone)
    return info.Refuse("a matrix has neither contiguous rows nor contiguous columns");
  LtProduct out;
  out.device_ = device;
  out.element_bytes_ = DTypeSize(spec.dtype);
  out.c_element_bytes_ = DTypeSize(spec.c_dtype);
  // The innermost batch dim is the library's; the others are products of their own.
  const StridedWalk batches =
      StridedWalk::Make(spec.batch, {spec.a_batch, spec.b_batch, spec.c_batch});
  out.places_ = PlacesOf(spec, batches);

  auto descriptors = std::make_shared<Descriptors>(device);
  descriptors->Describe(spec, b->operation, a->operation, *c_type);
  const auto batch = static_cast<int32_t>(batches.dims.back());
  descriptors->LayOut(&descriptors->a, *type, *b, batch, batches.strides[1].back());
  descriptors->LayOut(&descriptors->b, *type, *a, batch, batches.strides[0].back());
  descriptors->LayOut(&descriptors->c, *c_type, *c, batch, batches.strides[2].back());
  descriptors->Choose(0, kVectorBytes);
  descriptors->Choose(1, static_cast<uint32_t>(out.element_bytes_));
  if (descriptors->status != lt::kSuccess) {
    return info.Refuse("cuBLASLt has no algorithm: status " + std::to_string(descriptors->status));
  }
  for (const lt::HeuristicResult& chosen : descriptors->algorithms)
    out.workspace_bytes_ = std::max(out.workspace_bytes_, chosen.workspace_bytes);
  const auto tell = [](const lt::HeuristicResult& chosen) {
    return std::to_string(chosen.workspace_bytes) + " bytes of workspace, " +
           std::to_string(chosen.waves) + " waves";
  };
  LogVerbose(2, "cuBLASLt takes " + std::to_string(spec.m) + " x " + std::to_string(spec.k) +
                    " times " + std::to_string(spec.k) + " x " + std::to_string(spec.n) + " of " +
                    DTypeName(spec.dtype) + " to " + DTypeName(spec.c_dtype) + ", " +
                    std::to_string(batches.elements) + " of them" + (spec.bias ? ", a bias" : "") +
                    ": " + tell(descriptors->algorithms[0]) +
                    "; unaligned: " + tell(descriptors->algorithms[1]));
  // Scratch is aligned to less than the workspace.
  out.workspace_ = info.BookScratch(out.workspace_bytes_ + kWorkspaceAlignment - kBufferAlignment);
  out.descriptors_ = std::move(descriptors);
  out.spec_ = std::move(spec);
  return out;
}

Status LtProduct::Run(KernelContext& context, const void* a, const void* b, void* c,
                      const void* bias, const void* addend) const {
  RETURN_IF_ERROR(device_->MakeCurrent());
  const auto& calls = device_->libraries().cublas_lt;
  const bool adds = spec_.accumulate || spec_.addend;
  const float alpha = static_cast<float>(spec_.alpha), beta = adds ? 1.0f : 0.0f;
  const double wide_alpha = spec_.alpha, wide_beta = beta;
  const bool doubles = spec_.dtype == DType::kFloat64;
  std::unique_lock<std::mutex> lock;
  if (spec_.bias) {
    lock = std::unique_lock(descriptors_->mutex);
    const lt::Status status = calls.MatmulDescSetAttribute(
        descriptors_->product, lt::kDescBiasPointer, &bias, sizeof bias);
    if (status != lt::kSuccess) return Internal("cuBLASLt takes no bias");
  }
  const auto scratch = reinterpret_cast<uintptr_t>(context.Scratch<void>(workspace_));
  const uintptr_t workspace = (scratch + kWorkspaceAlignment - 1) & ~(kWorkspaceAlignment - 1);
  for (const Place& place : places_) {
    const void* left = static_cast<const char*>(a) + place.a * element_bytes_;
    const void* right = static_cast<const char*>(b) + place.b * element_bytes_;
    void* result = static_cast<char*>(c) + place.c * c_element_bytes_;
    const void* added =
        spec_.addend ? static_cast<const char*>(addend) + place.c * c_element_bytes_ : result;
    const bool aligned =
        (reinterpret_cast<uintptr_t>(left) | reinterpret_cast<uintptr_t>(right) |
         reinterpret_cast<uintptr_t>(result) | reinterpret_cast<uintptr_t>(added)) %
            kVectorBytes ==
        0;
    const lt::HeuristicResult& chosen = descriptors_->algorithms[aligned ? 0 : 1];
    const lt::Status status = calls.Matmul(
        device_->cublas_lt(), descriptors_->product,
        doubles ? static_cast<const void*>(&wide_alpha) : &alpha, right, descriptors_->a, left,
        descriptors_->b, doubles ? static_cast<const void*>(&wide_beta) : &beta, added,
        descriptors_->c, result, descriptors_->c, &chosen.algorithm,
        reinterpret_cast<void*>(workspace), chosen.workspace_bytes, device_->stream());
    if (status != lt::kSuccess) {
      return Status(StatusCode::kProviderFailure,
                    "cublasLtMatmul failed: status " + std::to_string(status));
    }
  }
  return {};
}

}  // namespace caesura
