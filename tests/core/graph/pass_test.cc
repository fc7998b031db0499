// SPDX-License-Identifier: Apache-2.0
// The runner of passes, on passes made for it: what it records, and whom it blames. Names that no
// pass has are in tests/graph_transforms/pipeline_test.cc.
#include "core/graph/pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PassOf : public Pass {
 public:
  PassOf(std::string name, std::function<Result<bool>(Model&)> run)
      : name_(std::move(name)), run_(std::move(run)) {}
  const char* name() const override { return name_.c_str(); }
  Result<bool> Run(Model& model) override { return run_(model); }

 private:
  const std::string name_;
  const std::function<Result<bool>(Model&)> run_;
};

std::shared_ptr<Pass> MakePass(std::string name, std::function<Result<bool>(Model&)> run) {
  return std::make_shared<PassOf>(std::move(name), std::move(run));
}

Model ModelOfOneNode() {
  return ParseModelText(
             "<ir_version: 10, opset_import: [\"\" : 20]> g (float[4] x) => (float[4] y) { "
             "y = Neg (x) }")
      .value();
}

void AddRelu(Model& model) { model.graph->AddOp("Relu", {model.graph->inputs()[0]}); }

// Adds a node, and says so if `honest`.
std::shared_ptr<Pass> MakeGrowingPass(std::string name, bool honest = true) {
  return MakePass(std::move(name), [honest](Model& model) -> Result<bool> {
    AddRelu(model);
    return honest;
  });
}

TEST(RunPasses, RecordsEachPassInItsOrder) {
  Model model = ModelOfOneNode();
  std::vector<size_t> seen;  // the number of nodes that each pass has found
  const auto look = [&](Model& m) -> Result<bool> {
    seen.push_back(m.graph->nodes().size());
    return false;
  };
  const auto grow = [&](Model& m) -> Result<bool> {
    seen.push_back(m.graph->nodes().size());
    AddRelu(m);
    AddRelu(m);
    return true;
  };
  const auto records = RunPasses(
      {MakePass("first_look", look), MakePass("grow", grow), MakePass("last_look", look)}, model);
  ASSERT_TRUE(records.ok()) << records.status().ToString();
  ASSERT_EQ(records->size(), 3u);
  EXPECT_THAT(seen, ElementsAre(1, 1, 3));
  const char* names[] = {"first_look", "grow", "last_look"};
  const size_t before[] = {1, 1, 3}, after[] = {1, 3, 3};
  for (size_t i = 0; i < 3; ++i) {
    const PassRecord& record = (*records)[i];
    EXPECT_EQ(record.name, names[i]);
    EXPECT_FALSE(record.skipped);
    EXPECT_EQ(record.changed, i == 1);
    EXPECT_EQ(record.nodes_before, before[i]);
    EXPECT_EQ(record.nodes_after, after[i]);
    EXPECT_GE(record.seconds, 0);
  }
}

// A pass of the list may be switched off even if caesura has none of this name.
TEST(RunPasses, SkipsWhatIsSwitchedOff) {
  const PassList passes = {MakeGrowingPass("mine"),
                           MakePass("other", [](Model&) -> Result<bool> { return false; })};
  for (const bool by_environment : {false, true}) {
    Model model = ModelOfOneNode();
    if (by_environment) setenv("CAESURA_DISABLE_PASSES", "mine", 1);
    const auto records = RunPasses(passes, model,
                                   by_environment ? std::vector<std::string>()
                                                  : std::vector<std::string>{"mine", "row_fusion"});
    unsetenv("CAESURA_DISABLE_PASSES");
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    ASSERT_EQ(records->size(), 2u);
    EXPECT_TRUE((*records)[0].skipped);
    EXPECT_FALSE((*records)[0].changed);
    EXPECT_EQ((*records)[0].nodes_after, 1u);
    EXPECT_FALSE((*records)[1].skipped);
    EXPECT_EQ(model.graph->nodes().size(), 1u);
  }
}

TEST(RunPasses, APassThatFailsIsNamedAndTheLastToRun) {
  Model model = ModelOfOneNode();
  const auto fails = [](Model&) -> Result<bool> { return Unsupported("not today"); };
  const Status status =
      RunPasses({MakeGrowingPass("first"), MakePass("fails", fails), MakeGrowingPass("later")},
                model)
          .status();
  EXPECT_EQ(status.ToString(), "UNSUPPORTED: pass 'fails': not today");
  EXPECT_EQ(model.graph->nodes().size(), 2u);  // the later one has not run
}

TEST(RunPasses, APassThatBreaksTheGraphIsNamed) {
  Model model = ModelOfOneNode();
  const auto breaks = [](Model& m) -> Result<bool> {
    m.graph->nodes()[0]->SetInput(0, m.graph->AddValue("nobody"));  // a value that nothing makes
    return true;
  };
  const Status status =
      RunPasses({MakePass("breaks", breaks), MakeGrowingPass("later")}, model).status();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), ::testing::StartsWith("pass 'breaks': "));
  EXPECT_THAT(status.message(), HasSubstr("'nobody'"));
}

TEST(RunPasses, APassThatHidesAChangeIsNamed) {
  Model model = ModelOfOneNode();
  const Status status = RunPasses({MakeGrowingPass("hides", /*honest=*/false)}, model).status();
  EXPECT_EQ(status.ToString(),
            "INTERNAL: pass 'hides': changed the graph and said that it did not");
}

// Wrong names are found before any pass has run.
TEST(RunPasses, AWrongNameLeavesTheModelAsItIs) {
  Model model = ModelOfOneNode();
  const Status status = RunPasses({MakeGrowingPass("grow")}, model, {"grow", "grown"}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "disabled_passes: there is no pass 'grown' (nearest: 'grow')");
  EXPECT_EQ(model.graph->nodes().size(), 1u);
}

}  // namespace
}  // namespace caesura
