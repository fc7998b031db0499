// SPDX-License-Identifier: Apache-2.0
// Cases of the gradient checks: small graphs as text, one or more for each rule.
#ifndef CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_
#define CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_

#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace caesura {

struct GradientCase {
  std::string name;
  // "double[2,3] x, int64[2] i": floating inputs are differentiated by, all others stay as `feeds` has them.
  std::string inputs;
  // "y = Abs(x)": ONNX's text form. All floating outputs count.
  std::string body;
  std::string outputs = "y";
  double low = -2, high = 2;            // of the random inputs
  std::map<std::string, std::vector<double>> feeds = {};  // values of inputs that are not random
  std::map<std::string, int64_t> dims = {};               // of symbols
  std::string initializers = "";        // "<double[2] w = {1, 2}>"
  double float_tolerance = 2e-3;        // of float32 against float64, relative to the largest entry; 0: no such check
  bool float_only = false;              // the schema knows no double: differences of float32 with a wide tolerance
  bool has_gradient = true;             // false: the gradient is zero everywhere
};

inline void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name; }

std::vector<GradientCase> ElementwiseCases();   // elementwise_cases.cc
std::vector<GradientCase> MatMulCases();        // matmul_cases.cc
std::vector<GradientCase> MovementCases();      // movement_cases.cc
std::vector<GradientCase> IndexingCases();      // indexing_cases.cc
std::vector<GradientCase> ReductionCases();     // reduction_cases.cc
std::vector<GradientCase> NnCases();            // nn_cases.cc: conv, pool, norm, loss, recurrent, attention
std::vector<GradientCase> ImageCases();         // image_cases.cc, with Fourier transforms
std::vector<GradientCase> ControlFlowCases();   // control_flow_cases.cc, with sequences

}  // namespace caesura

#endif  // CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_
