// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/dequantize_fusion.h"

#include <map>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "core/kernels/simd/small_types.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

constexpr DTypeSet kStoredTypes = kSubByteIntegers | DTypeSet{DType::kInt8, DType::kUInt8};

// A number of the type plus this counts from 0.
int ShiftOf(DType dtype) { return -static_cast<int>(RangeOf(dtype).lowest); }

// The numbers of a matrix [n, k] or its transpose, k first in the result, each less the least one
// of its type: MatMulNBits' own are unsigned. `bits` each, lowest first, in rows that are padded to
// `padded` numbers.
Result<Tensor> Packed(const Tensor& from, bool transposed, int bits, int64_t padded, Shape shape) {
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(DType::kUInt8, std::move(shape)));
  auto* bytes = static_cast<uint8_t*>(out.raw());
  std::fill_n(bytes, out.bytes(), uint8_t{0});
  const auto* numbers = static_cast<const uint8_t*>(from.raw());
  const int64_t n = from.shape()[transposed ? 1 : 0], k = from.shape()[transposed ? 0 : 1];
  const int mask = (1 << bits) - 1, shift = ShiftOf(from.dtype());
  for (int64_t row = 0; row < n; ++row) {
    uint8_t* line = bytes + row * padded * bits / 8;
    for (int64_t i = 0; i < k; ++i) {
      const int number = (numbers[transposed ? i * n + row : row * k + i] + shift) & mask;
      line[i * bits / 8] |= static_cast<uint8_t>(number << i * bits % 8);
    }
  }
  return out;
}

Result<Tensor> Transposed(const Tensor& from) {
  ASSIGN_OR_RETURN(Tensor out,
                   Tensor::Allocate(from.dtype(), Shape{from.shape()[1], from.shape()[0]}));
  DispatchStorage(from.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* x = static_cast<const T*>(from.raw());
    auto* y = static_cast<T*>(out.raw());
    const int64_t rows = from.shape()[0], columns = from.shape()[1];
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) y[j * rows + i] = x[i * columns + j];
    }
  });
  return out;
}

// Weights as MatMulNBits reads them: blocks along the rows of W [n, k].
struct PackedWeights {
  std::vector<Value*> inputs;  // B, scales, zero points if there are any
  AttributeMap attributes;
};

class DequantizeFuser {
 public:
  DequantizeFuser(Graph& graph, const std::unordered_set<std::string>& parameters)
      : graph_(graph), parameters_(parameters), edit_(graph) {}

  Result<bool> Run() {
    std::vector<Node*> products;
    for (const auto& node : graph_.nodes()) {
      if (node->Is("MatMul") || IsPlainGemm(*node)) products.push_back(node.get());
    }
    for (Node* product : products) RETURN_IF_ERROR(Fuse(product));
    if (!edit_.Finish()) return false;
    RemoveUnread();
    return true;
  }

 private:
  bool IsUnread(const Value* value) const {
    return value->uses().empty() && !graph_.IsGraphOutput(value);
  }

  const Tensor* Constant(const Value* value) const {
    const bool changes =
        value == nullptr || graph_.IsGraphInput(value) || parameters_.count(value->name()) > 0;
    return changes ? nullptr : graph_.Initializer(value);
  }

  // -1 for another size of blocks, another axis, types or shapes.
  int64_t AxisOf(const Node& node) const {
    const Tensor *q = Constant(node.input(0)), *scale = Constant(node.input(1)),
                 *zero = Constant(node.input(2));
    const int64_t block = node.Attr<int64_t>("block_size", 0);
    int64_t axis = node.Attr<int64_t>("axis", 1);
    if (axis < 0) axis += 2;
    const bool fits = q != nullptr && kStoredTypes.Contains(q->dtype()) && q->shape().rank() == 2 &&
                      q->elements() > 0 && block >= 16 && (block & (block - 1)) == 0 &&
                      (axis == 0 || axis == 1);
    if (!fits || scale == nullptr || scale->dtype() != node.output(0)->dtype()) return -1;
    Shape blocks = q->shape();
    // Padded to whole blocks the weights must stay small.
    if (block > 16 && block / 2 >= blocks[axis]) return -1;
    blocks[axis] = (blocks[axis] + block - 1) / block;
    if (scale->shape() != blocks) return -1;
    if (node.input(2) == nullptr) return axis;
    return zero != nullptr && zero->dtype() == q->dtype() && zero->shape() == blocks ? axis : -1;
  }

  Status Fuse(Node* product) {
    const Node* transpose = MadeBy(product->input(1), "Transpose");
    const Node* dequantize =
        MadeBy(transpose != nullptr ? transpose->input(0) : product->input(1), "DequantizeLinear");
    if (dequantize == nullptr || dequantize->graph() != &graph_) return {};
    const std::vector<int64_t> swap = {1, 0};
    if (transpose != nullptr && transpose->Attr("perm", swap) != swap) return {};
    const int64_t axis = AxisOf(*dequantize);
    if (axis < 0 || !MayBecomeOne(*dequantize, *product)) return {};
    // The product reads what is stored as its transpose.
    const bool transposed = (transpose != nullptr) != (product->Attr<int64_t>("transB", 0) != 0);
    const bool along_terms = transposed == (axis == 1);
    ASSIGN_OR_RETURN(const PackedWeights* weights, Pack(*dequantize, axis));
    std::vector<Value*> inputs = {product->input(0)};
    inputs.insert(inputs.end(), weights->inputs.begin(), weights->inputs.end());
    if (product->input(2) != nullptr) {
      inputs.resize(5, nullptr);
      inputs.push_back(product->input(2));
    }
    edit_.Replace(*product,
                  {along_terms ? "MatMulNBits" : "TransposedMatMulNBits", std::move(inputs),
                   graph_.ReleaseOutputs(product), weights->attributes,
                   along_terms ? kContribDomain : kCaesuraDomain, product->name() + ".packed"});
    if (transpose != nullptr) transposes_.insert(transpose);
    return {};
  }

  Result<const PackedWeights*> Pack(const Node& node, int64_t axis) {
    const auto [entry, fresh] = packed_.try_emplace(&node);
    PackedWeights& out = entry->second;
    if (!fresh) return &out;
    const Tensor &q = *Constant(node.input(0)), &scale = *Constant(node.input(1));
    const int bits = DTypeFileBits(q.dtype());
    const bool transposed = axis == 0;
    const int64_t n = q.shape()[transposed ? 1 : 0], k = q.shape()[transposed ? 0 : 1],
                  block = node.Attr<int64_t>("block_size", 0), blocks = (k + block - 1) / block;
    const auto add = [&](const char* what, Tensor tensor) {
      out.inputs.push_back(graph_.AddInitializer(node.output(0)->name() + what, std::move(tensor)));
    };
    ASSIGN_OR_RETURN(Tensor b,
                     Packed(q, transposed, bits, blocks * block, {n, blocks, block * bits / 8}));
    add(".packed", std::move(b));
    if (transposed) {
      ASSIGN_OR_RETURN(Tensor scales, Transposed(scale));
      add(".scales", std::move(scales));
    } else {
      out.inputs.push_back(node.input(1));
    }
    const int64_t zero_bytes = (blocks * bits + 7) / 8;
    if (const Tensor* zero = Constant(node.input(2))) {
      ASSIGN_OR_RETURN(Tensor zeros,
                       Packed(*zero, transposed, bits, zero_bytes * 8 / bits, {n, zero_bytes}));
      add(".zeros", std::move(zeros));
    } else if (ShiftOf(q.dtype()) == 0) {  // 0, where MatMulNBits has the middle of the range
      add(".zeros", Tensor::Zeros(DType::kUInt8, {n, zero_bytes}));
    }
    out.attributes = {{"K", k}, {"N", n}, {"bits", int64_t{bits}}, {"block_size", block}};
    return &out;
  }

  // The nodes that made the weights are dead now, and so is what they read.
  void RemoveUnread() {
    std::unordered_set<const Node*> dead;
    for (const Node* node : transposes_) {
      if (IsUnread(node->output(0))) dead.insert(node);
    }
    graph_.RemoveNodes(std::exchange(dead, {}));
    for (const auto& [node, weights] : packed_) {
      if (IsUnread(node->output(0))) dead.insert(node);
    }
    graph_.RemoveNodes(dead);
    graph_.RemoveUnusedValues();
  }

  Graph& graph_;
  const std::unordered_set<std::string>& parameters_;
  GraphEdit edit_;
  std::unordered_set<const Node*> transposes_;
  std::map<const Node*, PackedWeights> packed_;
};

class DequantizeFusion : public Pass {
 public:
  explicit DequantizeFusion(std::unordered_set<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "dequantize_fusion"; }
  Result<bool> Run(Model& model) override {
    return DequantizeFuser(*model.graph, parameters_).Run();
  }

 private:
  const std::unordered_set<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeDequantizeFusionPass(std::unordered_set<std::string> parameters) {
  return std::make_shared<DequantizeFusion>(std::move(parameters));
}

}  // namespace caesura
