// SPDX-License-Identifier: Apache-2.0
// Parameters, optimizer state and updates on a device: the bits of the CPU, no copies but of feeds
// and results, and whole steps whatever fails. The device is the counting one, with the CPU's
// kernels.
#include "training/step/parameter_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/providers/counting_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<TrainingSession> SessionOn(const RealModel& real, const ProviderList& providers) {
  RealModel own = real.Clone();
  own.options.providers = providers;
  return SessionOf(own);
}

// All that `steps` steps give, on the batches in turns.
struct Course {
  std::vector<double> losses;
  Values after;
};

Course Train(TrainingSession& session, const RealModel& real, const std::vector<std::string>& names,
             int steps) {
  Course out;
  for (int i = 0; i < steps; ++i) {
    const auto loss = session.Step(real.batches[i % real.batches.size()]);
    EXPECT_TRUE(loss.ok()) << loss.status().ToString();
    out.losses.push_back(loss.ok() ? *loss : NAN);
  }
  out.after = Everything(session, names);
  return out;
}

void ExpectSame(const Course& got, const Course& wanted) {
  EXPECT_EQ(got.losses, wanted.losses);
  EXPECT_TRUE(SameBits(got.after, wanted.after));
}

RealModel With(RealModel real, const std::function<void(StepOptions&)>& change) {
  change(real.options.step);
  return real;
}

ParameterGroup Group(std::vector<std::string> names) {
  return {.names = std::move(names),
          .learning_rate_scale = 0.5,
          .weight_decay = 0.0,
          .optimizer = std::nullopt};
}

// Optimizers, clipping, accumulation, groups, both commits, a scaled loss.
std::vector<RealModel> Models() {
  std::vector<RealModel> out;
  out.push_back(Mlp());
  out.push_back(CharGpt());  // AdamW, clipped
  out.push_back(With(Llama(), [](StepOptions& step) {
    step.optimizer = Sgd{.learning_rate = 0.05, .momentum = 0.9};
    step.clip_norm = 0.5;
  }));
  out.push_back(With(Digits(), [](StepOptions& step) { step.accumulation_steps = 2; }));
  out.push_back(With(Digits(), [](StepOptions& step) { step.commit = CommitMode::kEagerConsume; }));
  out.push_back(
      With(CharGpt(), [](StepOptions& step) { step.groups = {Group({"token", "position"})}; }));
  out.push_back(With(Mlp(), [](StepOptions& step) { step.precision = DType::kFloat16; }));
  out.push_back(With(Mlp(), [](StepOptions& step) { step.optimizer = Adafactor{}; }));
  return out;
}

TEST(UpdatePlacement, StepsAreThoseOfTheCpu) {
  for (const RealModel& real : Models()) {
    SCOPED_TRACE(real.model.graph->name());
    CountingDevice device({.close_pages = true});
    const std::vector<std::string> names = StepRunner(real).names();
    auto here = SessionOn(real, {TrainingCpu()}), there = SessionOn(real, device.providers());
    ExpectSame(Train(*there, real, names, 6), Train(*here, real, names, 6));
    EXPECT_FALSE(there->fallback().record());
    EXPECT_EQ(there->Evaluate(real.batches[0])->loss, here->Evaluate(real.batches[0])->loss);
  }
}

// Feeds go there, the loss comes back, and the norm where gradients are clipped; nothing else
// crosses, and all nodes run there.
TEST(UpdatePlacement, OnlyFeedsAndTheLossCross) {
  for (const RealModel& real : {Mlp(), CharGpt(), Llama()}) {
    SCOPED_TRACE(real.model.graph->name());
    CountingDevice device({.close_pages = true});
    auto session = SessionOn(real, device.providers());
    ASSERT_TRUE(session->Step(real.batches[0]).ok());
    device.Reset();
    ASSERT_TRUE(session->Step(real.batches[1]).ok());
    EXPECT_EQ(device.counts().copies_to_device, 4u);  // input, target, learning rate, step
    EXPECT_EQ(device.counts().copies_to_host, real.options.step.clip_norm > 0 ? 2u : 1u);
    for (const PlanStep& step : session->runs().Plan(real.batches[0]).value()->steps()) {
      const bool computes =
          step.kind == PlanStep::Kind::kCompute || step.kind == PlanStep::Kind::kDynamic;
      EXPECT_FALSE(computes && step.provider->device().is_host()) << step.node->Label();
    }
  }
}

// Without kernels for the updates parameters stay on the host, and so do the updates.
TEST(UpdatePlacement, UpdatesWithoutAKernelStayOnTheHost) {
  const RealModel real = CharGpt();
  CountingDevice device({.without = {"ai.caesura::AdamWUpdate"}, .close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  auto here = SessionOn(real, {TrainingCpu()}), there = SessionOn(real, device.providers());
  ExpectSame(Train(*there, real, names, 3), Train(*here, real, names, 3));
  int copied = 0;
  for (const PlannedCopy& copy : there->runs().Plan(real.batches[0]).value()->copies())
    copied += copy.when == PlannedCopy::When::kStep && copy.to == 1;
  EXPECT_GT(copied, 20);  // the parameters
}

// Running statistics stay where their readers are.
TEST(UpdatePlacement, StatisticsAreWhereTheirReadersAre) {
  const RealModel real = Digits();
  CountingDevice device(
      {.without = {"ai.caesura::BatchNormalizationTraining"}, .close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  auto here = SessionOn(real, {TrainingCpu()}), there = SessionOn(real, device.providers());
  ExpectSame(Train(*there, real, names, 3), Train(*here, real, names, 3));
  const auto plan = there->runs().Plan(real.batches[0]).value();
  for (const PlannedBuffer& buffer : plan->buffers()) {
    if (buffer.kind != PlannedBuffer::Kind::kParameter) continue;
    const std::string& name = plan->options().parameters[buffer.index]->name();
    const bool is_statistic = name.rfind("mean", 0) == 0 || name.rfind("var", 0) == 0;
    EXPECT_EQ(buffer.device == 0, is_statistic) << name;
  }
}

TEST(UpdatePlacement, ADeviceWithoutRoomLeavesThemOnTheHost) {
  const RealModel real = CharGpt();
  const std::vector<std::string> names = StepRunner(real).names();
  CountingDevice device({.memory_bytes = 12000});
  ::testing::internal::CaptureStderr();
  auto there = SessionOn(real, device.providers());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("parameters stay in host memory, each step copies them"));
  auto here = SessionOn(real, {TrainingCpu()});
  ::testing::internal::CaptureStderr();  // the step itself has no room either
  ExpectSame(Train(*there, real, names, 2), Train(*here, real, names, 2));
  ::testing::internal::GetCapturedStderr();
}

TEST(UpdatePlacement, ParametersAreReadAndWritten) {
  const RealModel real = Mlp();
  CountingDevice device({.close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  auto here = SessionOn(real, {TrainingCpu()}), there = SessionOn(real, device.providers());
  const Tensor value = Ramp(Shape{32, 12}).tensor();
  for (TrainingSession* session : {here.get(), there.get()}) {
    ASSERT_TRUE(session->Step(real.batches[0]).ok());
    ASSERT_TRUE(session->parameters().Set("w0", value).ok());
    EXPECT_TRUE(SameBits(session->parameters().Get("w0").value(), value));
  }
  ExpectSame(Train(*there, real, names, 2), Train(*here, real, names, 2));
  const auto mine = there->parameters().TrainedModel(), wanted = here->parameters().TrainedModel();
  ASSERT_TRUE(mine.ok()) << mine.status().ToString();
  for (const std::string& name : there->parameters().Names()) {
    EXPECT_TRUE(SameBits(*mine->graph->Initializer(mine->graph->FindValue(name)),
                         *wanted->graph->Initializer(wanted->graph->FindValue(name))));
  }
}

// A checkpoint of one is read by the other.
TEST(UpdatePlacement, CheckpointsAreTheSame) {
  const RealModel real = CharGpt();
  CountingDevice device({.close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  TemporaryFolder folder;
  const Course wanted = Train(*SessionOn(real, {TrainingCpu()}), real, names, 4);
  for (const bool from_device : {true, false}) {
    auto first = SessionOn(real, from_device ? device.providers() : ProviderList{TrainingCpu()});
    auto second = SessionOn(real, from_device ? ProviderList{TrainingCpu()} : device.providers());
    Train(*first, real, names, 2);
    ASSERT_TRUE(first->Save(folder.path("state")).ok());
    const auto restored = second->Restore(folder.path("state"));
    ASSERT_TRUE(restored.ok()) << restored.status().ToString();
    EXPECT_TRUE(SameBits(Train(*second, real, names, 2).after, wanted.after));
  }
}

// A caller's own memory is on the host: all parameters come to it.
TEST(UpdatePlacement, BoundParametersComeToTheHost) {
  const RealModel real = Mlp();
  CountingDevice device({.close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  auto here = SessionOn(real, {TrainingCpu()}), there = SessionOn(real, device.providers());
  Train(*here, real, names, 1);
  Train(*there, real, names, 1);
  const Tensor own = there->parameters().Get("w0").value();
  ASSERT_TRUE(there->parameters().Bind("w0", own).ok());
  ExpectSame(Train(*there, real, names, 3), Train(*here, real, names, 3));
  EXPECT_TRUE(SameBits(own, here->parameters().Get("w0").value()));
}

// Stopped before each node, saved, and ended by another session on the device.
TEST(UpdatePlacement, StepsStopAnywhere) {
  for (const RealModel& real :
       {With(CharGpt(), [](StepOptions& step) { step.groups = {Group({"token"})}; }),
        With(Digits(), [](StepOptions& step) { step.commit = CommitMode::kEagerConsume; })}) {
    SCOPED_TRACE(real.model.graph->name());
    CountingDevice device({.close_pages = true});
    const std::vector<std::string> names = StepRunner(real).names();
    const Course wanted = Train(*SessionOn(real, {TrainingCpu()}), real, names, 2);
    auto first = SessionOn(real, device.providers()), second = SessionOn(real, device.providers());
    const size_t steps = first->runs().Plan(real.batches[0]).value()->steps().size();
    TemporaryFolder folder;
    ASSERT_TRUE(first->Save(folder.path("initial")).ok());
    for (size_t at = 0; at < steps; at += Every(3)) {
      SCOPED_TRACE("stopped before step " + std::to_string(at) + " of " + std::to_string(steps));
      ASSERT_TRUE(first->Restore(folder.path("initial")).ok());
      first->control().SuspendAt(static_cast<int>(at));
      ASSERT_EQ(first->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
      ASSERT_TRUE(first->Save(folder.path("step")).ok());
      const auto restored = second->Restore(folder.path("step"));
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      for (TrainingSession* session : {first.get(), second.get()}) {
        EXPECT_EQ(session->ResumeStep().value(), wanted.losses[0]);
        EXPECT_EQ(session->Step(real.batches[1]).value(), wanted.losses[1]);
        EXPECT_TRUE(SameBits(Everything(*session, names), wanted.after));
      }
    }
  }
}

// A step that waits among its updates is given up: the parameters are as before.
TEST(UpdatePlacement, DroppedStepsAreUndone) {
  RealModel real =
      With(Digits(), [](StepOptions& step) { step.commit = CommitMode::kEagerConsume; });
  real.options.undo = true;
  CountingDevice device({.close_pages = true});
  const std::vector<std::string> names = StepRunner(real).names();
  auto session = SessionOn(real, device.providers());
  const int steps = static_cast<int>(session->runs().Plan(real.batches[0]).value()->steps().size());
  const Values before = Everything(*session, names);
  for (const int at : {steps / 2, steps - 1}) {
    session->control().SuspendAt(at);
    ASSERT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
    if (at == steps - 1) {
      EXPECT_FALSE(SameBits(Everything(*session, names), before));
    }
    ASSERT_TRUE(session->DropStep().ok());
    EXPECT_TRUE(SameBits(Everything(*session, names), before));
  }
}

// The device fails at its k-th kernel of the second step, with garbage in what the kernel makes:
// the step is done again on the CPU, from the parameters as they were.
void FailAtEachKernel(const RealModel& real, int every) {
  const std::vector<std::string> names = StepRunner(real).names();
  const Course wanted = Train(*SessionOn(real, {TrainingCpu()}), real, names, 3);
  int calls = 1;
  for (int k = 0; k < calls; k += Every(every)) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
    CountingDevice device({});
    auto faulty = std::make_shared<FailingProvider>(device.providers()[0], "faulty", true);
    auto session = SessionOn(real, {faulty, device.providers()[1]});
    EXPECT_EQ(session->Step(real.batches[0]).value(), wanted.losses[0]);
    if (k == 0) {
      auto other = SessionOn(real, {faulty, device.providers()[1]});
      ASSERT_TRUE(other->Step(real.batches[0]).ok());
      faulty->FailAt(-1);
      ASSERT_TRUE(other->Step(real.batches[1]).ok());
      calls = faulty->calls();
      ASSERT_GT(calls, 10);
    }
    faulty->FailAt(k);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(session->Step(real.batches[1]).value(), wanted.losses[1]);
    ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(session->fallback().record());
    EXPECT_EQ(session->Step(real.batches[0]).value(), wanted.losses[2]);
    EXPECT_TRUE(SameBits(Everything(*session, names), wanted.after));
    const DeviceCounts before = device.counts();
    ASSERT_TRUE(session->Step(real.batches[1]).ok());
    ASSERT_TRUE(session->Evaluate(real.batches[0]).ok());
    EXPECT_EQ(device.counts().copies_to_device, before.copies_to_device);
    EXPECT_EQ(device.counts().copies_to_host, before.copies_to_host);
  }
}

TEST(UpdatePlacement, FailuresAtEachKernel) { FailAtEachKernel(CharGpt(), 7); }
TEST(UpdatePlacement, FailuresAmongEarlyUpdates) {
  FailAtEachKernel(
      With(Digits(), [](StepOptions& step) { step.commit = CommitMode::kEagerConsume; }), 3);
}
TEST(UpdatePlacement, FailuresAmongAccumulatedSteps) {
  FailAtEachKernel(With(Digits(), [](StepOptions& step) { step.accumulation_steps = 2; }), 3);
}

// Without a fallback the failed step has changed nothing on the device.
TEST(UpdatePlacement, FailedStepsAreUndoneOnTheDevice) {
  RealModel real = CharGpt();
  real.options.step.groups = {Group({"token"})};
  const std::vector<std::string> names = StepRunner(real).names();
  CountingDevice device({});
  auto faulty = std::make_shared<FailingProvider>(device.providers()[0], "faulty", true);
  auto session = SessionOn(real, {faulty, device.providers()[1]});
  session->fallback().set_enabled(false);
  faulty->FailAt(-1);
  ASSERT_TRUE(session->Step(real.batches[0]).ok());
  const int calls = faulty->calls();
  const Values before = Everything(*session, names);
  for (int k = calls - 1; k > calls - 5; --k) {  // the last of them are updates
    faulty->FailAt(k);
    EXPECT_EQ(session->Step(real.batches[1]).status().code(), StatusCode::kProviderFailure);
    EXPECT_TRUE(SameBits(Everything(*session, names), before)) << k;
  }
  faulty->FailAt(-1);
  auto here = SessionOn(real, {TrainingCpu()});
  EXPECT_TRUE(SameBits(Train(*here, real, names, 2).after,
                       (session->Step(real.batches[1]).ok(), Everything(*session, names))));
}

}  // namespace
}  // namespace caesura::testing
