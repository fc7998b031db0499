// SPDX-License-Identifier: Apache-2.0
// Random graphs of shape chains, large integers, floats, branches and loops, on a device with
// random gaps, pins and inputs: results are the CPU's, and the fallback never takes more copies
// than its absence. CAESURA_LONG=1: 10,000 graphs instead of 300.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "graph_transforms/pipeline.h"
#include "tests/graph_transforms/device_run.h"

namespace caesura::testing {
namespace {

// Text of a graph with inputs d0, d1: int64[1]; big: int64[100]; x: float[12].
class RandomGraph {
 public:
  explicit RandomGraph(unsigned seed) : random_(seed) {
    const int nodes = 4 + Below(22);
    for (int i = 0; i < nodes; ++i) AddNode();
    for (int i = 0; i < 3; ++i) AddEnd();
  }
  std::string text() const {
    return "(int64[1] d0, int64[1] d1, int64[100] big, float[12] x) => (" + outputs_ +
           ") <int64[1] zero = {0}, int64[1] one = {1}, int64[1] eight = {8}, int64[2] first = {0, "
           "1}, float[1] row = {2.5}, "
           "int64 trips = {2}, bool go = {1}, int64[0] scalar = {}> {\n" +
           nodes_ + "}";
  }
  int Below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

 private:
  std::string Name(const char* stem) { return stem + std::to_string(count_++); }
  const std::string& Pick(const std::vector<std::string>& from) {
    return from[static_cast<size_t>(Below(from.size()))];
  }
  std::string Op() {
    static const char* kOps[] = {"Add", "Sub", "Max", "Min"};
    return kOps[Below(4)];
  }
  void Write(const std::string& line) { nodes_ += "  [" + Name("node") + "] " + line + "\n"; }

  void AddNode() {
    const std::string out = Name("v");
    switch (Below(12)) {
      case 0:
      case 1:
      case 2: Write(out + " = " + Op() + " (" + Pick(small_) + ", " + Pick(small_) + ")"); break;
      case 3: {
        const std::string pair = Name("pair");
        Write(pair + " = Concat <axis = 0> (" + Pick(small_) + ", " + Pick(small_) + ")");
        Write(out + " = Gather (" + pair + ", " + (Below(2) ? "zero" : "one") + ")");
        break;
      }
      case 4: Write(out + " = ReduceMax <keepdims = 1> (" + Pick(large_) + ", zero)"); break;
      case 5: Write(out + " = ArgMax <axis = 0> (" + Pick(floats_) + ")"); break;
      case 6: AddBranch(out); break;
      case 7: AddLoop(out); break;
      case 8:
        Write(out + " = " + Op() + " (" + Pick(large_) + ", " + Pick(small_) + ")");
        large_.push_back(out);
        return;
      case 9: {
        const std::string cast = Name("cast");
        Write(cast + " = Cast <to = 1> (" + Pick(small_) + ")");
        Write(out + " = Add (" + Pick(floats_) + ", " + cast + ")");
        floats_.push_back(out);
        return;
      }
      case 10:
        Write(out + " = Neg (" + Pick(floats_) + ")");
        floats_.push_back(out);
        return;
      default: {
        const std::string same = Name("same");
        Write(same + " = Unsqueeze (" + Pick(small_) + ", zero)");
        Write(out + " = Squeeze (" + same + ", zero)");
      }
    }
    small_.push_back(out);
  }

  void AddBranch(const std::string& out) {
    const std::string flag = Name("flag"), then_out = Name("t"), else_out = Name("e");
    Write(flag + " = Greater (" + Pick(small_) + ", " + Pick(small_) + ")");
    Write(out + " = If (" + flag + ") <then_branch = then_body () => (int64[1] " + then_out +
          ") { [" + Name("node") + "] " + then_out + " = " + Op() + " (" + Pick(small_) + ", " +
          Pick(small_) + ") }, else_branch = else_body () => (int64[1] " + else_out + ") { [" +
          Name("node") + "] " + else_out + " = " + Op() + " (" + Pick(small_) + ", one) }>");
  }
  void AddLoop(const std::string& out) {
    const std::string i = Name("i"), c = Name("c"), c2 = Name("c"), a = Name("a"), a2 = Name("a"),
                      f = Name("f"), f2 = Name("f"), state = Name("v");
    Write(out + ", " + state + " = Loop (trips, go, " + Pick(small_) + ", " + Pick(floats_) +
          ") <body = body (int64 " + i + ", bool " + c + ", int64[1] " + a + ", float[12] " + f +
          ") => (bool " + c2 + ", int64[1] " + a2 + ", float[12] " + f2 + ") { [" + Name("node") +
          "] " + c2 + " = Identity (" + c + ") [" + Name("node") + "] " + a2 + " = " + Op() + " (" +
          a + ", " + Pick(small_) + ") [" + Name("node") + "] " + f2 + " = Neg (" + f + ") }>");
    floats_.push_back(state);
  }

  // Ops that read shapes of 1 to 8.
  void AddEnd() {
    const std::string low = Name("v"), size = Name("v"), out = Name("y");
    std::string type = "float[A" + out + "]";
    Write(low + " = Max (" + Pick(small_) + ", one)");
    Write(size + " = Min (" + low + ", eight)");
    switch (Below(7)) {
      case 0: Write(out + " = Expand (row, " + size + ")"); break;
      case 1: Write(out + " = Tile (row, " + size + ")"); break;
      case 2: Write(out + " = Slice (" + Pick(floats_) + ", zero, " + size + ")"); break;
      case 3:
        Write(out + ", " + Name("y") + " = TopK (" + Pick(floats_) + ", " + size + ")");
        break;
      case 4: Write(out + " = ConstantOfShape (" + size + ")"); break;
      case 5:
        Write(out + " = Neg (" + Pick(floats_) + ")");
        type = "float[12]";
        break;
      default: Write(out + " = Add (" + size + ", " + Pick(small_) + ")"); type = "int64[1]";
    }
    outputs_ += (outputs_.empty() ? "" : ", ") + type + " " + out;
  }

  std::mt19937 random_;
  int count_ = 0;
  std::string nodes_, outputs_;
  std::vector<std::string> small_ = {"d0", "d1", "one", "zero"}, large_ = {"big"}, floats_ = {"x"};
};

// A random third of the nodes, pinned to random sides. The same for all graphs of the text.
void PinSome(Graph& graph, const std::set<std::string>& without, unsigned seed) {
  std::mt19937 random(seed);
  for (const auto& node : graph.nodes()) {
    const unsigned roll = random() % 20;
    if (roll == 0) node->set_provider(kCpuProviderName);
    if (roll == 1 && !without.count(node->op_type())) node->set_provider("counting:0");
    for (Graph* body : node->Subgraphs()) PinSome(*body, without, seed + 1);
  }
}

TEST(RandomPlacement, KeepsResultsAndNeverAddsCopies) {
  const bool all = std::getenv("CAESURA_LONG") != nullptr;
  const unsigned graphs = all ? 10000 : 300;
  for (unsigned seed = 0; seed < graphs; ++seed) {
    RandomGraph random(seed);
    const std::string text = random.text();
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + text);
    const Values feeds = {Ints(Shape{1}, {random.Below(9)}), Ints(Shape{1}, {random.Below(9)}),
                          Ints(Shape{100}, std::vector<int64_t>(100, random.Below(9))),
                          Ramp(Shape{12})};
    const Values expected = RunOnCpu(GraphOf(text), feeds);
    DeviceRunOptions options;
    for (const char* op :
         {"Add", "Max", "Concat", "Gather", "Greater", "ArgMax", "Expand", "Unsqueeze"}) {
      if (random.Below(8) == 0) options.without.insert(op);
    }
    for (const char* input : {"d0", "d1", "big"}) {
      if (random.Below(input[0] == 'b' ? 2 : 4) == 0) options.device_inputs.insert(input);
    }
    options.fetch_on_host = true;  // as the pass takes small integers to be wanted
    options.fold = random.Below(2) == 0;
    const bool pins = random.Below(2) == 0, passes = random.Below(2) == 0;
    DeviceCounts off;
    for (const CpuFallbackMode mode : {CpuFallbackMode::kOff, CpuFallbackMode::kOn,
                                       CpuFallbackMode::kSeed, CpuFallbackMode::kForward}) {
      options.mode = mode;
      Model model;
      model.graph = GraphOf(text);
      if (passes) {
        ASSERT_TRUE(RunPasses(ForwardPasses(), model).ok());
      }
      if (pins) PinSome(*model.graph, options.without, seed);
      const DeviceRun run = RunOnDevice(model.graph, feeds, options);
      ASSERT_TRUE(SameBits(run.results, expected)) << run.report.ToString();
      if (mode == CpuFallbackMode::kOff) off = run.counts;
      // Without folding a view of a constant costs no copy and what is computed from it does, which
      // the pass leaves aside.
      if (mode != CpuFallbackMode::kOn || !options.fold) continue;
      ASSERT_LE(run.counts.copies_to_host + run.counts.copies_to_device,
                off.copies_to_host + off.copies_to_device)
          << run.report.ToString();
      ASSERT_LE(run.report.to_host_after + run.report.to_device_after,
                run.report.to_host_before + run.report.to_device_before);
    }
  }
}

}  // namespace
}  // namespace caesura::testing
