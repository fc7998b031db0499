// SPDX-License-Identifier: Apache-2.0
// Every elementwise op with a CUDA source gives the CPU's numbers, with and without broadcasting.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "core/kernels/cuda/element_source.h"
#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

int InputsOf(const std::string& op) {
  if (op == "Where" || op == "Clip" || op == "DropoutGrad" || op == "Sum" || op == "Mean" ||
      op == "Max" || op == "Min")
    return 3;
  for (const char* two : {"Add",       "Sub",         "Mul",      "Div",
                          "Pow",       "Equal",       "Greater",  "GreaterOrEqual",
                          "Less",      "LessOrEqual", "And",      "Or",
                          "Xor",       "Mod",         "PRelu",    "BitwiseAnd",
                          "BitwiseOr", "BitwiseXor",  "ReluGrad", "SigmoidGrad",
                          "TanhGrad",  "GeluGrad"}) {
    if (op == two) return 2;
  }
  return 1;
}

// Numbers in the op's domain, a NaN and infinities where there is no domain to keep to.
Tensor Numbers(const std::string& op, DType dtype, const Shape& shape, std::mt19937& random) {
  std::vector<double> values(static_cast<size_t>(shape.elements()));
  for (double& v : values) v = static_cast<double>(random() % 4001) / 1000 - 2;
  if (op == "Acosh") {
    for (double& v : values) v = std::fabs(v) + 1;
  } else if (op == "Asin" || op == "Acos" || op == "Atanh") {
    for (double& v : values) v /= 2.125;
  } else if (op == "Log" || op == "Sqrt" || op == "Pow") {
    for (double& v : values) v = std::fabs(v) + 0.01;
  } else if (values.size() > 6 && IsFloating(dtype)) {
    values[1] = std::nan("");
    values[3] = INFINITY;
    values[5] = -INFINITY;
    values[6] = 0;
  }
  Tensor out = Tensor::Zeros(dtype, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    DispatchDType<float, double, Float16, BFloat16, int64_t, int32_t, bool>(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_same_v<T, bool>) out.data<T>()[i] = values[i] > 0;
      else if constexpr (std::is_integral_v<T>) out.data<T>()[i] = static_cast<T>(values[i] * 50);
      else out.data<T>()[i] = static_cast<T>(static_cast<float>(values[i]));
    });
  }
  return out;
}

class CudaElementwise : public StandinCuda {
 protected:
  void Compare(const CudaElementOp& op, DType dtype, std::shared_ptr<const ExecutionProvider> cuda,
               bool broadcast) {
    SCOPED_TRACE(std::string(op.op_type) + " of " + DTypeName(dtype));
    std::mt19937 random(7);
    const std::string name = op.op_type;
    const int count = InputsOf(name);
    Values feeds;
    std::string inputs, arguments;
    for (int i = 0; i < count; ++i) {
      const bool drops = name == "DropoutGrad";
      const DType own = (name == "Where" && i == 0) || (drops && i == 1) ? DType::kBool
                        : name == "Where"                                ? DType::kFloat32
                                                                         : dtype;
      const bool scalar = (name == "Clip" && i > 0) || (drops && i == 2);
      const Shape shape = scalar ? Shape{} : broadcast && i == 1 ? Shape{4, 1} : Shape{3, 4, 5};
      Tensor values = Numbers(name, own, shape, random);
      if (scalar) {
        const float bound = (i == 1 ? -0.5f : 0.75f) * (IsInteger(own) ? 50 : 1);
        DispatchDType<float, double, Float16, BFloat16, int64_t>(own, [&](auto tag) {
          using T = typename decltype(tag)::type;
          *values.data<T>() = static_cast<T>(bound);
        });
      }
      feeds.push_back(std::move(values));
      const std::string x = "x" + std::to_string(i);
      arguments += (i ? ", " : "") + x;
      inputs += (i ? ", " : "") +
                std::string(own == DType::kFloat64   ? "double"
                            : own == DType::kFloat32 ? "float"
                                                     : DTypeName(own)) +
                "[" +
                (scalar                ? ""
                 : broadcast && i == 1 ? "4, 1"
                                       : "3, 4, 5") +
                "] " + x;
    }
    for (size_t at; (at = inputs.find("[]")) != std::string::npos;) inputs.erase(at, 2);
    const std::string domain = std::string(op.domain).empty() ? "" : std::string(op.domain) + ".";
    const std::string attributes = name == "Cast"  ? " <to = 11>"
                                   : name == "Mod" ? " <fmod = 1>"
                                                   : "";
    const auto graph = GraphOf("(" + inputs + ") => (y) { y = " + domain + name + attributes +
                               " (" + arguments + ") }");
    ASSERT_NE(graph, nullptr);
    const auto cpu = MakeCpuProvider();
    auto run = [&](const ProviderList& providers) -> Tensor {
      auto plan = TryPlan(graph, feeds, {}, providers);
      EXPECT_TRUE(plan.ok()) << plan.status().ToString();
      if (!plan.ok()) return {};
      ExecutionState state(*plan);
      auto got = Finish(state, feeds);
      EXPECT_TRUE(got.ok()) << got.status().ToString();
      return got.ok() ? got->front().tensor() : Tensor();
    };
    const Tensor wanted = run({cpu});
    const uint64_t before = Operations("kernel ");
    const Tensor got = run({cuda, cpu});
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel ") - before, 1u) << "not on the device";
    }
    ASSERT_TRUE(wanted.defined() && got.defined());
    ASSERT_EQ(got.dtype(), wanted.dtype());
    ASSERT_EQ(got.shape(), wanted.shape());
    // The CPU's functions are within a few units in the last place of libm's; halves are rounded
    // once.
    const double relative = wanted.dtype() == DType::kFloat64    ? 1e-12
                            : wanted.dtype() == DType::kFloat16  ? 2e-3
                            : wanted.dtype() == DType::kBFloat16 ? 1e-2
                                                                 : 2e-6;
    const std::vector<double> a = got.ToVector<double>(), b = wanted.ToVector<double>();
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isnan(b[i])) EXPECT_TRUE(std::isnan(a[i])) << i << ": " << a[i];
      else if (std::isinf(b[i])) EXPECT_EQ(a[i], b[i]) << i;
      else EXPECT_NEAR(a[i], b[i], relative * std::max(1.0, std::fabs(b[i]))) << i;
    }
  }
};

// Every op in the first of its types; some, and with CAESURA_LONG=1 all, in all of their types.
TEST_F(CudaElementwise, IsAsOnTheCpu) {
  const auto cuda = Provider();
  ASSERT_NE(cuda, nullptr);
  const bool all = std::getenv("CAESURA_LONG") != nullptr;
  const std::set<std::string> in_all_types = {"Add", "Exp", "Gelu", "Equal", "Cast", "ReluGrad",
                                              "Abs", "Neg", "Sign", "Clip",  "Max",  "PRelu"};
  for (const CudaElementOp& op : CudaElementOps()) {
    const std::string name = op.op_type;
    const bool broadcasts = InputsOf(name) > 1 && name != "Clip" && name.find("Grad") == name.npos;
    int types = 0;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kFloat16,
                              DType::kInt64, DType::kBool}) {
      const bool skipped =
          name == "Swish" ||                                  // of opset 24: the node tests have it
          (name == "Shrink" && dtype == DType::kBFloat16) ||  // ONNX does not have it
          !op.types.Contains(dtype) || (name == "Cast" && dtype == DType::kFloat64) ||
          (dtype == DType::kBool && (name.find("Greater") == 0 || name.find("Less") == 0)) ||
          (types > 0 && !all && in_all_types.count(name) == 0);
      if (skipped) continue;
      Compare(op, dtype, cuda, broadcasts && types != 1);
      ++types;
    }
  }
}

// Vectors of elements, with some left at the end, a value for all of a vector, and an input that
// begins one element after an aligned address.
TEST_F(CudaElementwise, MovesVectors) {
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  struct {
    const char* types;
    Shape x, y;
  } const cases[] = {{"(float[1027] x, float[1027] y)", {1027}, {1027}},
                     {"(float[3, 5, 8] x, float[5, 1] y)", {3, 5, 8}, {5, 1}},
                     {"(float[3, 5, 8] x, float[8] y)", {3, 5, 8}, {8}},
                     {"(float[3, 5, 8] x, float y)", {3, 5, 8}, {}}};
  for (const auto& c : cases) {
    for (const char* nodes : {"z = Mul (x, y)", "h = Mul (x, y) z = Cast <to = 16> (h)",
                              "a = Cast <to = 16> (x) b = Cast <to = 16> (y) z = Mul (a, b)"}) {
      SCOPED_TRACE(std::string(c.types) + " " + nodes);
      const auto graph = GraphOf(std::string(c.types) + " => (z) { " + nodes + " }");
      const Values feeds = {Ramp(c.x), Ramp(c.y, 0.5f)};
      const Values wanted = RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds);
      EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds), wanted));
      const Tensor& x = feeds[0].tensor();
      const Tensor longer = Tensor::Zeros(DType::kFloat32, Shape{x.elements() + 1});
      std::memcpy(longer.data<float>() + 1, x.raw(), x.bytes());
      Values moved = feeds;
      moved[0] = Tensor(x.dtype(), x.shape(), CopyToDevice(longer, *cuda).value().buffer(), 4);
      EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, moved, {}, {cuda, cpu}), moved), wanted));
    }
  }
}

// Floats of all sizes become integers of all types as on the CPU: truncated, with NaN as 0.
TEST_F(CudaElementwise, TruncatesFloatsToIntegers) {
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  const std::vector<double> values = {
      0,    -0.75, 1.99, -129,  255.5, 65535, 2147483647., 2147483648., 3e9,      -3e9,
      1e10, 9e18,  1e19, -1e19, 1e30,  -1e30, NAN,         INFINITY,    -INFINITY};
  for (const char* from : {"float", "double"}) {
    Tensor x = std::string(from) == "float"
                   ? Tensor::Of(Shape{19}, std::vector<float>(values.begin(), values.end()))
                   : Tensor::Of(Shape{19}, values);
    for (const int to : {2, 3, 4, 5, 6, 7, 12, 13}) {
      SCOPED_TRACE(std::string(from) + " to " + std::to_string(to));
      const auto graph = GraphOf("(" + std::string(from) + "[19] x) => (y) { y = Cast <to = " +
                                 std::to_string(to) + "> (x) }");
      const Values feeds = {x};
      EXPECT_TRUE(SameBits(RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds),
                           RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds)));
    }
  }
}

// Div and Mod of integers, with -1 and the lowest integer; a zero is reported.
TEST_F(CudaElementwise, DividesIntegers) {
  const auto cuda = Provider(), cpu = MakeCpuProvider();
  const std::vector<int64_t> a = {7, -7, 7, -7, std::numeric_limits<int64_t>::lowest(), 9, 0, 5};
  const std::vector<int64_t> b = {3, 3, -3, -3, -1, -1, 4, 5};
  for (const char* op : {"Div", "Mod", "Mod <fmod = 1>"}) {
    SCOPED_TRACE(op);
    const auto graph =
        GraphOf("(int64[8] a, int64[8] b) => (y) { y = " + std::string(op) + " (a, b) }");
    const Values feeds = {Tensor::Of(Shape{8}, a), Tensor::Of(Shape{8}, b)};
    const uint64_t before = Operations("kernel ");
    const Values got = RunPlan(PlanOf(graph, feeds, {}, {cuda, cpu}), feeds);
    if (!OnGpu()) {
      EXPECT_EQ(Operations("kernel ") - before, 1u) << "not on the device";
    }
    EXPECT_TRUE(SameBits(got, RunPlan(PlanOf(graph, feeds, {}, {cpu}), feeds)));
    std::vector<int64_t> zero = b;
    zero[6] = 0;
    const Values wrong = {Tensor::Of(Shape{8}, a), Tensor::Of(Shape{8}, zero)};
    const auto plan = PlanOf(graph, wrong, {}, {cuda, cpu});
    ExecutionState state(plan);
    const auto failed = Finish(state, wrong);
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.status().message().find("division of integers by zero"), std::string::npos)
        << failed.status().ToString();
  }
}

}  // namespace
}  // namespace caesura::testing
