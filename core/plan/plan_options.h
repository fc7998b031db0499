// SPDX-License-Identifier: Apache-2.0
// The purpose of a plan: its feeds, and the choices of the caller.
#ifndef CAESURA_CORE_PLAN_PLAN_OPTIONS_H_
#define CAESURA_CORE_PLAN_PLAN_OPTIONS_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "core/plan/device_constants.h"

namespace caesura {

// Facts about one feed when the plan is made.
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

// Everything to make a runner of a body. `captured[i]` is the outer value that the owning node
// carries as argument `first_captured + i`; `captured_specs[i]` says what is known about it.
struct SubgraphRequest {
  std::shared_ptr<const Graph> body;
  std::vector<const Value*> captured;
  std::vector<FeedSpec> captured_specs;
  int first_captured = 0;
  std::vector<std::optional<Device>> fetch_devices;  // as in PlanOptions, by output of the body
};
// Makes the runner of a body of control flow.
using SubgraphFactory = std::function<std::shared_ptr<SubgraphRunner>(SubgraphRequest)>;

// A caller's choices for all plans of a graph.
struct PlanOptions {
  int threads = 0;  // per kernel; 0: CAESURA_NUM_THREADS, or what OpenMP would take
  // Initializers that change between runs: bound when a state starts, never folded. In the order of
  // the ParameterSet.
  std::vector<const Value*> parameters = {};
  bool fold_constants = true;
  bool reuse_memory =
      true;  // off: every value has bytes of its own (for tests and for finding corruption)
  bool cache_values = true;  // keep what depends only on parameters across runs
  // Implemented by core/execute; plans with If, Loop or Scan need it.
  SubgraphFactory make_subgraph = nullptr;
  // The devices on which graph outputs are handed out, by output: nullopt leaves one where it is
  // made. Those not listed: on the host.
  std::vector<std::optional<Device>> fetch_devices = {};
  // The graph outputs that are handed out, by output; the others are absent, and no step computes
  // what only they need. Empty: all.
  std::vector<bool> wanted_fetches = {};
  // Shared by the plans of one graph; null: each plan copies initializers to devices for itself.
  std::shared_ptr<DeviceConstants> device_constants = nullptr;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PLAN_OPTIONS_H_
