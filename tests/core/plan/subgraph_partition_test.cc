// SPDX-License-Identifier: Apache-2.0
// Which nodes a provider is offered, which parts become one node, and what goes in and out of it.
// A provider that takes ops by name stands in for one that compiles.
#include "core/plan/subgraph_partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/graph/graph_check.h"
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/onnx/model_reader.h"
#include "core/providers/compiled_subgraph.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/subgraph_compiler.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Takes nodes by op type, each with the number of its group. Its subgraphs are never run.
class TakesOps : public ExecutionProvider, private SubgraphCompiler {
 public:
  TakesOps(std::string name, std::map<std::string, int> groups, int min_nodes = 1)
      : name_(std::move(name)), groups_(std::move(groups)), min_nodes_(min_nodes) {}
  const std::string& name() const override { return name_; }
  Device device() const override { return host_->device(); }
  const KernelRegistry& kernels() const override { return host_->kernels(); }
  Allocator& allocator() const override { return host_->allocator(); }
  const SubgraphCompiler* compiler() const override { return this; }

  std::shared_ptr<std::vector<std::string>> offered = std::make_shared<std::vector<std::string>>();
  Status failure = {};

 private:
  int min_nodes() const override { return min_nodes_; }
  Result<std::vector<int>> Capability(const CapabilityRequest& request) const override {
    RETURN_IF_ERROR(failure);
    std::vector<int> out;
    for (size_t i = 0; i < request.graph.nodes().size(); ++i) {
      const std::string& op = request.graph.nodes()[i]->op_type();
      if (request.offered[i]) offered->push_back(op);
      const auto found = groups_.find(op);
      out.push_back(found == groups_.end() ? 0 : found->second);
    }
    return out;
  }
  Result<std::shared_ptr<const CompiledSubgraph>> Compile(const Model&, int) const override {
    return Internal("this test compiles nothing");
  }

  std::shared_ptr<const ExecutionProvider> host_ = MakeCpuProvider();
  std::string name_;
  std::map<std::string, int> groups_;
  int min_nodes_;
};

class PartitionsGraphs : public ::testing::Test {
 protected:
  void Load(const std::string& body) {
    model_ = ParseModelText("<ir_version: 10, opset_import: [\"\": 20]> g " + body).value();
  }
  Result<bool> Partition(std::vector<TakesOps> providers,
                         std::unordered_set<std::string> changing = {}) {
    ProviderList list;
    for (TakesOps& provider : providers)
      list.push_back(std::make_shared<TakesOps>(std::move(provider)));
    Result<bool> changed = MakeSubgraphPartitionPass(list, std::move(changing))->Run(model_);
    EXPECT_TRUE(CheckGraph(*model_.graph).ok()) << CheckGraph(*model_.graph).ToString();
    return changed;
  }
  std::vector<std::string> Ops() const { return OpsOf(*model_.graph); }
  const Node& At(size_t i) const { return *model_.graph->nodes()[i]; }
  static const Graph& BodyOf(const Node& node) {
    return **node.FindAttr<std::shared_ptr<Graph>>(kCompiledBody);
  }
  static std::vector<std::string> OpsOf(const Graph& graph) {
    std::vector<std::string> out;
    for (const auto& node : graph.nodes()) out.push_back(node->op_type());
    return out;
  }
  static std::vector<std::string> NamesOf(const std::vector<Value*>& values) {
    std::vector<std::string> out;
    for (const Value* value : values) out.push_back(value->name());
    return out;
  }

  Model model_;
};

TEST_F(PartitionsGraphs, NeighboursBecomeOneNode) {
  Load(
      "(float[2] x) => (float[2] y, float[2] b) { a = Neg (x) b = Abs (a) c = Exp (b) y = Sin (c) "
      "}");
  EXPECT_TRUE(Partition({{"taker", {{"Neg", 1}, {"Abs", 1}, {"Exp", 1}}}}).value());
  EXPECT_THAT(Ops(), ElementsAre("CompiledSubgraph", "Sin"));
  const Node& part = At(0);
  EXPECT_EQ(part.provider(), "taker");
  EXPECT_EQ(part.domain(), kCaesuraDomain);
  EXPECT_THAT(NamesOf(part.inputs()), ElementsAre("x"));
  // b is an output of the graph, c is read by Sin, and a by nobody outside.
  EXPECT_THAT(NamesOf(part.outputs()), ElementsAre("b", "c"));
  EXPECT_THAT(OpsOf(BodyOf(part)), ElementsAre("Neg", "Abs", "Exp"));
}

// d would wait for c, and c for a: as one node, the part would wait for itself.
TEST_F(PartitionsGraphs, APartNeverWaitsForItself) {
  Load("(float[2] x) => (float[2] d) { a = Neg (x) c = Sin (a) d = Add (a, c) }");
  EXPECT_TRUE(Partition({{"taker", {{"Neg", 1}, {"Add", 1}}}}).value());
  EXPECT_THAT(Ops(), ElementsAre("CompiledSubgraph", "Sin", "CompiledSubgraph"));
}

TEST_F(PartitionsGraphs, GroupsOfOtherNumbersStayApart) {
  Load("(float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }");
  EXPECT_TRUE(Partition({{"taker", {{"Neg", 1}, {"Abs", 2}}}}).value());
  EXPECT_THAT(Ops(), ElementsAre("CompiledSubgraph", "CompiledSubgraph"));
}

TEST_F(PartitionsGraphs, SmallGroupsAreLeft) {
  Load("(float[2] x) => (float[2] y) { a = Neg (x) b = Sin (a) c = Abs (b) y = Exp (c) }");
  EXPECT_TRUE(Partition({{"taker", {{"Neg", 1}, {"Abs", 1}, {"Exp", 1}}, 2}}).value());
  EXPECT_THAT(Ops(), ElementsAre("Neg", "Sin", "CompiledSubgraph"));
}

// The first provider takes what it can; the second is asked about what is left.
TEST_F(PartitionsGraphs, ProvidersAreAskedInOrder) {
  Load("(float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }");
  TakesOps second("second", {{"Neg", 1}, {"Abs", 1}});
  const auto offered = second.offered;
  EXPECT_TRUE(Partition({{"first", {{"Neg", 1}}}, std::move(second)}).value());
  EXPECT_EQ(At(0).provider(), "first");
  EXPECT_EQ(At(1).provider(), "second");
  EXPECT_THAT(*offered, ElementsAre("Abs"));
}

TEST_F(PartitionsGraphs, ConstantsMoveInAndParametersStayInputs) {
  Load(
      "(float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] k = {3, 4}> "
      "{ a = Add (x, w) y = Mul (a, k) }");
  EXPECT_TRUE(Partition({{"taker", {{"Add", 1}, {"Mul", 1}}}}, {"w"}).value());
  EXPECT_THAT(NamesOf(At(0).inputs()), ElementsAre("x", "w"));
  const Graph& body = BodyOf(At(0));
  EXPECT_TRUE(body.IsGraphInput(body.FindValue("w")));
  ASSERT_NE(body.Initializer(body.FindValue("k")), nullptr);
  EXPECT_EQ(model_.graph->FindValue("k"), nullptr);  // nothing else reads it
}

TEST_F(PartitionsGraphs, WhatMayNotBeTakenIsNotOffered) {
  Load(
      "(float[2] x, string[2] s, bool b) => (float[2] y, string[2] t, float[2] z) { "
      "a = Neg (x) r = RandomNormalLike (a) p = Abs (r) y = Exp (p) t = Identity (s) "
      "z = If (b) <then_branch = m () => (float[2] u) { u = Sin (x) }, "
      "else_branch = n () => (float[2] v) { v = Cos (x) }> }");
  model_.graph->nodes()[2]->set_provider("another");
  model_.graph->nodes()[3]->set_phase(Phase::kBackward);
  TakesOps taker(
      "taker",
      {{"Neg", 1}, {"RandomNormalLike", 1}, {"Abs", 1}, {"Exp", 1}, {"Identity", 1}, {"If", 1}});
  const auto offered = taker.offered;
  EXPECT_TRUE(Partition({std::move(taker)}).value());
  EXPECT_THAT(*offered, ElementsAre("Neg"));
  // Numbers for nodes that were not offered count for nothing.
  EXPECT_THAT(Ops(),
              ElementsAre("CompiledSubgraph", "RandomNormalLike", "Abs", "Exp", "Identity", "If"));
}

TEST_F(PartitionsGraphs, NothingTakenChangesNothing) {
  Load("(float[2] x) => (float[2] y) { y = Neg (x) }");
  EXPECT_FALSE(Partition({{"taker", {}}}).value());
  EXPECT_THAT(Ops(), ElementsAre("Neg"));
  EXPECT_FALSE(AnyCompiles({MakeCpuProvider()}));
}

TEST_F(PartitionsGraphs, AProviderThatFailsToAnswerIsNamed) {
  Load("(float[2] x) => (float[2] y) { y = Neg (x) }");
  TakesOps broken("taker", {{"Neg", 1}});
  broken.failure = Internal("no licence");
  const Status failed = Partition({broken}).status();
  EXPECT_EQ(failed.code(), StatusCode::kProviderFailure);
  EXPECT_THAT(failed.message(), HasSubstr("taker failed to say what it takes: no licence"));
  broken.failure = OutOfMemory("of the host");
  EXPECT_EQ(Partition({broken}).status().code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace caesura
