// SPDX-License-Identifier: Apache-2.0
#include "training/step/loss.h"

#include <cassert>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "core/base/status_macros.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

// Appends forward nodes whose types are inferred at once.
class LossWriter {
 public:
  explicit LossWriter(Graph& graph) : graph_(graph) {}

  Value* Op(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes = {}) {
    Node* node =
        graph_.AddOp(op_type, std::move(inputs), std::move(attributes), "", 1, "loss_" + op_type);
    if (status_.ok()) status_ = InferNodeTypes(graph_, node);
    return node->output(0);
  }
  Value* Ints(const std::vector<int64_t>& values) {
    return graph_.AddInitializer(
        "loss_shape", Tensor::Of<int64_t>(Shape{static_cast<int64_t>(values.size())}, values));
  }
  Value* Number(double number, DType dtype) {
    Tensor tensor = Tensor::Zeros(dtype, Shape{});
    DispatchFloat(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      *tensor.data<T>() = static_cast<T>(static_cast<float>(number));
    });
    return graph_.AddInitializer("loss_weight", std::move(tensor));
  }
  Value* Mean(Value* value) { return Op("ReduceMean", {value}, {{"keepdims", int64_t{0}}}); }
  const Status& status() const { return status_; }

 private:
  Graph& graph_;
  Status status_;
};

Result<Value*> FindPrediction(const Graph& graph, const Loss& loss) {
  if (graph.outputs().empty())
    return InvalidArgument("the model has no output to compute a loss from");
  if (loss.prediction.empty()) return graph.outputs()[0];
  for (Value* output : graph.outputs()) {
    if (output->name() == loss.prediction) return output;
  }
  std::string names;
  for (const Value* output : graph.outputs())
    names += (names.empty() ? "'" : ", '") + output->name() + "'";
  return InvalidArgument("the model has no output '" + loss.prediction + "' for the loss; it has " +
                         names);
}

// The axis of the scores that holds the classes, from 0 on. Fails where there is none.
Result<int> ClassAxis(const Value& scores, const Loss& loss) {
  const auto refused = [&](const std::string& expected) {
    return InvalidArgument("loss: class_axis " + std::to_string(loss.class_axis) + ": expected " +
                           expected + "; the scores '" + scores.name() + "' are " +
                           scores.type().ToString());
  };
  const auto& shape = scores.type().shape;
  if (!shape) {
    if (loss.class_axis == 1 || loss.class_axis == -1) return loss.class_axis;
    return refused("1 or -1 where the number of axes is not known");
  }
  const int rank = static_cast<int>(shape->size());
  const int axis = loss.class_axis < 0 ? loss.class_axis + rank : loss.class_axis;
  if (axis >= 0 && axis < rank) return axis;
  return refused("an axis of the scores");
}

// Classes by row: [N..., C] and N... become [rows, C] and [rows]. An axis that is neither 1 nor the
// last one becomes the last one.
Value* CrossEntropy(LossWriter& w, Value* scores, Value* target, const Loss& loss, int axis) {
  const int rank = scores->type().shape ? static_cast<int>(scores->type().shape->size()) : 0;
  if (axis != 1 && axis != -1 && axis != rank - 1) {
    std::vector<int64_t> order;
    for (int i = 0; i < rank; ++i) {
      if (i != axis) order.push_back(i);
    }
    order.push_back(axis);
    scores = w.Op("Transpose", {scores}, {{"perm", std::move(order)}});
  }
  if (axis != 1 || loss.class_axis == -1) {
    const Dim classes = scores->type().shape ? scores->type().shape->back() : Dim{};
    Value* width = classes.known() ? w.Ints({classes.value})
                                   : w.Op("Shape", {scores}, {{"start", int64_t{-1}}});
    scores =
        w.Op("Reshape", {scores, w.Op("Concat", {w.Ints({-1}), width}, {{"axis", int64_t{0}}})});
    target = w.Op("Reshape", {target, w.Ints({-1})});
  }
  return w.Op("SoftmaxCrossEntropyLoss", {scores, target},
              {{"ignore_index", loss.ignore_index}, {"reduction", std::string("mean")}});
}

// The node whose mean the loss is, each target counting alike; null: it is another loss.
const Node* CrossEntropyOf(const Value& loss) {
  const Node* node = loss.producer();
  while (node != nullptr && (node->Is("Identity") || node->Is("Reshape") || node->Is("Squeeze")))
    node = node->input(0)->producer();
  if (node == nullptr) return nullptr;
  const bool is_mean =
      (node->Is("SoftmaxCrossEntropyLoss") || node->Is("NegativeLogLikelihoodLoss")) &&
      node->Attr<std::string>("reduction", "mean") == "mean";
  return is_mean && node->inputs().size() == 2 ? node : nullptr;
}

ValueType TargetType(const Value& prediction, const Loss& loss, int class_axis) {
  if (loss.kind != Loss::Kind::kCrossEntropy) return prediction.type();
  ValueType type = ValueType::Tensor(DType::kInt64);
  if (prediction.type().shape) {
    type.shape = prediction.type().shape;
    type.shape->erase(type.shape->begin() + class_axis);
  }
  return type;
}

// The mean between one output and a new input.
Result<Value*> AddTerm(Graph& graph, LossWriter& w, const Loss& loss) {
  ASSIGN_OR_RETURN(Value * prediction, FindPrediction(graph, loss));
  if (loss.kind == Loss::Kind::kOutput) return prediction;
  if (graph.Resolve(loss.target) != nullptr) {
    return InvalidArgument("the loss's target '" + loss.target +
                           "' is the name of a value of the model already");
  }
  int class_axis = 0;
  if (loss.kind == Loss::Kind::kCrossEntropy) {
    ASSIGN_OR_RETURN(class_axis, ClassAxis(*prediction, loss));
  }
  Value* target = graph.AddInput(loss.target, TargetType(*prediction, loss, class_axis));
  switch (loss.kind) {
    case Loss::Kind::kCrossEntropy: return CrossEntropy(w, prediction, target, loss, class_axis);
    case Loss::Kind::kMeanSquaredError: {
      Value* difference = w.Op("Sub", {prediction, target});
      return w.Mean(w.Op("Mul", {difference, difference}));
    }
    case Loss::Kind::kMeanAbsoluteError:
      return w.Mean(w.Op("Abs", {w.Op("Sub", {prediction, target})}));
    case Loss::Kind::kBinaryCrossEntropyLogits:
      // softplus(x) - x t = log(1 + exp(x)) - x t
      return w.Mean(
          w.Op("Sub", {w.Op("Softplus", {prediction}), w.Op("Mul", {prediction, target})}));
    case Loss::Kind::kOutput: break;
  }
  return prediction;
}

}  // namespace

Result<std::vector<LossTerm>> LossTerms(const Loss& loss) {
  std::vector<LossTerm> terms = {{loss.prediction, loss.target}};
  for (const std::string& text : loss.also) {
    const size_t equals = text.find('='), star = text.rfind('*');
    const bool has_weight =
        star != std::string::npos && equals != std::string::npos && star > equals;
    const std::string number = has_weight ? text.substr(star + 1) : "1";
    char* end = nullptr;
    const double weight = std::strtod(number.c_str(), &end);
    const size_t last = has_weight ? star : text.size();
    const bool is_whole = equals != std::string::npos && equals > 0 && equals + 1 < last &&
                          !number.empty() && *end == 0 && std::isfinite(weight);
    if (!is_whole) {
      return InvalidArgument("also: expected PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT, got '" +
                             text + "'");
    }
    terms.push_back({text.substr(0, equals), text.substr(equals + 1, last - equals - 1), weight});
  }
  if (terms.size() > 1 && loss.kind == Loss::Kind::kOutput)
    return InvalidArgument("also: a loss of the model's own has no further terms");
  return terms;
}

Result<Value*> AddLoss(Graph& graph, const Loss& loss) {
  ASSIGN_OR_RETURN(const std::vector<LossTerm> terms, LossTerms(loss));
  LossWriter w(graph);
  Value* sum = nullptr;
  for (const LossTerm& term : terms) {
    Loss one = loss;
    one.prediction = term.prediction;
    one.target = term.target;
    ASSIGN_OR_RETURN(Value * value, AddTerm(graph, w, one));
    if (term.weight != 1) value = w.Op("Mul", {value, w.Number(term.weight, value->dtype())});
    sum = sum == nullptr ? value : w.Op("Add", {sum, value});
  }
  RETURN_IF_ERROR(w.status().WithPrefix("loss: "));
  return sum;
}

Result<Value*> AddLossCount(Graph& graph, const Loss& loss, const Value& value) {
  assert(value.graph() == &graph && loss.also.empty());
  if (value.dtype() != DType::kFloat32 && value.dtype() != DType::kFloat64) {
    return InvalidArgument(
        std::string("mean over tokens: expected a loss of float32 or float64, got ") +
        DTypeName(value.dtype()));
  }
  LossWriter w(graph);
  const AttributeMap cast = {{"to", static_cast<int64_t>(value.dtype())}};
  Value* count = nullptr;
  if (const Node* mean = CrossEntropyOf(value); mean != nullptr) {
    Value* target = w.Op("Cast", {mean->input(1)}, {{"to", static_cast<int64_t>(DType::kInt64)}});
    if (!mean->HasAttribute("ignore_index")) {
      count = w.Op("Cast", {w.Op("Size", {target})}, cast);
    } else {
      Value* ignored = graph.AddInitializer(
          "loss_ignored", Tensor::Scalar<int64_t>(mean->Attr<int64_t>("ignore_index", 0)));
      Value* counts = w.Op("Not", {w.Op("Equal", {target, ignored})});
      count = w.Op("ReduceSum", {w.Op("Cast", {counts}, cast)}, {{"keepdims", int64_t{0}}});
    }
  } else if (loss.kind == Loss::Kind::kOutput) {
    return InvalidArgument("mean over tokens: the model's own loss '" + value.name() +
                           "' is no mean cross entropy without class weights, so the number of "
                           "tokens that it counts is not known");
  } else {
    ASSIGN_OR_RETURN(Value * prediction, FindPrediction(graph, loss));
    count = w.Op("Cast", {w.Op("Size", {prediction})}, cast);
  }
  RETURN_IF_ERROR(w.status().WithPrefix("mean over tokens: "));
  return count;
}

}  // namespace caesura
