// SPDX-License-Identifier: Apache-2.0
// Schemas of ONNX's ops and of ours: facts and versions. Those of one session are in
// op_schema_set_test.cc.
#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph.h"

namespace caesura {
namespace {

TEST(OpSchemaTest, FactsOfOnnxOps) {
  const OpSchema* gemm = FindOpSchema("Gemm", "");
  ASSERT_NE(gemm, nullptr);
  EXPECT_EQ(gemm->since_version, 13);
  EXPECT_EQ(gemm->inputs[2].name, "C");
  EXPECT_TRUE(gemm->inputs[2].is_optional);
  EXPECT_EQ(gemm->inputs[0].differentiability, OpSchema::Differentiability::kDifferentiable);
  EXPECT_EQ(std::get<float>(*gemm->attribute("alpha")->default_value), 1.0f);
  EXPECT_TRUE(gemm->inputs[0].dtypes.Contains(DType::kBFloat16));
  EXPECT_FALSE(gemm->has_function);
  EXPECT_TRUE(FindOpSchema("LayerNormalization", "")->has_function);
  EXPECT_EQ(FindOpSchema("Gemm", "", 8)->since_version, 7);
  EXPECT_EQ(FindOpSchema("NoSuchOp", ""), nullptr);
  EXPECT_EQ(SinceVersion("Relu", "", 13), 13);
  EXPECT_EQ(SinceVersion("Relu", "", 5), 1);
  EXPECT_EQ(LatestOpset(""), 28);
  EXPECT_EQ(LatestOpset("no.such.domain"), 0);
  EXPECT_EQ(FindOpSchema("Dropout", "")->determinism, OpSchema::Determinism::kNonDeterministic);
  EXPECT_GT(AllOpSchemas().size(), 200u);
}

TEST(OpSchemaTest, OpsOfOursAreKnownFromTheStart) {
  EXPECT_EQ(FindOpSchema("YieldOp", kCaesuraDomain)->min_outputs, 0);
  EXPECT_EQ(FindOpSchema("DynamicQuantizeLSTM", kContribDomain)->max_inputs, 12);
  EXPECT_EQ(LatestOpset(kCaesuraDomain), 1);
  EXPECT_EQ(SinceVersion("NoSuchOp", kCaesuraDomain), 0);
}

TEST(OpSchemaTest, FormalsOfActualInputs) {
  // The last formal of Concat repeats.
  const OpSchema* concat = FindOpSchema("Concat", "");
  ASSERT_EQ(concat->inputs.size(), 1u);
  EXPECT_TRUE(concat->inputs[0].is_variadic);
  EXPECT_TRUE(concat->inputs[0].is_homogeneous);
  EXPECT_EQ(concat->min_inputs, 1);
  EXPECT_EQ(concat->input(0), &concat->inputs[0]);
  EXPECT_EQ(concat->input(100), &concat->inputs[0]);
  EXPECT_EQ(concat->output(1), nullptr);
  // Clip has two optional inputs after the first one, and no more.
  const OpSchema* clip = FindOpSchema("Clip", "");
  EXPECT_EQ(clip->min_inputs, 1);
  EXPECT_EQ(clip->max_inputs, 3);
  EXPECT_FALSE(clip->input(0)->is_optional);
  EXPECT_TRUE(clip->input(2)->is_optional);
  EXPECT_EQ(clip->input(3), nullptr);
  EXPECT_EQ(clip->input(-1), nullptr);
  // A loop carries values of any types.
  const OpSchema* loop = FindOpSchema("Loop", "");
  EXPECT_TRUE(loop->input(2)->is_variadic);
  EXPECT_FALSE(loop->input(2)->is_homogeneous);
  // A sequence is no tensor.
  const OpSchema::Formal& sequence = FindOpSchema("SequenceAt", "")->inputs[0];
  EXPECT_FALSE(sequence.dtypes.Contains(DType::kFloat32));
  EXPECT_THAT(sequence.types, ::testing::Contains("seq(tensor(float))"));
}

TEST(OpSchemaTest, AttributesAreRequiredOrHaveDefaults) {
  const OpSchema* cast = FindOpSchema("Cast", "");
  EXPECT_TRUE(cast->attribute("to")->is_required);
  EXPECT_FALSE(cast->attribute("to")->default_value.has_value());
  EXPECT_FALSE(cast->attribute("saturate")->is_required);
  EXPECT_EQ(std::get<int64_t>(*cast->attribute("saturate")->default_value), 1);
  EXPECT_EQ(std::get<std::string>(*FindOpSchema("Conv", "")->attribute("auto_pad")->default_value),
            "NOTSET");
  // Neither: the op says what its absence means.
  const OpSchema::AttributeFact* perm = FindOpSchema("Transpose", "")->attribute("perm");
  EXPECT_FALSE(perm->is_required || perm->default_value.has_value());
  EXPECT_EQ(cast->attribute("from"), nullptr);
}

// Reductions took their axes as an attribute, and take them as an input from 13 or 18 on.
TEST(OpSchemaTest, VersionsChangeWhatAnOpTakes) {
  EXPECT_EQ(SinceVersion("ReduceSum", "", 12), 11);
  EXPECT_NE(FindOpSchema("ReduceSum", "", 12)->attribute("axes"), nullptr);
  EXPECT_EQ(FindOpSchema("ReduceSum", "", 12)->max_inputs, 1);
  EXPECT_EQ(FindOpSchema("ReduceSum", "", 13)->attribute("axes"), nullptr);
  EXPECT_EQ(FindOpSchema("ReduceSum", "", 13)->max_inputs, 2);
  EXPECT_EQ(FindOpSchema("Gelu", "", 19), nullptr);  // before the op was there
  EXPECT_EQ(SinceVersion("Gelu", "", 20), 20);
  EXPECT_EQ(SinceVersion("Gelu", "no.such.domain"), 0);
  EXPECT_TRUE(FindOpSchema("Upsample", "", 10)->is_deprecated);
  Graph graph;
  Node* node = graph.AddOp("ReduceSum", {graph.AddInput("x", {})});
  node->set_since_version(11);
  EXPECT_EQ(FindOpSchema(*node)->since_version, 11);
  node->set_since_version(0);
  EXPECT_EQ(FindOpSchema(*node)->since_version, 13);
}

TEST(OpSchemaTest, DomainsAreClosedOrOpen) {
  EXPECT_TRUE(IsClosedDomain(""));
  EXPECT_TRUE(IsClosedDomain("ai.onnx.ml"));
  EXPECT_FALSE(IsClosedDomain(kCaesuraDomain));
  EXPECT_FALSE(IsClosedDomain("no.such.domain"));
  EXPECT_GT(LatestOpset("ai.onnx.ml"), 0);
}

TEST(OpSchemaTest, AllOfThemEachOnceInOrder) {
  const std::vector<const OpSchema*> all = AllOpSchemas();
  bool gemm = false;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_FALSE(all[i]->is_deprecated) << all[i]->op_type;
    EXPECT_EQ(FindOpSchema(all[i]->op_type, all[i]->domain), all[i]) << all[i]->op_type;
    gemm = gemm || all[i] == FindOpSchema("Gemm", "");
    // ONNX's domains come first, then those of others.
    if (i == 0 || IsClosedDomain(all[i - 1]->domain) != IsClosedDomain(all[i]->domain)) continue;
    EXPECT_LT(std::pair(all[i - 1]->domain, all[i - 1]->op_type),
              std::pair(all[i]->domain, all[i]->op_type));
  }
  EXPECT_TRUE(gemm);
}

}  // namespace
}  // namespace caesura
