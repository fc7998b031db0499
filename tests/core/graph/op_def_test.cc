// SPDX-License-Identifier: Apache-2.0
#include "core/graph/op_def.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/graph/graph.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A misspelt op would say nothing about any node.
TEST(OpDef, EachOpHasASchemaAndOneRow) {
  std::set<std::string> seen;
  for (const OpDef& traits : AllOpDefs()) {
    EXPECT_NE(FindOpSchema(traits.op_type, traits.domain), nullptr)
        << traits.domain << "::" << traits.op_type << " has no schema";
    EXPECT_TRUE(seen.insert(std::string(traits.domain) + "::" + traits.op_type).second)
        << traits.op_type << " is there twice";
  }
}

// The table agrees with the schemas: no op takes more inputs in half than it has, and results and
// sums are outputs that exist.
TEST(OpDef, AgreesWithTheSchemas) {
  for (const OpDef& traits : AllOpDefs()) {
    const OpSchema* schema = FindOpSchema(traits.op_type, traits.domain);
    ASSERT_NE(schema, nullptr) << traits.op_type;
    if (traits.half_inputs != OpDef::kAll) {
      EXPECT_LE(traits.half_inputs, schema->max_inputs) << traits.op_type;
    }
    for (int output : traits.row_sums) EXPECT_LT(output, schema->max_outputs) << traits.op_type;
    if (traits.result != DType::kUndefined && schema->output(0) != nullptr) {
      EXPECT_TRUE(schema->output(0)->dtypes.Contains(traits.result)) << traits.op_type;
    }
    if (traits.random) {
      EXPECT_NE(schema->determinism, OpSchema::Determinism::kDeterministic) << traits.op_type;
    }
  }
}

TEST(OpDef, AnUnlistedOpSaysNothing) {
  EXPECT_TRUE(OpDefOf("Add").elementwise);
  EXPECT_FALSE(OpDefOf("Add", "ai.caesura").elementwise);
  EXPECT_FALSE(OpDefOf("NoSuchOp").elementwise);
}

OpDef SpecOf(const std::string& op_type, int version) {
  OpDef spec;
  spec.op_type = op_type;
  spec.domain = "mine";
  spec.since_version = version;
  return spec;
}

TEST(OpDefSet, FindsTheNewestThatIsNotTooNew) {
  OpDefSet set;
  for (const int version : {5, 2}) ASSERT_TRUE(set.Add(SpecOf("Op", version)).ok());
  EXPECT_EQ(set.Find("Op", "mine", 1), nullptr);
  EXPECT_EQ(set.Find("Op", "mine", 2)->since_version, 2);
  EXPECT_EQ(set.Find("Op", "mine", 4)->since_version, 2);
  EXPECT_EQ(set.Find("Op", "mine", 9)->since_version, 5);
  EXPECT_EQ(set.Find("Op", "mine")->since_version, 5);
  EXPECT_EQ(set.Find("Op", "other"), nullptr);
  EXPECT_EQ(set.Find("Pop", "mine"), nullptr);
  EXPECT_TRUE(set.HasDomain("mine"));
  EXPECT_FALSE(set.HasDomain("min"));
}

TEST(OpDefSet, RefusesWhatIsKnownAlready) {
  OpDefSet set;
  const auto refusal = [&set](const std::string& op_type, const std::string& domain, int version) {
    OpDef spec = SpecOf(op_type, version);
    spec.domain = domain;
    const Status status = set.Add(std::move(spec));
    EXPECT_EQ(status.code(), status.ok() ? StatusCode::kOk : StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refusal("Relu", "", 1), HasSubstr("ONNX's domain ''"));
  EXPECT_THAT(refusal("DynamicQuantizeLSTM", kContribDomain, 1),
              HasSubstr("is one of caesura's own"));
  EXPECT_THAT(refusal("Op", "mine", 0), HasSubstr("versions count from 1, got 0"));
  EXPECT_THAT(refusal("Op", "mine", 3), IsEmpty());
  EXPECT_THAT(refusal("Op", "mine", 3), HasSubstr("mine::Op of version 3 is added twice"));
  EXPECT_THAT(refusal("Op", "mine", 4), IsEmpty());
}

// One session's schemas are no other's, and come before those of the process.
TEST(OpDefSet, BelongsToTheGraphsThatHaveIt) {
  auto set = std::make_shared<OpDefSet>();
  ASSERT_TRUE(set->Add(SpecOf("Op", 1)).ok());
  ASSERT_TRUE(set->Add(SpecOf("Op", 4)).ok());
  Graph graph, other;
  graph.set_own_ops(set);
  Graph body("body", &graph);
  for (Graph* own : {&graph, &body}) {
    Node* node = own->AddOp("Op", {}, {}, "mine");
    node->set_since_version(3);
    ASSERT_NE(FindOwnOp(*node), nullptr);
    EXPECT_EQ(FindOwnOp(*node)->since_version, 1);
    const Node* common = own->AddOp("DynamicQuantizeLSTM", {}, {}, kContribDomain);
    EXPECT_EQ(FindOwnOp(*common), FindOwnOp("DynamicQuantizeLSTM", kContribDomain));
    EXPECT_NE(FindOwnOp(*common), nullptr);
  }
  EXPECT_EQ(FindOwnOp(*other.AddOp("Op", {}, {}, "mine")), nullptr);
  EXPECT_EQ(FindOwnOp("Op", "mine"), nullptr);
}

}  // namespace
}  // namespace caesura
