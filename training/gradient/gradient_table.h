// SPDX-License-Identifier: Apache-2.0
// A row for each ONNX op says what it does with a gradient that arrives: the promise that rules and
// function bodies are held to. Every op with a floating input and a floating output (and If, Loop,
// Scan) has a row; a test compares with the schemas.
#ifndef CAESURA_TRAINING_GRADIENT_GRADIENT_TABLE_H_
#define CAESURA_TRAINING_GRADIENT_GRADIENT_TABLE_H_

#include <vector>

namespace caesura {

struct GradientEntry {
  enum class Kind {
    kRule,     // a rule of our own (gradient_rules.h)
    kBody,     // the op's function body is differentiated
    kZero,     // the gradient is zero wherever there is one
    kRefusal,  // an error that gives the reason
  };
  const char* op_type;
  Kind kind;
  const char*
      note;  // what the rule covers beyond or short of the plain case; the reason of a refusal
};

// In alphabetical order.
const std::vector<GradientEntry>& GradientTable();

}  // namespace caesura

#endif  // CAESURA_TRAINING_GRADIENT_GRADIENT_TABLE_H_
