// SPDX-License-Identifier: Apache-2.0
// Compares a result with what a test expects; the same rules as in caesura/conformance.py.
#ifndef CAESURA_TRAINING_COMMAND_VALUE_COMPARE_H_
#define CAESURA_TRAINING_COMMAND_VALUE_COMPARE_H_

#include <string>

#include "core/tensor/tensor.h"

namespace caesura::command {

struct Tolerance {
  double relative = 1e-3;
  double absolute = 1e-7;
};

// Empty when `got` equals `want`: |got - want| <= absolute + relative * |want| for each element
// (NaN equals NaN), the same dtypes, shapes, strings and lengths of sequences. Otherwise what
// differs, beginning with `path`.
std::string Difference(const RuntimeValue& got, const RuntimeValue& want,
                       const Tolerance& tolerance, const std::string& path);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_VALUE_COMPARE_H_
