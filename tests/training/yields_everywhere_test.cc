// SPDX-License-Identifier: Apache-2.0
// YieldOps in the forward and backward parts of the whole steps of both examples, after random
// nodes and after all of them. The caller copies what it is given, overwrites it, moves the state,
// and goes on in another thread: the bits are those of the step without yields.
#include <gtest/gtest.h>

#include <thread>

#include "tests/training/real_step.h"
#include "core/gradient/yield_insertion.h"

namespace caesura::testing {
namespace {

constexpr int kSets = 20;

// Values that a yield may hand out: outputs of forward and backward nodes. (What an optimizer
// writes is a parameter itself, of which there must be no second copy.)
std::vector<std::string> Yieldable(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) {
    if (node->phase() == Phase::kOptimizer) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr) names.push_back(output->name());
    }
  }
  return names;
}

// Runs to the end, as a caller who hands nothing on but copies would.
Result<RunOutcome> RunThroughYields(ExecutionState& state, int* yields) {
  for (;;) {
    Result<RunOutcome> outcome = Internal("did not run");
    std::thread([&] { outcome = PartialExecutor::Run(state); }).join();
    if (!outcome.ok() || *outcome != RunOutcome::kYielded) return outcome;
    ++*yields;
    Values given;
    for (const RuntimeValue& value : state.TakeYielded()) {
      if (value.is_tensor()) {
        given.push_back(value.tensor().Clone().value());
        std::memset(value.tensor().raw(), 0xff, value.tensor().bytes());
      } else {
        given.push_back(value);  // sequences are immutable
      }
    }
    Status status = state.Relocate(0xff);
    if (status.ok()) status = state.Resume(std::move(given));
    if (status.ok()) status = state.Relocate(0xa5);
    if (!status.ok()) return status;
  }
}

struct YieldCase {
  MakesReal makes;
  int threads;
  bool fused;  // yields stand between fused groups, never inside; without fusion, anywhere
};
void PrintTo(const YieldCase& c, std::ostream* out) {
  *out << c.makes.name << " on " << c.threads << (c.fused ? "" : ", not fused");
}

class YieldsEverywhere : public ::testing::TestWithParam<YieldCase> {
 protected:
  YieldsEverywhere() {
    real_ = GetParam().makes.make();
    real_.options.threads = GetParam().threads;
    if (!GetParam().fused) real_.options.disabled_passes = {"row_fusion", "matmul_epilogue"};
    step_ = std::make_unique<StepRunner>(real_);
    expected_ = step_->BySession();
  }
  // `inserted`: how many yields the program holds.
  void ExpectSameBits(const std::shared_ptr<Graph>& graph, int inserted) {
    ASSERT_TRUE(graph->SortTopologically().ok());
    auto plan = step_->PlanOf(graph, GetParam().threads);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(static_cast<int>((*plan)->yields().size()), inserted);
    ExecutionState state(*plan);
    int yields = 0;
    auto results =
        step_->Train(state, [&](ExecutionState& s) { return RunThroughYields(s, &yields); });
    ASSERT_TRUE(results.ok()) << results.status().ToString() << "\n" << (*plan)->ToString();
    EXPECT_EQ(yields, kUpdates * inserted);
    EXPECT_TRUE(*results == expected_) << (*plan)->ToString();
  }

  RealModel real_;
  std::unique_ptr<StepRunner> step_;
  Trained expected_;
};

// Yields of one to three values each, from a few to about half of what there is. A value that
// depends on another one of the same yield is refused; the set is then smaller.
TEST_P(YieldsEverywhere, BehindRandomNodes) {
  for (uint32_t seed = 0; seed < kSets; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::shared_ptr<Graph> graph = step_->graph();
    const std::vector<std::string> names = Yieldable(*graph);
    const size_t yields = 1 + seed * names.size() / (2 * kSets);
    int inserted = 0;
    for (size_t y = 0; y < yields || inserted == 0; ++y) {
      std::vector<Value*> values;
      for (size_t v = 0; v < 1 + random() % 3; ++v)
        values.push_back(graph->FindValue(names[random() % names.size()]));
      if (InsertIdentityYield(*graph, values).ok()) ++inserted;
    }
    ExpectSameBits(graph, inserted);
  }
}

TEST_P(YieldsEverywhere, BehindEveryNode) {
  const std::shared_ptr<Graph> graph = step_->graph();
  int inserted = 0;
  for (const std::string& name : Yieldable(*graph)) {
    auto yield = InsertIdentityYield(*graph, {graph->FindValue(name)});
    ASSERT_TRUE(yield.ok()) << yield.status().ToString();
    ++inserted;
  }
  EXPECT_GT(inserted, 40);
  ExpectSameBits(graph, inserted);
}

std::vector<YieldCase> Cases() {
  std::vector<YieldCase> out;
  for (int threads : {1, 2}) {
    for (bool fused : {true, false}) {
      out.push_back({{"Digits", Digits}, threads, fused});
      out.push_back({{"DigitsWithDropout", DigitsWithDropout},
                     threads,
                     fused});  // random numbers do not shift
      out.push_back({{"CharGpt", CharGpt}, threads, fused});
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(RealModels, YieldsEverywhere, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return std::string(info.param.makes.name) +
                                  (info.param.threads == 1 ? "OneThread" : "TwoThreads") +
                                  (info.param.fused ? "" : "NotFused");
                         });

}  // namespace
}  // namespace caesura::testing
