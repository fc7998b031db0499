// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/captured_graph.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/execute/execution_observer.h"
#include "core/kernels/kernel_registry.h"
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

void CapturedGraph::Add(Instruction step) {
  for (const std::vector<int64_t>* numbers : {&step.reads, &step.writes, &step.dead}) {
    for (int64_t i : *numbers) Check(i);
  }
  instructions_.push_back(std::move(step));
}

void CapturedGraph::Check(int64_t value) const {
  TORCH_CHECK(value >= 0 && value < value_count(), "the graph has no value ", value);
}

void CapturedGraph::AddProgram(const at::Tensor& model, std::vector<int64_t> reads,
                               std::vector<int64_t> writes, std::vector<int64_t> dead) {
  const std::string_view bytes(static_cast<const char*>(model.const_data_ptr()), model.numel());
  const auto provider = [] {
    return MakeCpuProvider([](KernelRegistry& registry) { RegisterAtenKernels(registry); });
  };
  ProgramCall call{
      Checked(OpenCaptured(Checked(ReadModelBytes(bytes)), gpu_, provider, /*threads=*/0))};
  Add({std::move(call), std::move(reads), std::move(writes), std::move(dead)});
}

void CapturedGraph::AddPart(std::vector<int64_t> writes, std::vector<int64_t> dead) {
  const auto last = std::find_if(
      instructions_.rbegin(), instructions_.rend(),
      [](const Instruction& step) { return std::holds_alternative<ProgramCall>(step.call); });
  TORCH_CHECK(last != instructions_.rend(), "a part of no program");
  ProgramCall call{std::get<ProgramCall>(last->call).program, /*is_part=*/true};
  Add({std::move(call), {}, std::move(writes), std::move(dead)});
}

void CapturedGraph::AddCut() {
  Add({Cut{}});
  ++cut_count_;
}

CapturedGraph::Item CapturedGraph::MakeItem(const IValue& encoded) const {
  if (Tag(encoded) != "value") return {-1, encoded};
  const int64_t value = encoded.toTupleRef().elements().at(1).toInt();
  Check(value);
  return {value, {}};
}

void CapturedGraph::AddOperator(const std::string& name, const std::string& overload,
                                const IValue& arguments, int64_t writes, bool counts,
                                std::vector<int64_t> dead) {
  OperatorCall call{c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())};
  const auto& formals = call.op.schema().arguments();
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
    call.arguments.push_back(std::move(argument));
  }
  call.counts = counts;
  Add({std::move(call), {}, {writes}, std::move(dead)});
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
  SizeCall call{nullptr, {}};
  for (const auto& [known, function] : kFunctions) {
    if (name == known) call.function = function;
  }
  TORCH_CHECK(call.function, "there is no function '", name, "' of sizes");
  for (const IValue& argument : arguments.toTupleRef().elements())
    call.arguments.push_back(MakeItem(argument));
  TORCH_CHECK(!call.arguments.empty(), "a function of no sizes");
  Add({std::move(call), {}, {writes}, std::move(dead)});
}

int64_t CapturedGraph::IntOf(const Item& item, const Values& values) {
  return (item.from < 0 ? item.constant : values[item.from]).toInt();
}

void CapturedGraph::AddElement(int64_t reads, int64_t index, int64_t writes,
                               std::vector<int64_t> dead) {
  Add({Element{index}, {reads}, {writes}, std::move(dead)});
}

void CapturedGraph::RunProgram(const ProgramCall& call, const Instruction& step,
                               Progress& progress) const {
  Values& values = progress.values;
  ProfiledSteps profiled;
  std::vector<ExecutionObserver*> observers;
  if (at::hasCallbacks()) observers = {&profiled};
  if (gpu_) Checked(WaitForTorch(*gpu_));
  RunResult run;
  if (call.is_part) {
    TORCH_CHECK(progress.program, "a program has fewer yields than parts");
    run = progress.program.GoOn({.observers = std::move(observers)});
  } else {
    run = StartProgram(call, step, values, std::move(observers));
  }
  if (gpu_) Checked(TorchWaits(*gpu_));
  TORCH_CHECK(run.status.ok(), run.status.message());
  const std::vector<RuntimeValue>& results = run.values;
  TORCH_CHECK(results.size() == step.writes.size(), "a program gives ", results.size(),
              " values, not ", step.writes.size());
  if (run.waiting && !call.is_part) {
    progress.program_reads.clear();
    for (int64_t i : step.reads) progress.program_reads.push_back(VersionOf(values[i]));
  }
  progress.program = std::move(run.waiting);
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

RunResult CapturedGraph::StartProgram(const ProgramCall& call, const Instruction& step,
                                      const Values& values,
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
  return call.program->Run({.feeds = std::move(feeds),
                            .options = std::move(options),
                            .plan = {.known = std::move(known)},
                            .at_yield = AtYield::kWait});
}

IValue CapturedGraph::RunOperator(const OperatorCall& call, const Values& values) {
  std::vector<IValue> stack;
  stack.reserve(call.arguments.size());
  for (const Argument& argument : call.arguments) {
    std::vector<IValue> items;
    for (const Item& item : argument.items)
      items.push_back(item.from < 0 ? item.constant : values[item.from]);
    stack.push_back(argument.is_list ? ListArgument(argument.type, items)
                                     : ItemArgument(argument.type, items[0]));
  }
  call.op.callBoxed(&stack);
  IValue result = stack.size() == 1 ? std::move(stack[0])
                                    : IValue(c10::ivalue::Tuple::create(std::move(stack)));
  return result.isSymInt() ? IValue(result.toSymInt().expect_int()) : result;
}

IValue CapturedGraph::ElementOf(const IValue& from, int64_t index) {
  TORCH_CHECK(from.isTuple() || from.isList(), "an element of what is no list");
  const c10::ArrayRef<IValue> elements =
      from.isTuple() ? from.toTupleRef().elements().asArrayRef() : from.toListRef();
  return elements.at(index);
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
  if (!progress.program) return;
  const ExecutionState& state = progress.program.state();
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
  while (progress.next < instructions_.size()) {
    const Instruction& step = instructions_[progress.next++];
    if (std::holds_alternative<Cut>(step.call)) return;
    if (const auto* program = std::get_if<ProgramCall>(&step.call)) {
      const int64_t began = Now();
      RunProgram(*program, step, progress);
      counters_->AddProgram(Now() - began, program->is_part);
    } else if (const auto* op = std::get_if<OperatorCall>(&step.call)) {
      const int64_t began = op->counts ? Now() : 0;
      values[step.writes[0]] = RunOperator(*op, values);
      if (op->counts) counters_->AddOperator(Now() - began);
    } else if (const auto* size = std::get_if<SizeCall>(&step.call)) {
      values[step.writes[0]] = size->function(IntOf(size->arguments.front(), values),
                                              IntOf(size->arguments.back(), values));
    } else {
      values[step.writes[0]] = ElementOf(values[step.reads[0]], std::get<Element>(step.call).index);
    }
    for (int64_t i : step.dead) values[i] = IValue();
  }
}

}  // namespace caesura::torch
