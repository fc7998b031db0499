// SPDX-License-Identifier: Apache-2.0
// `caesura inspect`: what a model is, what of it cannot run or be trained (all of it at once), and what a run will
// take.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/execute/subgraph.h"
#include "core/graph/op_schema.h"
#include "core/load/model_reader.h"
#include "core/plan/function_expansion.h"
#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "training/command/command.h"
#include "training/command/dim_bindings.h"
#include "training/command/train_options.h"
#include "training/gradient/gradient_builder.h"
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::command {
namespace {

struct InspectOptions {
  std::string path;
  std::vector<std::string> shapes, dims;  // "x=1,3,224,224", "batch=32"
  TrainOptions train;                     // loss and optimizer alone
  bool plan = false;
  std::string cpu_fallback;  // a mode; empty: not asked for
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

void PrintEnds(const char* title, const std::vector<Value*>& values) {
  std::printf("%s\n", title);
  size_t width = 0;
  for (const Value* value : values) width = std::max(width, value->name().size());
  for (const Value* value : values) {
    std::printf("  %-*s  %s\n", static_cast<int>(width), value->name().c_str(), value->type().ToString().c_str());
  }
}

void PrintHead(const InspectOptions& options, const Model& model) {
  std::string opsets;
  for (const auto& [domain, version] : model.opsets) {
    opsets += (opsets.empty() ? "" : ", ") + (domain.empty() ? "ai.onnx" : domain) + " " + std::to_string(version);
  }
  const std::string version = model.producer_version.empty() ? "" : " " + model.producer_version;
  std::printf("%s: ONNX IR version %d, by %s%s\n", options.path.c_str(), model.ir_version,
              model.producer.empty() ? "an unnamed producer" : model.producer.c_str(), version.c_str());
  std::printf("operators as of %s\n", opsets.c_str());
  PrintEnds("inputs", model.graph->inputs());
  PrintEnds("outputs", model.graph->outputs());
  size_t tensors = 0, bytes = 0, constants = 0, constant_bytes = 0;
  int64_t values = 0;
  for (const auto& [value, tensor] : model.graph->initializers()) {
    const bool is_parameter = IsDifferentiable(tensor.dtype());
    ++(is_parameter ? tensors : constants);
    (is_parameter ? bytes : constant_bytes) += tensor.bytes();
    if (is_parameter) values += tensor.elements();
  }
  std::printf("parameters: %zu tensors, %lld values, %s; other initializers: %zu, %s\n", tensors,
              static_cast<long long>(values), Bytes(bytes).c_str(), constants, Bytes(constant_bytes).c_str());
}

const char* KernelWord(const Node& node, const KernelRegistry& kernels) {
  if (!kernels.Find(node).empty()) return "yes";
  const OpSchema* schema = FindOpSchema(node);
  return schema != nullptr && schema->has_function ? "by its body" : "none";
}

const char* GradientWord(const Node& node) {
  const gradient::GradientRule* rule = gradient::FindGradientRule(node);
  if (rule != nullptr) return rule->function == nullptr ? "stops here" : "rule";
  const OpSchema* schema = FindOpSchema(node);
  return schema != nullptr && schema->has_function ? "by its body" : "none";
}

void PrintOps(const Graph& graph, const KernelRegistry& kernels) {
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
  std::printf("ops: %d nodes of %zu kinds\n  %-32s %6s  %-12s %s\n", nodes, rows.size(), "", "count", "kernel",
              "gradient");
  for (const auto& [name, row] : order) {
    std::printf("  %-32s %6d  %-12s %s\n", name.c_str(), row.count, row.kernel.c_str(), row.gradient.c_str());
  }
}

// Every node that nothing can run, with what each candidate kernel says.
Result<int> PrintMissingKernels(const Model& model, const ProviderList& providers) {
  const Model copy = model.Clone();
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*copy.graph, providers));
  static_cast<void>(expanded);
  int missing = 0;
  ForEachNode(*copy.graph, [&](const Node& node) {
    std::string why;
    if (!providers[0]->kernels().Find(node, &why).empty()) return;
    if (missing++ == 0) std::printf("missing kernels\n");
    std::printf("  %s %s\n", node.Label().c_str(), why.c_str());
  });
  if (missing == 0) std::printf("missing kernels: none\n");
  return missing;
}

// Every node that stands between a parameter and an output without a gradient.
void PrintMissingGradients(const Model& model) {
  const Model copy = model.Clone();
  GradientOptions options;
  options.unreachable = UnreachableGradient::kAbsent;
  for (Value* output : copy.graph->outputs()) {
    if (output->type().is_tensor() && IsDifferentiable(output->dtype())) options.ys.push_back({output});
  }
  for (Value* value : copy.graph->Values()) {
    const Tensor* initial = copy.graph->Initializer(value);
    if (initial != nullptr && IsDifferentiable(initial->dtype())) options.xs.push_back(value);
  }
  if (options.ys.empty() || options.xs.empty()) {
    std::printf("missing gradients: not looked for, there are no parameters or no floating outputs\n");
    return;
  }
  const Result<GradientGraph> gradient = BuildGradient(*copy.graph, options);
  if (!gradient.ok()) {
    std::printf("missing gradients\n  %s\n", gradient.status().message().c_str());
    return;
  }
  std::printf("missing gradients: none (%zu backward nodes; %zu of %zu parameters reach an output)\n",
              gradient->nodes.size(), options.xs.size() - gradient->unreachable.size(), options.xs.size());
}

size_t SumOfBuffers(const ExecutionPlan& plan, PlannedBuffer::Kind kind) {
  size_t sum = 0;
  for (const PlannedBuffer& buffer : plan.buffers()) sum += buffer.kind == kind ? buffer.bytes : 0;
  return sum;
}

void PrintMemory(const char* title, const ExecutionPlan& plan) {
  using Kind = PlannedBuffer::Kind;
  const size_t kept = SumOfBuffers(plan, Kind::kConstant) + SumOfBuffers(plan, Kind::kParameter);
  const size_t feeds = SumOfBuffers(plan, Kind::kFeed), fetches = SumOfBuffers(plan, Kind::kFetch);
  const std::vector<size_t> live = plan.LiveBytes();
  std::printf("%s, %zu steps on %d threads\n", title, plan.steps().size(), plan.threads());
  std::printf("  %-22s %10s\n  %-22s %10s\n  %-22s %10s\n", "parameters, constants", Bytes(kept).c_str(), "inputs",
              Bytes(feeds).c_str(), "outputs", Bytes(fetches).c_str());
  std::printf("  %-22s %10s", "everything between", Bytes(plan.arena_bytes()).c_str());
  if (!live.empty()) {
    const auto peak = std::max_element(live.begin(), live.end()) - live.begin();
    const Node* node = plan.steps()[static_cast<size_t>(peak)].node;
    std::printf("  most at step %td%s%s", peak, node == nullptr ? "" : ", ",
                node == nullptr ? "" : node->Label().c_str());
  }
  std::printf("\n  %-22s %10s\n", "together", Bytes(kept + feeds + fetches + plan.arena_bytes()).c_str());
  const auto late = std::count_if(plan.steps().begin(), plan.steps().end(),
                                  [](const Step& step) { return step.kind == Step::Kind::kLate; });
  if (late > 0) std::printf("  and what %td steps take whose sizes show only in the run\n", late);
}

Result<std::shared_ptr<const ExecutionPlan>> RunPlan(const DimBindings& bindings, const Model& model,
                                                     const ProviderList& providers) {
  ASSIGN_OR_RETURN(const std::vector<FeedSpec> feeds, bindings.Feeds(model.graph->inputs()));
  const Model copy = model.Clone();
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*copy.graph, providers));
  static_cast<void>(expanded);
  return ExecutionPlan::Create(copy.graph, feeds, providers, WithSubgraphs({}, providers));
}

// The plan of a step: forward, loss, backward, update.
Result<std::shared_ptr<const ExecutionPlan>> StepPlan(const InspectOptions& options, const DimBindings& bindings,
                                                      const Model& model, const ProviderList& providers) {
  ASSIGN_OR_RETURN(TrainingOptions training, MakeTrainingOptions(options.train, 1, /*is_text=*/false));
  training.providers = providers;
  ASSIGN_OR_RETURN(const auto session, TrainingSession::Create(model.Clone(), std::move(training)));
  std::vector<Value*> inputs;
  for (Value* input : session->step_graph().inputs()) {
    if (!IsProgramInput(input->name())) inputs.push_back(input);
  }
  ASSIGN_OR_RETURN(const std::vector<FeedSpec> specs, bindings.Feeds(inputs));
  NamedValues feeds;
  for (size_t i = 0; i < inputs.size(); ++i)
    feeds[inputs[i]->name()] = Tensor::Zeros(specs[i].dtype, specs[i].shape);
  return session->StepPlan(feeds);
}

// What a run takes, and a step of training where the user says with which loss.
Status PrintPlans(const InspectOptions& options, const Model& model, const ProviderList& providers) {
  ASSIGN_OR_RETURN(const DimBindings bindings, DimBindings::Parse(options.shapes, options.dims));
  ASSIGN_OR_RETURN(const auto run, RunPlan(bindings, model, providers));
  PrintMemory("memory of a run", *run);
  if (options.train.loss.empty()) {
    if (options.plan) std::printf("plan\n%s", run->ToString().c_str());
    return {};
  }
  ASSIGN_OR_RETURN(const auto step, StepPlan(options, bindings, model, providers));
  PrintMemory("memory of a training step", *step);
  if (options.plan) std::printf("plan\n%s", step->ToString().c_str());
  return {};
}

// What the CPU fallback of shape chains would do if a device had all kernels: of a run, or of a step where a loss is given.
Status PrintCpuFallback(const InspectOptions& options, const Model& model) {
  CountingDevice device({.more = RegisterTrainingKernels});
  CpuFallbackOptions fallback;
  ASSIGN_OR_RETURN(fallback.mode, ParseCpuFallbackMode(options.cpu_fallback));
  fallback.report = std::make_shared<CpuFallbackReport>();
  // Data comes on the device, sizes on the host.
  for (const Value* input : model.graph->inputs()) {
    if (!input->type().shape || !input->type().shape->empty()) fallback.device_inputs.insert(input->name());
  }
  Model copy = model.Clone();
  if (!options.train.loss.empty()) {
    ASSIGN_OR_RETURN(TrainingOptions training, MakeTrainingOptions(options.train, 1, /*is_text=*/false));
    ASSIGN_OR_RETURN(const auto session, TrainingSession::Create(std::move(copy), std::move(training)));
    copy = Model();
    copy.graph = session->step_graph().Clone();
  }
  RETURN_IF_ERROR(RunPasses(PlacementPasses(device.providers(), fallback), copy).status());
  std::printf("on a device with all kernels: %s", fallback.report->ToString().c_str());
  return {};
}

int RunInspect(const InspectOptions& options) {
  const Result<Model> model = ReadModel(options.path);
  if (!model.ok()) return Report(model.status());
  const ProviderList providers = {MakeCpuProvider(RegisterTrainingKernels)};
  PrintHead(options, *model);
  PrintOps(*model->graph, providers[0]->kernels());
  const Result<int> missing = PrintMissingKernels(*model, providers);
  if (!missing.ok()) return Report(missing.status());
  PrintMissingGradients(*model);
  if (*missing > 0) return kFailed;
  if (!options.cpu_fallback.empty()) {
    const Status printed = PrintCpuFallback(options, *model);
    if (!printed.ok()) return Report(printed);
  }
  const Status planned = PrintPlans(options, *model, providers);
  if (planned.ok()) return kDone;
  const bool asked =
      options.plan || !options.shapes.empty() || !options.dims.empty() || !options.train.loss.empty();
  if (asked) return Report(planned);
  std::printf("memory: not worked out: %s\n", planned.message().c_str());
  return kDone;
}

}  // namespace

void AddInspect(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* sub = app.add_subcommand("inspect", "Say what a model is, what it lacks, and what running it takes");
  sub->add_option("model", options->path, "The ONNX file")->required();
  sub->add_option("--shape", options->shapes, "Shape of an input, NAME=1,3,224,224; may be repeated")
      ->allow_extra_args(false);
  sub->add_option("--dim", options->dims, "Value of a symbolic dim, NAME=32; may be repeated")
      ->allow_extra_args(false);
  options->train.loss.clear();
  sub->add_option("--loss", options->train.loss,
                  "Also work out a training step with this loss, as for 'caesura train'")
      ->check(CLI::IsMember({"cross-entropy", "mse", "mae", "bce", "output"}));
  sub->add_option("--prediction", options->train.prediction,
                  "The output that the loss is about; by default the first");
  sub->add_option("--class-axis", options->train.class_axis, "cross-entropy: the axis of the classes, 1 or -1");
  sub->add_option("--optimizer", options->train.optimizer, "With --loss")
      ->check(CLI::IsMember({"sgd", "adam", "adamw", "lamb", "lion", "rmsprop"}))
      ->capture_default_str();
  sub->add_flag("--plan", options->plan,
                "Print the execution plan, a line a step (with --loss, that of the step)");
  sub->add_option("--cpu-fallback", options->cpu_fallback,
                  "Print which shape computations would run on the host beside a device that has all kernels, and why: on, "
                  "off, forward or seed (with --loss, of the step)")
      ->check(CLI::IsMember({"on", "off", "forward", "seed"}));
  sub->footer(
      "Memory is worked out for concrete shapes: give every symbolic dim of the inputs by --dim or --shape.\n"
      "Exit code 1 when a kernel is missing or the model cannot be read.\n\n"
      "  caesura inspect net.onnx --dim batch=32 --loss cross-entropy --plan");
  sub->callback([=] { *run = [=] { return RunInspect(*options); }; });
}

}  // namespace caesura::command
