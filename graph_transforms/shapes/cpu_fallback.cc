// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/cpu_fallback.h"

#include <map>

#include "core/base/env.h"
#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "graph_transforms/shapes/cpu_fallback_modes.h"
#include "graph_transforms/shapes/shape_cut.h"

namespace caesura {
namespace {

constexpr std::pair<const char*, CpuFallbackMode> kModes[] = {
    {"off", CpuFallbackMode::kOff},
    {"forward", CpuFallbackMode::kForward},
    {"seed", CpuFallbackMode::kSeed},
    {"on", CpuFallbackMode::kOn},
};

using Twins = std::unordered_map<const Value*, Value*>;

// Puts a copy of each such node after it, which runs on the device; the node itself keeps its names
// and goes to the host. Returns the values of the copies by the values that they stand for.
Twins AddTwins(const std::vector<Node*>& both) {
  Twins twins;
  std::map<Graph*, GraphEdit> edits;
  for (const Node* node : both) {
    Graph& graph = *node->graph();
    std::vector<Value*> outputs;
    for (const Value* output : node->outputs()) {
      outputs.push_back(output == nullptr
                            ? nullptr
                            : graph.AddValue(output->name() + "_on_device", output->type()));
      if (output != nullptr) twins[output] = outputs.back();
    }
    const Node* twin =
        graph.CloneNode(*node, node->inputs(), std::move(outputs), node->name() + "_on_device");
    edits.try_emplace(&graph, graph).first->second.MoveAfter(*twin, *node);
  }
  return twins;
}

class CpuFallback : public Pass {
 public:
  CpuFallback(ProviderList providers, CpuFallbackOptions options)
      : providers_(std::move(providers)), options_(std::move(options)) {}
  const char* name() const override { return "cpu_fallback"; }

  Result<bool> Run(Model& model) override {
    CpuFallbackReport report;
    RETURN_IF_ERROR(ChooseMode(&report.mode));
    if (DevicesOf(providers_).size() == 1) return false;
    const ShapeChains chains(*model.graph, providers_, options_.device_inputs, options_.keep);
    for (const CopyCount& before : chains.Copies()) {
      report.to_host_before += before.to_host;
      report.to_device_before += before.to_device;
    }
    bool changed = false;
    if (report.mode == CpuFallbackMode::kOn) changed = MoveChains(*model.graph, chains, &report);
    else if (report.mode != CpuFallbackMode::kOff)
      changed = MoveChosen(*model.graph, chains, &report);
    for (const CopyCount& after : CopiesOf(*model.graph)) {
      report.to_host_after += after.to_host;
      report.to_device_after += after.to_device;
    }
    LogVerbose(1, report.ToString());
    if (options_.report != nullptr) *options_.report = std::move(report);
    return changed;
  }

 private:
  Status ChooseMode(CpuFallbackMode* mode) const {
    const std::string text = env::AggressiveCpuFallback();
    *mode = CpuFallbackMode::kOn;
    if (options_.mode) *mode = *options_.mode;
    if (options_.mode || text.empty()) return {};
    auto parsed = ParseCpuFallbackMode(text);
    if (!parsed.ok()) return parsed.status().WithPrefix("CAESURA_AGGRESSIVE_CPU_FALLBACK: ");
    *mode = *parsed;
    return {};
  }
  std::vector<CopyCount> CopiesOf(Graph& graph) const {
    return ShapeChains(graph, providers_, options_.device_inputs, options_.keep).Copies();
  }

  bool MoveChosen(Graph& graph, const ShapeChains& chains, CpuFallbackReport* report) const;
  bool MoveChains(Graph& graph, const ShapeChains& chains, CpuFallbackReport* report) const;
  bool MayMoveBodies(const Graph& graph, const ShapeCut& cut) const;
  static bool Apply(const ShapeChains& chains, const ShapeCut& cut);
  static void TurnReaders(const ShapeChains& chains, const ShapeCut& cut, const Twins& twins);
  static void TurnResults(const ShapeChains& chains, const ShapeCut& cut, const Twins& twins);
  static void Describe(const ShapeChains& chains, const ShapeCut& cut, CpuFallbackReport* report);

  ProviderList providers_;
  CpuFallbackOptions options_;
};

bool CpuFallback::MoveChosen(Graph& graph, const ShapeChains& chains,
                             CpuFallbackReport* report) const {
  const bool seed = report->mode == CpuFallbackMode::kSeed;
  const std::unordered_set<const Node*> moved =
      seed ? SeedFallback(graph, chains) : ForwardFallback(graph, chains);
  for (const auto& node : graph.nodes()) {
    if (!moved.count(node.get())) continue;
    node->set_provider(chains.host().name());
    report->moved.push_back({node->Label(), "chosen"});
  }
  return !moved.empty();
}

// True if no graph has more copies when the values that If and Loop hand on are moved: shown on
// copies of the model.
bool CpuFallback::MayMoveBodies(const Graph& graph, const ShapeCut& cut) const {
  if (!cut.settles()) return false;
  std::vector<CopyCount> counts[2];
  for (const bool move : {false, true}) {
    const std::unique_ptr<Graph> copy = graph.Clone();
    const ShapeChains chains(*copy, providers_, options_.device_inputs, options_.keep);
    Apply(chains, ShapeCut(chains, move));
    counts[move] = CopiesOf(*copy);
  }
  for (size_t i = 0; i < counts[0].size(); ++i) {
    if (counts[1][i].to_host > counts[0][i].to_host ||
        counts[1][i].to_device > counts[0][i].to_device)
      return false;
  }
  return true;
}

bool CpuFallback::MoveChains(Graph& graph, const ShapeChains& chains,
                             CpuFallbackReport* report) const {
  const ShapeCut with_bodies(chains, /*move_bodies=*/true);
  const bool as_it_is = !with_bodies.settles() || MayMoveBodies(graph, with_bodies);
  const ShapeCut cut = as_it_is ? with_bodies : ShapeCut(chains, /*move_bodies=*/false);
  Describe(chains, cut, report);
  return Apply(chains, cut);
}

// Readers on the device turn to the copies. A node that is there twice reads on both sides.
void CpuFallback::TurnReaders(const ShapeChains& chains, const ShapeCut& cut, const Twins& twins) {
  for (Node* node : chains.nodes()) {
    const bool only_host = cut.OnHost(*node) && !cut.OnDevice(*node);
    if (chains.RunsOnHost(*node) || only_host) continue;
    Node* reader = node;
    for (const Value* output : node->outputs()) {
      if (cut.OnHost(*node) && output != nullptr) reader = twins.at(output)->producer();
    }
    for (int i = 0; i < static_cast<int>(node->inputs().size()); ++i) {
      const auto twin = twins.find(node->input(i));
      if (twin != twins.end() && !chains.ReadsOnHost(*node, i)) reader->SetInput(i, twin->second);
    }
  }
}

// So does what If and Loop hand on from the device.
void CpuFallback::TurnResults(const ShapeChains& chains, const ShapeCut& cut, const Twins& twins) {
  for (const BodyResult& on : chains.body_results()) {
    const bool settled = on.results.empty() || chains.IsOnHost(on.results.front()) ||
                         cut.IsSettled(on.results.front());
    for (const auto& [source, graph] : on.sources) {
      const auto twin = twins.find(source);
      if (settled || twin == twins.end()) continue;
      const bool inside = graph != on.owner->graph();  // a result of a body
      for (int i = 0; inside && i < static_cast<int>(graph->outputs().size()); ++i) {
        if (graph->outputs()[i] == source) graph->SetOutput(i, twin->second);
      }
      for (int i = 2; !inside && i < static_cast<int>(on.owner->inputs().size()); ++i) {
        if (on.owner->input(i) == source) on.owner->SetInput(i, twin->second);
      }
    }
  }
}

bool CpuFallback::Apply(const ShapeChains& chains, const ShapeCut& cut) {
  std::vector<Node*> both;
  bool changed = false;
  for (Node* node : chains.nodes()) {
    if (!cut.OnHost(*node)) continue;
    changed = true;
    if (cut.OnDevice(*node)) both.push_back(node);
  }
  const Twins twins = AddTwins(both);
  TurnReaders(chains, cut, twins);
  TurnResults(chains, cut, twins);
  for (Node* node : chains.nodes()) {
    if (cut.OnHost(*node)) node->set_provider(chains.host().name());
  }
  return changed;
}

void CpuFallback::Describe(const ShapeChains& chains, const ShapeCut& cut,
                           CpuFallbackReport* report) {
  auto host_reader = [&](const Value* value) -> std::string {
    for (const ValueRead& read : chains.reads(value)) {
      if (read.anywhere || !read.on_host || chains.IsMovable(read.node)) continue;
      return read.node == nullptr ? "as an output of '" + read.graph->name() + "'"
                                  : "by " + read.node->Label();
    }
    return {};
  };
  for (const Node* node : chains.nodes()) {
    if (!cut.OnHost(*node)) continue;
    for (const Value* output : node->outputs()) {
      if (output == nullptr) continue;
      const std::string reader = host_reader(output);
      std::string what = "made on the host by " + node->Label();
      what += reader.empty() ? ": a link of a chain there, saves a kernel of the device"
                             : ": read there " + reader + ", saves a copy that the host waits for";
      if (cut.OnDevice(*node)) what += "; also made on the device, for its readers there";
      report->moved.push_back({output->name(), what});
    }
  }
  auto stop = [&](const Value* value) {
    if (chains.IsOnHost(value) || cut.IsSettled(value) || ShapeChains::IsConstant(value)) return;
    const Node* maker = value->producer();
    const std::string shape = WhyNoShape(value), reader = host_reader(value);
    if (!cut.IsCopiedToHost(value) && (shape.empty() || reader.empty())) return;
    std::string why = !shape.empty()     ? "it " + shape
                      : maker == nullptr ? std::string("it is given on the device")
                                         : maker->Label() + " " + chains.WhyNotMovable(*maker);
    if (maker != nullptr && chains.IsMovable(maker))
      why = "all ways to make it on the host take more copies";
    report->stopped.push_back(
        {value->name(),
         "copied to the host" + (reader.empty() ? "" : ", read there " + reader) + ": " + why});
  };
  for (const Graph* graph : chains.graphs()) {
    for (const Value* value : chains.values(graph)) stop(value);
  }
}

}  // namespace

Result<CpuFallbackMode> ParseCpuFallbackMode(const std::string& text) {
  for (const auto& [name, mode] : kModes) {
    if (text == name) return mode;
  }
  return InvalidArgument("expected on, off, seed or forward, got '" + text + "'");
}

std::string CpuFallbackReport::ToString() const {
  std::string out = "CPU fallback of shape chains: ";
  for (const auto& [name, named] : kModes) out += named == mode ? name : "";
  out += "; copies a run " + std::to_string(to_host_before) + " -> " +
         std::to_string(to_host_after) + " to the host, " + std::to_string(to_device_before) +
         " -> " + std::to_string(to_device_after) + " to a device\n";
  for (const Line& line : moved) out += "  moved " + line.value + ": " + line.what + "\n";
  for (const Line& line : stopped) out += "  stays " + line.value + ": " + line.what + "\n";
  return out;
}

std::shared_ptr<Pass> MakeCpuFallbackPass(ProviderList providers, CpuFallbackOptions options) {
  return std::make_shared<CpuFallback>(std::move(providers), std::move(options));
}

}  // namespace caesura
