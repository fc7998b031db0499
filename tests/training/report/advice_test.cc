// SPDX-License-Identifier: Apache-2.0
// The advice of a report: each rule speaks if its cause is there, and only then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "training/report/report.h"

namespace caesura {
namespace {

using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int64_t kMillisecond = 1'000'000;

// A step of `ms` that keeps one thread busy.
RecordedStep StepOf(const std::string& op, int64_t ms, Phase phase = Phase::kForward) {
  RecordedStep step;
  step.op_type = op;
  step.phase = phase;
  step.begin_ns = 0;
  step.duration_ns = ms * kMillisecond;
  step.statistics.process_cpu_ns = step.duration_ns;
  return step;
}

Report ReportOf(std::vector<RecordedStep> steps, int threads = 1) {
  RecordedRun run;
  run.threads = threads;
  for (const RecordedStep& step : steps) run.duration_ns += step.duration_ns;
  run.steps = std::move(steps);
  Report report;
  report.runs = {std::move(run)};
  return report;
}

Report WithLosses(const std::vector<double>& losses) {
  Report report;
  for (size_t i = 0; i < losses.size(); ++i)
    report.curves.Add(static_cast<int64_t>(i) + 1, losses[i], 0.1);
  return report;
}

auto Says(const std::string& what, const std::string& why) {
  return UnorderedElementsAre(
      ::testing::AllOf(Field(&Advice::what, HasSubstr(what)), Field(&Advice::why, HasSubstr(why))));
}

TEST(AdviceTest, SaysNothingWhereNothingStandsOut) {
  EXPECT_THAT(FirstThingsToTry({}), IsEmpty());
  EXPECT_THAT(
      FirstThingsToTry(ReportOf({StepOf("Relu", 50), StepOf("Softmax", 50, Phase::kBackward)})),
      IsEmpty());
  EXPECT_THAT(FirstThingsToTry(WithLosses({8, 7, 6, 5, 4, 3, 2, 1})), IsEmpty());
}

TEST(AdviceTest, LooksAtTheLoss) {
  EXPECT_THAT(FirstThingsToTry(WithLosses({1, 2, NAN, NAN})), Says("learning rate", "update 3"));
  EXPECT_THAT(FirstThingsToTry(WithLosses({1, 2, 3, 4, 5, 6, 7, 8})),
              Says("learning rate", "rises"));
  Report report = WithLosses({8, 7, 6, 5, 4, 3, 2, 1});
  for (const auto& [update, loss] : {std::pair(2, 5.0), {4, 4.0}, {8, 6.0}}) {
    report.curves.AddValidation({update, loss, {}});
  }
  EXPECT_THAT(FirstThingsToTry(report), Says("lowest validation loss", "at update 4"));
}

TEST(AdviceTest, LooksAtGraphBreaks) {
  Report report;
  report.fallbacks = {{"a graph break", "a print of a tensor", {"net.py:7 in forward"}}};
  EXPECT_THAT(
      FirstThingsToTry(report),
      Says("without the graph break", "The only one, at net.py:7 in forward, comes from: a print"));
  report.fallbacks.push_back({"a graph break", "an unknown function", {}});
  EXPECT_THAT(FirstThingsToTry(report),
              Says("without the graph break", "The first of 2, at net.py:7"));
}

TEST(AdviceTest, LooksAtWhatPyTorchRuns) {
  EXPECT_THAT(FirstThingsToTry(ReportOf({StepOf("Relu", 80), StepOf("ATen", 20)})),
              Says("left to PyTorch", "20%"));
  Report report;
  report.own_and_pytorch_seconds = {3.0, 1.0};
  report.fallbacks = {{"aten.sort", "no equivalent in ONNX ops", {"net.py:3"}}};
  EXPECT_THAT(
      FirstThingsToTry(report),
      Says("left to PyTorch",
           "25% of the time is spent in calls that PyTorch runs. The first of them is aten.sort"));
}

TEST(AdviceTest, LooksAtWhereTheTimeGoes) {
  RecordedStep late = StepOf("NonZero", 30);
  late.kind = PlanStep::Kind::kDynamic;
  EXPECT_THAT(FirstThingsToTry(ReportOf({StepOf("Relu", 70), late})),
              Says("pad to fixed lengths", "30%"));
  EXPECT_THAT(FirstThingsToTry(
                  ReportOf({StepOf("Relu", 50), StepOf("AdamWUpdate", 50, Phase::kOptimizer)})),
              Says("accumulation_steps", "50%"));
  EXPECT_THAT(FirstThingsToTry(ReportOf({StepOf("Relu", 100)}, /*threads=*/4)),
              Says("fewer threads", "25%"));
  std::vector<RecordedStep> tiny(100, StepOf("Relu", 0));
  for (RecordedStep& step : tiny) step.duration_ns = step.statistics.process_cpu_ns = 5000;
  EXPECT_THAT(FirstThingsToTry(ReportOf(tiny)), Says("larger batch", "100%"));
}

TEST(AdviceTest, LooksAtWhatHoldsThePeak) {
  Report report = ReportOf({StepOf("Relu", 50), StepOf("ReluGrad", 50, Phase::kBackward)});
  MemoryRecord& memory = report.runs[0].memory;
  memory.samples = {{.step = 0, .node = "", .op_type = "", .arena_bytes = size_t{1} << 30}};
  memory.largest = {
      {"h", "float32[1]", "arena", size_t{700} << 20, /*first_step=*/0, /*last_step=*/1}};
  EXPECT_THAT(FirstThingsToTry(report), Says("memory_budget", "1024 MiB, 68%"));
  memory.largest[0].last_step = 0;  // nothing waits
  EXPECT_THAT(FirstThingsToTry(report), IsEmpty());
}

TEST(ReportPageTest, HoldsAnyTextSafely) {
  Report report;
  report.title = "</title></script><!-- {{data}} {{script}}";
  report.options = {{"model", "<script>\xff"}};
  const std::string page = ReportPage(report);
  EXPECT_EQ(page.find("<script>\xff"), std::string::npos);
  EXPECT_EQ(page.find("</script><!--"), std::string::npos);
  EXPECT_THAT(page, HasSubstr("&lt;/title>&lt;/script>&lt;!-- {{data}} {{script}}"));
  EXPECT_THAT(page, HasSubstr("\\u003cscript>"));
}

}  // namespace
}  // namespace caesura
