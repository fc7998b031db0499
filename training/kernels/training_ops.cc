// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/training_ops.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/graph.h"
#include "core/graph/op_schema.h"
#include "core/graph/shape_inference.h"
#include "core/kernels/spec/loss_spec.h"

namespace caesura {
namespace {

// The outputs have the dtype of input 0, whatever their shape.
Status SameDType(Graph&, Node* node) {
  const Value* input = node->input(0);
  if (input == nullptr || !input->type().is_tensor()) return {};
  for (Value* output : node->outputs()) {
    if (output != nullptr && !output->type().is_tensor())
      output->set_type(ValueType::Tensor(input->dtype()));
  }
  return {};
}

// A value that is handed out comes back as a gradient of its type; of its shape only where
// `full_shape_outputs` says so, or where the values themselves come back (`identity`).
Status InferYield(Graph&, Node* node) {
  const auto fixed = node->Attr<std::vector<int64_t>>("non_differentiable_outputs", {});
  const auto full = node->Attr<std::vector<int64_t>>("full_shape_outputs", {});
  auto lists = [](const std::vector<int64_t>& indices, int64_t i) {
    for (int64_t index : indices) {
      if (index == i) return true;
    }
    return false;
  };
  size_t k = 0;
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    if (lists(fixed, static_cast<int64_t>(i))) continue;
    if (k >= node->outputs().size()) break;
    Value* output = node->outputs()[k++];
    if (output == nullptr || output->type().is_tensor()) continue;
    ValueType type = node->inputs()[i]->type();
    if (!lists(full, static_cast<int64_t>(i))) type.shape.reset();
    output->set_type(std::move(type));
  }
  return {};
}

OpSchemaSpec Spec(const char* op_type, int min_inputs, int max_inputs, int max_outputs,
                  std::vector<int> types) {
  OpSchemaSpec spec;
  spec.op_type = op_type;
  spec.min_inputs = min_inputs;
  spec.max_inputs = max_inputs;
  spec.max_outputs = max_outputs;
  spec.type_of_output = std::move(types);
  spec.domain = kTrainingDomain;
  return spec;
}

// An op whose output shape is none of its inputs' shapes.
OpSchemaSpec Shaped(const char* op_type, int min_inputs, int max_inputs) {
  OpSchemaSpec spec = Spec(op_type, min_inputs, max_inputs, 1, {});
  spec.infer = SameDType;
  return spec;
}

// The attribute's dtype, otherwise that of input 0.
DType ResultDType(const Node& node) {
  return static_cast<DType>(
      node.Attr<int64_t>("dtype", static_cast<int64_t>(node.input(0)->dtype())));
}

// Matrices on both sides; the left batch dims where the right side has none, or the same.
Status FusedMatMulShape(Graph& graph, Node* node) {
  const Value *a = node->input(0), *b = node->input(1);
  if (a == nullptr || b == nullptr || !a->type().shape || !b->type().shape)
    return SameDType(graph, node);
  std::vector<Dim> left = *a->type().shape;
  const std::vector<Dim>& right = *b->type().shape;
  const bool fits =
      left.size() >= 2 && right.size() >= 2 &&
      (right.size() == 2 ||
       (left.size() == right.size() && std::equal(left.begin(), left.end() - 2, right.begin())));
  if (!fits) return SameDType(graph, node);
  if (node->Attr<int64_t>("transA", 0) != 0) std::swap(left[left.size() - 2], left.back());
  left.back() = right[right.size() - (node->Attr<int64_t>("transB", 0) != 0 ? 2 : 1)];
  ValueType type = ValueType::Tensor(ResultDType(*node));
  type.shape = std::move(left);
  Value* y = node->output(0);
  if (y != nullptr && (!y->type().is_tensor() || !y->type().shape)) y->set_type(std::move(type));
  return {};
}

// The shape is that of the tensor whose Shape the input is, or a constant.
template <int kInput>
Status ShapeOfInput(Graph& graph, Node* node) {
  const Value *x = node->input(0), *target = node->input(kInput);
  Value* y = node->output(0);
  if (x == nullptr || target == nullptr || !x->type().is_tensor() || y == nullptr) return {};
  if (y->type().is_tensor() && y->type().shape) return {};
  ValueType type = ValueType::Tensor(ResultDType(*node));
  const Node* producer = target->producer();
  if (const Tensor* constant = graph.Initializer(target)) {
    const std::vector<int64_t> dims = constant->ToVector<int64_t>();
    const bool fit = std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim >= 0; });
    if (fit) type = ValueType::Tensor(type.dtype, Shape(dims));
  } else if (producer != nullptr && producer->Is("Shape") && producer->attributes().empty()) {
    type.shape = producer->input(0)->type().shape;
  }
  y->set_type(std::move(type));
  return {};
}

// An op whose output has the shape that an input says.
template <int kInput>
OpSchemaSpec Sized(const char* op_type, int min_inputs, int max_inputs) {
  OpSchemaSpec spec = Spec(op_type, min_inputs, max_inputs, 1, {});
  spec.infer = ShapeOfInput<kInput>;
  return spec;
}

// Output i is input i.
Status SameTypes(Graph&, Node* node) {
  for (size_t i = 0; i < node->outputs().size() && i < node->inputs().size(); ++i) {
    if (node->outputs()[i] != nullptr && node->inputs()[i] != nullptr)
      node->outputs()[i]->set_type(node->inputs()[i]->type());
  }
  return {};
}

// Output i has the shape of input i, and the dtype that the attribute says.
Status InferCastAll(Graph& graph, Node* node) {
  RETURN_IF_ERROR(SameTypes(graph, node));
  for (Value* output : node->outputs()) {
    if (output == nullptr || !output->type().is_tensor()) continue;
    ValueType type = output->type();
    type.dtype = static_cast<DType>(node->Attr<int64_t>("to", 0));
    output->set_type(std::move(type));
  }
  return {};
}

Status InferTopK(Graph& graph, Node* node) {
  const Value *x = node->input(0), *k = node->input(1);
  if (x == nullptr || k == nullptr || !x->type().is_tensor()) return {};
  const Tensor* count = graph.Initializer(k);
  for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i) {
    if (node->output(i) == nullptr ||
        (node->output(i)->type().is_tensor() && node->output(i)->type().shape))
      continue;
    ValueType type = ValueType::Tensor(i == 0 ? x->dtype() : DType::kInt64);
    if (x->type().shape && count != nullptr && count->dtype() == DType::kInt64 &&
        count->shape().elements() == 1) {
      type.shape = x->type().shape;
      const int64_t rank = static_cast<int64_t>(type.shape->size()),
                    axis = node->Attr<int64_t>("axis", -1);
      if (axis < -rank || axis >= rank)
        return InvalidArgument(node->Label() + " has no axis " + std::to_string(axis));
      (*type.shape)[axis < 0 ? axis + rank : axis] = Dim{count->ToVector<int64_t>()[0], ""};
    }
    node->output(i)->set_type(std::move(type));
  }
  return {};
}

// Leaves an output as it is where its shape is known.
void SetOutputType(const Node& node, int output, DType dtype,
                   std::optional<std::vector<Dim>> shape) {
  Value* value = node.output(output);
  if (value == nullptr || (value->type().is_tensor() && value->type().shape)) return;
  ValueType type = ValueType::Tensor(dtype);
  type.shape = std::move(shape);
  value->set_type(std::move(type));
}

Status InferCrossEntropy(Graph&, Node* node) {
  const Value *scores = node->input(0), *labels = node->input(1);
  if (scores == nullptr || labels == nullptr || !scores->type().is_tensor()) return {};
  const bool each = node->Attr<std::string>("reduction", "mean") == "none";
  SetOutputType(*node, 0, scores->dtype(), each ? labels->type().shape : std::vector<Dim>());
  SetOutputType(*node, 1, scores->dtype(), scores->type().shape);
  SetOutputType(*node, 2, LogSumDType(scores->dtype()), labels->type().shape);
  return {};
}

OpSchemaSpec CrossEntropyTraining() {
  OpSchemaSpec spec = Spec("SoftmaxCrossEntropyLossTraining", 2, 3, 3, {});
  spec.infer = InferCrossEntropy;
  return spec;
}

// The scores' shape, of the attribute's dtype.
Status InferCrossEntropyGrad(Graph&, Node* node) {
  const Value* scores = node->input(1);
  if (scores == nullptr || !scores->type().is_tensor()) return {};
  const auto dtype = node->Attr<int64_t>("dtype", static_cast<int64_t>(scores->dtype()));
  SetOutputType(*node, 0, static_cast<DType>(dtype), scores->type().shape);
  return {};
}

OpSchemaSpec CrossEntropyGrad() {
  OpSchemaSpec spec = Spec("SoftmaxCrossEntropyLossGrad", 5, 5, 1, {});
  spec.infer = InferCrossEntropyGrad;
  return spec;
}

OpSchemaSpec TopK() {
  OpSchemaSpec spec = Spec("TopK", 2, 2, 2, {});
  spec.infer = InferTopK;
  return spec;
}

OpSchemaSpec WithGradient() {
  OpSchemaSpec spec = Spec("WithGradient", 1, 1024, 256, {});
  spec.infer = SameTypes;
  return spec;
}

OpSchemaSpec CastAll() {
  OpSchemaSpec spec = Spec("CastAll", 1, INT_MAX, INT_MAX, {});
  spec.infer = InferCastAll;
  return spec;
}

OpSchemaSpec FusedMatMul() {
  OpSchemaSpec spec = Spec("FusedMatMul", 2, 4, 1, {});
  spec.infer = FusedMatMulShape;
  return spec;
}

// Dim 0 times the number of ranks, or divided by it.
template <bool kGathers>
Status InferExchange(Graph&, Node* node) {
  const Value* x = node->input(0);
  Value* y = node->output(0);
  if (x == nullptr || y == nullptr || !x->type().is_tensor()) return {};
  ValueType type = x->type();
  const auto ranks = node->Attr<int64_t>("ranks", 0);
  if (type.shape && !type.shape->empty()) {
    Dim& rows = type.shape->front();
    if (!rows.known() || ranks < 1) rows = Dim{};
    else rows.value = kGathers ? rows.value * ranks : rows.value / ranks;
  }
  y->set_type(std::move(type));
  return {};
}

std::vector<OpSchemaSpec> Exchanges() {
  std::vector<OpSchemaSpec> out = {Spec("AllReduce", 1, 1, 1, {0}), Spec("AllToAll", 1, 1, 1, {0}),
                                   Spec("AllGather", 1, 1, 1, {}),
                                   Spec("ReduceScatter", 1, 1, 1, {})};
  out[2].infer = InferExchange<true>;
  out[3].infer = InferExchange<false>;
  for (OpSchemaSpec& spec : out) spec.is_deterministic = false;  // none is joined with another
  return out;
}

std::vector<OpSchemaSpec> Elementwise() {
  return {
      Spec("ReluGrad", 2, 2, 1, {0}),       Spec("GeluGrad", 2, 2, 1, {0}),
      Spec("SigmoidGrad", 2, 2, 1, {0}),    Spec("TanhGrad", 2, 2, 1, {0}),
      Spec("SoftmaxGrad", 2, 2, 1, {0}),    Spec("LogSoftmaxGrad", 2, 2, 1, {0}),
      Spec("DropoutGrad", 3, 3, 1, {0}),    Spec("CumProdGrad", 3, 3, 1, {1}),
      Spec("ReduceProdGrad", 2, 3, 1, {1}), Spec("DetGrad", 3, 3, 1, {1}),
      Spec("Detach", 1, 1, 1, {0}),         Spec("Check", 2, 2, 1, {0}),
  };
}

std::vector<OpSchemaSpec> Movement() {
  return {
      Sized<1>("SumTo", 2, 2),
      Sized<2>("GatherGrad", 3, 4),
      Sized<1>("SliceGrad", 4, 6),
      Sized<1>("PadGrad", 3, 4),
      Sized<1>("ResizeGrad", 2, 5),
      CastAll(),
      FusedMatMul(),
      WithGradient(),
      TopK(),
      Spec("FusedRows", 1, 256, 256, {-1}),
  };
}

// As ONNX's Attention (opset 23): 4-D inputs are [batch, heads, length, head size], 3-D ones
// [batch, length, heads * head size]. lse is [batch, heads, length] either way. What is cached
// (present_key, present_value) has its dtype alone.
Status InferAttention(Graph& graph, Node* node) {
  const Value *q = node->input(0), *v = node->input(2);
  if (q == nullptr || v == nullptr || !q->type().is_tensor()) return {};
  const auto &qs = q->type().shape, &vs = v->type().shape;
  std::optional<std::vector<Dim>> y, lse;
  if (qs && vs && qs->size() == 4 && vs->size() == 4) {
    y = {{(*qs)[0], (*qs)[1], (*qs)[2], (*vs)[3]}};
    lse = {{(*qs)[0], (*qs)[1], (*qs)[2]}};
  } else if (qs && vs && qs->size() == 3 && vs->size() == 3) {
    const int64_t heads = node->Attr<int64_t>("q_num_heads", 0),
                  kv_heads = node->Attr<int64_t>("kv_num_heads", 0);
    const bool known = (*vs)[2].known() && heads > 0 && kv_heads > 0;
    y = {{(*qs)[0], (*qs)[1], known ? Dim{(*vs)[2].value / kv_heads * heads, ""} : Dim{}}};
    lse = {{(*qs)[0], Dim{heads > 0 ? heads : -1, ""}, (*qs)[1]}};
  }
  SetOutputType(*node, 0, q->dtype(), std::move(y));
  SetOutputType(*node, 4, LogSumDType(q->dtype()), std::move(lse));
  return SameDType(graph, node);
}

OpSchemaSpec AttentionTraining() {
  OpSchemaSpec spec = Spec("AttentionTraining", 3, 7, 5, {});
  spec.infer = InferAttention;
  return spec;
}

OpSchemaSpec CtcLoss() {
  OpSchemaSpec spec = Spec("CtcLoss", 4, 4, 2, {-1, 0});
  spec.infer = [](Graph&, Node* node) {
    const Value* log_probs = node->input(0);
    if (log_probs == nullptr || !log_probs->type().is_tensor()) return Status();
    ValueType losses = ValueType::Tensor(log_probs->dtype());
    const auto& shape = log_probs->type().shape;
    if (shape && shape->size() == 3) losses.shape = std::vector<Dim>{(*shape)[1]};
    if (node->output(0) != nullptr) node->output(0)->set_type(std::move(losses));
    return Status();
  };
  return spec;
}

// {op, inputs at least, at most, outputs at most, whose type each output has}
std::vector<OpSchemaSpec> Layers() {
  return {
      Spec("ConvGrad", 3, 3, 3, {1, 2, -1}),
      Spec("ConvTransposeGrad", 3, 3, 3, {1, 2, -1}),
      Spec("DeformConvGrad", 4, 6, 5, {1, 2, 3, 4, 5}),
      Spec("MaxPoolGrad", 2, 2, 1, {1}),
      Spec("AveragePoolGrad", 2, 2, 1, {1}),
      Spec("LpPoolGrad", 3, 3, 1, {1}),
      Spec("GlobalMaxPoolGrad", 2, 2, 1, {1}),
      Spec("MaxRoiPoolGrad", 3, 3, 1, {1}),
      Spec("RoiAlignGrad", 4, 4, 1, {1}),
      Spec("GridSampleGrad", 3, 3, 2, {1, 2}),
      Spec("BatchNormalizationTraining", 5, 5, 5, {0, 3, 4, 1, 1}),
      Spec("BatchNormalizationGrad", 5, 5, 3, {1, 2, 2}),
      Spec("LayerNormalizationGrad", 5, 5, 3, {1, 2, 2}),
      Spec("RMSNormalizationGrad", 3, 3, 2, {1, 2}),
      Spec("InstanceNormalizationGrad", 3, 3, 3, {1, 2, 2}),
      Spec("GroupNormalizationGrad", 3, 3, 3, {1, 2, 2}),
      CrossEntropyTraining(),
      CrossEntropyGrad(),
      Sized<3>("NegativeLogLikelihoodLossGrad", 4, 4),
      CtcLoss(),
      Spec("RNNTraining", 3, 6, 3, {-1}),
      Spec("GRUTraining", 3, 6, 3, {-1}),
      Spec("LSTMTraining", 3, 8, 4, {-1}),
      Spec("RNNGrad", 9, 9, 5, {2, 3, 4, 5, 7}),
      Spec("GRUGrad", 9, 9, 5, {2, 3, 4, 5, 7}),
      Spec("LSTMGrad", 12, 12, 7, {3, 4, 5, 6, 8, 9, 10}),
      AttentionTraining(),
      Spec("AttentionGrad", 4, 7, 4, {1, 2, 3, 4}),
  };
}

std::vector<OpSchemaSpec> Steps() {
  OpSchemaSpec yield = Spec("YieldOp", 1, INT_MAX, INT_MAX, {});
  yield.min_outputs = 0;
  yield.infer = InferYield;
  yield.is_deterministic = false;  // what comes back is the caller's
  OpSchemaSpec norm = Shaped("GlobalNorm", 1, INT_MAX);
  norm.infer = [](Graph&, Node* node) {
    const bool wide = node->input(0) != nullptr && node->input(0)->dtype() == DType::kFloat64;
    node->output(0)->set_type(ValueType::Tensor(wide ? DType::kFloat64 : DType::kFloat32, Shape{}));
    return Status();
  };
  OpSchemaSpec start = Spec("CollectiveStart", 1, INT_MAX, INT_MAX, {});
  OpSchemaSpec wait = Spec("CollectiveWait", 1, INT_MAX, INT_MAX, {});
  OpSchemaSpec agree = Spec("AgreeToCommit", 1, INT_MAX, 1, {0});
  for (OpSchemaSpec* spec : {&start, &wait, &agree}) spec->is_deterministic = false;
  start.infer = wait.infer = SameTypes;
  OpSchemaSpec scatter = Spec("ReduceScatterStart", 1, INT_MAX, INT_MAX, {});
  OpSchemaSpec scattered = Spec("ReduceScatterWait", 3, INT_MAX, 1, {0});
  OpSchemaSpec ordered = Spec("OrderedSumStart", 1, INT_MAX, INT_MAX, {});
  OpSchemaSpec summed = Spec("OrderedSumWait", 3, INT_MAX, INT_MAX, {});
  OpSchemaSpec own = Spec("OwnPart", 1, INT_MAX, 1, {});
  OpSchemaSpec gather = Spec("AllGatherStart", 1, 1, 1, {});
  OpSchemaSpec gathered = Spec("AllGatherWait", 3, INT_MAX, INT_MAX, {});
  for (OpSchemaSpec* spec : {&scatter, &scattered, &ordered, &summed, &own, &gather, &gathered})
    spec->is_deterministic = false;
  std::vector<OpSchemaSpec> out = {
      std::move(yield),
      std::move(start),
      std::move(wait),
      std::move(agree),
      std::move(scatter),
      std::move(scattered),
      std::move(ordered),
      std::move(summed),
      std::move(own),
      std::move(gather),
      std::move(gathered),
      std::move(norm),
      Spec("InPlaceAccumulator", 3, 3, 1, {0}),
      Spec("AccumulatedSum", 3, 3, 1, {0}),
      Spec("PairwiseAccumulator", 3, 3, 1, {0}),
      Spec("PairwiseSum", 3, 3, 1, {1}),
      Spec("ClipScale", 2, 2, 1, {1}),
      Spec("RequireFinite", 2, INT_MAX, 1, {0}),
      Spec("Assign", 2, 2, 1, {0}),
      Spec("Copy", 1, 1, 1, {0}),
  };
  for (const char* op : {"SgdUpdate", "AdamUpdate", "AdamWUpdate", "NAdamUpdate", "RAdamUpdate",
                         "AdamaxUpdate", "AdagradUpdate", "AdadeltaUpdate", "AsgdUpdate",
                         "RpropUpdate", "LambUpdate", "LionUpdate", "RmspropUpdate"}) {
    // Parameters and states are many: output i stands at another input for each count.
    out.push_back(Spec(op, 4, INT_MAX, INT_MAX, {}));
  }
  return out;
}

}  // namespace

Status RegisterTrainingOpSchemas() {
  for (const auto& family : {Elementwise(), Movement(), Layers(), Steps(), Exchanges()}) {
    if (Status status = RegisterOpSchemas(family); !status.ok()) return status;
  }
  return {};
}

Status RegisterTrainingOpSchemas(Model& model) {
  if (Status status = RegisterTrainingOpSchemas(); !status.ok()) return status;
  const auto& nodes = model.graph->nodes();
  const bool any = std::any_of(nodes.begin(), nodes.end(),
                               [](const auto& node) { return node->domain() == kTrainingDomain; });
  return any ? InferShapes(model) : Status();
}

}  // namespace caesura
