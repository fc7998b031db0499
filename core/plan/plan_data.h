// SPDX-License-Identifier: Apache-2.0
// The parts of a plan: plain data, which planning fills in and ExecutionPlan then holds unchanged.
#ifndef CAESURA_CORE_PLAN_PLAN_DATA_H_
#define CAESURA_CORE_PLAN_PLAN_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "core/plan/plan_options.h"
#include "core/providers/execution_provider.h"

namespace caesura {

class WriteGate;    // core/providers/write_gate.h
struct PlanRecipe;  // plan_recipe.h

inline constexpr size_t kMaxDevices = 8;  // of a plan, the host among them

// A device of a plan's providers, and who serves it.
struct DeviceMemory {
  Device device;
  std::shared_ptr<const ExecutionProvider>
      provider;  // the first one of the device; null for a host without provider
  Allocator* allocator;
};

// One value that a plan copies from one memory to another.
struct PlannedCopy {
  // The time of the copy.
  enum class When : uint8_t {
    kPlanning,   // an initializer or folded constant: once, with the plan or before it
    kCached,     // depends only on parameters: once a version, where the run has a value cache
    kStep,       // in every run, in the middle of it
    kHandedOut,  // in every run, when it is handed out at a yield or at the end
  };
  When when;
  uint32_t value;      // the value id of what is copied
  int from, to;        // indices into ExecutionPlan::devices()
  size_t bytes;        // 0 where the size is known only at run time
  const Node* reader;  // that it is copied for; null for graph outputs
};

// The place of the bytes of one or more values (a value and its views).
struct PlannedBuffer {
  // The owner of the bytes.
  enum class Kind : uint8_t {
    kAbsent,     // buffer 0: an input or output that is not there
    kFeed,       // given by the caller at the start
    kResume,     // given by the caller when a yield is left
    kParameter,  // of the ParameterSet
    kConstant,   // of the plan
    kArena,    // in the state's arena of its device, at `offset`, alive in [first_step, last_step]
    kFetch,    // allocated for each run and handed out
    kDynamic,  // a RuntimeValue of the state: sized at run time, a string tensor, or no tensor
    kCached,   // in the value cache
  };
  Kind kind = Kind::kAbsent;
  int index = -1;  // which feed, resume value, parameter, constant, fetch or cache entry
  size_t bytes = 0;
  size_t offset = 0;    // kArena
  uint8_t device = 0;   // index into ExecutionPlan::devices()
  int first_step = -1;  // the step that writes it; -1: there from the start
  int last_step = -1;   // the last step that reads or writes it
};

// A value of the graph: its buffer, and its type as far as planning knows it.
struct PlannedValue {
  const Value* value = nullptr;
  uint32_t buffer = 0;
  bool known = false;  // dtype and shape are those of every run
  DType dtype = DType::kUndefined;
  Shape shape;
  Layout layout;  // where in the buffer its elements lie
};

// One step of a plan. Offsets are in bytes.
struct PlanStep {
  // kCopy: one input, one output, on different devices; `node` is who reads the output.
  enum class Kind : uint8_t { kCompute, kDynamic, kCached, kYield, kCopy };
  Kind kind = Kind::kCompute;
  uint32_t first_argument = 0;  // into ExecutionPlan::arguments
  uint32_t input_count = 0;     // explicit inputs and implicit inputs of bodies
  uint32_t output_count = 0;
  uint8_t device = 0;  // that scratch is on
  size_t scratch_offset = 0;
  ComputeFunction compute;  // kCompute, kCached
  const Node* node = nullptr;
  int graph_index = -1;  // the node's position in graph().nodes()
  uint32_t subsequence =
      0;  // of the node's random numbers: from its name, so that other nodes do not shift it
  const ExecutionProvider* provider = nullptr;
  const KernelDef* def = nullptr;     // kCompute, kCached: the kernel that was chosen
  int index = -1;                     // kYield: which yield; kCached: which cache entry
  std::vector<int> cache_parameters;  // kCached: parameters that the value depends on
  std::vector<uint32_t> release;      // dynamic values that nobody reads after this step
  size_t scratch_bytes = 0;
  // Runners of the node's bodies by attribute name, made once.
  std::vector<std::pair<std::string, std::shared_ptr<SubgraphRunner>>> bodies;

  std::shared_ptr<SubgraphRunner> Body(const std::string& name) const;
  // The gate that holds what the kernel writes; null: none does.
  const WriteGate* Gate() const;
};
// "compute", "copy" and so on.
const char* StepKindName(PlanStep::Kind kind);

// Buffers that a kernel reads as one block, in this order (KernelDef::contiguous_inputs).
struct ContiguousGroup {
  int step;
  size_t alignment;
  std::vector<uint32_t> buffers;
};

// Values that a yield hands out and takes in.
struct Yield {
  int step = -1;
  // One value that is handed out.
  struct Item {
    uint32_t value;
    bool move;  // nobody reads it after the yield: the caller gets the buffer itself; otherwise a
                // copy
    std::string name;
    uint8_t device = 0;  // where the caller gets it
  };
  std::vector<Item> outputs;            // handed out
  std::vector<uint32_t> resume_values;  // taken in, in the order of YieldOp's outputs; 0: absent
  std::vector<int> resume_of;  // which `outputs` entry each resume value is the gradient of
};

// All of a plan: the caller's part, and the decisions of planning.
struct PlanData {
  // --- given ---
  std::shared_ptr<const Graph> graph;
  std::vector<FeedSpec> feeds;
  ProviderList providers;
  PlanOptions options;
  int threads = 1;
  std::vector<DeviceMemory> devices;  // the host, then the devices of the providers in their order

  // --- decided ---
  std::vector<PlanStep> steps;
  std::vector<PlannedValue> values;                  // by value id; 0: absent
  std::vector<PlannedBuffer> buffers;                // by buffer id; 0: absent
  std::vector<uint32_t> arguments, argument_values;  // of steps: buffer ids, value ids
  std::vector<Tensor> constants;
  std::vector<Yield> yields;
  std::vector<Yield::Item> fetches;  // graph outputs
  std::vector<uint32_t> feed_values;
  std::vector<ContiguousGroup> contiguous;
  std::vector<PlannedCopy> copies;
  std::vector<size_t> arenas;  // bytes, by device
  int cache_entries = 0;
  std::shared_ptr<const PlanRecipe> recipe;  // null: plans for other sizes are made anew
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_DATA_H_
