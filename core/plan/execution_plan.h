// SPDX-License-Identifier: Apache-2.0
// ExecutionPlan: a graph specialised to the dtypes and shapes of its feeds, as a flat array of
// steps. All decisions (kernel, primitive, offsets, what is folded, what shares memory) are made
// here; running only computes.
//
// A node whose shape-like inputs are known only at run time, or that follows one whose output sizes
// are, becomes a *dynamic* step: the same factory creates its kernel when the step is reached.
//
// Where providers of several devices serve a plan, each value is on the device that makes it, and
// what another one reads is copied there once, by a step of its own (core/plan/placement.h decides
// who runs where). What kernels declare as host inputs and host outputs is on the host.
//
// Thread safety: immutable and shared by any number of states in any threads.
#ifndef CAESURA_CORE_PLAN_EXECUTION_PLAN_H_
#define CAESURA_CORE_PLAN_EXECUTION_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "core/plan/device_constants.h"
#include "core/providers/execution_provider.h"

namespace caesura {

struct PlanRecipe;  // core/plan/plan_resize.h

// What is known about one feed when the plan is made.
struct FeedSpec {
  bool is_tensor = true;
  DType dtype = DType::kUndefined;
  Shape shape;
  // The value itself, when the plan may rely on it; on the host.
  Tensor value;
  Device device;  // where the caller's tensor is

  static FeedSpec Of(const RuntimeValue& value);
  bool Matches(const RuntimeValue& value) const;
};

// What a runner of a body is made from. `captured[i]` is the outer value that the owning node
// carries as argument `first_captured + i`; `captured_specs[i]` says what is known about it.
struct SubgraphRequest {
  std::shared_ptr<const Graph> body;
  std::vector<const Value*> captured;
  std::vector<FeedSpec> captured_specs;
  int first_captured = 0;
  std::vector<std::optional<Device>> fetch_devices;  // as in PlanOptions, by output of the body
};
using SubgraphFactory = std::function<std::shared_ptr<SubgraphRunner>(SubgraphRequest)>;

struct PlanOptions {
  int threads = 0;  // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  // Initializers that change between runs: bound when a state starts, never folded. In the order of
  // the ParameterSet.
  std::vector<const Value*> parameters = {};
  bool fold_constants = true;
  bool reuse_memory =
      true;  // off: every value has bytes of its own (for tests and for finding corruption)
  bool cache_values = true;  // keep what depends on parameters alone across runs
  // Implemented by core/execute; plans with If, Loop or Scan need it.
  SubgraphFactory make_subgraph = nullptr;
  // Where graph outputs are handed out, by output: nullopt leaves one where it is made. Those not
  // listed: on the host.
  std::vector<std::optional<Device>> fetch_devices = {};
  // Which graph outputs are handed out, by output; the others are absent, and no step computes what
  // only they need. Empty: all.
  std::vector<bool> wanted_fetches = {};
  // Shared by the plans of one graph; null: each plan copies initializers to devices for itself.
  std::shared_ptr<DeviceConstants> device_constants = nullptr;
};

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
  enum class When : uint8_t {
    kPlanning,   // an initializer or folded constant: once, with the plan or before it
    kCached,     // depends on parameters alone: once a version, where the run has a value cache
    kStep,       // in every run, in the middle of it
    kHandedOut,  // in every run, when it is handed out at a yield or at the end
  };
  When when;
  uint32_t value;      // the value id of what is copied
  int from, to;        // indices into ExecutionPlan::devices()
  size_t bytes;        // 0 where the size shows only in the run
  const Node* reader;  // that it is copied for; null for graph outputs
};

// Where the bytes of one or more values (a value and its views) are.
struct PlannedBuffer {
  enum class Kind : uint8_t {
    kAbsent,     // buffer 0: an input or output that is not there
    kFeed,       // given by the caller at the start
    kResume,     // given by the caller when a yield is left
    kParameter,  // of the ParameterSet
    kConstant,   // of the plan
    kArena,    // in the state's arena of its device, at `offset`, alive in [first_step, last_step]
    kFetch,    // allocated for each run and handed out
    kDynamic,  // a RuntimeValue of the state: sized in the run, a string tensor, or no tensor
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

struct PlannedValue {
  const Value* value = nullptr;
  uint32_t buffer = 0;
  bool known = false;  // dtype and shape are those of every run
  DType dtype = DType::kUndefined;
  Shape shape;
  Layout layout;  // where in the buffer its elements lie
};

struct Step {
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
  uint32_t stream =
      0;  // of the node's random numbers: from its name, so that other nodes do not shift it
  const ExecutionProvider* provider = nullptr;
  const KernelDef* def = nullptr;     // kCompute, kCached: the kernel that was chosen
  int index = -1;                     // kYield: which yield; kCached: which cache entry
  std::vector<int> cache_parameters;  // kCached: parameters that the value depends on
  std::vector<uint32_t> release;      // dynamic values that nobody reads after this step
  // Runners of the node's bodies by attribute name, made once.
  std::vector<std::pair<std::string, std::shared_ptr<SubgraphRunner>>> bodies;

  std::shared_ptr<SubgraphRunner> Body(const std::string& name) const;
};

// Buffers that a kernel reads as one gapless block, in this order.
struct ContiguousGroup {
  int step;
  std::vector<uint32_t> buffers;
};

// What a yield hands out and takes in.
struct Yield {
  int step = -1;
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

class ExecutionPlan {
 public:
  // Fails with kUnsupported listing *all* nodes that have no kernel, and with the factory's error
  // where inputs are wrong. `feeds` in the order of graph->inputs(), then `captured` (outer values,
  // for bodies).
  static Result<std::shared_ptr<const ExecutionPlan>> Create(
      std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
      const ProviderList& providers, const PlanOptions& options,
      const std::vector<const Value*>& captured = {});

  // This plan for feeds that differ from its own in sizes alone: what Create would give but for
  // offsets in the arena, made by settling anew the nodes that other sizes reach, and sharing the
  // kernels of all others. Null where a decision might fall otherwise (and for sizes that are
  // wrong): Create then says. Fails where a provider or memory does.
  Result<std::shared_ptr<const ExecutionPlan>> Resized(const std::vector<FeedSpec>& feeds) const;

  const Graph& graph() const { return *graph_; }
  const std::vector<FeedSpec>& feeds() const { return feeds_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<PlannedValue>& values() const { return values_; }
  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }
  const std::vector<uint32_t>& arguments() const { return arguments_; }              // buffer ids
  const std::vector<uint32_t>& argument_values() const { return argument_values_; }  // value ids
  const std::vector<Tensor>& constants() const { return constants_; }
  const std::vector<Yield>& yields() const { return yields_; }
  // Graph outputs.
  const std::vector<Yield::Item>& fetches() const { return fetches_; }
  const std::vector<uint32_t>& feed_values() const { return feed_values_; }
  // Planned as one block where they lie in the arena; verified when a state starts in any case.
  const std::vector<ContiguousGroup>& contiguous() const { return contiguous_; }
  int cache_entries() const { return cache_entries_; }
  int threads() const { return threads_; }
  const ProviderList& providers() const { return providers_; }
  const PlanOptions& options() const { return options_; }
  // The host, then the devices of the providers in their order.
  const std::vector<DeviceMemory>& devices() const { return devices_; }
  // All that is copied between devices.
  const std::vector<PlannedCopy>& copies() const { return copies_; }
  // Copies bytes between two of `devices()`, one of which is the host, or within one; in order with
  // the device's work.
  Status CopyBytes(int to_device, void* to, int from_device, const void* from, size_t bytes) const;

  // Bytes of the state's arenas: activations, saved values, gradients and scratch of one run, peak.
  size_t arena_bytes() const { return std::accumulate(arenas_.begin(), arenas_.end(), size_t{0}); }
  // The same by device.
  const std::vector<size_t>& arenas() const { return arenas_; }
  // Bytes of arena that are alive while step i runs, for each i: the memory curve over the step.
  std::vector<size_t> LiveBytes() const;
  // Ranges {offset, bytes} of a device's arena that hold something a later step (>= pc) reads.
  std::vector<std::pair<size_t, size_t>> LiveRanges(int pc, int device = 0) const;
  // Changes with everything that may change rounding: kernels, shapes, order, thread count.
  // Computed in each call.
  uint64_t fingerprint() const;
  // A line of totals, then one line a step: index, kind, node, provider, arguments with shapes and
  // where they are, what a yield hands out; then the graph's outputs.
  std::string ToString() const;
  // "name:float32[2, 3]@arena+128"; "-" for the absent value 0.
  std::string Describe(uint32_t value_id) const;

 private:
  friend class PlanBuilder;
  friend class PlanResizer;
  std::string CopiesLine() const;
  std::shared_ptr<const Graph> graph_;
  std::vector<FeedSpec> feeds_;
  ProviderList providers_;
  PlanOptions options_;
  std::vector<Step> steps_;
  std::vector<PlannedValue> values_;
  std::vector<PlannedBuffer> buffers_;
  std::vector<uint32_t> arguments_, argument_values_;
  std::vector<Tensor> constants_;
  std::vector<Yield> yields_;
  std::vector<Yield::Item> fetches_;
  std::vector<uint32_t> feed_values_;
  std::vector<ContiguousGroup> contiguous_;
  std::vector<DeviceMemory> devices_;
  std::vector<PlannedCopy> copies_;
  std::vector<size_t> arenas_;
  std::vector<size_t> scratch_bytes_;  // by step
  std::shared_ptr<const PlanRecipe> recipe_;
  int cache_entries_ = 0;
  int threads_ = 1;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_EXECUTION_PLAN_H_
