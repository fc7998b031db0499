// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {
namespace {

// Each reduction over some axes, without keeping them, over all, and over none.
void AddReduction(const std::string& op, double low, std::vector<GradientCase>* cases) {
  const std::string axes = "<int64[2] a = {0, -1}>", none = "<int64[0] a = {}>";
  const std::string x = "double[2,3,4] x";
  cases->push_back(
      {.name = op, .inputs = x, .body = "y = " + op + "(x, a)", .low = low, .initializers = axes});
  cases->push_back({.name = op + "Dropped",
                    .inputs = x,
                    .body = "y = " + op + "<keepdims = 0>(x, a)",
                    .low = low,
                    .initializers = axes});
  cases->push_back({.name = op + "All", .inputs = x, .body = "y = " + op + "(x)", .low = low});
  cases->push_back({.name = op + "AllDropped",
                    .inputs = x,
                    .body = "y = " + op + "<keepdims = 0>(x)",
                    .low = low});
  cases->push_back({.name = op + "EmptyAxes",
                    .inputs = x,
                    .body = "y = " + op + "<keepdims = 0>(x, a)",
                    .low = low,
                    .initializers = none});
  cases->push_back({.name = op + "NoOp",
                    .inputs = x,
                    .body = "y = " + op + "<noop_with_empty_axes = 1>(x)",
                    .low = low});
  cases->push_back(
      {.name = op + "Scalar", .inputs = "double[] x", .body = "y = " + op + "(x)", .low = low});
}

}  // namespace

std::vector<GradientCase> ReductionCases() {
  std::vector<GradientCase> cases;
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
                         "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}) {
    AddReduction(op, -2, &cases);
  }
  AddReduction("ReduceLogSum", 0.3, &cases);
  const std::vector<GradientCase> more = {
      {.name = "ReduceSumEmpty",
       .inputs = "double[2,0] x",
       .body = "y = ReduceSum(x, a)",
       .initializers = "<int64[1] a = {1}>"},
      {.name = "ReduceMeanEmptyBatch",
       .inputs = "double[0,3] x",
       .body = "y = ReduceMean(x, a)",
       .initializers = "<int64[1] a = {1}>"},
      {.name = "ReduceMeanSymbol",
       .inputs = "double[N,3] x",
       .body = "y = ReduceMean(x, a)",
       .dims = {{"N", 4}},
       .initializers = "<int64[1] a = {0}>"},
      {.name = "ReduceProdZero",
       .inputs = "double[2,3] x",
       .body = "y = ReduceProd(x, a)",
       .feeds = {{"x", {1, 0, 2, 0, 3, 0}}},
       .initializers = "<int64[1] a = {1}>"},
      {.name = "CumSum",
       .inputs = "double[2,4] x",
       .body = "y = CumSum(x, a)",
       .initializers = "<int64 a = {1}>"},
      {.name = "CumSumReverse",
       .inputs = "double[2,4] x",
       .body = "y = CumSum<exclusive = 1, reverse = 1>(x, a)",
       .initializers = "<int64 a = {-1}>"},
      {.name = "LogCumSumExp",
       .inputs = "double[3,4] x",
       .body = "y = ai.caesura.LogCumSumExp<axis = 0>(x)"},
      {.name = "CumProd",
       .inputs = "double[2,4] x",
       .body = "y = CumProd(x, a)",
       .initializers = "<int64 a = {1}>"},
      {.name = "CumProdZero",
       .inputs = "double[2,4] x",
       .body = "y = CumProd<reverse = 1>(x, a)",
       .feeds = {{"x", {1, 0, 2, 3, 0, 1, 0, 2}}},
       .initializers = "<int64 a = {1}>"},
      {.name = "CumProdExclusive",
       .inputs = "double[2,4] x",
       .body = "y = CumProd<exclusive = 1>(x, a)",
       .initializers = "<int64 a = {1}>"},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  return cases;
}

}  // namespace caesura
