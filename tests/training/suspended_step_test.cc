// SPDX-License-Identifier: Apache-2.0
// Training steps that stop before one of their nodes, are saved, and are ended by another session:
// losses, parameters and optimizer state of this step and the next are those of an undisturbed
// session, bit for bit. CAESURA_LONG=1: before every node, where otherwise some are left out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/gradient/gradient_model.h"
#include "core/providers/counting_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two updates as an undisturbed session does them, and the plan's length.
struct Undisturbed {
  explicit Undisturbed(const RealModel& real) : names(StepRunner(real).names()) {
    auto session = SessionOf(real);
    for (const NamedValues& batch : real.batches) losses.push_back(session->Step(batch).value());
    after = Everything(*session, names);
    learning_rate = session->progress().learning_rate();
    steps = static_cast<int>(session->runs().Plan(real.batches[0]).value()->steps().size());
  }
  std::vector<std::string> names;
  std::vector<double> losses;
  Values after;
  double learning_rate;
  int steps;
};

// Ends in `second` what `first` has begun with batches[0] and stopped before node `at`; then both
// updates are done.
void ExpectTheSame(const Undisturbed& expected, const RealModel& real, TrainingSession& first,
                   TrainingSession& second, int at) {
  SCOPED_TRACE("stopped before step " + std::to_string(at) + " of " +
               std::to_string(expected.steps));
  TemporaryFolder folder;
  first.control().SuspendAt(at);
  {
    NamedValues batch;  // its owner overwrites it while the step waits
    for (const auto& [name, value] : real.batches[0]) batch[name] = value.tensor().Clone().value();
    ASSERT_EQ(first.Step(batch).status().code(), StatusCode::kSuspended);
    for (auto& [name, value] : batch) std::memset(value.tensor().raw(), 0, value.tensor().bytes());
  }
  ASSERT_TRUE(first.runs().suspended());
  ASSERT_TRUE(first.Save(folder.path("step"), {{"position", int64_t{at}}}).ok());
  auto properties = second.Restore(folder.path("step"));
  ASSERT_TRUE(properties.ok()) << properties.status().ToString();
  EXPECT_EQ(std::get<int64_t>(properties->at("position")), at);
  ASSERT_TRUE(second.runs().suspended());
  for (TrainingSession* session : {&first, &second}) {
    const auto loss = session->ResumeStep();
    ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    EXPECT_EQ(*loss, expected.losses[0]);
    EXPECT_FALSE(session->runs().suspended());
    EXPECT_EQ(session->Step(real.batches[1]).value(), expected.losses[1]);
    EXPECT_TRUE(SameBits(Everything(*session, expected.names), expected.after));
    EXPECT_EQ(session->progress().learning_rate(), expected.learning_rate);
  }
}

void Sweep(const RealModel& real, int every) {
  const Undisturbed expected(real);
  auto first = SessionOf(real), second = SessionOf(real);
  TemporaryFolder folder;
  ASSERT_TRUE(first->Save(folder.path("initial")).ok());
  for (int at = 0; at < expected.steps; at += Every(every)) {
    ASSERT_TRUE(first->Restore(folder.path("initial")).ok());
    ExpectTheSame(expected, real, *first, *second, at);
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_THAT(second->runs().differences(), IsEmpty());
  }
}

// A potential of the distances of four points, trained by its energies and forces.
RealModel Forces() {
  RealModel out =
      MakeRealModel(R"(potential (float[batch,4,3] positions, float[6] scale, float[6] shift,
      float[6,16] w0, float[16] b0, float[16,1] w1) => (float[batch,1] energies) {
    from = Constant <value_ints = [0, 0, 0, 1, 1, 2]> ()
    to = Constant <value_ints = [1, 2, 3, 2, 3, 3]> ()
    axis = Constant <value_ints = [-1]> ()
    start = Gather <axis = 1> (positions, from)
    end = Gather <axis = 1> (positions, to)
    apart = Sub (start, end)
    squares = Mul (apart, apart)
    far = ReduceSum <keepdims = 0> (squares, axis)
    distances = Sqrt (far)
    normal = LayerNormalization (distances, scale, shift)
    hidden = Gemm (normal, w0, b0)
    bent = Softplus (hidden)
    energies = MatMul (bent, w1)
  })",
                    1);
  out.model =
      GradientModel(out.model, {.by = {"positions"}, .sum = true, .scale = -1, .names = {"forces"}})
          .value();
  out.options.step.loss = Loss::MeanSquaredError("measured_energies");
  out.options.step.loss.also = {"forces=measured_forces*10"};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  out.batches.resize(kUpdates);
  for (NamedValues& batch : out.batches) {
    for (const auto& [name, shape] :
         {std::pair("positions", Shape{5, 4, 3}), std::pair("measured_energies", Shape{5, 1}),
          std::pair("measured_forces", Shape{5, 4, 3})}) {
      Tensor tensor = Tensor::Zeros(DType::kFloat32, shape);
      for (int64_t e = 0; e < tensor.elements(); ++e) tensor.data<float>()[e] = normal(random);
      batch[name] = std::move(tensor);
    }
  }
  return out;
}

// The gradient of a gradient stops and goes on as any step does.
TEST(SuspendedStep, OfAPotentialThatIsTrainedByItsForces) { Sweep(Forces(), 1); }

TEST(SuspendedStep, OfAnMlp) { Sweep(Mlp(), 1); }

TEST(SuspendedStep, OfTheDigits) { Sweep(Digits(), 1); }

TEST(SuspendedStep, OfALlama) { Sweep(Llama(), 3); }

TEST(SuspendedStep, OfTheGptClipped) { Sweep(CharGpt(), 3); }

TEST(SuspendedStep, DrawsTheSameRandomNumbers) { Sweep(DigitsWithDropout(), 3); }

// Snapshots in the middle of the updates hold what is written and what is not.
TEST(SuspendedStep, UpdatesThatBeginInTheBackward) {
  RealModel real = Digits();
  real.options.step.commit = CommitMode::kEagerConsume;
  Sweep(real, 1);
}

TEST(SuspendedStep, WithTwoThreads) {
  RealModel real = CharGpt();
  real.options.threads = 2;
  Sweep(real, 5);
}

TEST(SuspendedStep, InHalfPrecisionWithAScaledLoss) {
  RealModel real = CharGpt();
  real.options.step.precision = DType::kFloat16;
  Sweep(real, 5);
}

TEST(SuspendedStep, WithinABudgetOfMemory) {
  RealModel real = CharGpt();
  const auto plan = SessionOf(real)->runs().Plan(real.batches[0]).value();
  real.options.memory_budget = plan->arena_bytes() * 95 / 100;
  Sweep(real, 7);
}

// Micro-steps of one update: the sums so far are the optimizer state of a checkpoint.
TEST(SuspendedStep, InTheMiddleOfAnAccumulation) {
  RealModel real = CharGpt();
  real.options.step.accumulation_steps = 2;
  auto undisturbed = SessionOf(real), first = SessionOf(real), second = SessionOf(real);
  const std::vector<std::string> names = StepRunner(real).names();
  std::vector<double> losses;
  for (int i = 0; i < 4; ++i) losses.push_back(undisturbed->Step(real.batches[i % 2]).value());
  TemporaryFolder folder;
  for (int micro = 0; micro < 4; ++micro) {
    TrainingSession& begins = micro % 2 == 0 ? *first : *second;
    TrainingSession& ends = micro % 2 == 0 ? *second : *first;
    begins.control().SuspendAt(20);
    ASSERT_EQ(begins.Step(real.batches[micro % 2]).status().code(), StatusCode::kSuspended);
    ASSERT_TRUE(begins.Save(folder.path("step")).ok());
    ASSERT_TRUE(ends.Restore(folder.path("step")).ok());
    EXPECT_EQ(ends.ResumeStep().value(), losses[micro]);
  }
  EXPECT_TRUE(SameBits(Everything(*first, names), Everything(*undisturbed, names)));
  EXPECT_EQ(first->progress().updates, 2);
  EXPECT_EQ(first->progress().update_loss, undisturbed->progress().update_loss);
}

// --- other threads and providers ---

TEST(SuspendedStep, GoesOnWithAnotherNumberOfThreads) {
  RealModel real = CharGpt();
  const Undisturbed expected(real);
  auto first = SessionOf(real);
  real.options.threads = 2;
  auto second = SessionOf(real);
  TemporaryFolder folder;
  for (int at = 0; at < expected.steps; at += Every(7)) {
    auto begins = SessionOf(real);
    begins->control().SuspendAt(at);
    ASSERT_EQ(begins->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
    ASSERT_TRUE(begins->Save(folder.path("step")).ok());
    ASSERT_TRUE(first->Restore(folder.path("step")).ok()) << at;
    EXPECT_THAT(first->runs().differences(), ::testing::ElementsAre("threads: 2 there, 1 here"));
    // Sums are split by threads in other places.
    EXPECT_NEAR(first->ResumeStep().value(), expected.losses[0], 1e-6 * expected.losses[0]);
  }
}

// From the host to a device, and back. Other kernels are chosen there, so sums may be rounded
// otherwise; plain SGD does not magnify that, as AdamW does where a gradient is nearly zero.
TEST(SuspendedStep, GoesOnOnADevice) {
  RealModel real = Digits();
  real.options.step.optimizer = Sgd{.learning_rate = 0.05};
  const CountingDevice device({.close_pages = true});
  RealModel on_device = real.Clone();
  on_device.options.providers = device.providers();
  const Undisturbed expected(real);
  TemporaryFolder folder;
  for (const bool out : {true, false}) {
    const RealModel& from = out ? real : on_device;
    auto first = SessionOf(from), second = SessionOf(out ? on_device : real);
    const int steps = static_cast<int>(first->runs().Plan(real.batches[0]).value()->steps().size());
    ASSERT_TRUE(first->Save(folder.path("initial")).ok());
    for (int at = 0; at < steps; at += Every(3)) {
      SCOPED_TRACE("stopped before step " + std::to_string(at) + " of " + std::to_string(steps));
      ASSERT_TRUE(first->Restore(folder.path("initial")).ok());
      first->control().SuspendAt(at);
      ASSERT_EQ(first->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
      ASSERT_TRUE(first->Save(folder.path("step")).ok());
      const auto restored = second->Restore(folder.path("step"));
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      EXPECT_THAT(second->runs().differences(), ::testing::ElementsAre(HasSubstr("providers: ")));
      EXPECT_NEAR(second->ResumeStep().value(), expected.losses[0], 1e-6 * expected.losses[0]);
      EXPECT_NEAR(second->Step(real.batches[1]).value(), expected.losses[1],
                  1e-6 * expected.losses[1]);
    }
  }
}

// --- how a step is stopped, and what may happen while it waits ---

TEST(SuspendedStep, StopsAtOnceWhenAnotherThreadWants) {
  const RealModel real = CharGpt();
  const Undisturbed expected(real);
  auto session = SessionOf(real);
  session->control().set_suspend(true);
  EXPECT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  EXPECT_EQ(session->ResumeStep().status().code(), StatusCode::kSuspended);  // not yet
  std::atomic<bool> done = false;
  std::thread other([&] {
    for (bool suspend = false; !done; suspend = !suspend) session->control().set_suspend(suspend);
    session->control().set_suspend(false);
  });
  int stops = 0;
  const auto ended = [&](Result<double> loss) {
    while (!loss.ok() && loss.status().code() == StatusCode::kSuspended) {
      ++stops;
      loss = session->ResumeStep();
    }
    return loss;
  };
  EXPECT_EQ(ended(session->ResumeStep()).value(), expected.losses[0]);
  EXPECT_EQ(ended(session->Step(real.batches[1])).value(), expected.losses[1]);
  done = true;
  other.join();
  EXPECT_TRUE(SameBits(Everything(*session, expected.names), expected.after));
}

TEST(SuspendedStep, StopsAtADeadline) {
  using std::chrono::steady_clock;
  const RealModel real = CharGpt();
  const Undisturbed expected(real);
  auto session = SessionOf(real);
  session->control().set_deadline(steady_clock::now());
  EXPECT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  EXPECT_EQ(session->ResumeStep().status().code(), StatusCode::kSuspended);
  session->control().set_deadline(steady_clock::now() + std::chrono::hours(1));
  EXPECT_EQ(session->ResumeStep().value(), expected.losses[0]);
  session->control().set_deadline(std::nullopt);
  EXPECT_EQ(session->Step(real.batches[1]).value(), expected.losses[1]);
  EXPECT_TRUE(SameBits(Everything(*session, expected.names), expected.after));
}

// One forward and backward, two updates of it.
TEST(SuspendedStep, BranchesIntoTwoLearningRates) {
  const RealModel real = CharGpt();
  const Undisturbed expected(real);
  auto session = SessionOf(real), branch = SessionOf(real), faster = SessionOf(real);
  TemporaryFolder folder;
  session->control().SuspendAt(expected.steps / 2);
  ASSERT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  ASSERT_TRUE(session->Save(folder.path("step")).ok());
  ASSERT_TRUE(branch->Restore(folder.path("step")).ok());
  for (TrainingSession* other : {branch.get(), faster.get()}) other->runs().set_learning_rate(0.02);
  EXPECT_EQ(session->ResumeStep().value(), expected.losses[0]);
  EXPECT_EQ(branch->ResumeStep().value(), expected.losses[0]);
  EXPECT_EQ(faster->Step(real.batches[0]).value(), expected.losses[0]);
  EXPECT_TRUE(SameBits(Everything(*branch, expected.names), Everything(*faster, expected.names)));
  EXPECT_FALSE(SameBits(Everything(*branch, expected.names), Everything(*session, expected.names)));
}

TEST(SuspendedStep, NothingElseBeginsWhileItWaits) {
  const RealModel real = Digits();
  const Undisturbed expected(real);
  auto session = SessionOf(real);
  EXPECT_EQ(session->ResumeStep().status().message(), "no step waits");
  EXPECT_EQ(session->DropStep().message(), "no step waits");
  session->control().SuspendAt(5);
  ASSERT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  EXPECT_THAT(session->Step(real.batches[0]).status().message(), HasSubstr("a step waits"));
  const Tensor w = session->parameters().Get("w0").value();
  EXPECT_THAT(session->parameters().Set("w0", w).message(), HasSubstr("a step waits"));
  EXPECT_THAT(session->parameters().Bind("w0", w).message(), HasSubstr("a step waits"));
  EXPECT_TRUE(session->Evaluate(real.batches[0]).ok());
  EXPECT_EQ(session->ResumeStep().value(), expected.losses[0]);
  EXPECT_EQ(session->progress().updates, 1);
}

TEST(SuspendedStep, GivenUpItHasChangedNothing) {
  const RealModel real = Digits();
  const Undisturbed expected(real);
  auto session = SessionOf(real);
  for (const int at : {0, 7, 14}) {
    session->control().SuspendAt(at);
    ASSERT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
    ASSERT_TRUE(session->DropStep().ok());
  }
  EXPECT_EQ(session->Step(real.batches[0]).value(), expected.losses[0]);
  EXPECT_EQ(session->Step(real.batches[1]).value(), expected.losses[1]);
  // Among its updates it cannot be given up: the error says so, and the session wants a checkpoint.
  session->control().SuspendAt(expected.steps - 1);
  ASSERT_EQ(session->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  EXPECT_THAT(session->DropStep().message(), HasSubstr("parameters may be half updated"));
  EXPECT_FALSE(session->Step(real.batches[0]).ok());
}

TEST(SuspendedStep, IsRefusedByAnotherModel) {
  const RealModel real = Digits(), other = DigitsWithDropout();
  auto first = SessionOf(real), second = SessionOf(other);
  TemporaryFolder folder;
  first->control().SuspendAt(5);
  ASSERT_EQ(first->Step(real.batches[0]).status().code(), StatusCode::kSuspended);
  ASSERT_TRUE(first->Save(folder.path("step")).ok());
  const Values before = Everything(*second, StepRunner(other).names());
  const Status status = second->Restore(folder.path("step")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("does not fit the program"));
  EXPECT_TRUE(SameBits(Everything(*second, StepRunner(other).names()), before));
  EXPECT_FALSE(second->runs().suspended());
}

}  // namespace
}  // namespace caesura::testing
