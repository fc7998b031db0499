// SPDX-License-Identifier: Apache-2.0
// A provider that runs parts of a graph as a whole has this: it says which nodes it would take
// (Capability), makes each group ready (Compile) and runs it. core/plan/subgraph_partition.h
// replaces each group by one node.
#ifndef CAESURA_CORE_PROVIDERS_SUBGRAPH_COMPILER_H_
#define CAESURA_CORE_PROVIDERS_SUBGRAPH_COMPILER_H_

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// One input or output of a subgraph in a run: dense, on the provider's device.
struct SubgraphArgument {
  void* data = nullptr;  // of an output: null where its shape shows only at run time
  DType dtype = DType::kUndefined;
  const Shape* shape = nullptr;  // null with `data`
};

// A subgraph made ready to run. Thread safety: Run from any number of threads at the same time.
class CompiledSubgraph {
 public:
  // Memory for output `i`, which had no address; to be called once, by the thread that runs.
  using MakeOutput = std::function<Result<Tensor>(int i, DType dtype, Shape shape)>;
  virtual ~CompiledSubgraph() = default;
  // Arguments in the order of the subgraph's ends. On a device: in order with its work, and perhaps
  // not done yet when it returns. kInvalidArgument: the values in the inputs are wrong for the ops.
  // kOutOfMemory: of the host. Any other failure counts as one of the provider.
  virtual Status Run(const std::vector<SubgraphArgument>& inputs,
                     const std::vector<SubgraphArgument>& outputs,
                     const MakeOutput& make_output) const = 0;
};

struct CapabilityRequest {
  const Graph& graph;  // sorted, with what is known of types
  // By position of the node: whether it may be taken. Nodes that may not are bodies' owners,
  // random, of the backward part, pinned to another provider, or handle what is no tensor.
  std::vector<bool> offered;
  // Initializers that are no constants: they change between runs, and are inputs of the subgraphs.
  const std::unordered_set<std::string>& changing;
};

// Immutable. Thread safety: all methods from any thread.
class SubgraphCompiler {
 public:
  virtual ~SubgraphCompiler() = default;
  // By position of the node: 0 to leave it, else the number of its group. Nodes of different
  // numbers never become one subgraph; those of one number become as few as can be run without
  // waiting for anything outside.
  virtual Result<std::vector<int>> Capability(const CapabilityRequest& request) const = 0;
  // Groups of fewer nodes are not worth the way in and out.
  virtual int min_nodes() const { return 1; }
  // True if one compiled subgraph serves all shapes that the types allow. Otherwise Compile sees
  // numbers where the graph has symbols, once for each combination that comes.
  virtual bool any_shape() const { return false; }
  // `subgraph` refers to nothing outside of itself; what it holds as initializers are constants.
  // `threads` that a run may take. kOutOfMemory: of the host. Any other failure counts as one of
  // the provider.
  virtual Result<std::shared_ptr<const CompiledSubgraph>> Compile(const Model& subgraph,
                                                                  int threads) const = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_SUBGRAPH_COMPILER_H_
