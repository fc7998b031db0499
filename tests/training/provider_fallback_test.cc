// SPDX-License-Identifier: Apache-2.0
// Training steps and split modules whose provider fails at its k-th kernel, for every k: losses,
// parameters, optimizer state and statistics are those of the CPU, bit for bit, also where updates
// were under way; one fallback, one retry. CAESURA_LONG=1: every k, where otherwise some are left
// out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/providers/counting_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"
#include "training/session/split_module.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<FailingProvider> Faulty() {
  return std::make_shared<FailingProvider>(TrainingCpu(), "faulty", /*scribbles=*/true);
}

// From one k to the next.
// Two steps on the CPU, and the state after them.
class StepsOfTheCpu {
 public:
  explicit StepsOfTheCpu(const RealModel& real) : names_(StepRunner(real).names()) {
    auto session = SessionOf(real);
    for (const NamedValues& batch : real.batches) losses_.push_back(session->Step(batch).value());
    after_ = Everything(*session);
  }
  Values Everything(const TrainingSession& session) const {
    Values out;
    for (const std::string& name : names_)
      out.push_back(session.parameters().Get(name).value().Clone().value());
    return out;
  }
  // True if the session, at its last batch, does as the CPU did.
  void ExpectLastStep(TrainingSession& session, const RealModel& real) const {
    EXPECT_EQ(session.Step(real.batches.back()).value(), losses_.back());
    EXPECT_TRUE(SameBits(Everything(session), after_));
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  std::vector<std::string> names_;
  std::vector<double> losses_;
  Values after_;
};

// Fails at each kernel of the second step.
void ExpectTheStepsOfTheCpu(RealModel real, int every = 1) {
  const StepsOfTheCpu expected(real);
  auto faulty = Faulty();
  real.options.providers = {faulty, TrainingCpu()};
  int calls = 0;
  for (int k = 0; k == 0 || k < calls; k += every) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
    faulty->FailAt(-1);
    auto session = SessionOf(real);
    EXPECT_EQ(session->Step(real.batches[0]).value(), expected.losses()[0]);
    if (k == 0) {  // how many there are, once the plan is made
      TemporaryFolder folder;
      ASSERT_TRUE(session->Save(folder.path("state.ckpt")).ok());
      faulty->FailAt(-1);
      ASSERT_TRUE(session->Step(real.batches[0]).ok());
      calls = faulty->calls();
      ASSERT_GT(calls, 10);
      ASSERT_TRUE(session->Restore(folder.path("state.ckpt")).ok());
    }
    faulty->FailAt(k);
    ::testing::internal::CaptureStderr();
    expected.ExpectLastStep(*session, real);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("planted failure"));
    EXPECT_EQ(faulty->calls(), k + 1);
    EXPECT_EQ(session->progress().updates, real.options.step.accumulation_steps > 1 ? 1 : 2);
    const auto record = session->fallback().record();
    ASSERT_TRUE(record);
    EXPECT_EQ(record->provider, "faulty");
    // Every other step of those that accumulate runs another program, which is planned when it is
    // reached.
    if (real.options.step.accumulation_steps == 1) {
      EXPECT_EQ(record->stage, FallbackStage::kRun);
    }
    EXPECT_EQ(record->runs_before, k == 0 ? 2u : 1u);
    EXPECT_GT(record->shared_bytes, 1000u);  // the parameters, where they are
    EXPECT_LT(record->bytes, record->shared_bytes);
    EXPECT_THAT(session->fallback().provider_names(), ElementsAre(kCpuProviderName));
    // Nothing goes to the provider any more, whatever is called.
    ASSERT_TRUE(session->Evaluate(real.batches[0]).ok());
    ASSERT_TRUE(session->Step(real.batches[0]).ok());
    EXPECT_EQ(faulty->calls(), k + 1);
  }
}

TEST(TrainingFallback, StepsOfTheDigits) { ExpectTheStepsOfTheCpu(Digits()); }

TEST(TrainingFallback, RetriedStepsDrawTheSameRandomNumbers) {
  ExpectTheStepsOfTheCpu(DigitsWithDropout(), Every(3));
}

TEST(TrainingFallback, StepsOfTheGptClippedAndInGroups) {
  RealModel real = CharGpt();
  real.options.step.groups = {{.names = {"token", "position"},
                               .learning_rate_scale = 0.5,
                               .weight_decay = {},
                               .optimizer = {}}};
  ExpectTheStepsOfTheCpu(std::move(real), Every(3));
}

// Updates begin in the middle of the backward part: what they wrote is undone.
TEST(TrainingFallback, EagerStepsAreNotLost) {
  RealModel real = Digits();
  real.options.step.commit = CommitMode::kEagerConsume;
  ExpectTheStepsOfTheCpu(std::move(real));
}

TEST(TrainingFallback, StepsThatAccumulate) {
  RealModel real = Digits();
  real.options.step.accumulation_steps = 2;
  ExpectTheStepsOfTheCpu(std::move(real), Every(2));
}

// The rest of a step that has waited fails on its provider: the whole step is done again.
TEST(TrainingFallback, StepsThatHaveWaited) {
  const RealModel real = Digits();
  const StepsOfTheCpu expected(real);
  for (const CommitMode commit : {CommitMode::kLate, CommitMode::kEagerConsume}) {
    auto faulty = Faulty();
    RealModel on_faulty = real.Clone();
    on_faulty.options.step.commit = commit;
    on_faulty.options.providers = {faulty, TrainingCpu()};
    for (const int k : {0, 5, 12}) {
      faulty->FailAt(-1);
      auto session = SessionOf(on_faulty);
      EXPECT_EQ(session->Step(real.batches[0]).value(), expected.losses()[0]);
      session->control().SuspendAt(10);
      ASSERT_EQ(session->Step(real.batches[1]).status().code(), StatusCode::kSuspended);
      faulty->FailAt(k);
      EXPECT_EQ(session->ResumeStep().value(), expected.losses()[1]);
      EXPECT_TRUE(session->fallback().record());
    }
  }
}

// Where fallback is disabled the failed step has changed nothing either.
TEST(TrainingFallback, DisabledItLeavesTheStateAsItWas) {
  RealModel real = Digits();
  real.options.step.commit = CommitMode::kEagerConsume;
  const StepsOfTheCpu expected(real);
  auto faulty = Faulty();
  real.options.providers = {faulty, TrainingCpu()};
  auto session = SessionOf(real);
  session->fallback().set_enabled(false);
  ASSERT_TRUE(session->Step(real.batches[0]).ok());
  const Values before = expected.Everything(*session);
  for (int k : {0, 12, 22, 32}) {
    faulty->FailAt(k);
    const Status status = session->Step(real.batches[1]).status();
    EXPECT_EQ(status.code(), StatusCode::kProviderFailure);
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("lost")));
    EXPECT_TRUE(SameBits(expected.Everything(*session), before)) << k;
  }
  faulty->FailAt(-1);
  expected.ExpectLastStep(*session, real);
  EXPECT_FALSE(session->fallback().record());
}

TEST(TrainingFallback, FailuresWhileStepsArePlanned) {
  RealModel real = Digits();
  const StepsOfTheCpu expected(real);
  auto faulty = Faulty();
  real.options.providers = {faulty, TrainingCpu()};
  faulty->FailAtCreation(-1);
  ASSERT_TRUE(SessionOf(real)->Step(real.batches[0]).ok());
  const int created = faulty->created();
  for (int k = 0; k < created; k += Every(5)) {
    faulty->FailAtCreation(k);
    auto session = SessionOf(real);
    EXPECT_EQ(session->Step(real.batches[0]).value(), expected.losses()[0]);
    expected.ExpectLastStep(*session, real);
    EXPECT_EQ(session->fallback().record()->stage, FallbackStage::kCompile);
  }
}

// Copies to and from the device fail too, in the middle of updates and when the loss is handed out.
TEST(TrainingFallback, CopiesThatFail) {
  class FailingCopies : public FailingProvider {
   public:
    using FailingProvider::FailingProvider;
    Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
      if (copies_++ == fail_at_) return ProviderFailure("planted failure of a copy");
      return FailingProvider::Copy(kind, to, from, bytes);
    }
    void FailAtCopy(int copy) {
      copies_ = 0;
      fail_at_ = copy;
    }
    int copies() const { return copies_; }

   private:
    mutable std::atomic<int> copies_{0};
    int fail_at_ = -1;
  };
  RealModel real = Digits();
  const StepsOfTheCpu expected(real);
  int copies = 1;
  for (int k = 0; k < copies; k += Every(3)) {
    CountingDevice device({});
    auto failing = std::make_shared<FailingCopies>(device.providers()[0], "failing");
    real.options.providers = {failing, device.providers()[1]};
    auto session = SessionOf(real);
    EXPECT_EQ(session->Step(real.batches[0]).value(), expected.losses()[0]);
    if (k == 0) {
      auto other = SessionOf(real);
      ASSERT_TRUE(other->Step(real.batches[0]).ok());
      failing->FailAtCopy(-1);
      ASSERT_TRUE(other->Step(real.batches[1]).ok());
      copies = failing->copies();
      ASSERT_GT(copies, 10);
    }
    failing->FailAtCopy(k);
    expected.ExpectLastStep(*session, real);
    ASSERT_TRUE(session->fallback().record()) << k;
    EXPECT_THAT(session->fallback().record()->cause, HasSubstr("planted failure of a copy"));
  }
}

TEST(TrainingFallback, TheParametersAreNotCopied) {
  RealModel real = Digits();
  auto faulty = Faulty();
  real.options.providers = {faulty, TrainingCpu()};
  auto session = SessionOf(real);
  const void* head = session->parameters().Get("head").value().raw();
  faulty->FailAt(3);
  ASSERT_TRUE(session->Step(real.batches[0]).ok());
  EXPECT_EQ(session->parameters().Get("head").value().raw(), head);
  ASSERT_TRUE(session->fallback().record());
  // Evaluation goes over as well, on the same bytes.
  auto cpu = SessionOf(Digits());
  ASSERT_TRUE(cpu->Step(real.batches[0]).ok());
  EXPECT_EQ(session->Evaluate(real.batches[1])->loss, cpu->Evaluate(real.batches[1])->loss);
}

// --- modules ---

struct ModuleResults {
  Values outputs, gradients, again, statistics;
};

// A forward, a backward that is kept, a second one; `before(0)` and `before(1)` are called before
// the two halves.
template <typename Fn>
Result<ModuleResults> RunModule(SplitModule& module, const NamedValues& feeds, const Fn& before) {
  ModuleResults out;
  before(0);
  auto run = module.Forward(feeds);
  if (!run.ok()) return run.status();
  out.outputs = run->outputs;
  const Values gradient = {Ramp(Shape{6, 10})};
  before(1);
  for (Values* results : {&out.gradients, &out.again}) {
    auto backward = run->Backward(gradient, /*keep=*/results == &out.gradients);
    if (!backward.ok()) return backward.status();
    *results = *std::move(backward);
  }
  EXPECT_FALSE(run->pending());
  for (const std::string& name : module.ParameterNames()) {
    out.statistics.push_back(module.Parameter(name).value().Clone().value());
  }
  return out;
}

TEST(ModuleFallback, ForwardsAndBackwardsThatFail) {
  const RealModel real = DigitsWithDropout();
  const NamedValues feeds = {{"images", real.batches[0].at("images")}};
  SplitModuleOptions options;
  options.threads = 1;
  options.seed = 3;
  options.inputs = {"images"};
  auto cpu = SplitModule::Create(real.model.Clone(), options).value();
  const ModuleResults expected = RunModule(*cpu, feeds, [](int) {}).value();
  const Values predicted = cpu->Predict(feeds).value();
  auto faulty = Faulty();
  options.providers = {faulty, TrainingCpu()};
  for (int half : {0, 1}) {
    for (int k = 0;; k += Every(2)) {
      SCOPED_TRACE("half " + std::to_string(half) + ", call " + std::to_string(k));
      faulty->FailAt(-1);
      auto module = SplitModule::Create(real.model.Clone(), options).value();
      auto results = RunModule(*module, feeds, [&](int at) {
        if (at == half) faulty->FailAt(k);
      });
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_TRUE(SameBits(results->outputs, expected.outputs));
      EXPECT_TRUE(SameBits(results->gradients, expected.gradients));
      EXPECT_TRUE(SameBits(results->again, expected.again));
      EXPECT_TRUE(SameBits(results->statistics, expected.statistics));
      if (!module->fallback().record()) {
        EXPECT_GT(k, 10);
        break;
      }
      EXPECT_EQ(faulty->calls(), k + 1);
      EXPECT_TRUE(SameBits(module->Predict(feeds).value(), predicted));
      EXPECT_THAT(module->fallback().provider_names(), ElementsAre(kCpuProviderName));
      EXPECT_EQ(faulty->calls(), k + 1);
    }
  }
}

// A run that was begun before another one's fallback goes on where it began.
TEST(ModuleFallback, RunsThatWaitForTheirBackward) {
  const RealModel real = Digits();
  const NamedValues feeds = {{"images", real.batches[0].at("images")}};
  SplitModuleOptions options;
  options.threads = 1;
  auto cpu = SplitModule::Create(real.model.Clone(), options).value();
  const Values expected = cpu->Forward(feeds)->Backward({Ramp(Shape{6, 10})}).value();
  auto faulty = Faulty();
  options.providers = {faulty, TrainingCpu()};
  auto module = SplitModule::Create(real.model.Clone(), options).value();
  std::vector<ForwardRun> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(module->Forward(feeds).value());
  faulty->FailAt(2);
  EXPECT_TRUE(SameBits(waiting[0].Backward({Ramp(Shape{6, 10})}).value(), expected));
  EXPECT_TRUE(module->fallback().record());
  EXPECT_TRUE(SameBits(waiting[1].Backward({Ramp(Shape{6, 10})}).value(), expected));
  EXPECT_GT(faulty->calls(), 3);
  faulty->FailAt(2);  // once more, after the fallback: this run goes over too
  EXPECT_TRUE(SameBits(waiting[2].Backward({Ramp(Shape{6, 10})}).value(), expected));
  EXPECT_EQ(faulty->calls(), 3);
  // Gradients that do not fit are the caller's mistake, and the run still waits.
  ForwardRun run = module->Forward(feeds).value();
  EXPECT_EQ(run.Backward({Ramp(Shape{5, 10})}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(run.pending());
  EXPECT_TRUE(SameBits(run.Backward({Ramp(Shape{6, 10})}).value(), expected));
}

TEST(ModuleFallback, DisabledTheBackwardIsOver) {
  const RealModel real = Digits();
  SplitModuleOptions options;
  auto faulty = Faulty();
  options.providers = {faulty, TrainingCpu()};
  options.fallback = false;
  auto module = SplitModule::Create(real.model.Clone(), options).value();
  ForwardRun run = module->Forward({{"images", real.batches[0].at("images")}}).value();
  faulty->FailAt(2);
  EXPECT_EQ(run.Backward({Ramp(Shape{6, 10})}).status().code(), StatusCode::kProviderFailure);
  EXPECT_FALSE(run.pending());
  EXPECT_FALSE(module->fallback().record());
}

}  // namespace
}  // namespace caesura::testing
