// SPDX-License-Identifier: Apache-2.0
// No allocation in the executor's loop after the first step. A program of its own: it takes
// malloc's place, for all libraries of the process, and counts.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/training_step.h"

namespace {
thread_local long allocations = 0;  // by this thread
void* volatile escaped = nullptr;   // keeps the compiler from dropping pairs of new and delete
}  // namespace

// glibc's own entry points, after the ones that are replaced here.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  ++allocations;
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}
void free(void* p) { __libc_free(p); }
}

namespace caesura::testing {
namespace {

// Allocations that a call made on this thread.
template <typename Fn>
long AllocationsOf(const Fn& fn) {
  const long before = allocations;
  fn();
  return allocations - before;
}

TEST(NoAllocation, TheHookCounts) {
  EXPECT_GE(AllocationsOf([] {
              int* made = new int(1);
              escaped = made;
              delete made;
            }),
            1);
  EXPECT_GE(AllocationsOf([] {
              escaped = std::malloc(1);
              std::free(escaped);
            }),
            1);
  EXPECT_GE(AllocationsOf([] { HostAllocator().Allocate(1).value(); }), 1);
}

// Runs a started state to the next yield or the end and adds up what each step but the first and
// those that hand something out has allocated.
long InTheLoop(ExecutionState& state, std::string* culprits) {
  long sum = 0;
  const std::vector<PlanStep>& steps = state.plan().steps();
  while (state.stage() == ExecutionState::Stage::kReady) {
    const int pc = state.program_counter();
    const bool hands_out =
        pc + 1 == static_cast<int>(steps.size()) || steps[pc].kind == PlanStep::Kind::kYield;
    long made = 0;
    {
      Result<RunOutcome> outcome = RunOutcome::kStopped;
      made = AllocationsOf([&] { outcome = PartialExecutor::Run(state, pc + 1); });
      EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
      if (!outcome.ok()) return -1;
    }
    if (hands_out || pc == 0 || made == 0) continue;
    sum += made;
    *culprits += steps[pc].node->Label() + " " + std::to_string(made) + "\n";
  }
  return sum;
}

TEST(NoAllocation, InAWholeTrainingStep) {
  TrainingStep step;
  auto plan = step.Plan();
  ParameterSet parameters = step.Parameters();
  ValueCache cache(plan->cache_entries());
  ExecutionState state(plan);
  for (int round = 0; round < 3; ++round) {
    RunOptions options;
    options.parameters = &parameters;
    options.cache = &cache;
    ASSERT_TRUE(state.Start(step.feeds, options).ok());
    std::string culprits;
    long made = InTheLoop(state, &culprits);
    state.TakeYielded();
    ASSERT_TRUE(state.Resume(step.gradients).ok());
    made += InTheLoop(state, &culprits);
    // The first run fills the value cache; filling it again after an update allocates too.
    if (round > 0) {
      EXPECT_EQ(made, 0) << "round " << round << "\n" << culprits;
    }
  }
}

// A thousand steps in one call: what a call costs apart from its steps is what handing out takes.
TEST(NoAllocation, DoesNotGrowWithTheNumberOfSteps) {
  long made[2];
  for (int i = 0; i < 2; ++i) {
    auto graph = std::make_shared<Graph>();
    Value* v = graph->AddInput("x", ValueType::Tensor(DType::kFloat32, Shape{1}));
    for (int n = 0; n < (i == 0 ? 10 : 1000); ++n) v = graph->AddOp("Neg", {v})->output(0);
    graph->AddOutput(v);
    const Values feeds = {Ramp(Shape{1})};
    ExecutionState state(PlanOf(graph, feeds));
    ASSERT_TRUE(Finish(state, feeds).ok());
    ASSERT_TRUE(state.Start(feeds, {}).ok());
    made[i] = AllocationsOf([&] { EXPECT_TRUE(PartialExecutor::Run(state).ok()); });
  }
  EXPECT_EQ(made[0], made[1]);
  EXPECT_LE(made[1], 4);
}

// The CPU provider's own kernels on one thread. oneDNN's allocate a little inside of the library:
// not in this list.
TEST(NoAllocation, InTheCpuKernels) {
  auto graph = GraphOf(R"((float[8,16] x, int64[8] ids) => (float[8,16] y)
  <float[2,16] table = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
   float[16] g = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
    e = Gather <axis = 0> (table, ids)
    a = Add (x, e)
    n = LayerNormalization (a, g)
    s = Sigmoid (n)
    m = Mul (n, s)
    t = Transpose <perm = [1, 0]> (m)
    r = ReduceMean <keepdims = 1> (t)
    d = Div (t, r)
    b = Transpose <perm = [1, 0]> (d)
    k = Greater (a, b)
    c = Where (k, a, b)
    w = Concat <axis = 1> (c, x)
    h, l = Split <axis = 1, num_outputs = 2> (w)
    o = Sub (h, l)
    z = Erf (o)
    y = Tanh (z)
  })");
  const Values feeds = {Ramp(Shape{8, 16}),
                        Tensor::Of<int64_t>(Shape{8}, {0, 1, 0, 1, 1, 1, 0, 0})};
  ExecutionState state(PlanOf(graph, feeds, {}, {MakeCpuProvider()}));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(state.Start(feeds, {}).ok());
    std::string culprits;
    EXPECT_EQ(InTheLoop(state, &culprits), 0) << culprits;
  }
}

}  // namespace
}  // namespace caesura::testing
