// SPDX-License-Identifier: Apache-2.0
// Profiler, Chrome trace, ranges, memory profile and node dumps over one small training step.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "core/files/npy.h"
#include "core/profile/chrome_trace.h"
#include "core/profile/memory_profile.h"
#include "core/profile/node_dump.h"
#include "core/profile/nvtx_ranges.h"
#include "core/profile/profiler.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/training_step.h"
#include "tests/test_paths.h"

namespace caesura::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const auto kStraight = [](ExecutionState& state) { return PartialExecutor::Run(state); };

// The step with its nodes' phases set: forward up to the yield, then backward, the last four are
// the optimizer's.
struct PhasedStep : TrainingStep {
  PhasedStep() {
    const auto& nodes = graph->nodes();
    bool after_yield = false;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (after_yield)
        nodes[i]->set_phase(i + 4 < nodes.size() ? Phase::kBackward : Phase::kOptimizer);
      after_yield |= nodes[i]->op_type() == "YieldOp";
    }
  }
};

RunOptions Watched(std::vector<ExecutionObserver*> observers, std::string tag = "batch 17") {
  RunOptions options;
  options.observers = std::move(observers);
  options.tag = std::move(tag);
  return options;
}

TEST(Observers, DoNotChangeResults) {
  PhasedStep step;
  auto plan = step.Plan();
  Profiler profiler;
  MemoryProfile memory;
  ExecutionState state(plan);
  auto results = RunStep(step, state, kStraight, Watched({&profiler, &memory}));
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == Uncut(step, plan));
}

TEST(ProfilerTest, RecordsEachStepWithItsFencesAndSizes) {
  PhasedStep step;
  auto plan = step.Plan();
  Profiler profiler;
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&profiler})).ok());
  const std::vector<ProfileEvent> events = profiler.Events();
  std::vector<ProfileEvent> steps;
  int runs = 0, fences = 0;
  for (const ProfileEvent& event : events) {
    EXPECT_EQ(event.tag, "batch 17");
    EXPECT_GE(event.duration_ns, 0);
    runs += event.kind == ProfileEvent::Kind::kRun;
    fences += event.kind == ProfileEvent::Kind::kFenceBefore ||
              event.kind == ProfileEvent::Kind::kFenceAfter;
    if (event.kind == ProfileEvent::Kind::kStep) steps.push_back(event);
  }
  EXPECT_EQ(runs, 2);  // to the yield, and from it
  ASSERT_EQ(steps.size(), plan->steps().size());
  EXPECT_EQ(fences, static_cast<int>(2 * steps.size()));
  for (size_t s = 0; s < steps.size(); ++s) {
    EXPECT_EQ(steps[s].plan_index, static_cast<int>(s));
    const Node& node = *step.graph->nodes()[steps[s].graph_index];
    EXPECT_EQ(steps[s].node, node.name());
    EXPECT_EQ(steps[s].op_type, node.op_type());
    EXPECT_EQ(steps[s].phase, node.phase());
    EXPECT_EQ(steps[s].provider, "tiny");
    EXPECT_EQ(steps[s].statistics.threads, 1);
    EXPECT_GE(steps[s].statistics.process_cpu_ns, 0);
  }
  // m = MatMul(x[4,3], w[3,3]): x is an activation, w a parameter
  EXPECT_EQ(steps[0].sizes.activation_bytes, 48u);
  EXPECT_EQ(steps[0].sizes.parameter_bytes, 36u);
  EXPECT_EQ(steps[0].sizes.output_bytes, 48u);
  EXPECT_THAT(profiler.Summary(), HasSubstr("MatMul"));
  profiler.Clear();
  EXPECT_TRUE(profiler.Events().empty());
}

TEST(ProfilerTest, MarksTheStepThatFailed) {
  TrainingStep step;
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto plan = step.Plan({provider});
  provider->FailAt(2);
  Profiler profiler;
  ExecutionState state(plan);
  ASSERT_FALSE(RunStep(step, state, kStraight, Watched({&profiler})).ok());
  int failed_steps = 0, failed_runs = 0;
  for (const ProfileEvent& event : profiler.Events()) {
    if (event.failed) ++(event.kind == ProfileEvent::Kind::kRun ? failed_runs : failed_steps);
  }
  EXPECT_EQ(failed_steps, 1);
  EXPECT_EQ(failed_runs, 1);
}

TEST(ProfilerTest, CountsWhatItDrops) {
  TrainingStep step;
  auto plan = step.Plan();
  Profiler profiler(10);
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&profiler})).ok());
  EXPECT_EQ(profiler.Events().size(), 10u);
  EXPECT_EQ(profiler.dropped(), 3 * plan->steps().size() + 2 - 10);
}

TEST(ProfilerTest, WatchesStatesInThreads) {
  TrainingStep step;
  auto plan = step.Plan();
  Profiler profiler;
  MemoryProfile memory(16);
  constexpr int kThreads = 4, kRuns = 4;
  std::latch all_are_there(kThreads);  // a thread that runs alone shows no race
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      all_are_there.arrive_and_wait();
      for (int run = 0; run < kRuns; ++run) {
        ExecutionState state(plan);
        EXPECT_TRUE(RunStep(step, state, kStraight,
                            Watched({&profiler, &memory}, "thread " + std::to_string(t)))
                        .ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(profiler.Events().size(), kThreads * kRuns * (3 * plan->steps().size() + 2));
  EXPECT_EQ(memory.Records().size(), static_cast<size_t>(kThreads * kRuns));
}

TEST(ChromeTraces, HoldEverythingASeedAsksFor) {
  PhasedStep step;
  auto plan = step.Plan();
  Profiler profiler;
  MemoryProfile memory;
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&profiler, &memory})).ok());
  const std::string path = ::testing::TempDir() + "caesura_trace.json";
  ASSERT_TRUE(WriteChromeTrace(path, profiler.Events(), memory.Records()).ok());
  const json trace = json::parse(std::ifstream(path));
  std::set<std::string> categories;
  size_t counters = 0;
  bool found = false;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "C") ++counters;
    if (event["ph"] != "X") continue;
    categories.insert(event["cat"]);
    EXPECT_TRUE(event.contains("ts") && event.contains("dur") && event.contains("pid") &&
                event.contains("tid"));
    if (event["args"].value("plan_index", -1) != 0 || event["cat"] != "forward") continue;
    found = true;
    EXPECT_EQ(event["name"], "MatMul " + step.graph->nodes()[0]->name());
    const json& args = event["args"];
    EXPECT_EQ(args["op_name"], "MatMul");
    EXPECT_EQ(args["provider"], "tiny");
    EXPECT_EQ(args["graph_index"], 0);
    EXPECT_EQ(args["activation_size"], 48);
    EXPECT_EQ(args["parameter_size"], 36);
    EXPECT_EQ(args["output_size"], 48);
    EXPECT_EQ(args["thread_statistics"]["threads"], 1);
    EXPECT_EQ(args["batch_tag"], "batch 17");
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(counters, plan->steps().size());
  EXPECT_THAT(categories, ElementsAre("backward", "fence", "forward", "optimizer", "run"));
  EXPECT_EQ(WriteChromeTrace("/nowhere/at/all.json", {}).code(), StatusCode::kNotFound);
}

// --- ranges ---

class LogSink : public RangeSink {
 public:
  void Begin(const std::string& name, uint32_t) override { text += "[" + name; }
  void End() override { text += "]"; }
  std::string text;
};

TEST(Ranges, ForwardEndsWhereBackwardBegins) {
  PhasedStep step;
  LogSink sink;
  PhaseRanges ranges(sink, false);
  ExecutionState state(step.Plan());
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&ranges})).ok());
  EXPECT_EQ(sink.text, "[batch 17 forward][batch 17 backward][batch 17 optimizer]");
}

TEST(Ranges, NameTheStepsInside) {
  auto graph = GraphOf("(float[2] x) => (float[2] y) { [one] a = Neg (x) [two] y = Neg (a) }");
  graph->nodes()[1]->set_phase(Phase::kBackward);
  LogSink sink;
  PhaseRanges ranges(sink);
  ExecutionState state(PlanOf(graph, {Ramp(Shape{2})}));
  ASSERT_TRUE(Finish(state, {Ramp(Shape{2})}, Watched({&ranges}, "")).ok());
  EXPECT_EQ(sink.text, "[step 0 forward[Neg.0(one)]][step 0 backward[Neg.1(two)]]");
}

TEST(Ranges, AreBalancedWhereverARunStopsOrFails) {
  PhasedStep step;
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto plan = step.Plan({provider});
  ExecutionState state(plan);
  auto open = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '[') - std::count(text.begin(), text.end(), ']');
  };
  for (int k = -1; k < static_cast<int>(plan->steps().size()); ++k) {
    provider->FailAt(k);
    LogSink sink;
    PhaseRanges ranges(sink);
    auto cut = [&](ExecutionState& s) {
      for (;;) {
        auto outcome = PartialExecutor::Run(s, s.program_counter() + 3);
        EXPECT_EQ(open(sink.text), 0);
        if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
      }
    };
    auto results = RunStep(step, state, cut, Watched({&ranges}));
    EXPECT_EQ(results.ok(), k < 0 || k >= provider->calls()) << k;
    EXPECT_EQ(open(sink.text), 0) << k << sink.text;
  }
}

TEST(Ranges, NvtxIsLoadedWhereThereIsOne) {
  EXPECT_EQ(OpenNvtx("libno_such_nvtx.so").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenNvtx("libm.so.6").status().code(), StatusCode::kNotFound);
  auto sink = OpenNvtx(kFakeNvtx);
  ASSERT_TRUE(sink.ok()) << sink.status().ToString();
  (*sink)->Begin("one", 0xff000000);
  (*sink)->Begin("two", 0xff000000);
  (*sink)->End();
  (*sink)->End();
  void* library = dlopen(kFakeNvtx, RTLD_NOW);
  auto log = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_nvtx_log"));
  EXPECT_STREQ(log(), "2/48[one2/48[two]]");
  dlclose(library);
}

// --- memory ---

TEST(Memory, FollowsThePlansCurve) {
  TrainingStep step;
  auto plan = step.Plan();
  MemoryProfile memory;
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&memory})).ok());
  ASSERT_EQ(memory.Records().size(), 1u);
  const MemoryRecord record = memory.Records()[0], planned = PlannedMemory(*plan);
  EXPECT_FALSE(record.failed);
  EXPECT_EQ(record.tag, "batch 17");
  EXPECT_EQ(record.feed_bytes, 48u);
  EXPECT_EQ(record.parameter_bytes, 36u + 48u);
  EXPECT_EQ(record.arena_bytes, plan->arena_bytes());
  ASSERT_EQ(record.samples.size(), plan->steps().size());
  const std::vector<size_t> live = plan->LiveBytes();
  for (size_t s = 0; s < live.size(); ++s) {
    EXPECT_EQ(record.samples[s].arena_bytes, live[s]);
    EXPECT_EQ(record.samples[s].total(), planned.samples[s].total());
  }
  EXPECT_EQ(record.Peak(), planned.Peak());
  ASSERT_FALSE(record.largest.empty());
  EXPECT_GE(record.largest.front().bytes, record.largest.back().bytes);
}

TEST(Memory, CountsWhatIsSizedInTheRun) {
  auto graph = GraphOf(R"((float[6] x, int64[2] to) => (float[a,b] y) {
    s = Reshape (x, to)
    t = Neg (s)
    y = Neg (t)
  })");
  const Values feeds = {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {2, 3})};
  MemoryProfile memory;
  ExecutionState state(PlanOf(graph, feeds));
  ASSERT_TRUE(Finish(state, feeds, Watched({&memory})).ok());
  std::vector<size_t> dynamic;
  const std::vector<MemoryRecord> records = memory.Records();
  for (const MemorySample& sample : records[0].samples) dynamic.push_back(sample.dynamic_bytes);
  EXPECT_THAT(dynamic, ElementsAre(24, 48, 48));  // s; s and t; t and y
}

TEST(Memory, LeavesARecordOfAFailure) {
  TrainingStep step;
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto plan = step.Plan({provider});
  MemoryProfile memory;
  ExecutionState state(plan);
  provider->FailAt(5);
  ASSERT_FALSE(RunStep(step, state, kStraight, Watched({&memory}, "bad")).ok());
  provider->FailAt(-1);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&memory}, "good")).ok());
  const std::vector<MemoryRecord> records = memory.Records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].failed);
  EXPECT_THAT(records[0].error, HasSubstr("planted failure"));
  EXPECT_LT(records[0].samples.size(), plan->steps().size());
  EXPECT_FALSE(records[0].largest.empty());
  EXPECT_FALSE(records[1].failed);
  const json runs = json::parse(MemoryJson(records))["runs"];
  EXPECT_EQ(runs[0]["tag"], "bad");
  EXPECT_EQ(runs[0]["failed"], true);
  EXPECT_EQ(runs[1]["samples"].size(), plan->steps().size());
  EXPECT_TRUE(runs[1]["largest"][0].contains("first_step"));
}

TEST(Memory, KeepsTheLastRuns) {
  TrainingStep step;
  MemoryProfile memory(2);
  ExecutionState state(step.Plan());
  for (const char* tag : {"a", "b", "c"})
    ASSERT_TRUE(RunStep(step, state, kStraight, Watched({&memory}, tag)).ok());
  ASSERT_EQ(memory.Records().size(), 2u);
  EXPECT_EQ(memory.Records()[0].tag, "b");
}

// --- dumps ---

std::string FreshFolder(const char* name) {
  const std::string folder = ::testing::TempDir() + name;
  std::filesystem::remove_all(folder);
  return folder;
}
std::string Contents(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Dumps, ChosenNodesAsNpy) {
  TrainingStep step;
  auto plan = step.Plan();
  const std::string folder = FreshFolder("caesura_dump_npy");
  NodeDumpOptions options;
  options.folder = folder;
  options.ops = "Mat.*";
  auto dump = NodeDump::Create(options).value();
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({dump.get()})).ok());
  EXPECT_TRUE(dump->status().ok()) << dump->status().ToString();
  EXPECT_EQ(dump->files_written(), 9);  // three products: two inputs and an output each
  const Tensor x = TensorFromNpy(Contents(folder + "/batch_17/0_MatMul_MatMul_in0_x.npy")).value();
  EXPECT_TRUE(SameBits(x, step.feeds[0]));
  EXPECT_TRUE(std::filesystem::exists(folder + "/batch_17/0_MatMul_MatMul_out0_m.npy"));
}

TEST(Dumps, ByNameAsText) {
  auto graph =
      GraphOf("(float[3] x) => (float[3] y) { [layer_0] a = Neg (x) [layer_1] y = Neg (a) }");
  const std::string folder = FreshFolder("caesura_dump_text");
  NodeDumpOptions options;
  options.folder = folder;
  options.nodes = "_1$";
  options.inputs = false;
  options.format = NodeDumpOptions::Format::kText;
  options.max_values = 2;
  auto dump = NodeDump::Create(options).value();
  ExecutionState state(PlanOf(graph, {Ramp(Shape{3})}));
  ASSERT_TRUE(
      Finish(state, {Floats(Shape{3}, {1, NAN, 3})}, Watched({dump.get()}, "../../etc")).ok());
  EXPECT_EQ(dump->files_written(), 1);
  EXPECT_EQ(Contents(folder + "/_.._.._etc/1_Neg_layer_1_out0_y.txt"),
            "float32[3] min 1 max 3 mean 2 nan 1 inf 0\n1\nnan\n");
}

TEST(Dumps, StopAtTheirLimitAndAtAnError) {
  TrainingStep step;
  auto plan = step.Plan();
  NodeDumpOptions options;
  options.folder = FreshFolder("caesura_dump_limit");
  options.ops = ".*";
  options.max_files = 4;
  auto dump = NodeDump::Create(options).value();
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kStraight, Watched({dump.get()})).ok());
  EXPECT_EQ(dump->files_written(), 4);
  options.folder = "/proc/no/such/place";
  auto blocked = NodeDump::Create(options).value();
  ASSERT_TRUE(
      RunStep(step, state, kStraight, Watched({blocked.get()})).ok());  // the run is not hurt
  EXPECT_EQ(blocked->status().code(), StatusCode::kIoError);
  options.nodes = "(";
  EXPECT_THAT(NodeDump::Create(options).status().message(), HasSubstr("regular expression '('"));
}

TEST(Dumps, OtherDtypes) {
  EXPECT_EQ(TensorText(Tensor::Of<BFloat16>(Shape{2}, {1.0f, -2.0f}), 5),
            "bfloat16[2] min -2 max 1 mean -0.5 nan 0 inf 0\n1\n-2\n");
  EXPECT_EQ(TensorText(Tensor::Of<std::string>(Shape{1}, {"text"}), 5), "string[1]\ntext\n");
  EXPECT_EQ(TensorText(Tensor::Zeros(DType::kFloat8E4M3FN, Shape{1}), 5),
            "float8e4m3fn[1] min 0 max 0 mean 0 nan 0 inf 0\n0\n");
  EXPECT_EQ(TensorText(Tensor::Zeros(DType::kFloat32, Shape{0, 2}), 5),
            "float32[0, 2] nan 0 inf 0\n");
}

}  // namespace
}  // namespace caesura::testing
