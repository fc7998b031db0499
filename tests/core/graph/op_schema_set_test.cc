// SPDX-License-Identifier: Apache-2.0
// OpSchemaSet: the schemas of one session. They are found by version, and only in its graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/contrib_schemas.h"
#include "core/graph/graph.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

OpSchemaSpec SpecOf(const std::string& op_type, int version) {
  OpSchemaSpec spec;
  spec.op_type = op_type;
  spec.domain = "mine";
  spec.since_version = version;
  return spec;
}

TEST(OpSchemaSetTest, FindsTheNewestThatIsNotTooNew) {
  OpSchemaSet set;
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

TEST(OpSchemaSetTest, RefusesWhatIsKnownAlready) {
  OpSchemaSet set;
  const auto refusal = [&set](const std::string& op_type, const std::string& domain, int version) {
    OpSchemaSpec spec = SpecOf(op_type, version);
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
TEST(OpSchemaSetTest, BelongsToTheGraphsThatHaveIt) {
  auto set = std::make_shared<OpSchemaSet>();
  ASSERT_TRUE(set->Add(SpecOf("Op", 1)).ok());
  ASSERT_TRUE(set->Add(SpecOf("Op", 4)).ok());
  Graph graph, other;
  graph.set_op_schemas(set);
  Graph body("body", &graph);
  for (Graph* own : {&graph, &body}) {
    Node* node = own->AddOp("Op", {}, {}, "mine");
    node->set_since_version(3);
    ASSERT_NE(FindOpSchemaSpec(*node), nullptr);
    EXPECT_EQ(FindOpSchemaSpec(*node)->since_version, 1);
    const Node* common = own->AddOp("DynamicQuantizeLSTM", {}, {}, kContribDomain);
    EXPECT_EQ(FindOpSchemaSpec(*common), FindOpSchemaSpec("DynamicQuantizeLSTM", kContribDomain));
    EXPECT_NE(FindOpSchemaSpec(*common), nullptr);
  }
  EXPECT_EQ(FindOpSchemaSpec(*other.AddOp("Op", {}, {}, "mine")), nullptr);
  EXPECT_EQ(FindOpSchemaSpec("Op", "mine"), nullptr);
}

}  // namespace
}  // namespace caesura
