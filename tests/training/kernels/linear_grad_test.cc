// SPDX-License-Identifier: Apache-2.0
// Gradients of ops that are linear in X must be their transposes: <dY, op(X)> = <grad(dY), X>, in
// every float type and with any number of threads. (Numerical checks of whole rules are in
// tests/gradients.)
#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/cpu/image/kernel_list.h"
#include "core/kernels/cpu/movement/kernel_list.h"
#include "tests/kernel_case.h"
#include "training/kernels/image/kernel_list.h"
#include "training/kernels/movement/kernel_list.h"
#include "training/kernels/reduction/kernel_list.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

using Ints = std::vector<int64_t>;
using Inputs = std::vector<RuntimeValue>;

Attribute Text(const char* text) { return std::string(text); }
Tensor IntTensor(Ints values) {
  return Tensor::Of<int64_t>({static_cast<int64_t>(values.size())}, values);
}
Tensor DimsOf(const Tensor& x) { return IntTensor(x.shape().dims()); }

void RegisterAll(KernelRegistry& registry) {
  RegisterMovementKernels(registry);
  RegisterImageKernels(registry);
  RegisterMovementGradKernels(registry);
  RegisterImageGradKernels(registry);
}

// Numbers of a few bits, so that they are exact in every type.
template <typename T>
Tensor Numbers(Shape shape, int salt) {
  Tensor out = Tensor::Zeros(kDTypeOf<T>, std::move(shape));
  for (int64_t i = 0; i < out.elements(); ++i) {
    out.data<T>()[i] = T(static_cast<float>((i * 37 + salt) % 17 - 8) / 8);
  }
  return out;
}

double Dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.ToVector<double>(), y = b.ToVector<double>();
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

struct LinearCase {
  const char* op;
  Shape x;
  Inputs others;  // of the op, after X
  AttributeMap attributes = {};
  bool takes_x =
      false;  // the gradient is (dY, X, others...), otherwise (dY, shape of X, others...)
  bool indices_first = false;  // (dY, others..., shape of X)
};

template <typename T>
void CheckTransposed(const LinearCase& c, double tolerance) {
  const Tensor x = Numbers<T>(c.x, 1);
  Inputs forward = {x};
  for (const RuntimeValue& other : c.others) {
    // Float inputs follow X's type.
    const bool is_float =
        other.is_tensor() && other.tensor().dtype() == DType::kFloat32 && c.takes_x;
    Tensor converted = is_float ? Tensor::Zeros(kDTypeOf<T>, other.tensor().shape()) : Tensor();
    for (int64_t i = 0; is_float && i < converted.elements(); ++i) {
      converted.data<T>()[i] = T(other.tensor().data<float>()[i]);
    }
    forward.push_back(is_float ? RuntimeValue(converted) : other);
  }
  const auto y = KernelCase(c.op, forward, c.attributes).Run(RegisterAll);
  ASSERT_TRUE(y.ok()) << y.status().ToString();
  const Tensor dy = Numbers<T>((*y)[0].tensor().shape(), 5);
  Inputs backward = {dy, c.takes_x ? x : DimsOf(x)};
  if (c.indices_first) backward.pop_back();
  backward.insert(backward.end(), forward.begin() + 1, forward.end());
  if (c.indices_first) backward.push_back(DimsOf(x));
  for (int threads : {1, 4}) {
    KernelCase node(std::string(c.op) + "Grad", backward, c.attributes, kTrainingDomain);
    node.threads = threads;
    const auto dx = node.Run(RegisterAll);
    ASSERT_TRUE(dx.ok()) << dx.status().ToString();
    const double scale = 1 + std::sqrt(Dot(dy, dy) * Dot(x, x));
    EXPECT_NEAR(Dot(dy, (*y)[0].tensor()), Dot((*dx)[0].tensor(), x), tolerance * scale) << c.op;
  }
}

void Check(const LinearCase& c) {
  CheckTransposed<double>(c, 1e-12);
  CheckTransposed<float>(c, 1e-6);
  CheckTransposed<Float16>(c, 1e-3);
  CheckTransposed<BFloat16>(c, 1e-2);
}

TEST(LinearGrad, GatherAddsWhatItRead) {
  const Tensor at = Tensor::Of<int64_t>({3, 2}, {0, -1, 5, 5, 2, 0});
  for (int64_t axis : {0, 1, -1}) {
    Check({.op = "Gather",
           .x = {6, 7, 70},
           .others = {at},
           .attributes = {{"axis", axis}},
           .indices_first = true});
  }
}

// A base, in the gradient's place or not, is what slices are added to, in their order.
TEST(LinearGrad, GatherAddsToABase) {
  const Tensor at = Tensor::Of<int64_t>({5}, {2, 0, -1, 2, 2});
  const auto check = [&](auto tag) {
    using T = decltype(tag);
    const Tensor base = Numbers<T>({4, 300}, 3), dy = Numbers<T>({5, 300}, 9);
    std::vector<double> expected = base.ToVector<double>();
    const std::vector<double> slices = dy.ToVector<double>();
    const int64_t rows[] = {2, 0, 3, 2, 2};
    for (int64_t i = 0; i < dy.elements(); ++i)
      expected[rows[i / 300] * 300 + i % 300] += slices[i];
    for (int threads : {1, 4}) {
      KernelCase node("GatherGrad", {dy, at, IntTensor({4, 300}), base}, {}, kTrainingDomain);
      node.threads = threads;
      const auto dx = node.Run(RegisterAll);
      ASSERT_TRUE(dx.ok()) << dx.status().ToString();
      EXPECT_EQ((*dx)[0].tensor().ToVector<double>(), expected);  // of a few bits: exact
    }
  };
  check(double{});
  check(float{});
  check(Float16{});
  check(BFloat16{});
  KernelCase wrong("GatherGrad",
                   {Numbers<float>({5, 3}, 1), at, IntTensor({4, 3}), Numbers<float>({3, 4}, 1)},
                   {}, kTrainingDomain);
  EXPECT_NE(wrong.Run(RegisterAll)
                .status()
                .message()
                .find("base: expected float32[4, 3], got float32[3, 4]"),
            std::string::npos);
}

TEST(LinearGrad, SlicePutsBack) {
  Check(
      {.op = "Slice",
       .x = {9, 40, 30},
       .others = {IntTensor({-1, 2}), IntTensor({0, 38}), IntTensor({0, 1}), IntTensor({-2, 3})}});
}

TEST(LinearGrad, PadAddsCopies) {
  for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
    Check({.op = "Pad",
           .x = {3, 5, 6},
           .others = {IntTensor({1, -1, 7, 0, 3, 2})},
           .attributes = {{"mode", Text(mode)}}});
  }
}

TEST(LinearGrad, ResizeSpreads) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const Ints& sizes : {Ints{2, 3, 9, 4}, Ints{2, 3, 3, 12}}) {
      Check({.op = "Resize",
             .x = {2, 3, 6, 8},
             .others = {{}, {}, IntTensor(sizes)},
             .attributes = {{"mode", Text(mode)}}});
    }
  }
}

TEST(LinearGrad, GridSampleAddsWhatItRead) {
  Tensor grid = Tensor::Zeros(DType::kFloat32, {2, 4, 5, 2});
  for (int64_t i = 0; i < grid.elements(); ++i)
    grid.data<float>()[i] = static_cast<float>(i * 13 % 21 - 10) / 8;
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      Check({.op = "GridSample",
             .x = {2, 3, 6, 8},
             .others = {grid},
             .attributes = {{"mode", Text(mode)}, {"padding_mode", Text(padding)}},
             .takes_x = true});
    }
  }
}

TEST(LinearGrad, RoiAlignSpreads) {
  const Tensor rois = Tensor::Of<float>({3, 4}, {0, 0, 5, 4, -1, 1, 9, 9, 2, 2, 2.5f, 2.5f});
  Check({.op = "RoiAlign",
         .x = {2, 3, 6, 8},
         .others = {rois, IntTensor({0, 1, 1})},
         .attributes = {{"output_height", int64_t{2}}, {"output_width", int64_t{3}}},
         .takes_x = true});
}

// The products: exact where elements are zero.
TEST(ProductGrad, NeedsNoDivision) {
  const Tensor x = Tensor::Of<double>({4}, {2, 0, 3, 5}),
               dy = Tensor::Of<double>({4}, {1, 10, 100, 1000});
  auto run = [](const char* op, Inputs inputs, AttributeMap attributes = {}) {
    KernelCase node(op, std::move(inputs), std::move(attributes), kTrainingDomain);
    return node.Run(RegisterReductionGradKernels).value()[0].tensor().ToVector<double>();
  };
  const Tensor axis = Tensor::Scalar<int64_t>(0);
  EXPECT_EQ(run("CumProdGrad", {dy, x, axis}),
            (std::vector<double>{1, 2 * (10 + 3 * 100 + 15 * 1000), 0, 0}));
  EXPECT_EQ(run("CumProdGrad", {dy, x, axis}, {{"exclusive", int64_t{1}}}),
            (std::vector<double>{10, 2 * (100 + 3 * 1000), 0, 0}));
  EXPECT_EQ(run("ReduceProdGrad", {Tensor::Of<double>({1}, {7}), x}),
            (std::vector<double>{0, 210, 0, 0}));
  const Tensor singular = Tensor::Of<double>({2, 2}, {1, 2, 2, 4});
  EXPECT_EQ(run("DetGrad", {Tensor::Scalar(1.0), singular, Tensor::Scalar(0.0)}),
            (std::vector<double>{4, -2, -2, 1}));
}

}  // namespace
}  // namespace caesura
