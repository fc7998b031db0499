// SPDX-License-Identifier: Apache-2.0
// Runs a case forward and backward in one dtype.
#ifndef CAESURA_TESTS_GRADIENTS_GRADIENT_CHECK_H_
#define CAESURA_TESTS_GRADIENTS_GRADIENT_CHECK_H_

#include <string>
#include <vector>

#include "tests/gradients/gradient_case.h"

namespace caesura {

struct CaseRun {
  std::unique_ptr<Session> forward;
  NamedValues feeds;
  std::vector<Tensor> ys;
  std::vector<std::vector<double>> dys;
  std::vector<std::string> xs;                 // the floating inputs
  std::vector<std::vector<double>> gradients;  // one for each of xs
  bool reachable = false;                      // whether an output depends on one of xs
  bool fused = false;                          // whether the backward run had fused nodes
};

// Runs the forward only, which tells whether the case is valid. Without providers: on the CPU.
Result<CaseRun> RunForward(const GradientCase& c, DType dtype, DType rounded = DType::kUndefined,
                           const ProviderList& providers = {});
// Adds random output gradients, which depend on the outputs' shapes alone, and what comes of them;
// `passes` run on the graph with its backward part.
Status RunBackward(const GradientCase& c, DType dtype, CaseRun* run,
                   DType rounded = DType::kUndefined, const PassList& passes = {},
                   const ProviderList& providers = {});
// The case's gradients as a case, run forward and backward in double where it has one: xs are the
// floating inputs and the output gradients, ys the gradients by the inputs, and gradients second
// derivatives.
Result<CaseRun> RunSecond(const GradientCase& c);
// Central differences for the run's gradients, in float32 or float64.
std::vector<std::vector<double>> Differences(const CaseRun& run, double epsilon);
// The scale of the comparison: the largest number, at least 1.
double ScaleOf(const std::vector<double>& values);

}  // namespace caesura

#endif  // CAESURA_TESTS_GRADIENTS_GRADIENT_CHECK_H_
