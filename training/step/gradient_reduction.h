// SPDX-License-Identifier: Apache-2.0
// Data parallelism as steps of the plan: the gradients of all ranks are summed in buckets, each
// started after its last gradient, while the backward goes on, and waited for before the updates.
//
//   CollectiveStart(bucket 0) ... backward ... CollectiveStart(bucket 1) ... CollectiveWait(bucket
//   0), CollectiveWait(bucket 1), AgreeToCommit, updates
//
// With sharded state each rank is given the sum of its part of a bucket only, updates that part of
// the parameters, and gives it to the others:
//
//   ReduceScatterStart(bucket 0) ... ReduceScatterWait(bucket 0), ReduceScatterStart(bucket 1) ...
//   AgreeToCommit, OwnPart(bucket 0), its update, AllGatherStart(bucket 0), OwnPart(bucket 1), its
//   update, AllGatherWait(bucket 0) ...
//
// Ordered sums have the same bits at any number of ranks:
//
//   OrderedSumStart(bucket 0) ... OrderedSumStart(bucket 1), OrderedSumWait(bucket 0),
//   OrderedSumWait(bucket 1), AgreeToCommit, updates
//
// With early commit an update follows its own bucket's sums, and the memory of gradients is used
// again: at most two buckets are under way while a third one is filled.
//
//   ... CollectiveStart(bucket 1) ... CollectiveWait(bucket 0), CollectiveStart(bucket 2), updates
//   (bucket 0) ... CollectiveWait(bucket 2), AgreeToCommit, updates(bucket 2)
//
// Buckets follow from the graph only, never from the sizes of a run's feeds: ranks with other
// sequence lengths start the same collectives in the same order.
#ifndef CAESURA_TRAINING_STEP_GRADIENT_REDUCTION_H_
#define CAESURA_TRAINING_STEP_GRADIENT_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/distributed/bucket_layout.h"
#include "core/graph/graph.h"
#include "core/graph/pass.h"

namespace caesura {

// Appends the collectives to a graph whose nodes come in the order in which they will run.
class CollectiveWriter {
 public:
  // The collectives are pinned to `provider`.
  CollectiveWriter(Graph& graph, std::string provider)
      : graph_(graph), provider_(std::move(provider)) {}

  // Indices of the values in buckets, which have values of one kind that are ready one after the
  // other. A bucket is closed once it has `bucket_bytes`. REQUIRES: tensors of known shapes.
  std::vector<std::vector<int>> Buckets(const std::vector<Value*>& values,
                                        const std::vector<int>& kinds, int64_t bucket_bytes) const;
  // Replaces the values by their sums over all ranks, in buckets of one dtype. Returns the buckets,
  // as indices of the values. REQUIRES: float tensors of known shapes.
  std::vector<std::vector<int>> AllReduce(const std::vector<Value**>& values, int64_t bucket_bytes);
  // Replaces the values by their sums over all ranks as AllReduce does, in a fixed order among
  // `ranks` ranks, a binary tree.
  std::vector<std::vector<int>> OrderedSum(const std::vector<Value**>& values, int64_t bucket_bytes,
                                           int ranks);
  // Replaces the values of one bucket, of one dtype, by what the exchange of this kind gives
  // ("all_reduce", "broadcast"). `row`: of parameters; nothing is exchanged where no rank uses it.
  // Below 0: always.
  void Exchange(const char* kind, const std::vector<Value**>& bucket, int64_t row = -1);
  // Replaces the values by those of rank 0, in one bucket a dtype.
  void Broadcast(const std::vector<Value**>& values);
  // Each rank's parts of the buckets' sums. One bucket is exchanged while the next one is filled.
  // `rows`: of each bucket, as Exchange has it.
  std::vector<Value*> ReduceScatter(const std::vector<std::vector<Value*>>& buckets,
                                    const std::vector<BucketLayout>& layouts,
                                    const std::vector<int64_t>& rows);
  // The rank's part of a bucket, a copy.
  Value* OwnPart(const std::vector<Value*>& tensors, const BucketLayout& layout);
  // Gives `part` to all ranks and writes all parts to the tensors, which are parameters, in the
  // next call or in FinishGather. `row`: as Exchange has it.
  void AllGather(Value* part, const std::vector<Value*>& tensors, const BucketLayout& layout,
                 int64_t row);
  void FinishGather();
  // Agreed waits for `value`, too: it was made from other ranks' values.
  void Await(Value* value) { awaited_.push_back(value); }
  // `value`, once all collectives of all ranks have succeeded.
  Value* Agreed(Value* value);
  // `value`, once all collectives have succeeded, if updates do not wait for it: it comes after the
  // last collectives, and what the others gave need not live so long.
  Value* AgreedAtLast(Value* value);

 private:
  // Indices of the values in buckets of one dtype.
  std::vector<std::vector<int>> BucketsByDType(const std::vector<Value**>& values,
                                               int64_t bucket_bytes) const;
  // A node whose outputs are one tensor of `first` elements, then the bucket's block.
  Node* StartBlock(const char* op_type, const std::vector<Value*>& bucket,
                   const BucketLayout& layout, int64_t first, int64_t row = -1);
  Node* Add(const char* op_type, const std::vector<Value*>& inputs, AttributeMap attributes,
            int outputs);

  Graph& graph_;
  const std::string provider_;
  int64_t count_ = 0;            // collectives so far
  std::vector<Value*> awaited_;  // their results
  std::vector<Value*> waited_;   // the first result of each all-reduce and broadcast, in order
  std::vector<Value*> gather_;   // what the AllGatherWait of the gather under way reads
  AttributeMap gather_attributes_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_GRADIENT_REDUCTION_H_
