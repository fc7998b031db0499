// SPDX-License-Identifier: Apache-2.0
// Attention and its gradient by tiles against the plain float64 kernels, at sizes that tiles do not
// divide; strided tensors against dense ones, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "tests/kernel_case.h"

namespace caesura {
namespace {

// A tensor as a kernel sees it: its shape, and where in the buffer its elements lie.
struct Argument {
  Shape shape = {};
  Tensor buffer = {};  // none: an absent input
  Layout layout = {};
};

struct Outcome {
  std::vector<Tensor> outputs;  // dense
  size_t scratch_bytes = 0;
};

Tensor Dense(const Argument& a) {
  Tensor out = Tensor::Zeros(a.buffer.dtype(), a.shape);
  CopyDense(a.buffer.raw(), a.shape, a.layout, DTypeSize(out.dtype()), out.raw());
  return out;
}

// One past the last element of a tensor in its buffer.
int64_t Extent(const Shape& shape, const Layout& layout) {
  int64_t last = layout.offset;
  const std::vector<int64_t> strides = StridesOf(shape, layout);
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * strides[d];
  return last + 1;
}

struct Call {
  std::string op_type;
  std::vector<Argument> inputs;
  AttributeMap attributes = {};
  std::vector<int> outputs = {0};           // those that are wanted
  std::vector<Layout> output_layouts = {};  // of output 0, 1, ...
  int threads = 1;
};

Result<Outcome> Execute(const Call& call) {
  const auto cpu = MakeCpuProvider();
  const KernelRegistry& registry = cpu->kernels();
  Graph graph;
  std::vector<Value*> ins, outs(call.outputs.back() + 1, nullptr);
  std::vector<InputInfo> infos;
  std::vector<void*> addresses;
  for (const Argument& a : call.inputs) {
    const bool present = a.buffer.raw() != nullptr;
    ins.push_back(present ? graph.AddInput("", {}) : nullptr);
    infos.push_back({});
    infos.back().present = infos.back().is_tensor = present;
    infos.back().dtype = present ? a.buffer.dtype() : DType::kUndefined;
    infos.back().shape = a.shape;
    infos.back().layout = a.layout;
    addresses.push_back(present ? const_cast<void*>(a.buffer.raw()) : nullptr);
  }
  for (int i : call.outputs) outs[i] = graph.AddValue("");
  const std::string domain = call.op_type == "Attention" ? "" : kCaesuraDomain;
  KernelInfo info(*graph.AddNode(call.op_type, ins, outs, call.attributes, domain), infos,
                  call.threads);
  info.set_output_layouts(call.output_layouts);
  if (Result<const KernelDef*> def = registry.Create(info, "test"); !def.ok()) return def.status();
  std::vector<Argument> results;
  for (size_t i = 0; i < outs.size(); ++i) {
    const OutputInfo& output = info.outputs()[i];
    Argument result{output.shape, {}, info.OutputLayout(static_cast<int>(i))};
    if (outs[i] != nullptr)
      result.buffer = Tensor::Zeros(output.dtype, {Extent(output.shape, result.layout)});
    addresses.push_back(outs[i] != nullptr ? result.buffer.raw() : nullptr);
    results.push_back(std::move(result));
  }
  std::vector<uint32_t> ids(addresses.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i);
  // Scratch memory full of NaN: what a kernel reads there, it must have written.
  const Tensor scratch =
      Tensor::Allocate(DType::kUInt8, {static_cast<int64_t>(info.scratch_bytes()) + 1}).value();
  std::fill_n(const_cast<uint8_t*>(scratch.data<uint8_t>()), scratch.elements(), uint8_t{0xff});
  KernelContext context(addresses.data(), ids.data(), static_cast<uint32_t>(ins.size()),
                        const_cast<void*>(scratch.raw()), 0, nullptr);
  if (Status status = info.TakeCompute()(context); !status.ok()) return status;
  Outcome out{{}, info.scratch_bytes()};
  for (int i : call.outputs) out.outputs.push_back(Dense(results[i]));
  return out;
}

enum class Masked { kNo, kBool, kFloat, kPerHead };

struct Form {
  std::string name;
  int64_t batch, heads, key_heads, queries, keys, size, value_size;
  bool causal = false;
  Masked mask = Masked::kNo;
  bool packed = false;  // rank 3
  AttributeMap more = {};

  AttributeMap Attributes() const {
    AttributeMap out = more;
    if (causal) out["is_causal"] = int64_t{1};
    if (packed) out["q_num_heads"] = heads;
    if (packed) out["kv_num_heads"] = key_heads;
    return out;
  }
  Shape ShapeOf(int64_t h, int64_t positions, int64_t d) const {
    return packed ? Shape{batch, positions, h * d} : Shape{batch, h, positions, d};
  }
};

std::vector<Form> Forms() {
  return {
      {"One", 1, 1, 1, 1, 1, 16, 16},
      {"T63", 1, 2, 2, 63, 63, 32, 32},
      {"T65Causal", 2, 2, 2, 65, 65, 64, 64, true},
      {"T130Causal", 2, 3, 3, 130, 130, 32, 32, true},
      {"T130Bool", 1, 2, 2, 130, 130, 16, 16, false, Masked::kBool},
      {"T300Float", 1, 2, 2, 70, 300, 16, 16, false, Masked::kFloat},
      {"T300CausalPerHead", 1, 4, 2, 300, 300, 16, 16, true, Masked::kPerHead},
      {"FewerQueriesCausal", 1, 2, 2, 40, 130, 16, 16, true},
      {"MoreQueriesCausal", 1, 2, 2, 130, 40, 16, 16, true},
      {"Grouped", 2, 6, 2, 65, 65, 32, 32, true},
      {"OneKeyHead", 1, 5, 1, 129, 129, 16, 16, true},
      {"OddSizes", 1, 2, 1, 66, 70, 5, 23},
      {"WideHeads", 1, 2, 2, 33, 33, 80, 48, true},
      {"Packed", 2, 4, 2, 65, 67, 24, 40, true, Masked::kNo, true},
      {"Window",
       1,
       2,
       2,
       200,
       200,
       16,
       16,
       true,
       Masked::kNo,
       false,
       {{"left_window_size", int64_t{20}}}},
      {"Scale", 1, 1, 1, 20, 20, 16, 16, false, Masked::kNo, false, {{"scale", 3.0f}}},
  };
}

// Numbers that every float dtype holds exactly, so that only the arithmetic differs.
Tensor Random(DType dtype, const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  Tensor out = Tensor::Zeros(dtype, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const float value = static_cast<float>(static_cast<int>(random() % 127) - 63) / 32;
    DispatchFloat(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      out.data<T>()[i] = T(value);
    });
  }
  return out;
}

// The last query may look nowhere.
Argument Mask(const Form& form, DType dtype) {
  if (form.mask == Masked::kNo) return {};
  const bool heads = form.mask == Masked::kPerHead;
  const Shape shape = heads ? Shape{form.batch, form.heads, form.queries, form.keys}
                            : Shape{form.queries, form.keys};
  Tensor values = Random(dtype, shape, 9);
  if (form.mask == Masked::kBool) {
    Tensor see = Tensor::Zeros(DType::kBool, shape);
    for (int64_t i = 0; i < shape.elements(); ++i) {
      see.data<bool>()[i] = i < shape.elements() - form.keys && (i * 7) % 11 < 5;
    }
    return {shape, std::move(see)};
  }
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < shape.elements(); ++i) {
      const bool blind = i >= shape.elements() - form.keys || (i * 7) % 11 < 4;
      if (blind) values.data<T>()[i] = T(-INFINITY);
    }
  });
  return {shape, std::move(values)};
}

Call Forward(const Form& form, DType dtype, int threads = 1) {
  Call call{"AttentionTraining", {}, form.Attributes(), {0, 4}, {}, threads};
  const Shape q = form.ShapeOf(form.heads, form.queries, form.size);
  const Shape k = form.ShapeOf(form.key_heads, form.keys, form.size);
  const Shape v = form.ShapeOf(form.key_heads, form.keys, form.value_size);
  call.inputs = {{q, Random(dtype, q, 1)},
                 {k, Random(dtype, k, 2)},
                 {v, Random(dtype, v, 3)},
                 Mask(form, dtype)};
  return call;
}

// `forward`: the outcome of the same form's Forward.
Call Backward(const Form& form, const Outcome& forward, DType dtype, int threads = 1) {
  Call call{"AttentionGrad", Forward(form, dtype).inputs, form.Attributes(), {0, 1, 2}, {},
            threads};
  const Shape y = form.ShapeOf(form.heads, form.queries, form.value_size);
  call.inputs.insert(call.inputs.begin(), {y, Random(dtype, y, 4)});
  for (const Tensor& saved : forward.outputs) call.inputs.push_back({saved.shape(), saved});
  return call;
}

// Relative to the largest element.
void ExpectClose(const Tensor& expected, const Tensor& actual, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(expected.shape(), actual.shape()) << what;
  const std::vector<double> e = expected.ToVector<double>(), a = actual.ToVector<double>();
  double largest = 1e-3, error = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    if (std::isinf(e[i])) {
      ASSERT_EQ(e[i], a[i]) << what << " at " << i;
      continue;
    }
    ASSERT_FALSE(std::isnan(a[i])) << what << " at " << i;
    largest = std::max(largest, std::abs(e[i]));
    error = std::max(error, std::abs(e[i] - a[i]));
  }
  EXPECT_LE(error, tolerance * largest) << what;
}

void ExpectSameBits(const Outcome& expected, const Outcome& actual) {
  ASSERT_EQ(expected.outputs.size(), actual.outputs.size());
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    const Tensor &e = expected.outputs[i], &a = actual.outputs[i];
    ASSERT_EQ(e.shape(), a.shape());
    EXPECT_EQ(std::memcmp(e.raw(), a.raw(), e.elements() * DTypeSize(e.dtype())), 0)
        << "output " << i;
  }
}

class AttentionTest : public ::testing::TestWithParam<Form> {};

void ExpectForwardAndGradient(const Form& form, DType dtype, int threads, double tolerance) {
  const Outcome y64 = Execute(Forward(form, DType::kFloat64)).value();
  const Outcome y = Execute(Forward(form, dtype, threads)).value();
  ExpectClose(y64.outputs[0], y.outputs[0], tolerance, "Y");
  ExpectClose(y64.outputs[1], y.outputs[1], tolerance, "lse");
  const Outcome d64 = Execute(Backward(form, y64, DType::kFloat64)).value();
  const Outcome d = Execute(Backward(form, y, dtype, threads)).value();
  for (int i = 0; i < 3; ++i)
    ExpectClose(d64.outputs[i], d.outputs[i], tolerance, "gradient " + std::to_string(i));
}

// float32 has 2^-24 = 6e-8; sums here are of up to 300 terms.
TEST_P(AttentionTest, Float32IsNearFloat64) {
  for (int threads : {1, 2, 3})
    ExpectForwardAndGradient(GetParam(), DType::kFloat32, threads, 2e-6);
}

// Results are rounded to 2^-9 (bfloat16) and 2^-11 of themselves; the gradient reads Y so rounded.
TEST_P(AttentionTest, HalfPrecisionIsNearFloat64) {
  ExpectForwardAndGradient(GetParam(), DType::kBFloat16, 2, 1.0 / 128);
  ExpectForwardAndGradient(GetParam(), DType::kFloat16, 2, 1.0 / 512);
}

TEST_P(AttentionTest, ForwardHasTheSameBitsOnAnyNumberOfThreads) {
  const Outcome one = Execute(Forward(GetParam(), DType::kFloat32, 1)).value();
  for (int threads : {2, 3})
    ExpectSameBits(one, Execute(Forward(GetParam(), DType::kFloat32, threads)).value());
}

TEST_P(AttentionTest, GradientRepeatsBitForBit) {
  const Outcome y = Execute(Forward(GetParam(), DType::kFloat32)).value();
  const Outcome first = Execute(Backward(GetParam(), y, DType::kFloat32, 2)).value();
  ExpectSameBits(first, Execute(Backward(GetParam(), y, DType::kFloat32, 2)).value());
}

// Puts a dense tensor under a layout.
Argument Under(const Argument& dense, const Layout& layout) {
  Argument out{dense.shape, Tensor::Zeros(dense.buffer.dtype(), {Extent(dense.shape, layout)}),
               layout};
  const std::vector<int64_t> from = dense.shape.Strides();
  const size_t element = DTypeSize(dense.buffer.dtype());
  for (int64_t i = 0; i < dense.shape.elements(); ++i) {
    int64_t rest = i, to = layout.offset;
    for (int d = 0; d < dense.shape.rank(); ++d) {
      to += rest / from[d] * layout.strides[d];
      rest %= from[d];
    }
    std::memcpy(static_cast<char*>(out.buffer.raw()) + to * element,
                static_cast<const char*>(dense.buffer.raw()) + i * element, element);
  }
  return out;
}

// Heads as slices of a [batch, positions, 3 * heads * size] buffer.
Layout Sliced(const Shape& s) {
  const int64_t row = 3 * (s.rank() == 4 ? s[1] * s[3] : s[2]);
  if (s.rank() == 3) return {{s[1] * row, row, 1}, 7};
  return {{s[2] * row, s[3], row, 1}, 7};
}
// The two last dims swapped: elements of a row lie apart.
Layout Swapped(const Shape& s) {
  std::vector<int64_t> strides = s.Strides();
  strides[s.rank() - 1] = s[s.rank() - 2];
  strides[s.rank() - 2] = 1;
  return {std::move(strides), 3};
}

// Runs `call` with all tensors of heads under other layouts, outputs as far as `outputs`.
void ExpectStridedIsDense(const Call& call, const std::vector<int>& inputs, size_t outputs,
                          Layout (*layout)(const Shape&)) {
  const Outcome dense = Execute(call).value();
  Call strided = call;
  for (int i : inputs) strided.inputs[i] = Under(call.inputs[i], layout(call.inputs[i].shape));
  for (size_t o = 0; o < outputs; ++o)
    strided.output_layouts.push_back(layout(dense.outputs[o].shape()));
  ExpectSameBits(dense, Execute(strided).value());
}

TEST_P(AttentionTest, StridedIsDense) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Call forward = Forward(GetParam(), dtype, 2);
    const Call backward = Backward(GetParam(), Execute(forward).value(), dtype, 2);
    for (auto layout : {Sliced, Swapped}) {
      ExpectStridedIsDense(forward, {0, 1, 2}, 1, layout);
      ExpectStridedIsDense(backward, {0, 1, 2, 3, 5}, 3, layout);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionTest, ::testing::ValuesIn(Forms()),
                         [](const auto& info) { return info.param.name; });

const Form kSmall = {"Small", 2, 4, 2, 33, 33, 16, 16, true};

TEST(AttentionPathTest, PlainKernelsReadStrides) {
  Form capped = kSmall;
  capped.more = {{"softcap", 2.0f}};
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    const Call forward = Forward(capped, dtype);
    ExpectStridedIsDense(forward, {0, 1, 2}, 0, Sliced);
    ExpectStridedIsDense(Backward(capped, {}, dtype), {0, 1, 2, 3}, 0, Swapped);
  }
}

TEST(AttentionPathTest, PlainKernelsRefuseToWriteStrides) {
  Call call = Forward(kSmall, DType::kFloat32);
  call.attributes["softcap"] = 2.0f;
  call.output_layouts = {Sliced(call.inputs[0].shape)};
  EXPECT_EQ(Execute(call).status().code(), StatusCode::kDeclined);
}

TEST(AttentionPathTest, GradientWithoutSavedValuesIsNear) {
  const Outcome y = Execute(Forward(kSmall, DType::kFloat32)).value();
  const Outcome saved = Execute(Backward(kSmall, y, DType::kFloat32)).value();
  const Outcome alone = Execute(Backward(kSmall, {}, DType::kFloat32)).value();
  for (int i = 0; i < 3; ++i)
    ExpectClose(alone.outputs[i], saved.outputs[i], 2e-6, "gradient " + std::to_string(i));
}

TEST(AttentionPathTest, EachGradientAlone) {
  const Outcome y = Execute(Forward(kSmall, DType::kFloat32)).value();
  Call call = Backward(kSmall, y, DType::kFloat32);
  const Outcome all = Execute(call).value();
  for (int i = 0; i < 3; ++i) {
    call.outputs = {i};
    ExpectSameBits({{all.outputs[i]}}, Execute(call).value());
  }
}

// A cache of keys, and samples of different lengths.
TEST(AttentionPathTest, CacheAndLengths) {
  const Form form = {"", 2, 4, 2, 70, 70, 16, 24, true};
  auto run = [&](DType dtype, bool cache) {
    Call call = Forward(form, dtype);
    call.op_type = "Attention";
    call.outputs = {0};
    if (cache) {
      const Shape keys = {2, 2, 75, 16}, values = {2, 2, 75, 24};
      call.inputs.push_back({keys, Random(dtype, keys, 5)});
      call.inputs.push_back({values, Random(dtype, values, 6)});
      call.outputs = {0, 1, 2};
    } else {
      call.inputs.resize(6);
      call.inputs.push_back({Shape{2}, Tensor::Of<int64_t>({2}, {70, 31})});
    }
    return Execute(call).value();
  };
  for (bool cache : {true, false}) {
    const Outcome expected = run(DType::kFloat64, cache), actual = run(DType::kFloat32, cache);
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      ExpectClose(expected.outputs[i], actual.outputs[i], 2e-6, "output " + std::to_string(i));
    }
  }
}

TEST(AttentionPathTest, QueryThatLooksNowhereIsZero) {
  const Form form = {"", 1, 1, 1, 20, 20, 16, 16, false, Masked::kFloat};
  const Outcome y = Execute(Forward(form, DType::kFloat32)).value();
  const Outcome d = Execute(Backward(form, y, DType::kFloat32)).value();
  for (int64_t c = 19 * 16; c < 20 * 16; ++c) {
    EXPECT_EQ(y.outputs[0].data<float>()[c], 0.0f);
    EXPECT_EQ(d.outputs[0].data<float>()[c], 0.0f);
  }
  EXPECT_EQ(y.outputs[1].data<float>()[19], INFINITY);
}

TEST(AttentionPathTest, NanIsNotHidden) {
  for (int input : {0, 1, 2}) {
    Call call = Forward({"", 1, 1, 1, 5, 5, 16, 16}, DType::kFloat32);
    float* x = call.inputs[input].buffer.data<float>();
    std::fill_n(x, 16, NAN);  // of the first query, or the first key
    EXPECT_TRUE(std::isnan(Execute(call).value().outputs[0].data<float>()[0])) << input;
  }
}

// Scores of one query become of this type, and so do their probabilities, which V shows.
template <typename P, typename T>
void ExpectProbabilitiesIn(DType precision, const std::vector<double>& scores) {
  const int64_t n = static_cast<int64_t>(scores.size());
  std::vector<T> k(scores.begin(), scores.end()), v(n * n, T(0));
  for (int64_t i = 0; i < n; ++i) v[i * n + i] = T(1);
  KernelCase node("Attention",
                  {Tensor::Of<T>({1, 1, 1, 1}, {T(1)}), Tensor::Of<T>({1, 1, n, 1}, k),
                   Tensor::Of<T>({1, 1, n, n}, v)},
                  {{"scale", 1.0f}, {"softmax_precision", static_cast<int64_t>(precision)}});
  const std::vector<double> y = node.Run().value()[0].tensor().ToVector<double>();
  std::vector<double> exponentials;
  for (const T score : k)
    exponentials.push_back(
        std::exp(static_cast<double>(static_cast<float>(static_cast<P>(score)))));
  const double sum = std::accumulate(exponentials.begin(), exponentials.end(), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    const auto expected = static_cast<T>(static_cast<P>(exponentials[i] / sum));
    EXPECT_EQ(y[i], static_cast<double>(static_cast<float>(expected)))
        << DTypeName(precision) << " at " << i;
  }
}

TEST(AttentionPathTest, SoftmaxHasItsOwnPrecision) {
  const std::vector<double> scores = {0.1, 1.003, -2.7, 0.34};
  ExpectProbabilitiesIn<BFloat16, float>(DType::kBFloat16, scores);
  ExpectProbabilitiesIn<Float16, float>(DType::kFloat16, scores);
  ExpectProbabilitiesIn<Float16, Float16>(DType::kFloat16, scores);
  ExpectProbabilitiesIn<BFloat16, Float16>(DType::kBFloat16, scores);
  const Tensor one = Tensor::Zeros(DType::kFloat32, Shape{1, 1, 1, 1});
  KernelCase wrong("Attention", {one, one, one}, {{"softmax_precision", int64_t{7}}});
  EXPECT_EQ(wrong.Run().status().code(), StatusCode::kInvalidArgument);
}

// A mask of lowest numbers, as exporters write them, instead of -inf.
TEST(AttentionPathTest, LowestNumbersMask) {
  auto run = [](DType dtype) {
    Call call = Forward({"", 1, 1, 1, 4, 4, 16, 16, false, Masked::kFloat}, dtype);
    DispatchDType<float, double>(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* mask = call.inputs[3].buffer.template data<T>();
      for (int i = 0; i < 16; ++i)
        mask[i] = i % 4 > i / 4 ? static_cast<T>(std::numeric_limits<float>::lowest()) : 0;
    });
    return Execute(call).value();
  };
  ExpectClose(run(DType::kFloat64).outputs[0], run(DType::kFloat32).outputs[0], 2e-6, "Y");
}

// Doubling the number of positions doubles the memory, and no more.
TEST(AttentionPathTest, MemoryGrowsWithPositions) {
  auto bytes = [](int64_t n) {
    const Form form = {"", 1, 2, 2, n, n, 16, 16, true};
    const Outcome y = Execute(Forward(form, DType::kFloat32)).value();
    return y.scratch_bytes + Execute(Backward(form, y, DType::kFloat32)).value().scratch_bytes;
  };
  const size_t small = bytes(512), large = bytes(1024);
  EXPECT_LE(large, 2 * small);
  EXPECT_LT(large, sizeof(float) * 1024 * 1024);
}

}  // namespace
}  // namespace caesura
