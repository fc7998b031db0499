// SPDX-License-Identifier: Apache-2.0
// Data parallelism as steps of the plan: the gradients of all ranks are summed in buckets, each
// started after its last gradient, while the backward goes on, and waited for before the updates.
//
//   CollectiveStart(bucket 0) ... backward ... CollectiveStart(bucket 1) ... CollectiveWait(bucket
//   0), CollectiveWait(bucket 1), AgreeToCommit, updates
//
// Buckets follow from the graph only, never from the sizes of a run's feeds: ranks with other
// sequence lengths start the same collectives in the same order.
#ifndef CAESURA_TRAINING_GRADIENT_REDUCTION_H_
#define CAESURA_TRAINING_GRADIENT_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/pass.h"

namespace caesura {

// Appends the collectives to a graph whose nodes come in the order in which they will run.
class CollectiveWriter {
 public:
  // The collectives are pinned to `provider`.
  CollectiveWriter(Graph& graph, std::string provider)
      : graph_(graph), provider_(std::move(provider)) {}

  // Replaces the values by their sums over all ranks. A bucket has values of one dtype that are
  // ready one after the other; it is closed once it has `bucket_bytes`. REQUIRES: float tensors of
  // known shapes.
  void AllReduce(const std::vector<Value**>& values, int64_t bucket_bytes);
  // Replaces the values by those of rank 0, in one bucket a dtype.
  void Broadcast(const std::vector<Value**>& values);
  // `value`, once all collectives of all ranks have succeeded.
  Value* Agreed(Value* value);

 private:
  void Exchange(const char* kind, const std::vector<Value**>& bucket);
  Node* Add(const char* op_type, const std::vector<Value*>& inputs, AttributeMap attributes,
            int outputs);

  Graph& graph_;
  const std::string provider_;
  int64_t count_ = 0;            // collectives so far
  std::vector<Value*> awaited_;  // their results
};

// Puts each CollectiveStart right after the last node that it needs, in the order of their numbers.
// To be run after all passes that move nodes.
std::shared_ptr<Pass> MakeCollectiveOrderPass();

}  // namespace caesura

#endif  // CAESURA_TRAINING_GRADIENT_REDUCTION_H_
