// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/model_op.h"

#include <climits>
#include <cstring>

#include "core/base/status_macros.h"
#include "core/custom_ops/model_runtime.h"
#include "core/graph/op_def.h"
#include "core/graph/op_attributes.h"
#include "core/graph/op_schema.h"
#include "core/plugin/op_context.h"

namespace caesura {
namespace {

std::vector<ValueType> TypesOf(const std::vector<Value*>& values) {
  std::vector<ValueType> out;
  for (const Value* value : values) out.push_back(value == nullptr ? ValueType() : value->type());
  return out;
}

Status InferModelOp(Graph&, Node* node) {
  auto types = ModelTypes::Of(node->attributes());
  if (!types.ok()) return types.status();
  if (types->outputs.size() != node->outputs().size()) {
    return InvalidArgument("has " + std::to_string(node->outputs().size()) +
                           " outputs, its model gives " + std::to_string(types->outputs.size()));
  }
  ASSIGN_OR_RETURN(const std::vector<ValueType> outputs,
                   types->OutputsFor(TypesOf(node->inputs())));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (node->outputs()[i] != nullptr) node->outputs()[i]->set_type(outputs[i]);
  }
  return {};
}

// The gradients of the outputs come first, then the inputs.
Status InferModelOpGrad(Graph&, Node* node) {
  ASSIGN_OR_RETURN(const ModelTypes types, ModelTypes::Of(node->attributes()));
  for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i) {
    const Value* x = node->input(static_cast<int>(types.outputs.size()) + i);
    if (node->output(i) != nullptr && x != nullptr) node->output(i)->set_type(x->type());
  }
  return {};
}

Status CheckTypes(const ModelTypes& stated, const ModelTypes& told) {
  auto check = [](const char* what, const std::vector<std::string>& names,
                  const std::vector<ValueType>& types, const std::vector<std::string>& told_names,
                  const std::vector<ValueType>& told_types) {
    std::string list;
    bool same = names.size() == told_names.size();
    for (size_t i = 0; i < told_names.size(); ++i) {
      same = same && (names[i].empty() || names[i] == told_names[i]) &&
             AreCompatible(types[i], told_types[i]);
      list += (i == 0 ? "" : ", ") + told_names[i] + " " + told_types[i].ToString();
    }
    std::string own;
    for (size_t i = 0; i < names.size(); ++i)
      own += (i == 0 ? "" : ", ") + names[i] + " " + types[i].ToString();
    return same ? Status()
                : InvalidModel(std::string("states the ") + what + " " + own +
                               ", but its model has " + list);
  };
  RETURN_IF_ERROR(
      check("inputs", stated.input_names, stated.inputs, told.input_names, told.inputs));
  return check("outputs", stated.output_names, stated.outputs, told.output_names, told.outputs);
}

class ModelInstance : public OpInstance {
 public:
  ModelInstance(std::shared_ptr<const LoadedModel> model, ModelTypes types, bool is_gradient)
      : model_(std::move(model)), types_(std::move(types)), is_gradient_(is_gradient) {}

  Status CreateKernel(KernelInfo& info, const ExecutionProvider& provider) const override {
    const auto function = is_gradient_ ? model_->runtime().run_gradient : model_->runtime().run;
    RETURN_IF_ERROR((is_gradient_ ? SetGradients(info) : SetOutputs(info))
                        .WithPrefix(info.node().Label() + " "));
    ASSIGN_OR_RETURN(KernelFacts facts, KernelFacts::Of(info, provider));
    info.SetCompute([this, function, facts = std::move(facts)](KernelContext& kernel_context) {
      CaesuraContext context(kernel_context, facts);
      return model_->Run(function, context);
    });
    return {};
  }

 private:
  Status SetOutputs(KernelInfo& info) const {
    std::vector<ValueType> inputs;
    for (int i = 0; i < info.input_count(); ++i) {
      const bool is_tensor = info.HasInput(i) && info.input(i).is_tensor;
      if (!is_tensor)
        return InvalidArgument("takes tensors, its input " + std::to_string(i) + " is none");
      inputs.push_back(ValueType::Tensor(info.InputDType(i), info.InputShape(i)));
    }
    ASSIGN_OR_RETURN(const std::vector<ValueType> outputs, types_.OutputsFor(inputs));
    for (int i = 0; i < info.output_count(); ++i) {
      const std::optional<Shape> shape = outputs[static_cast<size_t>(i)].ConcreteShape();
      if (shape) info.SetOutput(i, outputs[static_cast<size_t>(i)].dtype, *shape);
      else info.SetOutputSizedInCompute(i);
    }
    return {};
  }

  Status SetGradients(KernelInfo& info) const {
    const int first = static_cast<int>(types_.outputs.size());
    for (int i = 0; i < info.output_count(); ++i) {
      if (!info.HasOutput(i)) continue;
      if (!info.HasInput(first + i))
        return InvalidArgument("has no input " + std::to_string(i) + " to differentiate by");
      info.SetOutput(i, info.InputDType(first + i), info.InputShape(first + i));
    }
    return {};
  }

  const std::shared_ptr<const LoadedModel> model_;
  const ModelTypes types_;
  const bool is_gradient_;
};

Result<std::shared_ptr<const OpInstance>> MakeInstance(ModelRuntimes& runtimes,
                                                       const OpNodeInfo& info, bool is_gradient) {
  ASSIGN_OR_RETURN(ModelTypes types, ModelTypes::Of(info.attributes));
  ASSIGN_OR_RETURN(std::shared_ptr<LoadedModel> model, runtimes.Load(info));
  RETURN_IF_ERROR(CheckTypes(types, model->types()));
  if (is_gradient) RETURN_IF_ERROR(model->CheckGradient());
  return std::shared_ptr<const OpInstance>(
      std::make_shared<ModelInstance>(std::move(model), std::move(types), is_gradient));
}

// (dy..., x...) -> dx..., by the runtime.
Status GradientByRuntime(GradientHook& g, ModelRuntimes& runtimes) {
  const Node& node = g.node();
  const std::string name = node.Attr<std::string>("runtime", "");
  ASSIGN_OR_RETURN(const CaesuraModelRuntime runtime, runtimes.Find(name));
  if (runtime.run_gradient == nullptr) {
    return Unsupported(
        "runtime '" + name +
        "' computes none; give the node a gradient_model of (x..., dy...) -> (dx...)");
  }
  std::vector<Value*> inputs;
  for (int i = 0; i < static_cast<int>(node.outputs().size()); ++i)
    inputs.push_back(g.OutputGradient(i));
  inputs.insert(inputs.end(), node.inputs().begin(), node.inputs().end());
  std::vector<bool> wanted;
  for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i)
    wanted.push_back(g.NeedsInputGradient(i));
  while (!wanted.back()) wanted.pop_back();
  ASSIGN_OR_RETURN(const std::vector<Value*> dxs,
                   g.AddNode(kModelOpGrad, inputs, node.attributes(), kCaesuraDomain, wanted));
  for (int i = 0; i < static_cast<int>(dxs.size()); ++i)
    g.SetInputGradient(i, dxs[static_cast<size_t>(i)]);
  return {};
}

Result<Value*> ZerosLike(GradientHook& g, Value* value) {
  ASSIGN_OR_RETURN(const std::vector<Value*> shape, g.AddNode("Shape", {value}));
  AttributeMap zero = {{"value", Tensor::Zeros(value->dtype(), Shape{1})}};
  ASSIGN_OR_RETURN(const std::vector<Value*> zeros,
                   g.AddNode("ConstantOfShape", shape, std::move(zero)));
  return zeros[0];
}

// Every dim of unknown size gets a name of its own, so that a gradient's size follows from its
// input's.
ValueType WithNamedDims(ValueType type, const std::string& stem) {
  for (size_t axis = 0; type.shape && axis < type.shape->size(); ++axis) {
    Dim& dim = (*type.shape)[axis];
    if (!dim.known()) dim.symbol = stem + std::to_string(axis);
  }
  return type;
}

// (x..., dy...) -> dx of the floating x..., by a model of its own.
Status GradientByModel(GradientHook& g) {
  const Node& node = g.node();
  AttributeMap attributes;
  const std::string runtime = node.Attr<std::string>("runtime", "");
  const std::string own = node.Attr<std::string>("gradient_runtime", runtime);
  attributes["runtime"] = own;
  if (own != runtime)
    attributes[kForwardNodeAttribute] = std::string();  // another runtime knows other options
  for (const char* name : {kOptionNamesAttribute, kOptionValuesAttribute}) {
    if (own == runtime && node.HasAttribute(name)) attributes[name] = node.attributes().at(name);
  }
  if (const Tensor* bytes = node.FindAttr<Tensor>("gradient_model")) attributes["model"] = *bytes;
  if (const std::string* file = node.FindAttr<std::string>("gradient_model_file"))
    attributes["model_file"] = *file;
  ModelTypes types;
  std::vector<int> differentiated;
  std::vector<Value*> inputs = node.inputs();
  for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i) {
    const ValueType type = WithNamedDims(node.input(i)->type(), "x" + std::to_string(i) + "_");
    types.inputs.push_back(type);
    if (!IsDifferentiable(type.dtype)) continue;
    types.outputs.push_back(type);
    differentiated.push_back(i);
  }
  for (int i = 0; i < static_cast<int>(node.outputs().size()); ++i) {
    Value* dy = g.OutputGradient(i);
    if (dy == nullptr) {
      ASSIGN_OR_RETURN(dy, ZerosLike(g, node.output(i)));
    }
    inputs.push_back(dy);
    types.inputs.push_back(WithNamedDims(node.output(i)->type(), "y" + std::to_string(i) + "_"));
  }
  types.input_names.resize(types.inputs.size());  // whatever the model calls them
  types.output_names.resize(types.outputs.size());
  types.AddTo(&attributes);
  ASSIGN_OR_RETURN(const std::vector<Value*> dxs,
                   g.AddNode(kModelOp, inputs, std::move(attributes), kCaesuraDomain,
                             std::vector<bool>(types.outputs.size(), true)));
  for (size_t k = 0; k < dxs.size(); ++k) g.SetInputGradient(differentiated[k], dxs[k]);
  return {};
}

Tensor BytesTensor(const std::string& bytes) {
  Tensor out = Tensor::Zeros(DType::kUInt8, Shape{static_cast<int64_t>(bytes.size())});
  std::memcpy(out.raw(), bytes.data(), bytes.size());
  return out;
}

// The user's statement wins where the runtime leaves something open.
Status Complete(const char* what, const std::vector<std::pair<std::string, std::string>>& stated,
                std::vector<std::string>* names, std::vector<ValueType>* types) {
  for (const auto& [name, text] : stated) {
    const size_t i = std::find(names->begin(), names->end(), name) - names->begin();
    if (i == names->size()) {
      std::string known;
      for (const std::string& other : *names) known += (known.empty() ? "" : ", ") + other;
      return InvalidArgument(std::string("the model has no ") + what + " '" + name +
                             "'; it has: " + known);
    }
    ASSIGN_OR_RETURN(ValueType type, ParseTensorType(text));
    if (!AreCompatible(type, (*types)[i])) {
      return InvalidArgument(std::string(what) + " '" + name + "' is " + (*types)[i].ToString() +
                             " in the model, not " + text);
    }
    (*types)[i] = std::move(type);
  }
  for (size_t i = 0; i < names->size(); ++i) {
    if ((*types)[i].is_tensor() && (*types)[i].dtype != DType::kUndefined) continue;
    return InvalidArgument(std::string("the runtime cannot tell the type of ") + what + " '" +
                           (*names)[i] + "'; state it, as " + (*names)[i] + "=float32[N, 64]");
  }
  return {};
}

}  // namespace

std::vector<CustomOp> MakeModelOps(std::vector<CaesuraModelRuntime> given) {
  auto runtimes = std::make_shared<ModelRuntimes>(std::move(given));
  CustomOp op;
  op.schema.op_type = kModelOp;
  op.schema.domain = kCaesuraDomain;
  op.schema.min_inputs = 0;
  op.schema.max_inputs = op.schema.max_outputs = INT_MAX;
  op.schema.infer = InferModelOp;
  op.schema.gradient = [runtimes](GradientHook& g) {
    const bool by_model =
        g.node().HasAttribute("gradient_model") || g.node().HasAttribute("gradient_model_file");
    return by_model ? GradientByModel(g) : GradientByRuntime(g, *runtimes);
  };
  op.checks_options = true;
  op.create_instance = [runtimes](const OpNodeInfo& info) {
    return MakeInstance(*runtimes, info, false);
  };
  CustomOp gradient = op;
  gradient.schema.op_type = kModelOpGrad;
  gradient.schema.infer = InferModelOpGrad;
  gradient.schema.gradient = nullptr;
  gradient.create_instance = [runtimes](const OpNodeInfo& info) {
    return MakeInstance(*runtimes, info, true);
  };
  return {std::move(op), std::move(gradient)};
}

Result<Model> WrapModel(const WrapOptions& options, std::vector<CaesuraModelRuntime> given) {
  ModelRuntimes runtimes(std::move(given));
  OpNodeInfo info;
  info.name = "model";
  info.op_type = kModelOp;
  info.domain = kCaesuraDomain;
  info.options = options.options;
  info.attributes["runtime"] = options.runtime;
  info.attributes["model"] = BytesTensor(options.model_bytes);
  if (!options.weight_bytes.empty()) info.attributes["weights"] = BytesTensor(options.weight_bytes);
  ASSIGN_OR_RETURN(const std::shared_ptr<LoadedModel> loaded, runtimes.Load(info));
  ModelTypes types = loaded->types();
  RETURN_IF_ERROR(Complete("input", options.inputs, &types.input_names, &types.inputs));
  RETURN_IF_ERROR(Complete("output", options.outputs, &types.output_names, &types.outputs));

  AttributeMap attributes = info.attributes;
  auto by_name = [&](const char* name, const std::string& file) {
    if (file.empty()) return;
    attributes.erase(name);
    attributes[std::string(name) + "_file"] = file;
  };
  by_name("model", options.model_file);
  by_name("weights", options.weights_file);
  types.AddTo(&attributes);
  if (!options.options.empty()) {
    std::vector<std::string> keys, values;
    for (const auto& [key, value] : options.options.values()) {
      keys.push_back(key);
      values.push_back(value);
    }
    attributes[kOptionNamesAttribute] = keys;
    attributes[kOptionValuesAttribute] = values;
  }
  if (!options.gradient_bytes.empty())
    attributes["gradient_model"] = BytesTensor(options.gradient_bytes);
  if (!options.gradient_runtime.empty()) attributes["gradient_runtime"] = options.gradient_runtime;

  Model model;
  model.graph = std::make_shared<Graph>("wrapped");
  model.opsets = {{"", LatestOpset()}, {kCaesuraDomain, 1}};
  model.ir_version = 10;
  std::vector<Value*> inputs, outputs;
  for (size_t i = 0; i < types.inputs.size(); ++i)
    inputs.push_back(model.graph->AddInput(types.input_names[i], types.inputs[i]));
  for (size_t i = 0; i < types.outputs.size(); ++i) {
    outputs.push_back(model.graph->AddValue(types.output_names[i], types.outputs[i]));
    model.graph->AddOutput(outputs.back());
  }
  Node* node = model.graph->AddNode(kModelOp, inputs, outputs, std::move(attributes),
                                    kCaesuraDomain, info.name);
  node->set_since_version(0);
  return model;
}

}  // namespace caesura
