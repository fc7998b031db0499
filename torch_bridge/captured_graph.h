// SPDX-License-Identifier: Apache-2.0
// CapturedGraph: a graph of ATen calls as steps over numbered values, some of them programs of the
// library's, the others calls of PyTorch's operators. What the Python package makes of a captured
// module (graph_executor.py), run without Python. It may be cut: a run then waits at each cut, with
// the values so far, until it is taken up again.
#ifndef CAESURA_TORCH_BRIDGE_CAPTURED_GRAPH_H_
#define CAESURA_TORCH_BRIDGE_CAPTURED_GRAPH_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <torch/custom_class.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/runtime/program.h"

namespace caesura::torch {

// The time that graphs have spent, and how often: in programs, and in operators of PyTorch's.
class CallCounters : public ::torch::CustomClassHolder {
 public:
  void AddProgram(int64_t nanoseconds, bool is_part) { Add(&program_, nanoseconds, !is_part); }
  void AddOperator(int64_t nanoseconds) { Add(&operator_, nanoseconds, 1); }
  // (seconds in programs, calls, seconds in operators, calls) since the last Take.
  std::tuple<double, int64_t, double, int64_t> Take();

 private:
  struct Count {
    std::atomic<int64_t> nanoseconds = 0, calls = 0;
  };
  static void Add(Count* count, int64_t nanoseconds, int64_t calls) {
    count->nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
    count->calls.fetch_add(calls, std::memory_order_relaxed);
  }
  Count program_, operator_;
};

// All functions throw c10::Error, also for numbers of values that there are not: graphs come from
// files, too. Thread safety: Run from any thread, once the graph is complete.
class CapturedGraph : public ::torch::CustomClassHolder {
 public:
  // Tensors, ints, and tuples of them, by number.
  using Values = std::vector<c10::IValue>;

  // gpu: the provider of all programs, where their tensors are on a GPU; null: on the host.
  CapturedGraph(int64_t value_count, c10::intrusive_ptr<CallCounters> counters,
                std::shared_ptr<const ExecutionProvider> gpu = nullptr)
      : counters_(std::move(counters)), gpu_(std::move(gpu)) {
    TORCH_CHECK(value_count >= 0 && value_count < (1 << 24), "a graph of ", value_count, " values");
    constants_.resize(value_count);
  }

  void AddConstant(int64_t value, at::Tensor tensor) { constants_.at(value) = std::move(tensor); }
  // Steps, in the order that they run in. `dead`: values that nothing reads after the step.
  // An ONNX model (its bytes, uint8) of the values' tensors and ints, by position.
  void AddProgram(const at::Tensor& model, std::vector<int64_t> reads, std::vector<int64_t> writes,
                  std::vector<int64_t> dead);
  // The last program goes on from its yield to the next one, or to its end. Where a program yields,
  // `writes` of each part are what that part hands out.
  void AddPart(std::vector<int64_t> writes, std::vector<int64_t> dead);
  void AddCut();
  // An operator and all of its schema's arguments: ("value", i) is value i, ("list", ...) a list of
  // such and others, the rest is itself. `counts`: whether the call counts as one that is left to
  // PyTorch.
  void AddOperator(const std::string& name, const std::string& overload,
                   const c10::IValue& arguments, int64_t writes, bool counts,
                   std::vector<int64_t> dead);
  // add, sub, mul, floordiv, mod (as Python rounds), neg or a comparison (ge, ...: 1 or 0) of ints;
  // arguments as above.
  void AddSize(const std::string& name, const c10::IValue& arguments, int64_t writes,
               std::vector<int64_t> dead);
  // Element `index` of a tuple or list.
  void AddElement(int64_t reads, int64_t index, int64_t writes, std::vector<int64_t> dead);

  int64_t value_count() const { return static_cast<int64_t>(constants_.size()); }
  int64_t cut_count() const { return cut_count_; }
  // The values before the first step: constants alone.
  Values Begin() const { return constants_; }
  // Runs all steps.
  void Run(Values& values) const;

  // A run that may wait at a cut. What is in `values` may then be taken out, if no later step reads
  // it.
  struct Progress {
    Values values;
    size_t next = 0;                   // step
    caesura::WaitingRun program = {};  // at a yield
    // PyTorch's counts of changes in place: of what that program reads; and of all that Watch()
    // found, as they were then.
    std::vector<c10::VariableVersion> program_reads = {};
    std::vector<std::pair<c10::VariableVersion, uint32_t>> seen = {};
  };
  // Runs to the next cut, or to the end.
  void RunToCut(Progress& progress) const;
  // To be called before others run while `progress` waits at a cut: the next RunToCut throws if
  // they have changed one of its values in place, or what its program still reads.
  void Watch(Progress& progress) const;

 private:
  struct Item {
    int64_t from = -1;  // the value's number
    c10::IValue constant;
  };
  struct Argument {
    c10::TypePtr type;
    bool is_list = false;
    std::vector<Item> items = {};
  };
  struct Cut {};
  struct ProgramCall {
    std::shared_ptr<caesura::Program> program;
    bool is_part = false;  // goes on from a yield
  };
  struct OperatorCall {
    c10::OperatorHandle op;
    std::vector<Argument> arguments = {};
    bool counts = false;
  };
  struct SizeCall {
    int64_t (*function)(int64_t, int64_t);
    std::vector<Item> arguments;
  };
  struct Element {
    int64_t index;
  };
  struct Instruction {
    std::variant<Cut, ProgramCall, OperatorCall, SizeCall, Element> call;
    std::vector<int64_t> reads = {}, writes = {}, dead = {};
  };
  void Add(Instruction step);
  void Check(int64_t value) const;
  void RunProgram(const ProgramCall& call, const Instruction& step, Progress& progress) const;
  static caesura::RunResult StartProgram(const ProgramCall& call, const Instruction& step,
                                         const Values& values,
                                         std::vector<ExecutionObserver*> observers);
  static c10::IValue RunOperator(const OperatorCall& call, const Values& values);
  static c10::IValue ElementOf(const c10::IValue& from, int64_t index);
  static int64_t IntOf(const Item& item, const Values& values);
  Item MakeItem(const c10::IValue& encoded) const;

  Values constants_;
  c10::intrusive_ptr<CallCounters> counters_;
  std::shared_ptr<const ExecutionProvider> gpu_;
  std::vector<Instruction> instructions_;
  int64_t cut_count_ = 0;
};

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_CAPTURED_GRAPH_H_
