// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_model.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/gradient/expression.h"
#include "core/gradient/gradient_builder.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

using gradient::Expr;
using gradient::NodeWriter;

std::string Listed(const std::vector<Value*>& values) {
  std::string out;
  for (const Value* value : values) out += (out.empty() ? "'" : ", '") + value->name() + "'";
  return out.empty() ? "none" : out;
}

bool IsFloatingTensor(const Value& value) {
  return value.type().is_tensor() && IsDifferentiable(value.dtype());
}

Status CheckFloating(const char* option, const Value& value) {
  if (IsFloatingTensor(value)) return {};
  return InvalidArgument(std::string(option) + ": expected a floating tensor, got '" +
                         value.name() + "' of type " + value.type().ToString());
}

bool HasOneElement(const ValueType& type) {
  return type.shape && std::all_of(type.shape->begin(), type.shape->end(),
                                   [](const Dim& dim) { return dim.value == 1; });
}

class GradientWriter {
 public:
  GradientWriter(Graph& graph, const GradientModelOptions& options)
      : graph_(graph), options_(options), writer_(graph, Phase::kBackward) {}

  Status Write() {
    RETURN_IF_ERROR(FindOutputs());
    RETURN_IF_ERROR(FindInputs());
    if (!options_.names.empty() && options_.names.size() != by_.size()) {
      return InvalidArgument("names: expected " + std::to_string(by_.size()) +
                             ", one for each of by, got " + std::to_string(options_.names.size()));
    }
    GradientOptions options;
    options.xs = by_;
    options.unreachable = UnreachableGradient::kError;
    for (Value* y : of_) {
      options.ys.push_back({y});
      if (options_.sum || HasOneElement(y->type())) continue;
      ASSIGN_OR_RETURN(options.ys.back().dy, AddInput(y->name() + "_gradient", y->type()));
    }
    ASSIGN_OR_RETURN(const GradientGraph first, BuildGradient(graph_, options));
    for (size_t i = 0; i < by_.size(); ++i) {
      const std::string name =
          options_.names.empty() ? by_[i]->name() + "_gradient" : options_.names[i];
      RETURN_IF_ERROR(AddOutput(name, first.dxs[i], by_[i]->type()));
    }
    if (options_.hessian_product) RETURN_IF_ERROR(WriteHessianProduct(first.dxs));
    return InferShapes(graph_);
  }

 private:
  Status FindOutputs() {
    const std::vector<Value*>& outputs = graph_.outputs();
    if (options_.of.empty()) {
      if (outputs.size() != 1)
        return InvalidArgument("of: the model has several outputs: " + Listed(outputs));
      of_ = outputs;
    }
    for (const std::string& name : options_.of) {
      const auto it = std::find_if(outputs.begin(), outputs.end(),
                                   [&](const Value* output) { return output->name() == name; });
      if (it == outputs.end())
        return InvalidArgument("of: the model has no output '" + name + "'; it has " +
                               Listed(outputs));
      of_.push_back(*it);
    }
    for (const Value* y : of_) RETURN_IF_ERROR(CheckFloating("of", *y));
    return {};
  }

  Status FindInputs() {
    const std::vector<Value*>& inputs = graph_.inputs();
    for (const std::string& name : options_.by) {
      Value* value = graph_.FindValue(name);
      if (value == nullptr || (!graph_.IsGraphInput(value) && graph_.Initializer(value) == nullptr))
        return InvalidArgument("by: the model has no input or initializer '" + name +
                               "'; its inputs are " + Listed(inputs));
      if (std::count(by_.begin(), by_.end(), value) > 0)
        return InvalidArgument("by: '" + name + "' is named twice");
      RETURN_IF_ERROR(CheckFloating("by", *value));
      by_.push_back(value);
    }
    for (Value* input : inputs) {
      if (options_.by.empty() && IsFloatingTensor(*input)) by_.push_back(input);
    }
    return by_.empty()
               ? InvalidArgument("by: the model has no floating input; it has " + Listed(inputs))
               : Status();
  }

  Status CheckFree(const std::string& name) const {
    if (graph_.FindValue(name) == nullptr) return {};
    return InvalidArgument("the model has a value '" + name +
                           "' already, which the gradient needs");
  }

  Result<Value*> AddInput(const std::string& name, const ValueType& type) {
    RETURN_IF_ERROR(CheckFree(name));
    return graph_.AddInput(name, type);
  }

  Status AddOutput(const std::string& name, Value* value, const ValueType& type) {
    RETURN_IF_ERROR(CheckFree(name));
    Value* output = graph_.AddValue(name, type);
    if (options_.scale == 1) {
      writer_.AddWithOutputs("Identity", {value}, {output});
    } else {
      writer_.AddWithOutputs("Mul", {value, writer_.Scalar(options_.scale, type.dtype)}, {output});
    }
    graph_.AddOutput(output);
    return {};
  }

  // The gradient of <gradient, direction>.
  Status WriteHessianProduct(const std::vector<Value*>& gradients) {
    RETURN_IF_ERROR(InferShapes(graph_));
    GradientOptions options;
    options.xs = by_;
    for (size_t i = 0; i < by_.size(); ++i) {
      options.ys.push_back({gradients[i]});
      ASSIGN_OR_RETURN(options.ys.back().dy,
                       AddInput(by_[i]->name() + "_direction", by_[i]->type()));
    }
    ASSIGN_OR_RETURN(const GradientGraph second, BuildGradient(graph_, options));
    for (size_t i = 0; i < by_.size(); ++i) {
      RETURN_IF_ERROR(
          AddOutput(by_[i]->name() + "_hessian_product", second.dxs[i], by_[i]->type()));
    }
    return {};
  }

  Graph& graph_;
  const GradientModelOptions& options_;
  NodeWriter writer_;
  std::vector<Value*> of_, by_;
};

}  // namespace

Result<Model> GradientModel(const Model& model, const GradientModelOptions& options) {
  Model out = model.Clone();
  RETURN_IF_ERROR(GradientWriter(*out.graph, options).Write().WithPrefix("gradient: "));
  return out;
}

}  // namespace caesura
