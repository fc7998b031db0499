// SPDX-License-Identifier: Apache-2.0
// FusedRows against its body, which is run as a graph of its own: any number of rows, operands that
// repeat, sums over all rows. row_fusion_test.cc has the pass that makes such nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

ProviderList RowKernels() { return {MakeCpuProvider()}; }

// A graph with one node; the types of its values are left open.
struct FusedBody {
  std::string inputs, outputs, nodes;
  std::string columns = {};    // the outputs that are sums over all rows: "0, 2"
  std::string constants = {};  // initializers of the body, whose names have two letters or more

  std::shared_ptr<Graph> Unfused() const {
    return GraphOf(Ends("") + constants + " { " + nodes + " }");
  }
  std::shared_ptr<Graph> Fused() const {
    const std::string sums = columns.empty() ? "" : ", column_outputs = [" + columns + "]";
    return GraphOf(Ends("") + " { " + Named("", outputs) + " = ai.caesura.FusedRows <body = body " +
                   Ends("f_") + constants + " { " + Prefixed(nodes) + " }" + sums + "> (" + inputs +
                   ") }");
  }

 private:
  static std::string Named(const std::string& prefix, const std::string& names) {
    std::string out = prefix;
    for (char c : names) out += c == ' ' ? " " + prefix : std::string(1, c);
    return out;
  }
  std::string Ends(const std::string& prefix) const {
    const auto floats = [&](const std::string& names) { return Named("float " + prefix, names); };
    return "(" + floats(inputs) + ") => (" + floats(outputs) + ")";
  }
  // Values of the body have names of their own: lower-case words of one letter.
  static std::string Prefixed(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto is_letter = [&](size_t at) { return at < text.size() && std::isalpha(text[at]); };
      const bool is_name = is_letter(i) && !is_letter(i + 1) && (i == 0 || !is_letter(i - 1)) &&
                           (i == 0 || text[i - 1] != '.');
      out += is_name ? "f_" + std::string(1, text[i]) : std::string(1, text[i]);
    }
    return out;
  }
};

TEST(FusedRowsKernel, ReadsAsItIsWritten) {
  const FusedBody body = {"x, b", "y", "a = Add (x, b) y = Exp (a)"};
  EXPECT_EQ(body.Fused()->nodes().size(), 1u);
  EXPECT_EQ(body.Unfused()->nodes().size(), 2u);
}

// The same bits as node by node, whatever the rows and threads: no op mixes rows.
void ExpectTheSameBits(const FusedBody& body, const Values& feeds) {
  const Values wanted = RunPlan(PlanOf(body.Unfused(), feeds, {}, RowKernels()), feeds);
  for (int threads : {1, 2, 3}) {
    PlanOptions options;
    options.threads = threads;
    EXPECT_TRUE(
        SameBits(RunPlan(PlanOf(body.Fused(), feeds, options, RowKernels()), feeds), wanted))
        << threads << " threads, " << feeds[0].tensor().shape().ToString();
  }
}

TEST(FusedRowsKernel, TakesAnyNumberOfRows) {
  const FusedBody body = {"x, b", "y, z", "a = Mul (x, b) y = Neg (a) z = Abs (y)"};
  for (int64_t rows : {0, 1, 2, 63, 1000, 5000}) {
    for (int64_t width : {1, 7, 48})
      ExpectTheSameBits(body, {Ramp(Shape{rows, width}), Ramp(Shape{width})});
  }
}

TEST(FusedRowsKernel, OperandsRepeatAlongAnyDims) {
  const FusedBody body = {"x, b", "y", "a = Add (x, b) y = Mul (a, x)"};
  const Shape whole{6, 5, 40, 9};
  for (const Shape& other :
       {Shape{}, Shape{9}, Shape{1}, Shape{40, 9}, Shape{40, 1}, Shape{5, 1, 9}, Shape{5, 40, 1},
        Shape{6, 1, 1, 9}, Shape{6, 1, 40, 1}, Shape{6, 5, 1, 1}, Shape{1, 5, 1, 9}}) {
    ExpectTheSameBits(body, {Ramp(whole), Ramp(other)});
  }
  // Neither has all rows.
  ExpectTheSameBits(body, {Ramp(Shape{30, 1, 9}), Ramp(Shape{1, 40, 9})});
}

// Sums of whole numbers are exact in any order, so that each tile's part must be there once.
TEST(FusedRowsKernel, AddsTheTilesOfASum) {
  const FusedBody body = {"x, w", "y, t", "y = Mul (x, w) t = ai.caesura.SumTo (y, width)", "1",
                          "<int64[1] width = {8}>"};
  for (int64_t rows : {1, 3, 700, 6000}) {
    std::vector<float> x(rows * 8), sums(8, 0.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 11) - 5;
      sums[i % 8] += 2 * x[i];
    }
    const Values feeds = {Floats(Shape{rows, 8}, x), Floats(Shape{8}, std::vector<float>(8, 2))};
    for (int threads : {1, 3}) {
      PlanOptions options;
      options.threads = threads;
      const Values got = RunPlan(PlanOf(body.Fused(), feeds, options, RowKernels()), feeds);
      EXPECT_EQ(ToFloats(got[1]), sums) << rows << " rows, " << threads << " threads";
    }
  }
}

// Shapes that the pass did not foresee: the body runs node by node, and its node's error is told.
TEST(FusedRowsKernel, RunsItsBodyWhereRowsDiffer) {
  const FusedBody body = {"x, b", "y", "y = Add (x, b)"};
  const Values feeds = {Ramp(Shape{3, 4}), Ramp(Shape{2, 4})};
  ExecutionState state(PlanOf(body.Fused(), feeds, {}, RowKernels()));
  EXPECT_THAT(Finish(state, feeds).status().message(),
              HasSubstr("[Add 'Add' on CPUExecutionProvider] shapes [3, 4] and [2, 4] do not"));
  ExpectTheSameBits(body, {Ramp(Shape{4}), Ramp(Shape{})});  // no rows at all
}

}  // namespace
}  // namespace caesura::testing
