// SPDX-License-Identifier: Apache-2.0
// The rows of ops agree with ONNX's schemas in what they promise of gradients.
#include "core/gradient/gradient_rules.h"

#include <gtest/gtest.h>

#include <map>

#include "core/graph/aten_domain.h"
#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

bool HasFloat(const OpSchema::Formal& formal) {
  for (const std::string& type : formal.types) {
    for (const char* number :
         {"tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"}) {
      if (type.find(number) != std::string::npos) return true;
    }
  }
  return false;
}

bool TakesAndGivesFloats(const OpSchema& schema) {
  bool takes = schema.op_type == "If", gives = false;  // an If takes what its bodies read
  for (const auto& formal : schema.inputs) takes |= HasFloat(formal);
  for (const auto& formal : schema.outputs) gives |= HasFloat(formal);
  return takes && gives;
}

TEST(GradientRules, EachFloatingOpSaysWhatBecomesOfAGradient) {
  size_t count = 0;
  for (const OpSchema* schema : AllOpSchemas()) {
    if (!schema->domain.empty() || !TakesAndGivesFloats(*schema)) continue;
    ++count;
    const OpDef& op = OpDefOf(schema->op_type);
    EXPECT_TRUE(op.rule.has_gradient() || op.derivative != OpDef::Derivative::kUnsaid)
        << schema->op_type;
  }
  EXPECT_GE(count, 150u);
}

TEST(GradientRules, RowsOfOpsAreTrue) {
  for (const OpDef& op : AllOpDefs()) {
    if (op.domain == kAtenDomain) continue;  // its schema is PyTorch's
    const bool has_rule = op.rule.has_gradient();
    if (!has_rule && op.derivative == OpDef::Derivative::kUnsaid) continue;
    const OpSchema* schema = FindOpSchema(op.op_type, op.domain);
    if (schema == nullptr) schema = FindOpSchema(op.op_type, op.domain, 10);
    ASSERT_NE(schema, nullptr) << op.op_type;
    switch (op.derivative) {
      case OpDef::Derivative::kUnsaid: break;
      case OpDef::Derivative::kBody:
        EXPECT_TRUE(!has_rule && schema->has_function) << op.op_type;
        break;
      case OpDef::Derivative::kZero: EXPECT_FALSE(has_rule) << op.op_type; break;
      case OpDef::Derivative::kRefusal:
        EXPECT_TRUE(!has_rule && !schema->has_function && !op.derivative_note.empty())
            << op.op_type;
        break;
    }
  }
}

// Inputs that ONNX marks as differentiable are so here, or the row says why not.
TEST(GradientRules, KeepsOnnxMarks) {
  for (const OpSchema* schema : AllOpSchemas()) {
    const GradientRule* rule =
        schema->domain.empty() ? gradient::FindGradientRule(schema->op_type) : nullptr;
    if (rule == nullptr || !rule->has_gradient()) continue;
    for (size_t i = 0; i < schema->inputs.size(); ++i) {
      const auto& formal = schema->inputs[i];
      if (formal.differentiability != OpSchema::Differentiability::kDifferentiable ||
          !HasFloat(formal))
        continue;
      const bool stops = KernelDef::Lists(rule->stops, static_cast<int>(i));
      const bool refuses = KernelDef::Lists(rule->refuses, static_cast<int>(i));
      EXPECT_FALSE(stops) << schema->op_type << " input " << i << " is differentiable in ONNX";
      EXPECT_TRUE(!refuses || !OpDefOf(schema->op_type).derivative_note.empty()) << schema->op_type;
    }
  }
}

TEST(GradientRules, RowsAreUnique) {
  std::map<std::string, int> seen;
  for (const OpDef& op : AllOpDefs())
    EXPECT_EQ(++seen[op.domain + "::" + op.op_type], 1) << op.op_type;
}

}  // namespace
}  // namespace caesura
