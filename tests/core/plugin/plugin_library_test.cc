// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/plugin_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(PluginLibrary, CollectsWhatIsOffered) {
  const auto library = CallPluginMain(
      [](const CaesuraApi* api, CaesuraPlugin* plugin) {
        CaesuraOp op = {};
        op.size = sizeof(op);
        op.op_type = "Twice";
        CaesuraProvider provider = {};
        provider.size = sizeof(provider);
        provider.name = "Far";
        if (CaesuraStatus* failed = api->add_op(plugin, &op)) return failed;
        return api->add_provider(plugin, &provider);
      },
      "test");
  ASSERT_TRUE(library.ok()) << library.status().ToString();
  ASSERT_EQ(library->ops.size(), 1u);
  EXPECT_STREQ(library->ops[0].op_type, "Twice");
  ASSERT_EQ(library->providers.size(), 1u);
  EXPECT_TRUE(library->model_runtimes.empty());
}

// A description from before a field was known, and one from after it.
TEST(PluginLibrary, TakesDescriptionsOfOtherSizes) {
  const auto library = CallPluginMain(
      [](const CaesuraApi* api, CaesuraPlugin* plugin) {
        CaesuraOp older;
        std::memset(&older, 0xff, sizeof(older));
        older.size = 2 * sizeof(void*);
        older.op_type = "Older";
        struct {
          CaesuraOp op;
          void* more[4];
        } newer = {};
        newer.op.size = sizeof(newer);
        newer.op.op_type = "Newer";
        if (CaesuraStatus* failed = api->add_op(plugin, &older)) return failed;
        return api->add_op(plugin, &newer.op);
      },
      "test");
  ASSERT_TRUE(library.ok());
  ASSERT_EQ(library->ops.size(), 2u);
  CaesuraOp expected = {};
  expected.size = 2 * sizeof(void*);
  expected.op_type = library->ops[0].op_type;
  EXPECT_EQ(std::memcmp(&library->ops[0], &expected, sizeof(expected)), 0);
}

TEST(PluginLibrary, ReportsWhatThePluginReports) {
  const auto library = CallPluginMain(
      [](const CaesuraApi* api, CaesuraPlugin*) {
        return api->make_status(CAESURA_NOT_FOUND, "no driver");
      },
      "far");
  EXPECT_EQ(library.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(library.status().message(), HasSubstr("plug-in 'far': no driver"));
}

TEST(PluginLibrary, RefusesWhatHasNoName) {
  const auto library = CallPluginMain(
      [](const CaesuraApi* api, CaesuraPlugin* plugin) {
        CaesuraOp op = {};
        op.size = sizeof(op);
        return api->add_op(plugin, &op);
      },
      "test");
  EXPECT_THAT(library.status().message(), HasSubstr("an op has no name"));
}

TEST(PluginLibrary, RefusesFilesThatAreNone) {
  EXPECT_EQ(LoadPluginLibrary("/nowhere/plugin.so").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadPluginLibrary("libm.so.6").status().message(), HasSubstr("is no plug-in"));
}

}  // namespace
}  // namespace caesura
