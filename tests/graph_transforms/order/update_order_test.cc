// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/update_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

// A step in the order in which a gradient builder leaves it: `table` is read by two layers, w
// through a view. Assign stands for the updates.
std::string OrderOf(const std::string& rows) {
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 23, \"ai.caesura\": 1]> g (float[" +
                     rows + R"(,8] x,
      int64[4] ids, int64[2] dims, float[64,8] table, float[8,8] w) => (float[)" +
                     rows + R"(,64] y) {
      wt = Transpose <perm = [1, 0]> (w) tt = Transpose <perm = [1, 0]> (table) h = MatMul (x, wt) y = MatMul (h, tt)
      ht = Transpose <perm = [1, 0]> (h) dtt = MatMul (ht, y) dh = MatMul (y, table) xt = Transpose <perm = [1, 0]> (x)
      dwt = MatMul (xt, dh) dx = MatMul (dh, wt) dt = Transpose <perm = [1, 0]> (dtt)
      dtable = ai.caesura.GatherGrad (dx, ids, dims, dt) dw = Transpose <perm = [1, 0]> (dwt)
      uw = ai.caesura.Assign (w, dw) ut = ai.caesura.Assign (table, dtable) })")
          .value();
  Graph& graph = *model.graph;
  for (size_t i = 4; i < graph.nodes().size(); ++i) {
    const bool update = graph.nodes()[i]->Is("Assign", kCaesuraDomain);
    graph.nodes()[i]->set_phase(update ? Phase::kOptimizer : Phase::kBackward);
  }
  for (const char* name : {"table", "w"}) {
    Value* parameter = graph.FindValue(name);
    graph.RemoveInput(parameter);
    graph.SetInitializer(
        parameter,
        Tensor::Zeros(DType::kFloat32, Shape{parameter == graph.FindValue("w") ? 8 : 64, 8}));
  }
  EXPECT_TRUE(InferShapes(model).ok());
  EXPECT_TRUE(RunPasses({MakeUpdateOrderPass({"table", "w"})}, model).ok());
  std::string order;
  for (const auto& node : graph.nodes())
    order += (order.empty() ? "" : " ") + node->output(0)->name();
  return order;
}

// w is updated after its own gradient and the last reader of wt; the product that makes dtt, more
// than it reads, waits for the other part of the table's gradient.
TEST(UpdateOrder, GradientsLiveShort) {
  EXPECT_EQ(OrderOf("4"), "wt tt h y ht dh xt dwt dx dw uw dtt dt dtable ut");
}

// `a` hands out da and releases w, whose view wt is read until dx; `b` keeps its place after `a`.
TEST(YieldOrder, YieldsComeAfterTheReadersOfWhatTheyRelease) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 23, "ai.caesura": 1]> g
      (float[8,8] w, float[8,8] v, float[8,8] dy) => (float[8,8] dx) {
      wt = Transpose <perm = [1, 0]> (w) da = Neg (dy)
      [a] = ai.caesura.YieldOp <released_inputs = ["w"]> (da)
      db = Abs (dy)
      [b] = ai.caesura.YieldOp <released_inputs = ["v"]> (db)
      dz = MatMul (dy, v) dx = MatMul (dz, wt) })")
                    .value();
  const auto order = [&] {
    std::string names;
    for (const auto& node : model.graph->nodes()) {
      const bool yields = node->outputs().empty();
      names += (names.empty() ? "" : " ") + (yields ? node->name() : node->output(0)->name());
    }
    return names;
  };
  ASSERT_EQ(order(), "wt da a db b dz dx");
  EXPECT_TRUE(RunPasses({MakeYieldOrderPass()}, model).ok());
  EXPECT_EQ(order(), "wt da db dz dx a b");
}

TEST(UpdateOrder, WhatIsOfUnknownSizeIsNotDeferred) {
  EXPECT_EQ(OrderOf("n"), "wt tt h y ht dtt dh xt dwt dx dw uw dt dtable ut");
}

// One table for tokens and scores, larger than the scores of a batch.
RealModel Tied() {
  RealModel out = MakeRealModel(
      R"(net (int64[4,6] tokens, float[256,64] table, float[64,64] w0, float[64,64] w1)
      => (float[4,6,256] scores) {
    e = Gather <axis = 0> (table, tokens)
    t0 = Transpose <perm = [1, 0]> (w0) m0 = MatMul (e, t0) a0 = Tanh (m0)
    t1 = Transpose <perm = [1, 0]> (w1) m1 = MatMul (a0, t1) a1 = Tanh (m1)
    head = Transpose <perm = [1, 0]> (table) scores = MatMul (a1, head)
  })",
      1);
  out.options.step.loss = Loss::CrossEntropy("next");
  out.options.step.loss.class_axis = -1;
  for (uint32_t i = 0; i < kUpdates; ++i) {
    out.batches.push_back(RandomBatch(i, "tokens", Shape{4, 6}, true, "next", Shape{4, 6}, 256));
  }
  return out;
}

size_t PeakOf(const RealModel& real) {
  const std::vector<size_t> live =
      SessionOf(real)->runs().Plan(real.batches[0]).value()->LiveBytes();
  return *std::max_element(live.begin(), live.end());
}

TEST(UpdateOrder, TakesLessMemoryAndGivesTheSameBits) {
  for (RealModel (*make)() : {Tied, CharGpt, Digits}) {
    RealModel real = make();
    real.options.step.clip_norm = 0;
    const Trained late = StepRunner(real).BySession();
    const size_t late_peak = PeakOf(real);
    real.options.step.commit = CommitMode::kEagerConsume;
    const Trained early = StepRunner(real).BySession();
    EXPECT_LT(PeakOf(real), late_peak);
    EXPECT_TRUE(SameBits(early.losses, late.losses));
    real.options.disabled_passes = {"update_order"};
    EXPECT_TRUE(StepRunner(real).BySession() == early);
  }
}

// Beside the table's gradient there are the scores' and a few rows, but no second tensor of the
// table's size.
TEST(UpdateOrder, ATiedTablesGradientIsThereOnce) {
  RealModel real = Tied();
  real.options.step.commit = CommitMode::kEagerConsume;
  const size_t table = 256 * 64 * 4, scores = 4 * 6 * 256 * 4, rows = 4 * 6 * 64 * 4;
  EXPECT_LT(PeakOf(real), table + scores + 4 * rows);
  EXPECT_GT(PeakOf(real), table);
}

}  // namespace
}  // namespace caesura::testing
