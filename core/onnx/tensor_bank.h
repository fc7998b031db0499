// SPDX-License-Identifier: Apache-2.0
// Private to core/onnx. Takes every tensor out of a ModelProto, with all checks, so that what
// remains is small: a placeholder (a tensor of no elements) that carries the number of its tensor.
// Sparse tensors become dense ones.
#ifndef CAESURA_CORE_ONNX_TENSOR_BANK_H_
#define CAESURA_CORE_ONNX_TENSOR_BANK_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {

class ExternalFolder;

class TensorBank {
 public:
  struct Limits {
    size_t max_bytes;        // of all tensors together
    size_t max_dense_bytes;  // of all sparse tensors together, when dense
    int max_depth;           // of graphs in each other
  };
  // `folder` may be null: external data are an error then.
  TensorBank(Limits limits, ExternalFolder* folder) : limits_(limits), folder_(folder) {}

  // Fails with every faulty tensor named (the first 20).
  Status TakeFrom(onnx::ModelProto* model);
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  void TakeGraph(onnx::GraphProto* graph, int depth);
  void TakeAttribute(onnx::AttributeProto* attribute, int depth);
  void Take(onnx::TensorProto* proto);
  // Moves a sparse tensor into `dense`, a fresh proto.
  void TakeSparse(const onnx::SparseTensorProto& sparse, onnx::TensorProto* dense);
  Result<Tensor> Read(const onnx::TensorProto& proto);
  void Keep(Tensor tensor, onnx::TensorProto* placeholder);
  void Fail(Status status);

  Limits limits_;
  ExternalFolder* folder_;
  std::vector<Tensor> tensors_;
  size_t bytes_ = 0;
  size_t dense_bytes_ = 0;
  std::vector<Status> problems_;
};

// The number of the bank's tensor that `proto` stands for, or -1.
inline int64_t BankIndex(const onnx::TensorProto& proto) {
  return proto.has_segment() ? proto.segment().begin() : -1;
}

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_TENSOR_BANK_H_
