// SPDX-License-Identifier: Apache-2.0
// Cases of the gradient checks: small graphs as text, one or more for each rule.
#ifndef CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_
#define CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "core/session/session.h"

namespace caesura {

struct GradientCase {
  std::string name;
  // "double[2,3] x, int64[2] i": floating inputs are differentiated by, all others stay as `feeds`
  // has them.
  std::string inputs;
  // "y = Abs(x)": ONNX's text form. All floating outputs count.
  std::string body;
  std::string outputs = "y";
  double low = -2, high = 2;                              // of the random inputs
  std::map<std::string, std::vector<double>> feeds = {};  // values of inputs that are not random
  std::map<std::string, int64_t> dims = {};               // of symbols
  std::string initializers = "";                          // "<double[2] w = {1, 2}>"
  double float_tolerance = 1e-5;  // of float32 against float64, relative to the largest entry
  // Why there is no double: then the differences are those of float32, with a wide tolerance, and
  // float32 itself is compared with PyTorch's double alone
  // (tests/python/gradients/gradients_beside_pytorch_test.py).
  std::string no_double = "";
  bool has_gradient = true;  // false: the gradient is zero everywhere
};

inline void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name; }

std::vector<GradientCase> ElementwiseCases();  // elementwise_cases.cc
std::vector<GradientCase> MatMulCases();       // matmul_cases.cc
std::vector<GradientCase> MovementCases();     // movement_cases.cc
std::vector<GradientCase> IndexingCases();     // indexing_cases.cc
std::vector<GradientCase> ReductionCases();    // reduction_cases.cc
std::vector<GradientCase> NnCases();  // nn_cases.cc: conv, pool, norm, loss, recurrent, attention
std::vector<GradientCase> ImageCases();        // image_cases.cc, with Fourier transforms
std::vector<GradientCase> ControlFlowCases();  // control_flow_cases.cc, with sequences

// Registers the kernels of all families.
std::vector<GradientCase> AllGradientCases();

// load_cases.cc. The case's graph with `dtype` in place of double; its initializers hold values
// that are exact in `rounded` (kUndefined: as written). Fails where the text or the types are
// wrong.
Result<Model> LoadCase(const GradientCase& c, DType dtype, DType rounded = DType::kUndefined);
// The feeds of the graph's inputs, in their dtypes; also exact in `rounded`.
NamedValues CaseFeeds(const GradientCase& c, const Graph& graph, DType rounded = DType::kUndefined);
// Random and no two nearly equal, so that differences do not jump over a tie.
std::vector<double> RandomValues(int64_t count, double low, double high, uint32_t seed);
Tensor FromDoubles(DType dtype, const Shape& shape, const std::vector<double>& values);

}  // namespace caesura

#endif  // CAESURA_TESTS_GRADIENTS_GRADIENT_CASE_H_
