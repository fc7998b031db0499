// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/captured_graph.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/execute/execution_observer.h"
#include "core/onnx/model_reader.h"
#include "core/providers/cpu_provider.h"
#include "torch_bridge/aten_call.h"
#include "torch_bridge/aten_op.h"
#include "torch_bridge/checked.h"
#include "torch_bridge/torch_stream.h"
#include "torch_bridge/torch_tensor.h"
#include "training/step/parameters.h"

namespace caesura::torch {
namespace {

using c10::IValue;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// "value" or "list", where `encoded` is a tuple.
std::string Tag(const IValue& encoded) {
  return encoded.isTuple() ? encoded.toTupleRef().elements().at(0).toStringRef() : std::string();
}

// PyTorch's count of changes in place to a value; none where the value is no tensor, or one without
// a count.
c10::VariableVersion VersionOf(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().is_inference())
    return c10::VariableVersion(c10::VariableVersion::DISABLED);
  return value.toTensor().unsafeGetTensorImpl()->version_counter();
}

// Shows PyTorch's profiler the steps of a program by their ops, beside its own.
class ProfiledSteps : public ExecutionObserver {
 public:
  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState&, int step) override {
    record_.emplace(at::RecordScope::FUNCTION);
    if (!record_->isActive()) return;
    name_ = "caesura::" + plan.steps()[step].node->op_type();
    record_->before(std::string_view(name_));
  }
  void OnStepEnd(const ExecutionPlan&, const ExecutionState&, int, const Status&) override {
    record_.reset();
  }

 private:
  std::string name_;  // read while the record is open
  std::optional<at::RecordFunction> record_;
};

}  // namespace

std::tuple<double, int64_t, double, int64_t> CallCounters::Take() {
  return {1e-9 * static_cast<double>(program_.nanoseconds.exchange(0)), program_.calls.exchange(0),
          1e-9 * static_cast<double>(operator_.nanoseconds.exchange(0)),
          operator_.calls.exchange(0)};
}

void CapturedGraph::Add(Step step) {
  const auto check = [&](int64_t i) {
    TORCH_CHECK(i >= 0 && i < value_count(), "the graph has no value ", i);
  };
  for (const std::vector<int64_t>* numbers : {&step.reads, &step.writes, &step.dead}) {
    for (int64_t i : *numbers) check(i);
  }
  for (const Argument& argument : step.arguments) {
    for (const Item& item : argument.items) {
      if (item.from != -1) check(item.from);
    }
  }
  steps_.push_back(std::move(step));
}

void CapturedGraph::AddProgram(const at::Tensor& model, std::vector<int64_t> reads,
                               std::vector<int64_t> writes, std::vector<int64_t> dead) {
  const std::string_view bytes(static_cast<const char*>(model.const_data_ptr()), model.numel());
  const auto provider = [] {
    return MakeCpuProvider([](KernelRegistry& registry) { RegisterAtenKernels(registry); });
  };
  Step step{Checked(OpenCaptured(Checked(ReadModelBytes(bytes)), gpu_, provider, /*threads=*/0)),
            std::nullopt};
  step.reads = std::move(reads);
  step.writes = std::move(writes);
  step.dead = std::move(dead);
  Add(std::move(step));
}

void CapturedGraph::AddPart(std::vector<int64_t> writes, std::vector<int64_t> dead) {
  const auto last = std::find_if(steps_.rbegin(), steps_.rend(),
                                 [](const Step& step) { return step.program != nullptr; });
  TORCH_CHECK(last != steps_.rend(), "a part of no program");
  Step step{last->program, std::nullopt};
  step.is_part = true;
  step.writes = std::move(writes);
  step.dead = std::move(dead);
  Add(std::move(step));
}

void CapturedGraph::AddCut() {
  Step step{nullptr, std::nullopt};
  step.is_cut = true;
  Add(std::move(step));
  ++cut_count_;
}

CapturedGraph::Item CapturedGraph::MakeItem(const IValue& encoded) {
  if (Tag(encoded) != "value") return {-1, encoded};
  return {encoded.toTupleRef().elements().at(1).toInt(), {}};
}

void CapturedGraph::AddOperator(const std::string& name, const std::string& overload,
                                const IValue& arguments, int64_t writes, bool counts,
                                std::vector<int64_t> dead) {
  Step step{nullptr,
            c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())};
  const auto& formals = step.op->schema().arguments();
  const auto& given = arguments.toTupleRef().elements();
  TORCH_CHECK(given.size() == formals.size(), name, " takes ", formals.size(), " arguments, got ",
              given.size());
  for (size_t i = 0; i < formals.size(); ++i) {
    Argument argument{formals[i].real_type()};
    argument.is_list = Tag(given[i]) == "list";
    if (argument.is_list) {
      const auto& items = given[i].toTupleRef().elements();
      for (size_t k = 1; k < items.size(); ++k) argument.items.push_back(MakeItem(items[k]));
    } else {
      argument.items.push_back(MakeItem(given[i]));
    }
    step.arguments.push_back(std::move(argument));
  }
  step.counts = counts;
  step.writes = {writes};
  step.dead = std::move(dead);
  Add(std::move(step));
}

namespace {

constexpr char kTooLarge[] = "a size does not fit into 64 bits";

int64_t Times(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(!__builtin_mul_overflow(a, b, &result), kTooLarge);
  return result;
}

int64_t Difference(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(!__builtin_sub_overflow(a, b, &result), kTooLarge);
  return result;
}

int64_t Sum(int64_t a, int64_t b) {
  int64_t result = 0;
  TORCH_CHECK(!__builtin_add_overflow(a, b, &result), kTooLarge);
  return result;
}

// Rounded down, as Python does. The processor ends the process where it divides by 0, or the least
// number by -1.
int64_t FloorDivision(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by zero");
  if (b == -1) return Difference(0, a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

// With the sign of b.
int64_t Remainder(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

}  // namespace

void CapturedGraph::AddSize(const std::string& name, const IValue& arguments, int64_t writes,
                            std::vector<int64_t> dead) {
  using Function = int64_t (*)(int64_t, int64_t);
  static const std::pair<const char*, Function> kFunctions[] = {
      {"add", Sum},
      {"sub", Difference},
      {"mul", Times},
      {"neg", [](int64_t a, int64_t) { return Difference(0, a); }},
      {"floordiv", FloorDivision},
      {"mod", Remainder},
      {"ge", [](int64_t a, int64_t b) { return int64_t{a >= b}; }},
      {"le", [](int64_t a, int64_t b) { return int64_t{a <= b}; }},
      {"gt", [](int64_t a, int64_t b) { return int64_t{a > b}; }},
      {"lt", [](int64_t a, int64_t b) { return int64_t{a < b}; }},
      {"eq", [](int64_t a, int64_t b) { return int64_t{a == b}; }},
      {"ne", [](int64_t a, int64_t b) { return int64_t{a != b}; }}};
  Step step{nullptr, std::nullopt};
  for (const auto& [known, function] : kFunctions) {
    if (name == known) step.size = function;
  }
  TORCH_CHECK(step.size, "there is no function '", name, "' of sizes");
  step.arguments.emplace_back();
  for (const IValue& argument : arguments.toTupleRef().elements())
    step.arguments[0].items.push_back(MakeItem(argument));
  TORCH_CHECK(!step.arguments[0].items.empty(), "a function of no sizes");
  step.writes = {writes};
  step.dead = std::move(dead);
  Add(std::move(step));
}

int64_t CapturedGraph::IntOf(const Item& item, const Values& values) {
  return (item.from < 0 ? item.constant : values[item.from]).toInt();
}

void CapturedGraph::AddElement(int64_t reads, int64_t index, int64_t writes,
                               std::vector<int64_t> dead) {
  Step step{nullptr, std::nullopt};
  step.index = index;
  step.reads = {reads};
  step.writes = {writes};
  step.dead = std::move(dead);
  Add(std::move(step));
}

void CapturedGraph::RunProgram(const Step& step, Progress& progress) const {
  Values& values = progress.values;
  ProfiledSteps profiled;
  std::vector<ExecutionObserver*> observers;
  if (at::hasCallbacks()) observers = {&profiled};
  if (gpu_) Checked(WaitForTorch(*gpu_));
  RunResult run;
  if (step.is_part) {
    TORCH_CHECK(progress.program, "a program has fewer yields than parts");
    run = step.program->Resume(std::move(progress.program), std::move(observers));
  } else {
    run = StartProgram(step, values, std::move(observers));
  }
  if (gpu_) Checked(TorchWaits(*gpu_));
  TORCH_CHECK(run.status.ok(), run.status.message());
  const std::vector<RuntimeValue>& results = run.values;
  TORCH_CHECK(results.size() == step.writes.size(), "a program gives ", results.size(),
              " values, not ", step.writes.size());
  if (run.suspended && !step.is_part) {
    progress.program_reads.clear();
    for (int64_t i : step.reads) progress.program_reads.push_back(VersionOf(values[i]));
  }
  progress.program = std::move(run.suspended);
  for (size_t k = 0; k < results.size(); ++k) {
    const Tensor& result = results[k].tensor();
    if (!gpu_) {
      values[step.writes[k]] = Checked(ToTorch(result));
      continue;
    }
    const at::Tensor made = Checked(ToTorch(LentToTorch(result, gpu_)));
    values[step.writes[k]] = made.to(TorchDeviceOf(gpu_->device()).value());
  }
}

RunResult CapturedGraph::StartProgram(const Step& step, const Values& values,
                                      std::vector<ExecutionObserver*> observers) {
  std::vector<RuntimeValue> feeds;
  feeds.reserve(step.reads.size());
  std::vector<FeedSpec> known;
  for (int64_t i : step.reads) {
    if (values[i].isInt()) {  // shapes follow from it: the plan is made for its value
      known.resize(feeds.size() + 1);
      known.back().value = Tensor::Scalar(values[i].toInt());
      feeds.emplace_back(known.back().value);
    } else {
      feeds.emplace_back(Checked(FromTorch(values[i].toTensor())));
    }
  }
  RunOptions options;
  options.observers = std::move(observers);
  return step.program->Run({.feeds = std::move(feeds),
                            .options = std::move(options),
                            .plan = {.known = std::move(known)},
                            .stops_at_yields = true});
}

void CapturedGraph::RunOperator(const Step& step, Values& values) {
  std::vector<IValue> stack;
  stack.reserve(step.arguments.size());
  for (const Argument& argument : step.arguments) {
    std::vector<IValue> items;
    for (const Item& item : argument.items)
      items.push_back(item.from < 0 ? item.constant : values[item.from]);
    stack.push_back(argument.is_list ? ListArgument(argument.type, items)
                                     : ItemArgument(argument.type, items[0]));
  }
  step.op->callBoxed(&stack);
  values[step.writes[0]] = stack.size() == 1 ? std::move(stack[0])
                                             : IValue(c10::ivalue::Tuple::create(std::move(stack)));
  if (values[step.writes[0]].isSymInt())
    values[step.writes[0]] = values[step.writes[0]].toSymInt().expect_int();
}

void CapturedGraph::Run(Values& values) const {
  Progress progress{std::move(values)};
  for (int64_t cut = 0; cut <= cut_count_; ++cut) RunToCut(progress);
  values = std::move(progress.values);
}

void CapturedGraph::Watch(Progress& progress) const {
  progress.seen.clear();
  const auto watch = [&](const c10::VariableVersion& version) {
    if (version.enabled()) progress.seen.emplace_back(version, version.current_version());
  };
  for (size_t i = 0; i < constants_.size(); ++i) {
    if (constants_[i].isNone()) watch(VersionOf(progress.values[i]));
  }
  if (progress.program == nullptr) return;
  const ExecutionState& state = *progress.program->started.state;
  const ExecutionPlan& plan = state.plan();
  for (size_t i = 0; i < progress.program_reads.size(); ++i) {
    const PlannedBuffer& buffer = plan.buffers()[plan.values()[plan.feed_values()[i]].buffer];
    if (buffer.last_step >= state.program_counter()) watch(progress.program_reads[i]);
  }
}

void CapturedGraph::RunToCut(Progress& progress) const {
  for (const auto& [version, seen] : progress.seen) {
    TORCH_CHECK(
        version.current_version() == seen,
        "a tensor that the rest of this backward reads was changed by an in-place operation "
        "in its middle, for example in a hook");
  }
  Values& values = progress.values;
  while (progress.next < steps_.size()) {
    const Step& step = steps_[progress.next++];
    if (step.is_cut) return;
    if (step.program) {
      const int64_t began = Now();
      RunProgram(step, progress);
      counters_->AddProgram(Now() - began, step.is_part);
    } else if (step.op) {
      const int64_t began = step.counts ? Now() : 0;
      RunOperator(step, values);
      if (step.counts) counters_->AddOperator(Now() - began);
    } else if (step.size) {
      const std::vector<Item>& items = step.arguments[0].items;
      values[step.writes[0]] = step.size(IntOf(items.front(), values), IntOf(items.back(), values));
    } else {
      const IValue& from = values[step.reads[0]];
      TORCH_CHECK(from.isTuple() || from.isList(), "an element of what is no list");
      const c10::ArrayRef<IValue> elements =
          from.isTuple() ? from.toTupleRef().elements().asArrayRef() : from.toListRef();
      values[step.writes[0]] = IValue(elements.at(step.index));
    }
    for (int64_t i : step.dead) values[i] = IValue();
  }
}

}  // namespace caesura::torch
