// SPDX-License-Identifier: Apache-2.0
#include "core/graph/op_traits.h"

#include <gtest/gtest.h>

#include <set>

#include "core/graph/op_schema.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

// A misspelt op would say nothing about any node.
TEST(OpTraits, EachOpHasASchemaAndOneRow) {
  ASSERT_TRUE(RegisterTrainingOpSchemas().ok());
  std::set<std::string> seen;
  for (const OpTraits& traits : AllOpTraits()) {
    EXPECT_NE(FindOpSchema(traits.op_type, traits.domain), nullptr)
        << traits.domain << "::" << traits.op_type << " has no schema";
    EXPECT_TRUE(seen.insert(std::string(traits.domain) + "::" + traits.op_type).second)
        << traits.op_type << " is there twice";
  }
}

// The table agrees with the schemas: no op takes more inputs in half than it has, and results and
// sums are outputs that exist.
TEST(OpTraits, AgreesWithTheSchemas) {
  ASSERT_TRUE(RegisterTrainingOpSchemas().ok());
  for (const OpTraits& traits : AllOpTraits()) {
    const OpSchema* schema = FindOpSchema(traits.op_type, traits.domain);
    ASSERT_NE(schema, nullptr) << traits.op_type;
    if (traits.half_inputs != OpTraits::kAll) {
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

TEST(OpTraits, AnUnlistedOpSaysNothing) {
  EXPECT_TRUE(TraitsOf("Add").elementwise);
  EXPECT_FALSE(TraitsOf("Add", "ai.caesura").elementwise);
  EXPECT_FALSE(TraitsOf("NoSuchOp").elementwise);
}

}  // namespace
}  // namespace caesura
