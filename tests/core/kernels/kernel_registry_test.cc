// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

Status Accept(KernelInfo& info) {
  info.SetOutput(0, DType::kFloat32, Shape{});
  return {};
}
Status Refuse(KernelInfo& info) {
  info.BookScratch(100);
  info.SetInPlace(0, 0);
  return info.Refuse("does not do this today");
}
Status Reject(KernelInfo& info) { return info.Invalid("axis out of range"); }

struct OneNode {
  Graph graph;
  Node* node;
  explicit OneNode(const char* op, int version = 13, const char* domain = "") {
    Value* x = graph.AddInput("x", ValueType::Tensor(DType::kFloat32, Shape{2}));
    node = graph.AddNode(op, {x}, {graph.AddValue("y")}, {}, domain, "n");
    node->set_since_version(version);
  }
  KernelInfo Info(DType dtype = DType::kFloat32) const {
    InputInfo input;
    input.present = input.is_tensor = true;
    input.dtype = dtype;
    input.shape = Shape{2};
    return KernelInfo(*node, {input}, 1);
  }
};

TEST(KernelRegistry, FindsByDomainVersionAndDtype) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .since = 1, .until = 12, .create = Accept});
  registry.Add({.op_type = "Op", .since = 13, .types = {DType::kFloat32}, .create = Accept});
  registry.Add({.op_type = "Op", .domain = "test", .create = Accept});
  EXPECT_EQ(registry.Find(*OneNode("Op", 13).node),
            (std::vector<const KernelDef*>{&registry.defs()[1]}));
  EXPECT_EQ(registry.Find(*OneNode("Op", 6).node),
            (std::vector<const KernelDef*>{&registry.defs()[0]}));
  EXPECT_EQ(registry.Find(*OneNode("Op", 1, "test").node),
            (std::vector<const KernelDef*>{&registry.defs()[2]}));
  EXPECT_EQ(registry.Find(*OneNode("Op", 0).node).size(), 2u);  // no version known: all may serve
  // A dtype that is not known yet is accepted.
  EXPECT_EQ(registry.Find(*OneNode("Op", 13).node, {DType::kUndefined}).size(), 1u);
  EXPECT_EQ(registry.Find(*OneNode("Op", 13).node, {}).size(), 1u);
}

TEST(KernelRegistry, SaysWhyEachCandidateLost) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .until = 12, .create = Accept});
  registry.Add(
      {.op_type = "Op", .since = 13, .types = {DType::kFloat64, DType::kInt8}, .create = Accept});
  std::string why;
  EXPECT_TRUE(registry.Find(*OneNode("Op").node, &why).empty());
  EXPECT_EQ(why,
            "version 13 is outside of [1, 12]; input 0 is float32, the kernel takes int8, float64");
  why.clear();
  EXPECT_TRUE(registry.Find(*OneNode("Other").node, &why).empty());
  EXPECT_EQ(why, "no kernel is registered for this op");
}

TEST(KernelRegistry, AsksCandidatesInOrderUntilOneAccepts) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .create = Refuse});
  registry.Add({.op_type = "Op", .create = Accept});
  registry.Add({.op_type = "Op", .create = Accept});
  OneNode one("Op");
  KernelInfo info = one.Info();
  auto chosen = registry.Create(info, "tiny");
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(*chosen, &registry.defs()[1]);
  // Nothing is left of what the first one decided before it refused.
  EXPECT_EQ(info.scratch_bytes(), 0u);
  EXPECT_TRUE(info.aliases().empty());
}

TEST(KernelRegistry, WrongInputsEndTheSearch) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .create = Reject});
  registry.Add({.op_type = "Op", .create = Accept});
  OneNode one("Op");
  KernelInfo info = one.Info();
  EXPECT_EQ(registry.Create(info, "tiny").status().ToString(),
            "INVALID_ARGUMENT: [Op 'n'] axis out of range");
}

TEST(KernelRegistry, AFinalErrorEndsTheSearch) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .create = [](KernelInfo&) { return Unsupported("for good"); }});
  registry.Add({.op_type = "Op", .create = Accept});
  OneNode one("Op");
  KernelInfo info = one.Info();
  EXPECT_EQ(registry.Create(info, "tiny").status().ToString(), "UNSUPPORTED: for good");
}

TEST(KernelRegistry, AMissingKernelNamesOpNodeProviderSourceAndReasons) {
  KernelRegistry registry;
  registry.Add({.op_type = "Op", .create = Refuse});
  registry.Add({.op_type = "Op", .types = {DType::kFloat64}, .create = Accept});
  OneNode one("Op");
  one.node->set_source("net.py:3");
  KernelInfo info = one.Info();
  const Status status = registry.Create(info, "tiny").status();
  EXPECT_EQ(status.code(), StatusCode::kDeclined);  // another provider may have one
  EXPECT_THAT(status.message(), HasSubstr("[Op 'n'] has no kernel on tiny (from net.py:3): "));
  EXPECT_THAT(status.message(), HasSubstr("does not do this today"));
  EXPECT_THAT(status.message(), HasSubstr("input 0 is float32, the kernel takes float64"));
}

TEST(KernelRegistry, TakesFunctionObjects) {
  KernelRegistry registry;
  int calls = 0;
  registry.Add({.op_type = "Op", .create = [&calls](KernelInfo& info) {
                  ++calls;
                  return Accept(info);
                }});
  OneNode one("Op");
  KernelInfo info = one.Info();
  ASSERT_TRUE(registry.Create(info, "tiny").ok());
  EXPECT_EQ(calls, 1);
}

TEST(KernelDefs, ListsMeanOneInputOrAllBehindIt) {
  EXPECT_TRUE(KernelDef::Lists({0, 2}, 2));
  EXPECT_FALSE(KernelDef::Lists({0, 2}, 1));
  EXPECT_TRUE(KernelDef::Lists({-2}, 1));  // input 1 and all after it
  EXPECT_TRUE(KernelDef::Lists({-2}, 9));
  EXPECT_FALSE(KernelDef::Lists({-2}, 0));
}

TEST(KernelInfos, ScratchIsBookedInAlignedPieces) {
  OneNode one("Op");
  KernelInfo info = one.Info();
  EXPECT_EQ(info.BookScratch(1), 0u);
  EXPECT_EQ(info.BookScratch(100), kBufferAlignment);
  EXPECT_EQ(info.scratch_bytes(), 3 * kBufferAlignment);
  info.SetOutput(7, DType::kFloat32, Shape{});  // absent outputs are ignored
  EXPECT_FALSE(info.HasInput(3));
  EXPECT_TRUE(info.HostInts(3).empty());
}

}  // namespace
}  // namespace caesura
