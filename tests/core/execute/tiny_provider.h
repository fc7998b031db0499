// SPDX-License-Identifier: Apache-2.0
// A provider with a dozen plain kernels, so that plans and executors are tested apart from the real
// ones. Also what tests break on purpose: an allocator that fails at the n-th call, a provider
// whose n-th kernel call fails.
#ifndef CAESURA_TESTS_CORE_EXECUTE_TINY_PROVIDER_H_
#define CAESURA_TESTS_CORE_EXECUTE_TINY_PROVIDER_H_

#include <atomic>
#include <climits>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/providers/execution_provider.h"

namespace caesura {
void RegisterIfLoop(KernelRegistry& registry);  // core/ops/control_flow/if_loop.cc
void RegisterScan(KernelRegistry& registry);    // core/ops/control_flow/scan.cc
}  // namespace caesura

namespace caesura::testing {

// --- kernels: float32 unless said ---

// y = op(a, b); one of them may have one element.
template <typename Op>
Status CreatePair(KernelInfo& info) {
  const Shape a = info.InputShape(0), b = info.InputShape(1);
  const Shape& out = a.elements() >= b.elements() ? a : b;
  const int64_t count = out.elements(), step_a = a.elements() == count,
                step_b = b.elements() == count;
  if ((!step_a && a.elements() != 1) || (!step_b && b.elements() != 1))
    return info.Invalid("shapes differ");
  info.SetOutput(0, DType::kFloat32, out);
  info.SetCompute([=](KernelContext& context) {
    const float *x = context.Input<float>(0), *y = context.Input<float>(1);
    float* z = context.Output<float>(0);
    const float one_x = *x, one_y = *y;  // z may be x or y
    for (int64_t i = 0; i < count; ++i) z[i] = Op()(step_a ? x[i] : one_x, step_b ? y[i] : one_y);
  });
  return {};
}

inline Status CreateNeg(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([count](KernelContext& context) {
    for (int64_t i = 0; i < count; ++i) context.Output<float>(0)[i] = -context.Input<float>(0)[i];
  });
  return {};
}

// [m, k] x [k, n]. Transposes the right side into scratch first.
inline Status CreateMatMul(KernelInfo& info) {
  const Shape a = info.InputShape(0), b = info.InputShape(1);
  if (a.rank() != 2 || b.rank() != 2 || a[1] != b[0]) return info.Invalid("shapes do not fit");
  const int64_t m = a[0], k = a[1], n = b[1];
  const size_t scratch = info.BookScratch(sizeof(float) * k * n);
  info.SetOutput(0, DType::kFloat32, Shape{m, n});
  info.SetCompute([=](KernelContext& context) {
    const float *x = context.Input<float>(0), *w = context.Input<float>(1);
    float *y = context.Output<float>(0), *t = context.Scratch<float>(scratch);
    for (int64_t i = 0; i < k * n; ++i) t[(i % n) * k + i / n] = w[i];
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < n; ++c) {
        float sum = 0;
        for (int64_t i = 0; i < k; ++i) sum += x[r * k + i] * t[c * k + i];
        y[r * n + c] = sum;
      }
    }
  });
  return {};
}

inline Status CreateTranspose(KernelInfo& info) {
  const Shape shape = info.InputShape(0);
  const int64_t rows = shape[0], columns = shape[1];
  info.SetOutput(0, DType::kFloat32, Shape{columns, rows});
  info.SetCompute([=](KernelContext& context) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      context.Output<float>(0)[(i % columns) * rows + i / columns] = context.Input<float>(0)[i];
    }
  });
  return {};
}

inline Status CreateView(KernelInfo& info) {
  std::vector<int64_t> dims = info.InputShape(0).dims();
  if (info.node().op_type() == "Reshape") {
    dims = info.HostInts(1);
    int64_t known = 1;
    for (int64_t dim : dims) known *= dim < 0 ? 1 : dim;
    for (int64_t& dim : dims) dim = dim < 0 ? info.InputShape(0).elements() / known : dim;
  }
  if (Shape(dims).elements() != info.InputShape(0).elements())
    return info.Invalid("element counts differ");
  const int64_t count = info.InputShape(0).elements();
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, Shape(std::move(dims)));
  info.SetCompute([=](KernelContext& context) {
    CopyElements(dtype, context.Input<void>(0), context.Output<void>(0), count);
  });
  return {};
}

inline Status CreateShape(KernelInfo& info) {
  const std::vector<int64_t> dims = info.InputShape(0).dims();
  info.SetOutput(0, DType::kInt64, Shape{static_cast<int64_t>(dims.size())});
  info.SetCompute([dims](KernelContext& context) {
    std::copy(dims.begin(), dims.end(), context.Output<int64_t>(0));
  });
  return {};
}

// int64, one axis.
inline Status CreateGather(KernelInfo& info) {
  const int64_t size = info.InputShape(0).elements(), count = info.InputShape(1).elements();
  info.SetOutput(0, DType::kInt64, info.InputShape(1));
  info.SetCompute([=, label = info.node().Label()](KernelContext& context) -> Status {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = context.Input<int64_t>(1)[i];
      if (at < 0 || at >= size) return InvalidArgument(label + " index out of range");
      context.Output<int64_t>(0)[i] = context.Input<int64_t>(0)[at];
    }
    return {};
  });
  return {};
}

// Any dtype, one axis.
inline Status CreateConcat(KernelInfo& info) {
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (int i = 0; i < info.input_count(); ++i) {
    counts.push_back(info.InputShape(i).elements());
    total += counts.back();
  }
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, Shape{total});
  info.SetCompute([=](KernelContext& context) {
    char* to = context.Output<char>(0);
    for (size_t i = 0; i < counts.size(); ++i) {
      CopyElements(dtype, context.Input<void>(static_cast<int>(i)), to, counts[i]);
      to += counts[i] * static_cast<int64_t>(DTypeSize(dtype));
    }
  });
  return {};
}

// [n] -> [1, nonzero]
inline Status CreateNonZero(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutputSizedInCompute(0);
  info.SetCompute([count](KernelContext& context) -> Status {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < count; ++i) {
      if (context.Input<float>(0)[i] != 0) found.push_back(i);
    }
    auto out =
        context.AllocateOutput(0, DType::kInt64, Shape{1, static_cast<int64_t>(found.size())});
    if (!out.ok()) return out.status();
    std::copy(found.begin(), found.end(), out->data<int64_t>());
    return {};
  });
  return {};
}

inline Status CreateCastToFloat(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([count](KernelContext& context) {
    for (int64_t i = 0; i < count; ++i)
      context.Output<float>(0)[i] = static_cast<float>(context.Input<int64_t>(0)[i]);
  });
  return {};
}

// Numbers from the key: not random, but different in each run and node.
inline Status CreateRandom(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([count](KernelContext& context) {
    const RandomKey key = context.random_key();
    for (int64_t i = 0; i < count; ++i) {
      uint64_t bits = key.seed * 0x9e3779b97f4a7c15ull + key.step * 0xbf58476d1ce4e5b9ull +
                      key.subsequence * 1000003 + i;
      bits = (bits ^ (bits >> 31)) * 0x94d049bb133111ebull;
      context.Output<float>(0)[i] = static_cast<float>(bits >> 40) / 16777216.0f;
    }
  });
  return {};
}

// test.Accumulate (buffer, x) -> buffer + x, in place
inline Status CreateAccumulate(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kFloat32, info.InputShape(0));
  info.SetCompute([count](KernelContext& context) {
    for (int64_t i = 0; i < count; ++i) context.Output<float>(0)[i] += context.Input<float>(1)[i];
  });
  return {};
}

// test.SumBlock (x...) -> sum of all elements, read as one block that begins at the first input
inline Status CreateSumBlock(KernelInfo& info) {
  int64_t total = 0;
  for (int i = 0; i < info.input_count(); ++i) total += info.InputShape(i).elements();
  info.SetOutput(0, DType::kFloat32, Shape{});
  info.SetCompute([total](KernelContext& context) {
    float sum = 0;
    for (int64_t i = 0; i < total; ++i) sum += context.Input<float>(0)[i];
    *context.Output<float>(0) = sum;
  });
  return {};
}

inline void RegisterTinyKernels(KernelRegistry& registry) {
  const DTypeSet floats = {DType::kFloat32};
  const auto add = [&registry](KernelDef def) {  // none of them takes a sequence or an optional
    def.create = [create = std::move(def.create)](KernelInfo& info) -> Status {
      for (int i = 0; i < info.input_count(); ++i) {
        if (info.HasInput(i) && !info.input(i).is_tensor) return info.Refuse("takes tensors only");
      }
      return create(info);
    };
    registry.Add(std::move(def));
  };
  const std::vector<Alias> pair = {MayReuse(0, 0), MayReuse(1, 0)};
  add({.op_type = "Add", .types = floats, .aliases = pair, .create = CreatePair<std::plus<float>>});
  add({.op_type = "Sub",
       .types = floats,
       .aliases = pair,
       .create = CreatePair<std::minus<float>>});
  add({.op_type = "Mul",
       .types = floats,
       .aliases = pair,
       .create = CreatePair<std::multiplies<float>>});
  add({.op_type = "Neg", .types = floats, .aliases = {MayReuse(0, 0)}, .create = CreateNeg});
  add({.op_type = "MatMul", .types = floats, .create = CreateMatMul});
  add({.op_type = "Transpose", .types = floats, .create = CreateTranspose});
  add({.op_type = "Reshape", .host_inputs = {1}, .aliases = {View(0, 0)}, .create = CreateView});
  add({.op_type = "Identity", .aliases = {View(0, 0)}, .create = CreateView});
  add({.op_type = "Shape", .host_outputs = {0}, .unread_inputs = {0}, .create = CreateShape});
  add({.op_type = "Gather", .types = {DType::kInt64}, .create = CreateGather});
  add({.op_type = "Concat", .create = CreateConcat});
  add({.op_type = "NonZero", .types = floats, .create = CreateNonZero});
  add({.op_type = "Cast", .types = {DType::kInt64}, .create = CreateCastToFloat});
  add({.op_type = "RandomUniformLike", .deterministic = false, .create = CreateRandom});
  add({.op_type = "Accumulate",
       .domain = "test",
       .aliases = {InPlace(0, 0)},
       .create = CreateAccumulate});
  add({.op_type = "SumBlock",
       .domain = "test",
       .contiguous_inputs = {-1},
       .create = CreateSumBlock});
  RegisterIfLoop(registry);
  RegisterScan(registry);
}

// --- the provider ---

inline constexpr char kTinyProviderName[] = "tiny";

class TinyProvider : public ExecutionProvider {
 public:
  // `allocator` outlives the provider; null: host memory.
  explicit TinyProvider(Allocator* allocator = nullptr,
                        const std::function<void(KernelRegistry&)>& more = {})
      : allocator_(allocator != nullptr ? *allocator : HostAllocator()) {
    RegisterTinyKernels(kernels_);
    if (more) more(kernels_);
  }
  const std::string& name() const override { return name_; }
  Device device() const override { return {}; }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return allocator_; }

 private:
  std::string name_ = kTinyProviderName;
  KernelRegistry kernels_;
  Allocator& allocator_;
};

inline ProviderList Tiny() { return {std::make_shared<TinyProvider>()}; }

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_TINY_PROVIDER_H_
