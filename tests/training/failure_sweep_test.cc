// SPDX-License-Identifier: Apache-2.0
// A property of all steps: a step that fails, whatever fails and wherever, has changed nothing; and
// done again it is the undisturbed one, bit for bit. Random models with random options; a kernel,
// an allocation, an observer, the caller or a NaN ends the step at its k-th node, on its own or
// after the step has waited before a random one. CAESURA_LONG=1: more models, and every k.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>

#include "core/execute/execution_observer.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

bool IsLong() { return std::getenv("CAESURA_LONG") != nullptr; }

// Two to five layers of random kinds, a random optimizer, and random options of the step.
RealModel RandomModel(uint32_t seed, std::string* described) {
  std::mt19937 random(seed);
  const auto one_of = [&](auto... choices) {
    const std::common_type_t<decltype(choices)...> all[] = {choices...};
    return all[random() % sizeof...(choices)];
  };
  std::string inputs, body, x = "x", earlier = "x";
  const int layers = 2 + static_cast<int>(random() % 4);
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i), y = "y" + n;
    switch (random() % 6) {
      case 0:
        inputs += ", float[8,8] w" + n + ", float[8] b" + n;
        body += y + " = Gemm <transB = 1> (" + x + ", w" + n + ", b" + n + ")\n";
        break;
      case 1: body += y + " = " + one_of("Relu", "Tanh", "Sigmoid") + " (" + x + ")\n"; break;
      case 2:
        inputs += ", float[8] scale" + n + ", float[8] shift" + n + ", float[8] mean" + n +
                  ", float[8] var" + n;
        body += y + " = BatchNormalization <momentum = 0.9> (" + x + ", scale" + n + ", shift" + n +
                ", mean" + n + ", var" + n + ")\n";
        break;
      case 3:
        inputs += ", float[8] scale" + n + ", float[8] shift" + n;
        body +=
            y + " = LayerNormalization <axis = -1> (" + x + ", scale" + n + ", shift" + n + ")\n";
        break;
      case 4:
        body += "p" + n + " = Constant <value_float = 0.25> () t" + n +
                " = Constant <value_int = 1> () on" + n + " = Cast <to = 9> (t" + n + ") " + y +
                ", m" + n + " = Dropout (" + x + ", p" + n + ", on" + n + ")\n";
        break;
      default: body += y + " = Add (" + x + ", " + earlier + ")\n"; break;
    }
    if (random() % 2 == 0) earlier = x;
    x = y;
  }
  RealModel out =
      MakeRealModel("net (float[batch,8] x" + inputs +
                        ", float[5,8] head, float[5] bias) => (float[batch,5] scores) {\n" + body +
                        "scores = Gemm <transB = 1> (" + x + ", head, bias)\n}",
                    1);
  StepOptions& step = out.options.step;
  step.loss = Loss::CrossEntropy("labels");
  step.optimizer = one_of(Optimizer(Sgd{.learning_rate = 0.1, .momentum = 0.9}),
                          Optimizer(AdamW{.learning_rate = 2e-3}), Optimizer(Adafactor{}));
  step.accumulation_steps = one_of(1, 1, 2);
  if (random() % 2 == 0) {
    step.commit = CommitMode::kEagerConsume;
    out.options.undo = true;
  } else {
    step.clip_norm = one_of(0.0, 0.5);
    step.refuse_nonfinite = true;
    out.options.undo = random() % 2 == 0;
    if (random() % 2 == 0)
      step.groups = {{.names = {"head"}, .weight_decay = 0.0, .optimizer = {}}};
  }
  for (uint32_t i = 0; i < kUpdates; ++i)
    out.batches.push_back(RandomBatch(i, "x", Shape{4, 8}, false, "labels", Shape{4}, 5));
  *described = "seed " + std::to_string(seed) + ":\n" + body;
  return out;
}

// Calls `act` at the end of step `at`.
class ActsAt : public ExecutionObserver {
 public:
  using Act = std::function<void(const ExecutionPlan&, const ExecutionState&)>;
  ActsAt(int at, Act act) : at_(at), act_(std::move(act)) {}
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status&) override {
    if (step == at_) act_(plan, state);
  }

 private:
  int at_;
  Act act_;
};

class FailureSweep {
 public:
  explicit FailureSweep(RealModel real) : real_(std::move(real)) {
    class Provider : public FailingProvider {
     public:
      explicit Provider(Allocator* allocator)
          : FailingProvider(TrainingCpu(), "faulty", /*scribbles=*/true), allocator_(allocator) {
        FailAt(-1);
      }
      Allocator& allocator() const override { return *allocator_; }

     private:
      Allocator* allocator_;
    };
    const auto provider = std::make_shared<Provider>(&allocator_);
    provider_ = provider;
    real_.options.providers = {provider, TrainingCpu()};
    real_.options.fallback = false;
    names_ = StepRunner(real_).names();
    session_ = SessionOf(real_);
    EXPECT_TRUE(session_->Step(real_.batches[0]).ok());
    EXPECT_TRUE(session_->Save(path_).ok());
    before_ = Everything();
    allocator_.Heal();
    provider_->FailAt(-1);
    loss_ = session_->Step(real_.batches[1]).value();  // plans the program of this step
    EXPECT_TRUE(session_->Restore(path_).ok());
    allocator_.Heal();
    provider_->FailAt(-1);
    EXPECT_EQ(session_->Step(real_.batches[1]).value(), loss_);
    calls_ = provider_->calls();
    allocations_ = allocator_.calls();
    after_ = Everything();
    EXPECT_TRUE(session_->Restore(path_).ok());
    steps_ = static_cast<int>(session_->runs().Plan(real_.batches[1]).value()->steps().size());
  }

  // Each way to fail, at each `every`-th place. Counts the steps that failed and those that came to
  // their end all the same.
  void Run(int every, std::mt19937& random) {
    for (int k = 0; k < calls_; k += every) {
      provider_->FailAt(k);
      Try("kernel " + std::to_string(k), {}, random);
    }
    for (int n = 0; n < allocations_; ++n) {
      allocator_.FailAfter(n);
      Try("allocation " + std::to_string(n), {}, random, /*waits=*/false);
    }
    for (int k = 0; k < steps_; k += every) {
      ActsAt throws(k, [](const auto&, const auto&) { throw std::runtime_error("planted"); });
      Try("an exception at " + std::to_string(k), {&throws}, random);
      ActsAt cancels(k, [&](const auto&, const auto&) {
        std::thread([&] { session_->control().set_terminate(true); }).join();
      });
      Try("a cancel at " + std::to_string(k), {&cancels}, random);
      if (real_.options.step.refuse_nonfinite) {
        ActsAt spoils(k, SpoilOutput);
        Try("a NaN at " + std::to_string(k), {&spoils}, random);
      }
      if (real_.options.undo) GiveUp(k);
      if (::testing::Test::HasFailure()) return;
    }
  }
  int failed() const { return failed_; }
  int ended() const { return ended_; }

 private:
  static void SpoilOutput(const ExecutionPlan& plan, const ExecutionState& state) {
    const PlanStep& step = plan.steps()[state.program_counter()];
    if (step.node->phase() == Phase::kOptimizer || step.output_count == 0) return;
    const uint32_t id = plan.arguments()[step.first_argument + step.input_count];
    if (plan.buffers()[id].kind != PlannedBuffer::Kind::kArena) return;
    for (uint32_t v = 1; v < plan.values().size(); ++v) {
      if (plan.values()[v].buffer != id || plan.values()[v].dtype != DType::kFloat32) continue;
      const RuntimeValue value = state.ValueOf(v);
      if (value.is_tensor() && value.tensor().elements() > 0)
        static_cast<float*>(value.tensor().raw())[0] = NAN;
      return;
    }
  }

  Values Everything() const {
    Values out;
    for (const std::string& name : names_)
      out.push_back(session_->parameters().Get(name).value().Clone().value());
    return out;
  }
  void Heal() {
    provider_->FailAt(-1);
    allocator_.Heal();
    session_->control().set_terminate(false);
  }

  // A step that is to fail; `waits`: perhaps not at once.
  void Try(const std::string& what, std::vector<ExecutionObserver*> observers, std::mt19937& random,
           bool waits = true) {
    SCOPED_TRACE(what + " of " + std::to_string(steps_) + " steps");
    const bool waited = waits && observers.empty() && random() % 2 == 0;
    if (waited)
      session_->control().SuspendAt(static_cast<int>(random() % static_cast<uint32_t>(steps_)));
    Result<double> loss = session_->Step(real_.batches[1], observers);
    if (loss.status().code() == StatusCode::kSuspended) loss = session_->ResumeStep(observers);
    session_->control().SuspendAt(INT_MAX);
    Heal();
    if (loss.ok()) {  // it was past the place where it can be ended
      ++ended_;
      EXPECT_TRUE(SameBits(Everything(), after_));
    } else {
      ++failed_;
      EXPECT_THAT(loss.status().message(), ::testing::Not(::testing::HasSubstr("lost")));
      EXPECT_TRUE(SameBits(Everything(), before_)) << loss.status().ToString();
      EXPECT_EQ(session_->Step(real_.batches[1]).value(), loss_);
      EXPECT_TRUE(SameBits(Everything(), after_));
    }
    ASSERT_TRUE(session_->Restore(path_).ok());
  }

  void GiveUp(int k) {
    SCOPED_TRACE("given up before step " + std::to_string(k));
    session_->control().SuspendAt(k);
    ASSERT_EQ(session_->Step(real_.batches[1]).status().code(), StatusCode::kSuspended);
    ++failed_;
    EXPECT_TRUE(session_->DropStep().ok());
    EXPECT_TRUE(SameBits(Everything(), before_));
  }

  RealModel real_;
  FailingAllocator allocator_;
  std::shared_ptr<FailingProvider> provider_;
  std::unique_ptr<TrainingSession> session_;
  TemporaryFolder folder_;
  const std::string path_ = folder_.path("before");
  std::vector<std::string> names_;
  Values before_, after_;
  double loss_ = 0;
  int calls_ = 0, allocations_ = 0, steps_ = 0;
  int failed_ = 0, ended_ = 0;
};

TEST(FailureSweep, OfRandomModels) {
  int failed = 0, ended = 0;
  const uint32_t models = IsLong() ? 60 : 8;
  for (uint32_t seed = 1; seed <= models; ++seed) {
    std::string described;
    RealModel real = RandomModel(seed, &described);
    SCOPED_TRACE(described);
    std::mt19937 random(seed);
    FailureSweep sweep(std::move(real));
    sweep.Run(IsLong() ? 1 : 4, random);
    failed += sweep.failed();
    ended += sweep.ended();
    if (::testing::Test::HasFailure()) return;
  }
  std::printf("%d steps failed and were done again; %d came to their end\n", failed, ended);
  EXPECT_GT(failed, ended);
}

TEST(FailureSweep, OfTheExamples) {
  int failed = 0;
  for (RealModel (*make)() : {Digits, CharGpt}) {
    RealModel real = make();
    real.options.step.refuse_nonfinite = true;
    std::mt19937 random(1);
    FailureSweep sweep(std::move(real));
    sweep.Run(IsLong() ? 1 : 7, random);
    failed += sweep.failed();
  }
  std::printf("%d steps failed and were done again\n", failed);
}

// Without an undo an early commit is lost, and the error and the session say what it has written.
TEST(FailureSweep, AnEarlyCommitNamesWhatItHasWritten) {
  RealModel real = Digits();
  real.options.step.commit = CommitMode::kEagerConsume;
  const auto plan = SessionOf(real)->runs().Plan(real.batches[0]).value();
  const int last = static_cast<int>(plan->steps().size()) - 1;
  for (const bool undo : {false, true}) {
    real.options.undo = undo;
    auto session = SessionOf(real);
    const Tensor head = session->parameters().Get("head").value().Clone().value();
    ActsAt throws(last, [](const auto&, const auto&) { throw std::runtime_error("planted"); });
    const Status status = session->Step(real.batches[0], {&throws}).status();
    EXPECT_THAT(status.message(), ::testing::HasSubstr("planted"));
    const bool same =
        SameBits(RuntimeValue(session->parameters().Get("head").value()), RuntimeValue(head));
    EXPECT_EQ(same, undo);
    if (undo) {
      EXPECT_EQ(session->parameters().lost(), std::nullopt);
      EXPECT_TRUE(session->Step(real.batches[0]).ok());
    } else {
      EXPECT_THAT(session->parameters().lost(), ::testing::Optional(::testing::Contains("head")));
      EXPECT_THAT(status.message(), ::testing::HasSubstr("may be half updated ('w0', "));
      EXPECT_FALSE(session->Step(real.batches[0]).ok());
    }
  }
}

}  // namespace
}  // namespace caesura::testing
