// SPDX-License-Identifier: Apache-2.0
// The table of gradients against ONNX's schemas and our rules.
#include "training/gradient/gradient_table.h"

#include <gtest/gtest.h>

#include <map>

#include "core/graph/aten_domain.h"
#include "core/graph/op_schema.h"
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

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

std::map<std::string, GradientEntry> Entries() {
  std::map<std::string, GradientEntry> out;
  for (const GradientEntry& entry : GradientTable()) out[entry.op_type] = entry;
  return out;
}

TEST(GradientTable, ListsEveryFloatingOp) {
  const auto entries = Entries();
  size_t count = 0;
  for (const OpSchema* schema : AllOpSchemas()) {
    if (!schema->domain.empty() || !TakesAndGivesFloats(*schema)) continue;
    ++count;
    EXPECT_TRUE(entries.count(schema->op_type))
        << schema->op_type << " has no row in gradient_table.cc";
  }
  EXPECT_GE(count, 150u);
  EXPECT_EQ(entries.size(), GradientTable().size());
}

TEST(GradientTable, RowsAreTrue) {
  for (const auto& [op_type, entry] : Entries()) {
    const gradient::GradientRule* rule = gradient::FindGradientRule(op_type);
    const OpSchema* schema = FindOpSchema(op_type, "");
    ASSERT_NE(schema, nullptr) << op_type;
    switch (entry.kind) {
      case GradientEntry::Kind::kRule:
        EXPECT_TRUE(rule != nullptr && rule->function != nullptr) << op_type;
        break;
      case GradientEntry::Kind::kBody:
        EXPECT_TRUE(rule == nullptr && schema->has_function) << op_type;
        break;
      case GradientEntry::Kind::kZero:
        EXPECT_TRUE(rule != nullptr && rule->function == nullptr) << op_type;
        break;
      case GradientEntry::Kind::kRefusal:
        EXPECT_TRUE(rule == nullptr && !schema->has_function && entry.note[0] != '\0') << op_type;
        break;
    }
  }
}

// Inputs that ONNX marks as differentiable are so here, or the row says why not.
TEST(GradientTable, KeepsOnnxMarks) {
  const auto entries = Entries();
  for (const OpSchema* schema : AllOpSchemas()) {
    const gradient::GradientRule* rule =
        schema->domain.empty() ? gradient::FindGradientRule(schema->op_type) : nullptr;
    if (rule == nullptr || rule->function == nullptr) continue;
    for (size_t i = 0; i < schema->inputs.size(); ++i) {
      const auto& formal = schema->inputs[i];
      if (formal.differentiability != OpSchema::Differentiability::kDifferentiable ||
          !HasFloat(formal))
        continue;
      const bool stops = KernelDef::Lists(rule->stops, static_cast<int>(i));
      const bool refuses = KernelDef::Lists(rule->refuses, static_cast<int>(i));
      EXPECT_FALSE(stops) << schema->op_type << " input " << i << " is differentiable in ONNX";
      EXPECT_TRUE(!refuses || entries.at(schema->op_type).note[0] != '\0') << schema->op_type;
    }
  }
}

TEST(GradientTable, RulesAreUniqueAndOfKnownOps) {
  ASSERT_TRUE(RegisterTrainingOpSchemas().ok());
  std::map<std::string, int> seen;
  for (const gradient::GradientRule& rule : gradient::AllGradientRules()) {
    EXPECT_EQ(++seen[rule.domain + "::" + rule.op_type], 1) << rule.op_type;
    if (rule.domain == kAtenDomain) continue;  // their schemas are PyTorch's
    const bool known = FindOpSchema(rule.op_type, rule.domain) != nullptr ||
                       FindOpSchema(rule.op_type, rule.domain, 10) != nullptr;
    EXPECT_TRUE(known) << rule.op_type;
  }
}

}  // namespace
}  // namespace caesura
