// SPDX-License-Identifier: Apache-2.0
// Each allocation fails in turn: while a model is read, sessions and plans are made, steps run,
// states yield and go on, checkpoints are written and read. Nothing crashes, the error is
// kOutOfMemory, and with memory again the numbers are right. A program of its own: it takes the
// place of operator new and of aligned_alloc, for all libraries of the process. (libgomp ends the
// process when malloc fails; that one stays.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <utility>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/session/session.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"
#include "core/gradient/yield_insertion.h"
#include "training/files/checkpoint.h"

namespace {
thread_local long left = -1;  // allocations of this thread until one fails; -1: none does
thread_local long made = 0;

bool MayAllocate() {
  ++made;
  return left < 0 || left-- > 0;  // 0 becomes -1: only one fails
}
}  // namespace

extern "C" void* __libc_memalign(size_t, size_t);
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  return MayAllocate() ? __libc_memalign(alignment, size) : nullptr;
}

// The other forms of new come down to these two.
[[gnu::noinline]] void* operator new(size_t size) {
  void* p = MayAllocate() ? std::malloc(std::max<size_t>(size, 1)) : nullptr;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  void* p = MayAllocate() ? __libc_memalign(static_cast<size_t>(alignment), size) : nullptr;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace caesura::testing {
namespace {

constexpr long kTrials = 150;  // without CAESURA_LONG: spread over all allocations

// Calls `work()` (a Status) with one allocation failing, and `check(status)` with all of them
// working again. `undo()` takes back what a work that succeeds leaves, so that the next one does
// the same.
template <typename Work, typename Undo, typename Check>
void FailEach(const Work& work, const Undo& undo, const Check& check) {
  ASSERT_TRUE(work().ok());  // what the process makes once is there
  undo();
  made = 0;
  ASSERT_TRUE(work().ok());
  const long count = made;
  undo();
  ASSERT_GT(count, 0);
  const long stride = std::getenv("CAESURA_LONG") != nullptr ? 1 : std::max(1L, count / kTrials);
  long refused = 0;
  for (long n = 0; n < count; n += stride) {
    SCOPED_TRACE("allocation " + std::to_string(n) + " of " + std::to_string(count));
    Status status;
    try {
      left = n;
      status = work();
      left = -1;
    } catch (const std::exception& e) {
      left = -1;
      FAIL() << "an exception has left the library: " << e.what();
    }
    // Ok: the library could do without (a sort's buffer, a hint).
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.ToString();
    }
    check(status);
    undo();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(refused, 0);
}

// The caller's own work in between, with all allocations working.
template <typename Fn>
auto AsCaller(const Fn& fn) {
  const long kept = std::exchange(left, -1);
  auto value = fn();
  left = kept;
  return value;
}

const auto kNothing = [] {};
const auto kAnything = [](const Status&) {};

class AllocationFailure : public ::testing::TestWithParam<MakesReal> {
 protected:
  Values Everything(const TrainingSession& session) const {
    Values out;
    for (const std::string& name : names_)
      out.push_back(session.parameters().Get(name).value().Clone().value());
    return out;
  }

  const RealModel real_ = GetParam().make();
  const StepRunner runner_{real_};
  const std::vector<std::string> names_ = runner_.names();
  const Trained expected_ = runner_.BySession();
  const TemporaryFolder folder_;
};

TEST_P(AllocationFailure, ReadAndWriteAModel) {
  const std::string path = folder_.path("net.onnx");
  ASSERT_TRUE(WriteModel(real_.model, path).ok());
  const std::string bytes = SerializeModel(real_.model).value();
  FailEach([&] { return ReadModel(path).status(); }, kNothing, kAnything);
  EXPECT_EQ(SerializeModel(ReadModel(path).value()).value(), bytes);
  FailEach(
      [&] { return WriteModel(real_.model, path); }, kNothing,
      [&](const Status&) { EXPECT_EQ(SerializeModel(ReadModel(path).value()).value(), bytes); });
  const std::string text = ModelText(real_.model);
  FailEach([&] { return ParseModelText(text).status(); }, kNothing, kAnything);
}

TEST_P(AllocationFailure, InferenceSession) {
  std::unique_ptr<Session> session;
  auto create = [&] {
    auto made = Session::Create(AsCaller([&] { return real_.model.Clone(); }));
    if (made.ok()) session = *std::move(made);
    return made.status();
  };
  FailEach(create, kNothing, kAnything);
  ASSERT_TRUE(create().ok());
  NamedValues feeds;
  for (const Value* input : session->inputs())
    feeds[input->name()] = real_.batches[0].at(input->name());
  const Values expected = session->Run(feeds).value();
  Values outputs;
  auto run = [&] {
    auto results = session->Run(feeds);
    outputs = results.ok() ? *std::move(results) : Values();
    return results.status();
  };
  auto right = [&](const Status& status) {
    EXPECT_TRUE(status.ok() || run().ok());
    EXPECT_TRUE(SameBits(outputs, expected));
  };
  FailEach(run, kNothing, right);                             // with a plan
  FailEach(run, [&] { ASSERT_TRUE(create().ok()); }, right);  // that makes one
}

TEST_P(AllocationFailure, TrainingSessionIsMade) {
  std::unique_ptr<TrainingSession> session;
  auto create = [&] {
    auto made = TrainingSession::Create(AsCaller([&] { return real_.model.Clone(); }),
                                        AsCaller([&] { return real_.options; }));
    if (made.ok()) session = *std::move(made);
    return made.status();
  };
  FailEach(create, kNothing, [&](const Status& status) {
    EXPECT_TRUE(!status.ok() ||
                SameBits(Everything(*session), StepRunner::ValuesOf(runner_.Parameters())));
  });
  ASSERT_TRUE(create().ok());
  EXPECT_EQ(session->Step(real_.batches[0]).value(), ToFloats(expected_.losses[0])[0]);
}

TEST_P(AllocationFailure, TrainingSteps) {
  auto session = SessionOf(real_);
  const Values initial = Everything(*session);
  const std::string path = folder_.path("initial.ckpt");
  ASSERT_TRUE(session->Save(path).ok());
  double loss = 0;
  auto step = [&] {
    auto result = session->Step(real_.batches[0]);
    loss = result.ok() ? *result : 0;
    return result.status();
  };
  auto right = [&](const Status& status) {
    if (!status.ok()) {
      EXPECT_EQ(status.message().find("lost"), std::string::npos) << status.ToString();
      EXPECT_TRUE(SameBits(Everything(*session), initial));
      EXPECT_TRUE(step().ok());
    }
    EXPECT_EQ(loss, ToFloats(expected_.losses[0])[0]);
    EXPECT_EQ(session->Step(real_.batches[1]).value(), ToFloats(expected_.losses[1])[0]);
    EXPECT_TRUE(SameBits(Everything(*session), expected_.parameters));
  };
  FailEach(step, [&] { ASSERT_TRUE(session->Restore(path).ok()); }, right);  // with a plan
  FailEach(step, [&] { session = SessionOf(real_); }, right);                // that makes one
}

TEST_P(AllocationFailure, YieldsAndResumes) {
  const std::shared_ptr<Graph> graph = runner_.graph();
  for (size_t i = 5; i < graph->nodes().size(); i += 20) {
    const Node& node = *graph->nodes()[i];
    if (node.phase() == Phase::kOptimizer) break;
    ASSERT_TRUE(InsertIdentityYield(*graph, {node.outputs()[0]}).ok());
  }
  ASSERT_TRUE(graph->SortTopologically().ok());
  auto plan = runner_.PlanOf(graph, 1).value();
  ASSERT_GT(plan->yields().size(), 1u);
  ExecutionState state(plan);
  ParameterSet parameters = runner_.Parameters();
  const Values feeds = runner_.Feeds(*graph, 0);
  Values results;
  auto run = [&]() -> Status {
    results.clear();
    RunOptions options;
    options.parameters = &parameters;
    Status status = state.Start(AsCaller([&] { return feeds; }), std::move(options));
    while (status.ok()) {
      auto outcome = PartialExecutor::Run(state);
      if (!outcome.ok()) return outcome.status();
      if (*outcome == RunOutcome::kFinished) break;
      status = state.Clone().status();
      if (status.ok()) status = state.Resume(state.TakeYielded());
    }
    if (status.ok()) results = state.TakeFetches();
    return status;
  };
  FailEach(
      run, [&] { parameters = runner_.Parameters(); },
      [&](const Status& status) {
        if (!status.ok()) {
          EXPECT_TRUE(SameBits(StepRunner::ValuesOf(parameters),
                               StepRunner::ValuesOf(runner_.Parameters())));
          EXPECT_TRUE(run().ok());
        }
        EXPECT_TRUE(SameBits(results[0], expected_.losses[0]));
      });
}

TEST_P(AllocationFailure, Checkpoints) {
  auto session = SessionOf(real_);
  ASSERT_TRUE(session->Step(real_.batches[0]).ok());
  const Values before = Everything(*session);
  const std::string path = folder_.path("run.ckpt");
  const std::map<std::string, Checkpoint::Property> properties = {{"epoch", int64_t{3}}};
  auto save = [&] { return session->Save(path, AsCaller([&] { return properties; })); };
  // A save that fails leaves the file before, and nothing beside it.
  FailEach(save, kNothing, [&](const Status&) {
    auto kept = session->Restore(path);
    ASSERT_TRUE(kept.ok()) << kept.status().ToString();
    EXPECT_EQ(std::get<int64_t>(kept->at("epoch")), 3);
    const std::filesystem::directory_iterator files(folder_.path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  });
  // A restore that fails leaves the session as it was. Between two of them a step is done, so that
  // there is something to mix.
  const auto next_step = [&] { ASSERT_TRUE(session->Step(real_.batches[1]).ok()); };
  next_step();
  const Values after = Everything(*session);
  FailEach([&] { return session->Restore(path).status(); }, next_step,
           [&](const Status& status) {
             if (status.ok()) {
               EXPECT_TRUE(SameBits(Everything(*session), before));
               return;
             }
             EXPECT_EQ(session->parameters().lost(), std::nullopt);
             EXPECT_TRUE(SameBits(Everything(*session), after));
             EXPECT_EQ(session->progress().updates, 2);
             ASSERT_TRUE(session->Restore(path).ok());
           });
  ASSERT_TRUE(session->Restore(path).ok());
  EXPECT_EQ(session->Step(real_.batches[1]).value(), ToFloats(expected_.losses[1])[0]);
}

TEST_P(AllocationFailure, ExportAndEvaluate) {
  auto session = SessionOf(real_);
  const double loss = session->Evaluate(real_.batches[0]).value().loss;
  double evaluated = 0;
  auto evaluate = [&] {
    auto result = session->Evaluate(real_.batches[0]);
    evaluated = result.ok() ? result->loss : loss;
    return result.status();
  };
  FailEach(evaluate, kNothing, [&](const Status&) { EXPECT_EQ(evaluated, loss); });
  const std::string path = folder_.path("out.onnx");
  FailEach([&] { return session->ExportModel(path); }, kNothing, kAnything);
  EXPECT_TRUE(ReadModel(path).ok());
}

INSTANTIATE_TEST_SUITE_P(RealModels, AllocationFailure,
                         ::testing::Values(MakesReal{"Digits", Digits},
                                           MakesReal{"CharGpt", CharGpt}),
                         MakesReal::Name);

}  // namespace
}  // namespace caesura::testing
