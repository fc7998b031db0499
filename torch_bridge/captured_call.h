// SPDX-License-Identifier: Apache-2.0
// CapturedCall: a captured module's forward, with its backward as a node of PyTorch's autograd,
// without Python.
//
// A backward that is cut (CapturedGraph::AddCut) is one node for each part. Each node runs to the
// next cut and returns the gradients that are then ready, so that their hooks run before the next
// part does: DistributedDataParallel sends them while the rest is computed.
//
// Python makes one of two CapturedGraphs (torch.classes.caesura.Call), which while it lives is an
// operator of its own (an object as an argument would cost more than the rest of a small call):
//   caesura::call_KEY(Tensor[] tensors, int[] sizes) -> Tensor[]
//   caesura::keeping_call_KEY(Tensor[] tensors, int[] sizes) -> (Tensor[], Tensor[])
// The second one makes no node, and gives also what the forward saves beside inputs.
//
// With derivatives of derivatives asked for (create_graph), the node computes its gradients by
// CapturedDerivatives.
#ifndef CAESURA_TORCH_BRIDGE_CAPTURED_CALL_H_
#define CAESURA_TORCH_BRIDGE_CAPTURED_CALL_H_

#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "torch_bridge/captured_derivatives.h"
#include "torch_bridge/captured_graph.h"

namespace caesura::torch {

// The origin and the use of the values of the two graphs. Numbers are those of values in the graph;
// `backward_...` in that of the backward.
struct CallLayout {
  std::vector<int64_t> tensors, sizes;  // the inputs: the tensors, and the ints beside them
  std::vector<int64_t> outputs;         // the caller's
  std::vector<int64_t> differentiable;  // positions among `outputs` that gradients come in for
  std::vector<int64_t> mutated,
      new_values;  // positions among `tensors` that are written to, and what is written
  std::vector<int64_t> saved, saved_sizes;  // what the backward reads
  std::vector<int64_t> backward_saved, backward_saved_sizes, backward_gradients;
  std::vector<int64_t>
      backward_results;  // gradients of `tensors`; -1: there is none, autograd does not go there
  std::vector<int64_t> reached;  // a row for each of `tensors`: of each gradient that comes in,
                                 // whether (1, 0) the tensor's own depends on it
  std::vector<int64_t> parts;    // of each of `tensors`: the part of the backward that hands its
                                 // gradient out
};

// Thread safety: as CapturedGraph; a forward's backward locks.
class CapturedCall : public ::torch::CustomClassHolder {
 public:
  // layout: CallLayout's lists in their order. backward: null where nothing is differentiated.
  // random: whether the forward draws from PyTorch's generator. key: names the operator, and the
  // call to caesura::differentiate; no two live calls have the same. `keep_alive` is given up with
  // this.
  CapturedCall(c10::intrusive_ptr<CapturedGraph> forward,
               c10::intrusive_ptr<CapturedGraph> backward, std::vector<std::vector<int64_t>> layout,
               bool random, int64_t key, std::shared_ptr<void> keep_alive);

  // Throws what the graph's steps throw, and where forward-mode derivatives are asked for. Outputs
  // are the caller's. A backward fails where what it reads was changed in place after the forward,
  // as far as PyTorch's version counters tell.
  std::vector<at::Tensor> Run(at::TensorList tensors, c10::IntArrayRef sizes);

 private:
  class Backward;
  class BackwardPart;
  struct BackwardRun;
  // The outputs, without a node.
  std::vector<at::Tensor> Compute(at::TensorList tensors, c10::IntArrayRef sizes,
                                  CapturedGraph::Values& values);
  std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> RunAndKeep(at::TensorList tensors,
                                                                          c10::IntArrayRef sizes);
  // Makes the nodes for the later parts of the backward; `node` is the first one's. Edges go from
  // each to the tensors whose gradients it hands out, and last to the node for the next part.
  void Connect(::torch::autograd::Node& node, at::TensorList tensors);
  // The node for a part returns gradients, and the run itself for the next part's node.
  std::vector<at::Tensor> HandOut(const ::torch::autograd::Node& node, size_t part,
                                  std::unique_ptr<BackwardRun> run) const;
  c10::intrusive_ptr<CapturedGraph> forward_, backward_;
  CallLayout layout_;
  std::vector<int64_t>
      saved_inputs_;  // positions of layout_.saved among the tensors; -1: it is none of them
  std::vector<std::vector<int64_t>>
      members_;  // by part of the backward: positions of the tensors whose gradients it hands out
  bool random_;
  int64_t key_;
  std::shared_ptr<void> keep_alive_;
  std::unique_ptr<::torch::Library> operator_;
  CapturedDerivatives derivatives_;
};

// Makes the operators and classes known to PyTorch; again does nothing.
void RegisterCapturedCalls();

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_CAPTURED_CALL_H_
