// SPDX-License-Identifier: Apache-2.0
// ExecutionPlan: a graph specialised to the dtypes and shapes of its feeds, as a flat array of
// steps. All decisions (kernel, primitive, offsets, what is folded, what shares memory) are made
// here; running only computes.
//
// A node whose shape-like inputs are known only at run time, or that follows one whose output sizes
// are, becomes a *dynamic* step: the same factory creates its kernel when the step is reached.
//
// If providers of several devices serve a plan, each value is on the device that makes it, and
// what another one reads is copied there once, by a step of its own (core/plan/placement.h decides
// who runs where). What kernels declare as host inputs and host outputs is on the host.
//
// Thread safety: immutable and shared by any number of states in any threads.
#ifndef CAESURA_CORE_PLAN_EXECUTION_PLAN_H_
#define CAESURA_CORE_PLAN_EXECUTION_PLAN_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/plan_data.h"

namespace caesura {

// The plan of one graph for one signature of feeds. It shares the ownership of the graph.
class ExecutionPlan {
 public:
  // Planning makes it: see Create.
  explicit ExecutionPlan(PlanData data);

  // Fails with kUnsupported listing *all* nodes that have no kernel, and with the factory's error
  // where inputs are wrong. `feeds` in the order of graph->inputs(), then `captured` (outer values,
  // for bodies).
  static Result<std::shared_ptr<const ExecutionPlan>> Create(
      std::shared_ptr<const Graph> graph, const std::vector<FeedSpec>& feeds,
      const ProviderList& providers, const PlanOptions& options,
      const std::vector<const Value*>& captured = {});

  // This plan for feeds that differ from its own only in sizes: what Create would give but for
  // offsets in the arena, made by settling anew the nodes that other sizes reach, and sharing the
  // kernels of all others. Null where a decision might fall otherwise (and for sizes that are
  // wrong): Create then says. Fails where a provider or memory does.
  Result<std::shared_ptr<const ExecutionPlan>> Resized(const std::vector<FeedSpec>& feeds) const;

  const Graph& graph() const { return *data_.graph; }
  const std::vector<FeedSpec>& feeds() const { return data_.feeds; }
  const std::vector<PlanStep>& steps() const { return data_.steps; }
  const std::vector<PlannedValue>& values() const { return data_.values; }
  const std::vector<PlannedBuffer>& buffers() const { return data_.buffers; }
  const std::vector<uint32_t>& arguments() const { return data_.arguments; }  // buffer ids
  const std::vector<uint32_t>& argument_values() const {
    return data_.argument_values;
  }  // value ids
  const std::vector<Tensor>& constants() const { return data_.constants; }
  const std::vector<Yield>& yields() const { return data_.yields; }
  // Graph outputs.
  const std::vector<Yield::Item>& fetches() const { return data_.fetches; }
  const std::vector<uint32_t>& feed_values() const { return data_.feed_values; }
  // Planned as one block where they lie in the arena; verified when a state starts in any case.
  const std::vector<ContiguousGroup>& contiguous() const { return data_.contiguous; }
  int cache_entries() const { return data_.cache_entries; }
  int threads() const { return data_.threads; }
  const ProviderList& providers() const { return data_.providers; }
  const PlanOptions& options() const { return data_.options; }
  // The host, then the devices of the providers in their order.
  const std::vector<DeviceMemory>& devices() const { return data_.devices; }
  // Indices of those, without the host, where an op draws random numbers.
  const std::vector<int>& random_devices() const { return random_devices_; }
  // All that is copied between devices.
  const std::vector<PlannedCopy>& copies() const { return data_.copies; }
  // Copies bytes between two of `devices()`, one of which is the host, or within one; in order with
  // the device's work.
  Status CopyBytes(int to_device, void* to, int from_device, const void* from, size_t bytes) const;

  // Bytes of the state's arenas: activations, saved values, gradients and scratch of one run, peak.
  size_t arena_bytes() const {
    return std::accumulate(data_.arenas.begin(), data_.arenas.end(), size_t{0});
  }
  // Bytes of the state's arenas, by device.
  const std::vector<size_t>& arenas() const { return data_.arenas; }
  // Bytes of arena that are alive while step i runs, for each i: the memory curve over the step.
  std::vector<size_t> LiveBytes() const;
  // Ranges {offset, bytes} of a device's arena that hold something a later step (>= pc) reads.
  std::vector<std::pair<size_t, size_t>> LiveRanges(int pc, int device = 0) const;
  // The first step that writes to a parameter; the number of steps where none does.
  int first_write() const { return first_write_; }
  // The last step that may fail by itself: one that allocates, that has a body, or that is not a
  // prepared kernel of the CPU provider, since these do not fail once they write. The number of
  // steps where the copy of a result may.
  int last_risk() const { return last_risk_; }
  // From this step on there are only steps that a gate holds (PlanStep::Gate), and kernels of the
  // host: none that waits for a device or allocates its memory. Nor do the plan's results. The
  // number of steps where there is none, or too many for a driver's queue.
  int first_held() const { return first_held_; }
  // Changes with everything that may change rounding: kernels, shapes, order, thread count.
  // Computed in each call.
  uint64_t fingerprint() const;
  // A line of totals, then one line a step: index, kind, node, provider, arguments with shapes and
  // where they are, what a yield hands out; then the graph's outputs.
  std::string ToString() const;
  // "name:float32[2, 3]@arena+128"; "-" for the absent value 0.
  std::string Describe(uint32_t value_id) const;

 private:
  std::string CopiesLine() const;

  const PlanData data_;
  const int first_write_, last_risk_, first_held_;
  const std::vector<int> random_devices_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_EXECUTION_PLAN_H_
