// SPDX-License-Identifier: Apache-2.0
// `caesura inspect`: describes a model or an exported step, lists at once all that cannot run or be
// trained, and works out the memory of a run and of a step.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/graph/pass.h"
#include "core/kernels/kernel_registry.h"
#include "core/onnx/model_reader.h"
#include "core/plan/function_expansion.h"
#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/runtime/subgraph.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "training/command/command.h"
#include "training/command/dim_bindings.h"
#include "training/command/train/train_options.h"
#include "training/session/exported_step.h"
#include "core/gradient/gradient_builder.h"
#include "core/gradient/gradient_rules.h"
#include "training/step/step_program.h"

namespace caesura::command {
namespace {

struct InspectOptions {
  std::string path;
  std::vector<std::string> shapes, dims;  // "x=1,3,224,224", "batch=32"
  TrainOptions train;                     // only loss and optimizer
  std::optional<StepOptions> step;        // of an exported step
  bool plan = false;
  std::string cpu_fallback;  // a mode; empty: not asked for
  std::string json;          // as AddJsonOption has it
};

// The same facts as text and as JSON.
class Findings {
 public:
  explicit Findings(bool prints) : prints_(prints) {}
  // As printf.
  template <typename... Args>
  void Print(const char* format, Args... args) const {
    if (prints_) std::printf(format, args...);
  }
  void Print(const char* text) const { Print("%s", text); }
  nlohmann::json json;

 private:
  bool prints_;
};

std::string Bytes(size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

// Calls fn(node) for all nodes, those of bodies included.
template <typename Fn>
void ForEachNode(const Graph& graph, const Fn& fn) {
  for (const auto& node : graph.nodes()) {
    fn(*node);
    for (const Graph* body : node->Subgraphs()) ForEachNode(*body, fn);
  }
}

std::string FullName(const Node& node) {
  return node.domain().empty() ? node.op_type() : node.domain() + "::" + node.op_type();
}

void PrintEnds(Findings& out, const char* title, const std::vector<Value*>& values) {
  out.Print("%s\n", title);
  size_t width = 0;
  for (const Value* value : values) width = std::max(width, value->name().size());
  nlohmann::json& list = out.json[title] = nlohmann::json::array();
  for (const Value* value : values) {
    out.Print("  %-*s  %s\n", static_cast<int>(width), value->name().c_str(),
              value->type().ToString().c_str());
    list.push_back({{"name", value->name()}, {"type", value->type().ToString()}});
  }
}

void PrintHead(Findings& out, const InspectOptions& options, const Model& model) {
  std::string opsets;
  for (const auto& [domain, version] : model.opsets) {
    opsets += (opsets.empty() ? "" : ", ") + (domain.empty() ? "ai.onnx" : domain) + " " +
              std::to_string(version);
  }
  const std::string version = model.producer_version.empty() ? "" : " " + model.producer_version;
  out.Print("%s: ONNX IR version %d, by %s%s\n", options.path.c_str(), model.ir_version,
            model.producer.empty() ? "an unnamed producer" : model.producer.c_str(),
            version.c_str());
  out.Print("operators as of %s\n", opsets.c_str());
  out.json["ir_version"] = model.ir_version;
  out.json["opsets"] = model.opsets;
  out.json["producer"] = model.producer + version;
  PrintEnds(out, "inputs", model.graph->inputs());
  PrintEnds(out, "outputs", model.graph->outputs());
  size_t tensors = 0, bytes = 0, constants = 0, constant_bytes = 0;
  int64_t values = 0;
  for (const auto& [value, tensor] : model.graph->initializers()) {
    const bool is_parameter = IsDifferentiable(tensor.dtype());
    ++(is_parameter ? tensors : constants);
    (is_parameter ? bytes : constant_bytes) += tensor.bytes();
    if (is_parameter) values += tensor.elements();
  }
  out.Print("parameters: %zu tensors, %lld values, %s; other initializers: %zu, %s\n", tensors,
            static_cast<long long>(values), Bytes(bytes).c_str(), constants,
            Bytes(constant_bytes).c_str());
  out.json["parameters"] = {{"tensors", tensors}, {"values", values}, {"bytes", bytes}};
  out.json["other_initializers"] = {{"tensors", constants}, {"bytes", constant_bytes}};
}

const char* KernelWord(const Node& node, const KernelRegistry& kernels) {
  if (!kernels.Find(node).empty()) return "yes";
  const OpSchema* schema = FindOpSchema(node);
  return schema != nullptr && schema->has_function ? "by its body" : "none";
}

const char* GradientWord(const Node& node) {
  const GradientRule* rule = gradient::FindGradientRule(node);
  if (rule != nullptr) return !rule->has_gradient() ? "stops here" : "rule";
  const OpSchema* schema = FindOpSchema(node);
  return schema != nullptr && schema->has_function ? "by its body" : "none";
}

void PrintOps(Findings& out, const Graph& graph, const KernelRegistry& kernels) {
  struct Row {
    int count = 0;
    std::string kernel, gradient;
  };
  std::map<std::string, Row> rows;
  int nodes = 0;
  ForEachNode(graph, [&](const Node& node) {
    Row& row = rows[FullName(node)];
    ++nodes;
    const std::string kernel = KernelWord(node, kernels);
    if (row.count++ == 0 || kernel == "none") row.kernel = kernel;
    row.gradient = GradientWord(node);
  });
  std::vector<std::pair<std::string, Row>> order(rows.begin(), rows.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.count > b.second.count; });
  out.Print("ops: %d nodes of %zu kinds\n  %-32s %6s  %-12s %s\n", nodes, rows.size(), "", "count",
            "kernel", "gradient");
  nlohmann::json& list = out.json["ops"] = nlohmann::json::array();
  for (const auto& [name, row] : order) {
    out.Print("  %-32s %6d  %-12s %s\n", name.c_str(), row.count, row.kernel.c_str(),
              row.gradient.c_str());
    list.push_back(
        {{"op", name}, {"count", row.count}, {"kernel", row.kernel}, {"gradient", row.gradient}});
  }
}

// Every node that nothing can run, with what each candidate kernel says.
Result<int> PrintMissingKernels(Findings& out, const Model& model, const ProviderList& providers) {
  const Model copy = model.Clone();
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*copy.graph, providers));
  static_cast<void>(expanded);
  int missing = 0;
  nlohmann::json& list = out.json["missing_kernels"] = nlohmann::json::array();
  ForEachNode(*copy.graph, [&](const Node& node) {
    std::string why;
    if (!providers[0]->kernels().Find(node, &why).empty()) return;
    if (missing++ == 0) out.Print("missing kernels\n");
    out.Print("  %s %s\n", node.Label().c_str(), why.c_str());
    list.push_back({{"node", node.Label()}, {"reason", why}});
  });
  if (missing == 0) out.Print("missing kernels: none\n");
  return missing;
}

// Every node that stands between a parameter and an output without a gradient.
void PrintMissingGradients(Findings& out, const Model& model) {
  const Model copy = model.Clone();
  GradientOptions options;
  options.unreachable = UnreachableGradient::kAbsent;
  for (Value* output : copy.graph->outputs()) {
    if (output->type().is_tensor() && IsDifferentiable(output->dtype()))
      options.ys.push_back({output});
  }
  for (Value* value : copy.graph->Values()) {
    const Tensor* initial = copy.graph->Initializer(value);
    if (initial != nullptr && IsDifferentiable(initial->dtype())) options.xs.push_back(value);
  }
  if (options.ys.empty() || options.xs.empty()) {
    out.Print(
        "missing gradients: not looked for, there are no parameters or no floating outputs\n");
    return;
  }
  const Result<GradientGraph> gradient = BuildGradient(*copy.graph, options);
  if (!gradient.ok()) {
    out.Print("missing gradients\n  %s\n", gradient.status().message().c_str());
    out.json["missing_gradients"] = gradient.status().message();
    return;
  }
  out.json["missing_gradients"] = nullptr;
  out.Print("missing gradients: none (%zu backward nodes; %zu of %zu parameters reach an output)\n",
            gradient->nodes.size(), options.xs.size() - gradient->unreachable.size(),
            options.xs.size());
}

size_t SumOfBuffers(const ExecutionPlan& plan, PlannedBuffer::Kind kind) {
  size_t sum = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) sum += buffer.kind == kind ? buffer.bytes : 0;
  return sum;
}

void PrintMemory(Findings& out, const char* title, const ExecutionPlan& plan) {
  using Kind = PlannedBuffer::Kind;
  const size_t kept = SumOfBuffers(plan, Kind::kConstant) + SumOfBuffers(plan, Kind::kParameter);
  const size_t feeds = SumOfBuffers(plan, Kind::kFeed), fetches = SumOfBuffers(plan, Kind::kFetch);
  const std::vector<size_t> live = plan.LiveBytes();
  out.Print("%s, %zu steps on %d threads\n", title, plan.steps().size(), plan.threads());
  out.Print("  %-22s %10s\n  %-22s %10s\n  %-22s %10s\n", "parameters, constants",
            Bytes(kept).c_str(), "inputs", Bytes(feeds).c_str(), "outputs", Bytes(fetches).c_str());
  out.Print("  %-22s %10s", "everything between", Bytes(plan.arena_bytes()).c_str());
  if (!live.empty()) {
    const auto peak = std::max_element(live.begin(), live.end()) - live.begin();
    const Node* node = plan.steps()[static_cast<size_t>(peak)].node;
    out.Print("  most at step %td%s%s", peak, node == nullptr ? "" : ", ",
              node == nullptr ? "" : node->Label().c_str());
  }
  out.Print("\n  %-22s %10s\n", "together",
            Bytes(kept + feeds + fetches + plan.arena_bytes()).c_str());
  nlohmann::json& memory = out.json[title] = {{"parameters_and_constants", kept},
                                              {"inputs", feeds},
                                              {"outputs", fetches},
                                              {"arena", plan.arena_bytes()},
                                              {"steps", plan.steps().size()},
                                              {"threads", plan.threads()}};
  const auto late =
      std::count_if(plan.steps().begin(), plan.steps().end(),
                    [](const PlanStep& step) { return step.kind == PlanStep::Kind::kDynamic; });
  memory["steps_sized_at_run_time"] = late;
  if (late > 0) out.Print("  and what %td steps take whose sizes show only at run time\n", late);
}

Result<std::shared_ptr<const ExecutionPlan>> RunPlan(const DimBindings& bindings,
                                                     const Model& model,
                                                     const ProviderList& providers) {
  ASSIGN_OR_RETURN(const std::vector<FeedSpec> feeds, bindings.Feeds(model.graph->inputs()));
  const Model copy = model.Clone();
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*copy.graph, providers));
  static_cast<void>(expanded);
  return ExecutionPlan::Create(copy.graph, feeds, providers, WithSubgraphs({}, providers));
}

// Prints the memory of a step: forward, loss, backward, update. Gives its plan.
Result<std::shared_ptr<const ExecutionPlan>> PrintStepMemory(Findings& out,
                                                             const InspectOptions& options,
                                                             const DimBindings& bindings,
                                                             const Model& model,
                                                             const ProviderList& providers) {
  TrainingOptions training;
  if (options.step) {
    training.step = *options.step;
  } else {
    ASSIGN_OR_RETURN(training, MakeTrainingOptions(options.train, 1, /*is_text=*/false));
  }
  training.providers = providers;
  ASSIGN_OR_RETURN(const auto session, TrainingSession::Create(model.Clone(), std::move(training)));
  std::vector<Value*> inputs;
  for (Value* input : session->runs().step_graph().inputs()) {
    if (!IsProgramInput(input->name())) inputs.push_back(input);
  }
  ASSIGN_OR_RETURN(const std::vector<FeedSpec> specs, bindings.Feeds(inputs));
  NamedValues feeds;
  for (size_t i = 0; i < inputs.size(); ++i)
    feeds[inputs[i]->name()] = Tensor::Zeros(specs[i].dtype, specs[i].shape);
  ASSIGN_OR_RETURN(const auto plan, session->runs().Plan(feeds));
  ASSIGN_OR_RETURN(const StepMemory memory, session->MemoryOf(feeds));
  constexpr const char* kTitle = "memory of a training step";
  PrintMemory(out, kTitle, *plan);
  out.Print("  of it\n  %-22s %10s\n  %-22s %10s  within what is between\n  %-22s %10s\n",
            "trained parameters", Bytes(memory.kept.parameters).c_str(), "gradients",
            Bytes(memory.kept.gradients).c_str(), "optimizer state",
            Bytes(memory.kept.optimizer_state).c_str());
  out.json[kTitle]["trained_parameters"] = memory.kept.parameters;
  out.json[kTitle]["gradients"] = memory.kept.gradients;
  out.json[kTitle]["optimizer_state"] = memory.kept.optimizer_state;
  out.json[kTitle]["peak"] = memory.peak;
  return plan;
}

// The memory of a run; that of a training step, too, of an exported step or where the user names
// the loss.
Status PrintPlans(Findings& out, const InspectOptions& options, const Model& model,
                  const ProviderList& providers) {
  ASSIGN_OR_RETURN(const DimBindings bindings, DimBindings::Parse(options.shapes, options.dims));
  ASSIGN_OR_RETURN(const auto run, RunPlan(bindings, model, providers));
  PrintMemory(out, "memory of a run", *run);
  const auto print_plan = [&](const ExecutionPlan& plan) {
    if (!options.plan) return;
    const std::string text = plan.ToString();
    out.Print("plan\n%s", text.c_str());
    out.json["plan"] = text;
  };
  if (!options.train.has_loss) return print_plan(*run), Status();
  ASSIGN_OR_RETURN(const auto step, PrintStepMemory(out, options, bindings, model, providers));
  return print_plan(*step), Status();
}

// Prints which shape chains would run on the host if a device had all kernels: of a run, or of a
// step where a loss is given.
Status PrintCpuFallback(Findings& out, const InspectOptions& options, const Model& model) {
  CountingDevice device({});
  CpuFallbackOptions fallback;
  ASSIGN_OR_RETURN(fallback.mode, ParseCpuFallbackMode(options.cpu_fallback));
  fallback.report = std::make_shared<CpuFallbackReport>();
  // Data comes on the device, sizes on the host.
  for (const Value* input : model.graph->inputs()) {
    if (!input->type().shape || !input->type().shape->empty())
      fallback.device_inputs.insert(input->name());
  }
  Model copy = model.Clone();
  if (options.train.has_loss) {
    TrainingOptions training;
    if (options.step) {
      training.step = *options.step;
    } else {
      ASSIGN_OR_RETURN(training, MakeTrainingOptions(options.train, 1, /*is_text=*/false));
    }
    ASSIGN_OR_RETURN(const auto session,
                     TrainingSession::Create(std::move(copy), std::move(training)));
    copy = Model();
    copy.graph = session->runs().step_graph().Clone();
  }
  RETURN_IF_ERROR(RunPasses(PlacementPasses(device.providers(), fallback), copy).status());
  const std::string text = fallback.report->ToString();
  out.Print("on a device with all kernels: %s", text.c_str());
  out.json["cpu_fallback"] = text;
  return {};
}

// Exported steps: reads the step's options, and prints them with the place where its training
// stands.
Status PrintStep(Findings& out, InspectOptions& options, const Model& model) {
  ASSIGN_OR_RETURN(options.step, ReadStepOptions(model));
  options.train.has_loss = true;  // a step is planned
  const StepOptions& step = *options.step;
  TrainingOptions training;
  training.step = step;
  ASSIGN_OR_RETURN(const auto session, OpenStep(options.path, std::move(training)));
  const auto written = nlohmann::json::parse(model.metadata.at(kStepMetadata));
  const std::string optimizer = written.at("optimizer").get<std::string>();
  out.Print(
      "exported step: %s on %zu parameters, loss '%s', learning rate %.4g, clip_norm %.4g, "
      "accumulation_steps %d; "
      "%lld updates done\n",
      optimizer.c_str(), session->parameters().Names().size(), step.loss.prediction.c_str(),
      session->progress().learning_rate(), step.clip_norm, step.accumulation_steps,
      static_cast<long long>(session->progress().updates));
  out.json["step"] = {{"optimizer", optimizer},
                      {"loss", step.loss.prediction},
                      {"learning_rate", session->progress().learning_rate()},
                      {"clip_norm", step.clip_norm},
                      {"accumulation_steps", step.accumulation_steps},
                      {"updates", session->progress().updates}};
  return {};
}

Result<ExitCode> Inspect(Findings& out, InspectOptions& options) {
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(options.path));
  ASSIGN_OR_RETURN(const Model model,
                   ReadModel(exported ? ExportedModelPath(options.path) : options.path));
  const ProviderList providers = {MakeCpuProvider()};
  PrintHead(out, options, model);
  if (exported) RETURN_IF_ERROR(PrintStep(out, options, model));
  PrintOps(out, *model.graph, providers[0]->kernels());
  ASSIGN_OR_RETURN(const int missing, PrintMissingKernels(out, model, providers));
  PrintMissingGradients(out, model);
  if (missing > 0) return kFailed;
  if (!options.cpu_fallback.empty()) RETURN_IF_ERROR(PrintCpuFallback(out, options, model));
  const Status planned = PrintPlans(out, options, model, providers);
  if (planned.ok()) return kDone;
  const bool asked = options.plan || !options.shapes.empty() || !options.dims.empty() ||
                     (options.train.has_loss && !exported);
  if (asked) return planned;
  out.Print("memory: not worked out: %s\n", planned.message().c_str());
  return kDone;
}

int RunInspect(InspectOptions& options) {
  Findings out(!OnlyJson(options.json));
  const Result<ExitCode> code = Inspect(out, options);
  if (!code.ok()) return Report(code.status());
  const Status written = WriteJson(out.json, options.json);
  return written.ok() ? *code : Report(written);
}

}  // namespace

void AddInspect(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* sub =
      app.add_subcommand("inspect", "Describe a model: inputs, ops, missing kernels, memory");
  sub->add_option("model", options->path, "The ONNX file, or the folder of an exported step")
      ->required();
  sub->add_option("--shape", options->shapes,
                  "Shape of an input, NAME=1,3,224,224; may be repeated")
      ->allow_extra_args(false);
  sub->add_option("--dim", options->dims, "Value of a symbolic dim, NAME=32; may be repeated")
      ->allow_extra_args(false);
  options->train.has_loss = false;
  AddLossOptions(*sub, &options->train);
  AddOptimizerOption(*sub, &options->train);
  sub->add_flag("--plan", options->plan,
                "Print the execution plan, a line a step (with --loss, that of the step)");
  sub->add_option("--cpu-fallback", options->cpu_fallback,
                  "Print which shape computations would run on the host beside a device that has "
                  "all kernels, and why: on, "
                  "off, forward or seed (with --loss, of the step)")
      ->check(CLI::IsMember({"on", "off", "forward", "seed"}));
  AddJsonOption(*sub, &options->json);
  sub->footer(
      "Memory is worked out for concrete shapes: give every symbolic dim of the inputs by --dim or "
      "--shape.\n"
      "Exit code 1 when a kernel is missing or the model cannot be read.\n\n"
      "  caesura inspect net.onnx --dim batch=32 --loss cross_entropy --plan");
  sub->callback([=] { *run = [=] { return RunInspect(*options); }; });
}

}  // namespace caesura::command
