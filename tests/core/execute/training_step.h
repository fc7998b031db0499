// SPDX-License-Identifier: Apache-2.0
// A whole training step of a small net, made by hand: what most executor tests run. Forward, a
// yield that hands out y (as [12], a view) and h, backward, and an update of the running sum `seen`
// in place.
#ifndef CAESURA_TESTS_CORE_EXECUTE_TRAINING_STEP_H_
#define CAESURA_TESTS_CORE_EXECUTE_TRAINING_STEP_H_

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

// h = (x W) * r, y = h * h; after the yield dh = 2 h dy + dh', dW = x^T (dh * r), dx = (dh * r)
// W^T.
inline constexpr char kTrainingStep[] =
    R"((float[4,3] x) => (float[3,3] dw, float[4,3] dx, float total)
<float[3,3] w = {0.5, -1, 2, 1.5, 0.25, -0.75, 1, 1, -2}, float[4,3] seen = {0,0,0,0,0,0,0,0,0,0,0,0},
 int64[1] flat = {-1}, int64[2] square = {4, 3}> {
  m = MatMul (x, w)
  r = RandomUniformLike (m)
  h = Mul (m, r)
  y = Mul (h, h)
  y_flat = Reshape (y, flat)
  dy_flat, dh_given = ai.caesura.YieldOp <names = ["y", "h"]> (y_flat, h)
  dy = Reshape (dy_flat, square)
  twice = Add (h, h)
  dh_y = Mul (twice, dy)
  dh = Add (dh_y, dh_given)
  dm = Mul (dh, r)
  xt = Transpose (x)
  dw = MatMul (xt, dm)
  wt = Transpose (w)
  dx = MatMul (dm, wt)
  seen_now = test.Accumulate (seen, m)
  one = Neg (dw)
  two = Neg (dx)
  total = test.SumBlock (one, two)
})";

struct TrainingStep {
  std::shared_ptr<Graph> graph = GraphOf(kTrainingStep);
  Values feeds = {Ramp(Shape{4, 3})};
  // The caller's part between forward and backward.
  Values gradients = {Ramp(Shape{12}, 0.5f), Ramp(Shape{4, 3}, 0.125f)};

  PlanOptions options(int threads = 1) const {
    PlanOptions out;
    out.threads = threads;
    out.parameters = {graph->FindValue("w"), graph->FindValue("seen")};
    return out;
  }
  std::shared_ptr<const ExecutionPlan> Plan(ProviderList providers = Tiny(),
                                            bool reuse = true) const {
    PlanOptions o = options();
    o.reuse_memory = reuse;
    return PlanOf(graph, feeds, o, std::move(providers));
  }
  // Fresh copies of the initial values.
  ParameterSet Parameters() const {
    ParameterSet out;
    for (const char* name : {"w", "seen"})
      out.Add(name, graph->Initializer(graph->FindValue(name))->Clone().value());
    return out;
  }
};

// All that a run gives to its caller.
struct StepResults {
  Values yielded, fetches, parameters;
  bool operator==(const StepResults& o) const {
    return SameBits(yielded, o.yielded) && SameBits(fetches, o.fetches) &&
           SameBits(parameters, o.parameters);
  }
};

// One run from start to end; `run` stands for PartialExecutor::Run(state) and may cut it.
template <typename Run>
Result<StepResults> RunStep(const TrainingStep& step, ExecutionState& state, const Run& run,
                            RunOptions options = {}) {
  ParameterSet parameters = step.Parameters();
  options.parameters = &parameters;
  options.seed = 7;
  StepResults results;
  Status status = state.Start(step.feeds, options);
  if (!status.ok()) return status;
  Result<RunOutcome> outcome = run(state);
  if (!outcome.ok()) return outcome.status();
  EXPECT_EQ(*outcome, RunOutcome::kYielded);
  results.yielded = state.TakeYielded();
  status = state.Resume(step.gradients);
  if (!status.ok()) return status;
  outcome = run(state);
  if (!outcome.ok()) return outcome.status();
  EXPECT_EQ(*outcome, RunOutcome::kFinished);
  results.fetches = state.TakeFetches();
  for (int i = 0; i < parameters.size(); ++i)
    results.parameters.push_back(parameters.tensor(i).Clone().value());
  return results;
}

inline StepResults Uncut(const TrainingStep& step,
                         const std::shared_ptr<const ExecutionPlan>& plan) {
  ExecutionState state(plan);
  auto results = RunStep(step, state, [](ExecutionState& s) { return PartialExecutor::Run(s); });
  EXPECT_TRUE(results.ok()) << results.status().ToString();
  return results.ok() ? *results : StepResults();
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_TRAINING_STEP_H_
