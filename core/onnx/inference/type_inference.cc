// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/inference/type_inference.h"

#include <algorithm>
#include <cassert>
#include <climits>
#include <new>

#include "core/base/status_macros.h"
#include "core/graph/attribute_limits.h"
#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"
#include "core/onnx/inference/shape_refinement.h"
#include "core/onnx/graph_export.h"
#include "onnx/defs/schema.h"
#include "onnx/shape_inference/implementation.h"

namespace caesura {
namespace {

// Values of larger tensors are not followed.
constexpr int64_t kMaxConstantElements = 1024;
constexpr size_t kMaxTypeFaults = 20;

// A node as onnx's inference functions see it.
class NodeContext : public onnx::InferenceContext, public onnx::DataPropagationContext {
 public:
  NodeContext(Node& node, TypeInference& inference) : node_(node), inference_(inference) {
    outputs_.resize(node.outputs().size());
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    auto it = attributes_.find(name);
    if (it != attributes_.end()) return &it->second;
    auto found = node_.attributes().find(name);
    if (found == node_.attributes().end()) return nullptr;
    onnx::AttributeProto proto;
    if (!AnyAttributeToProto(name, found->second, &proto).ok()) return nullptr;
    return &attributes_.emplace(name, std::move(proto)).first->second;
  }
  size_t getNumInputs() const override { return node_.inputs().size(); }
  const onnx::TypeProto* getInputType(size_t i) const override {
    const Value* value = node_.input(static_cast<int>(i));
    if (value == nullptr) return nullptr;
    // Many of onnx's functions take null for an absent input only, and follow it otherwise.
    static const onnx::TypeProto kUnknown;
    const onnx::TypeProto* type = inference_.TypeOf(value);
    return type == nullptr ? &kUnknown : type;
  }
  bool hasInput(size_t i) const override { return node_.input(static_cast<int>(i)) != nullptr; }
  const onnx::TensorProto* getInputData(size_t i) const override {
    const Value* value = node_.input(static_cast<int>(i));
    return value == nullptr ? nullptr : inference_.ConstantOf(value);
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t i) const override {
    const Value* value = node_.input(static_cast<int>(i));
    return value == nullptr ? nullptr : inference_.DataOf(value);
  }
  size_t getNumOutputs() const override { return outputs_.size(); }
  onnx::TypeProto* getOutputType(size_t i) override { return &outputs_.at(i); }
  const onnx::TypeProto* getOutputType(size_t i) const override { return &outputs_.at(i); }
  bool hasOutput(size_t i) override { return node_.output(static_cast<int>(i)) != nullptr; }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& name) override;
  std::string getDisplayName() const override { return node_.Label(); }

  // Serves data propagation; overloads the constant's bytes above.
  const onnx::TensorShapeProto* getInputData(size_t i) override {
    const Value* value = node_.input(static_cast<int>(i));
    return value == nullptr ? nullptr : inference_.DataOf(value);
  }
  void addOutputData(size_t i, onnx::TensorShapeProto&& data) override {
    const Value* value = node_.output(static_cast<int>(i));
    if (value != nullptr) inference_.SetData(value, std::move(data));
  }

 private:
  class BodyInferencer : public onnx::GraphInferencer {
   public:
    BodyInferencer(Graph& body, TypeInference& inference) : body_(body), inference_(inference) {}
    std::vector<const onnx::TypeProto*> doInferencing(
        const std::vector<const onnx::TypeProto*>& input_types,
        const std::vector<const onnx::TensorProto*>&) override {
      return inference_.InferBody(body_, input_types);
    }

   private:
    Graph& body_;
    TypeInference& inference_;
  };

  Node& node_;
  TypeInference& inference_;
  std::vector<onnx::TypeProto> outputs_;
  mutable std::unordered_map<std::string, onnx::AttributeProto> attributes_;
  std::unordered_map<std::string, std::unique_ptr<BodyInferencer>> bodies_;
};

onnx::GraphInferencer* NodeContext::getGraphAttributeInferencer(const std::string& name) {
  auto* body = node_.FindAttr<std::shared_ptr<Graph>>(name);
  if (body == nullptr) throw onnx::InferenceError("attribute '" + name + "' is no graph");
  auto& inferencer = bodies_[name];
  if (inferencer == nullptr) inferencer = std::make_unique<BodyInferencer>(**body, inference_);
  return inferencer.get();
}

// The tensor of a Constant node, whichever attribute it is in.
bool ConstantTensor(const Node& node, Tensor* out) {
  if (!node.Is("Constant")) return false;
  if (auto* tensor = node.FindAttr<Tensor>("value")) return *out = *tensor, true;
  if (auto* i = node.FindAttr<int64_t>("value_int")) return *out = Tensor::Scalar(*i), true;
  if (auto* f = node.FindAttr<float>("value_float")) return *out = Tensor::Scalar(*f), true;
  if (auto* v = node.FindAttr<std::vector<int64_t>>("value_ints")) {
    return *out = Tensor::Of<int64_t>({static_cast<int64_t>(v->size())}, *v), true;
  }
  if (auto* v = node.FindAttr<std::vector<float>>("value_floats")) {
    return *out = Tensor::Of<float>({static_cast<int64_t>(v->size())}, *v), true;
  }
  return false;
}

// onnx's inference of an Einsum does not end at a character that it does not know.
bool IsEinsumEquation(std::string equation) {
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  if (arrow != equation.npos) equation.replace(arrow, 2, ",");
  for (size_t from = 0; from <= equation.size();) {
    const size_t end = std::min(equation.find(',', from), equation.size());
    std::string term = equation.substr(from, end - from);
    if (const size_t dots = term.find("..."); dots != term.npos) term.erase(dots, 3);
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    if (!std::all_of(term.begin(), term.end(), is_letter)) return false;
    from = end + 1;
  }
  return true;
}

// True if a missing type among the inputs may be why inference failed.
bool KnowsAllInputs(const Node& node) {
  for (const Value* input : node.inputs()) {
    if (input != nullptr &&
        (input->type().kind == ValueType::Kind::kUnknown ||
         (input->type().is_tensor() && input->type().dtype == DType::kUndefined))) {
      return false;
    }
  }
  return true;
}

// True if the dims that are known make more than a value may have.
bool IsTooLarge(const ValueType& type) {
  if (!type.is_tensor() || !type.shape) return false;
  std::vector<int64_t> known;
  for (const Dim& dim : *type.shape) {
    if (dim.known()) known.push_back(dim.value);
  }
  return !CheckedShape(std::move(known), type.dtype).ok();
}

}  // namespace

const onnx::OpSchema* OnnxSchema(const Node& node) {
  const int version = node.since_version() > 0 ? node.since_version() : INT_MAX;
  return onnx::OpSchemaRegistry::Schema(node.op_type(), version, node.domain());
}

bool MergeTypes(const ValueType& found, ValueType* type) {
  if (found.kind == ValueType::Kind::kUnknown) return true;
  if (type->kind == ValueType::Kind::kUnknown) {
    *type = found;
    return true;
  }
  if (type->kind != found.kind) return false;
  if (found.kind == ValueType::Kind::kMap) {
    if (type->key == DType::kUndefined) type->key = found.key;
    if (found.key != DType::kUndefined && type->key != found.key) return false;
  }
  if (found.kind != ValueType::Kind::kTensor) {
    ValueType element = type->element ? *type->element : ValueType();
    if (found.element && !MergeTypes(*found.element, &element)) return false;
    type->element = std::make_shared<const ValueType>(std::move(element));
    return true;
  }
  if (type->dtype == DType::kUndefined) type->dtype = found.dtype;
  if (found.dtype != DType::kUndefined && type->dtype != found.dtype) return false;
  if (!found.shape) return true;
  if (!type->shape || type->shape->size() != found.shape->size()) {
    type->shape = found.shape;
    return true;
  }
  for (size_t i = 0; i < found.shape->size(); ++i) {
    const Dim& dim = (*found.shape)[i];
    Dim& kept = (*type->shape)[i];
    if (dim.known() || (!kept.known() && kept.symbol.empty())) kept = dim;
  }
  return true;
}

void TypeInference::Fault(const Node& node, const std::string& what) {
  if (faults_.size() < kMaxTypeFaults) faults_.push_back(node.Label() + " " + what);
}

Status TypeInference::Verdict() const {
  if (faults_.empty()) return {};
  std::string text = "these nodes do not fit their inputs:";
  for (const std::string& fault : faults_) text += "\n  " + fault;
  return InvalidModel(text);
}

const onnx::TypeProto* TypeInference::TypeOf(const Value* value) {
  if (value->type().kind == ValueType::Kind::kUnknown) return nullptr;
  auto it = types_.find(value);
  if (it == types_.end()) {
    it = types_.emplace(value, onnx::TypeProto()).first;
    TypeToProto(value->type(), &it->second);
  }
  return it->second.value_case() == onnx::TypeProto::VALUE_NOT_SET ? nullptr : &it->second;
}

const onnx::TensorProto* TypeInference::ConstantOf(const Value* value) {
  auto it = constants_.find(value);
  if (it != constants_.end()) return &it->second;
  Tensor tensor;
  const Tensor* initializer = value->graph()->Initializer(value);
  if (initializer != nullptr && !value->graph()->IsGraphInput(value)) {
    tensor = *initializer;
  } else if (value->producer() == nullptr || !ConstantTensor(*value->producer(), &tensor)) {
    return nullptr;
  }
  if (tensor.elements() > kMaxConstantElements || !tensor.device().is_host()) return nullptr;
  onnx::TensorProto proto;
  proto.set_name(value->name());
  TensorToProto(tensor, &proto);
  return &constants_.emplace(value, std::move(proto)).first->second;
}

const onnx::TensorShapeProto* TypeInference::DataOf(const Value* value) {
  auto it = data_.find(value);
  if (it != data_.end()) return &it->second;
  onnx::TensorShapeProto data;
  const ValueType& type = value->type();
  const onnx::TensorProto* constant = ConstantOf(value);
  if (constant != nullptr && constant->dims_size() <= 1) {
    Result<Tensor> tensor = TensorFromProto(*constant);
    if (!tensor.ok() || (tensor->dtype() != DType::kInt64 && tensor->dtype() != DType::kInt32))
      return nullptr;
    for (int64_t element : tensor->ToVector<int64_t>()) data.add_dim()->set_dim_value(element);
  } else if (type.is_tensor() && (type.dtype == DType::kInt64 || type.dtype == DType::kInt32) &&
             type.shape && type.shape->size() == 1 && type.shape->front().known() &&
             type.shape->front().value <= kMaxConstantElements) {
    // Its length is known, its elements are not.
    for (int64_t i = 0; i < type.shape->front().value; ++i) data.add_dim();
  } else {
    return nullptr;
  }
  return &data_.emplace(value, std::move(data)).first->second;
}

void TypeInference::ReserveSymbols(const Graph& graph) {
  has_reserved_ |= graph.parent() == nullptr;
  for (const Value* value : graph.Values()) {
    if (!value->type().shape) continue;
    for (const Dim& dim : *value->type().shape) {
      if (!dim.symbol.empty()) symbols_.insert(dim.symbol);
    }
  }
  for (const auto& node : graph.nodes()) {
    for (const Graph* body : node->Subgraphs()) ReserveSymbols(*body);
  }
}

std::string TypeInference::FreshSymbol() {
  std::string symbol;
  do {
    symbol = "unk__" + std::to_string(symbol_count_++);
  } while (!symbols_.insert(symbol).second);
  return symbol;
}

void TypeInference::NameUnknownDims(ValueType* type) {
  if (!make_symbols_ || !type->is_tensor() || !type->shape) return;
  for (Dim& dim : *type->shape) {
    if (!dim.known() && dim.symbol.empty()) dim.symbol = FreshSymbol();
  }
}

void TypeInference::SetType(Value* value, ValueType type) {
  NameUnknownDims(&type);
  types_.erase(value);
  value->set_type(std::move(type));
}

void TypeInference::Merge(Node& node, Value* output, const ValueType& found) {
  ValueType type = output->type();
  if (!MergeTypes(found, &type)) {
    Fault(node, "makes '" + output->name() + "' a " + found.ToString() +
                    ", but it is declared as " + output->type().ToString());
  } else if (IsTooLarge(type)) {
    Fault(node, "makes '" + output->name() + "' a " + type.ToString() + ", which is too large");
  } else {
    SetType(output, std::move(type));
  }
}

void TypeInference::InferGraph(Graph& graph) {
  assert(!make_symbols_ || has_reserved_);
  for (Value* input : graph.inputs()) {
    if (IsTooLarge(input->type())) {
      faults_.push_back("input '" + input->name() + "', a " + input->type().ToString() +
                        ", is too large");
    }
    SetType(input, input->type());
  }
  for (const auto& node : graph.nodes()) InferNode(*node);
}

std::vector<const onnx::TypeProto*> TypeInference::InferBody(
    Graph& body, const std::vector<const onnx::TypeProto*>& input_types) {
  if (input_types.size() != body.inputs().size()) {
    throw onnx::InferenceError("its body has " + std::to_string(body.inputs().size()) +
                               " inputs, not " + std::to_string(input_types.size()));
  }
  for (size_t i = 0; i < input_types.size(); ++i) {
    if (input_types[i] == nullptr) continue;
    Value* input = body.inputs()[i];
    ValueType type = input->type();
    if (!MergeTypes(TypeFromProto(*input_types[i]), &type)) {
      throw onnx::InferenceError("its body wants '" + input->name() + "' as " +
                                 input->type().ToString());
    }
    SetType(input, std::move(type));
  }
  inferred_bodies_.insert(&body);
  InferGraph(body);
  std::vector<const onnx::TypeProto*> out;
  for (const Value* output : body.outputs()) {
    const onnx::TypeProto* type = TypeOf(output);
    if (type == nullptr) type = &unknown_types_.emplace_back();
    out.push_back(type);
  }
  return out;
}

void TypeInference::InferNode(Node& node) {
  const onnx::OpSchema* schema = OnnxSchema(node);
  if (schema != nullptr) {
    InferFromSchema(node, *schema);
  } else {
    InferRegistered(node);
  }
  // Bodies of ops that do not ask for them.
  for (Graph* body : node.Subgraphs()) {
    if (inferred_bodies_.insert(body).second) InferGraph(*body);
  }
}

void TypeInference::Refine(const Node& node, ValueType* found) {
  if (node.Is("Reshape") && node.input(0) != nullptr && node.input(1) != nullptr) {
    const onnx::TensorShapeProto* target = DataOf(node.input(1));
    if (target != nullptr) RefineReshape(node.input(0)->type(), *target, found);
  }
  RefineUninferred(node, found);
}

void TypeInference::InferFromSchema(Node& node, const onnx::OpSchema& schema) {
  const std::string fault = AttributeFault(node);
  if (!fault.empty()) return Fault(node, fault);
  if (node.Is("Einsum") && !IsEinsumEquation(node.Attr<std::string>("equation", ""))) {
    return Fault(node, "attribute 'equation': expected terms of letters and one '...' each, got '" +
                           node.Attr<std::string>("equation", "") + "'");
  }
  NodeContext context(node, *this);
  const bool knows_inputs = KnowsAllInputs(node);
  try {
    if (schema.has_type_and_shape_inference_function()) {
      schema.GetTypeAndShapeInferenceFunction()(context);
    } else if (schema.HasFunction()) {
      // onnx lists the elements of each vector whose values it follows through a body, one by one.
      const bool follows_values = std::ranges::none_of(node.inputs(), [](const Value* input) {
        return input != nullptr && input->type().is_tensor() && input->type().shape &&
               input->type().shape->size() == 1 &&
               input->type().shape->front().value > kMaxConstantElements;
      });
      onnx::shape_inference::DataValueMap values;
      onnx::shape_inference::InferShapeForFunctionNode(
          *schema.GetFunction(), onnx::OpSchemaRegistry::Instance(), context,
          onnx::ShapeInferenceOptions(false, 0, follows_values), {}, nullptr, &values);
    }
    if (knows_inputs) schema.CheckInputOutputType(context);
  } catch (const std::bad_alloc&) {
    throw;  // not the node's fault
  } catch (const std::exception& e) {
    if (knows_inputs) Fault(node, e.what());
    return;
  }
  onnx::InferenceContext& inferred = context;
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    Value* output = node.outputs()[i];
    if (output == nullptr) continue;
    ValueType found = TypeFromProto(*inferred.getOutputType(i));
    if (i == 0) Refine(node, &found);
    if (node.Is("Loop")) RefineCarried(node, static_cast<int>(i), &found);
    Merge(node, output, found);
  }
  if (!schema.has_data_propagation_function()) return;
  try {
    schema.GetDataPropagationFunction()(context);
  } catch (const std::bad_alloc&) {
    throw;  // as above
  } catch (const std::exception&) {
    // The values stay unknown.
  }
}

void TypeInference::InferRegistered(Node& node) {
  const OpDef* spec = FindOwnOp(node);
  if (spec == nullptr) return;
  if (spec->infer) {
    std::vector<ValueType> declared;
    for (const Value* output : node.outputs())
      declared.push_back(output == nullptr ? ValueType() : output->type());
    Status status = spec->infer(*node.graph(), &node);
    if (!status.ok()) Fault(node, status.message());
    for (const Value* output : node.outputs()) types_.erase(output);
    // Ours know all that there is to know; a user's op may say less than the model does, or
    // contradict it.
    if (FindOwnOp(node.op_type(), node.domain()) == spec) return;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      Value* output = node.outputs()[i];
      if (output == nullptr) continue;
      const ValueType found = output->type();
      output->set_type(declared[i]);
      Merge(node, output, found);
    }
    return;
  }
  for (size_t i = 0; i < node.outputs().size() && !spec->type_of_output.empty(); ++i) {
    const int from = spec->type_of_output[std::min(i, spec->type_of_output.size() - 1)];
    const Value* input = from < 0 ? nullptr : node.input(from);
    Value* output = node.outputs()[i];
    if (input == nullptr || output == nullptr) continue;
    Merge(node, output, input->type());
  }
}

}  // namespace caesura
