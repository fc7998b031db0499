// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/lora.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/base/names.h"
#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "core/onnx/buffer_marks.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/model_reader.h"
#include "core/ops/random/philox.h"
#include "training/adapters/adapter_facts.h"
#include "training/adapters/linear_layers.h"
#include "training/session/session_parameters.h"

namespace caesura {
namespace {

constexpr char kScaling[] = "lora_scaling";

// The dtype of A and B for a layer that computes in `dtype`.
DType AdapterDType(DType dtype) { return IsHalf(dtype) ? DType::kFloat32 : dtype; }

std::string NamesOf(const std::vector<LinearLayer>& layers) {
  std::vector<std::string> names;
  for (const LinearLayer& layer : layers) names.push_back(layer.name);
  return names.empty() ? "no linear layer" : ListedNames(names, 20);
}

// Uniform in +-1/sqrt(in): PyTorch's kaiming_uniform_ with a = sqrt(5). Layer `number` of the model
// has numbers of its own.
Tensor StartOfA(DType dtype, int64_t rank, int64_t in, uint64_t seed, uint64_t number) {
  Tensor out = Tensor::Zeros(dtype, Shape{rank, in});
  const Philox philox({seed, 0, number});
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  ForEachWordTile(philox, 0, out.elements(), [&](int64_t at, const uint32_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const double value = (2 * static_cast<double>(UniformFloat(words[i])) - 1) * bound;
      if (dtype == DType::kFloat64) out.data<double>()[at + i] = value;
      else out.data<float>()[at + i] = static_cast<float>(value);
    }
  });
  return out;
}

// The last node of a layer: its product, or the Add of a bias that alone reads it.
Node* EndOf(Node* product) {
  const Value* y = product->output(0);
  if (y->uses().size() != 1 || y->graph()->IsGraphOutput(y)) return product;
  const auto [next, index] = y->uses()[0];
  const Value* bias = next->input(1 - index);
  const bool adds_bias = next->graph() == y->graph() && next->Is("Add") &&
                         y->graph()->Initializer(bias) != nullptr &&
                         y->graph()->Initializer(bias)->shape().rank() == 1;
  return adds_bias ? next : product;
}

// Adds the low-rank path to layers.
class LoraWriter {
 public:
  LoraWriter(Graph& graph, double scale) : graph_(graph), edit_(graph), scale_(scale) {}

  void Write(const LinearLayer& layer, Tensor a, Tensor b) {
    Value* down = AddInput(NameOfA(layer.name), std::move(a));
    Value* up = AddInput(NameOfB(layer.name), std::move(b));
    for (Node* product : layer.products) WriteFor(product, down, up);
  }

 private:
  Value* AddInput(const std::string& name, Tensor tensor) {
    Value* value = graph_.AddValue(name, ValueType::Tensor(tensor.dtype(), tensor.shape()));
    graph_.SetInitializer(value, std::move(tensor));
    graph_.AddInput(value);
    return value;
  }

  void WriteFor(Node* product, Value* a, Value* b) {
    Node* end = EndOf(product);
    Value* x = product->input(0);
    Value* y = graph_.ReleaseOutputs(end)[0];
    Value* base = graph_.AddValue(y->name() + "_base", y->type());
    end->SetOutput(0, base);
    const DType dtype = x->dtype(), wide = a->dtype();
    const auto add = [&](const char* op, std::vector<Value*> inputs, AttributeMap attributes = {}) {
      Value* out = graph_.AddValue(y->name() + "_lora", ValueType::Tensor(wide));
      edit_.InsertAfter(*end, {op, std::move(inputs), {out}, std::move(attributes)});
      return out;
    };
    const auto cast = [&](Value* value) {
      const AttributeMap to = {{"to", static_cast<int64_t>(wide)}};
      return wide == dtype ? value : add("Cast", {value}, to);
    };
    const AttributeMap swap = {{"perm", std::vector<int64_t>{1, 0}}};
    Value* low = add("MatMul", {cast(x), add("Transpose", {a}, swap)});
    low = add("MatMul", {low, add("Transpose", {b}, swap)});
    low = add("Mul", {low, Scaling(wide)});
    base = cast(base);
    if (wide == dtype) {
      edit_.InsertAfter(*end, {"Add", {base, low}, {y}});
    } else {
      edit_.InsertAfter(
          *end, {"Cast", {add("Add", {base, low})}, {y}, {{"to", static_cast<int64_t>(dtype)}}});
    }
  }

  // One for all layers of a dtype.
  Value* Scaling(DType dtype) {
    Value*& scaling = scalings_[dtype];
    if (scaling == nullptr) {
      scaling = graph_.AddInitializer(
          kScaling, dtype == DType::kFloat64 ? Tensor::Scalar<double>(scale_)
                                             : Tensor::Scalar<float>(static_cast<float>(scale_)));
    }
    return scaling;
  }

  Graph& graph_;
  GraphEdit edit_;
  const double scale_;
  std::map<DType, Value*> scalings_;
};

// Marks all floating initializers as buffers. Returns those that were not yet.
std::vector<std::string> Freeze(Model& model) {
  std::unordered_set<std::string> marked = MarkedBuffers(model);
  std::vector<std::string> frozen;
  for (const Value* value : model.graph->Values()) {
    const Tensor* tensor = model.graph->Initializer(value);
    if (tensor != nullptr && IsDifferentiable(tensor->dtype()) &&
        marked.insert(value->name()).second)
      frozen.push_back(value->name());
  }
  SetMarkedBuffers(marked, &model);
  return frozen;
}

using MatricesOf = std::function<Result<Adapter::Layer>(const LinearLayer& layer, size_t number)>;

// Adds an adapter to the layers that `is_target` takes.
Result<Model> WithAdapter(const Model& model, int64_t rank, double alpha,
                          const std::vector<LinearLayer>& layers, const MatricesOf& matrices) {
  Model out = model.Clone();
  Graph& graph = *out.graph;
  AdapterFacts facts{rank, alpha, {}, Freeze(out)};
  std::vector<LinearLayer> chosen;
  for (LinearLayer& layer : LinearLayers(graph)) {
    const auto same = [&](const LinearLayer& other) { return other.name == layer.name; };
    if (std::any_of(layers.begin(), layers.end(), same)) chosen.push_back(std::move(layer));
  }
  {
    LoraWriter writer(graph, alpha / static_cast<double>(rank));
    for (size_t i = 0; i < chosen.size(); ++i) {
      for (const std::string& name : {NameOfA(chosen[i].name), NameOfB(chosen[i].name)}) {
        if (graph.FindValue(name) != nullptr)
          return InvalidArgument("the model has a value '" + name +
                                 "' already, which the adapter needs");
      }
      ASSIGN_OR_RETURN(Adapter::Layer layer, matrices(chosen[i], i));
      writer.Write(chosen[i], std::move(layer.a), std::move(layer.b));
      facts.layers.push_back(chosen[i].name);
    }
  }
  WriteAdapterFacts(facts, &out);
  RETURN_IF_ERROR(InferShapes(out));
  return out;
}

// float32 or float64.
Tensor AsDType(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  return dtype == DType::kFloat64 ? Tensor::Of(tensor.shape(), tensor.ToVector<double>())
                                  : Tensor::Of(tensor.shape(), tensor.ToVector<float>());
}

const Tensor* Held(const Graph& graph, const std::string& name) {
  const Value* value = graph.FindValue(name);
  return value == nullptr ? nullptr : graph.Initializer(value);
}

std::string Described(const Tensor& tensor) {
  return DTypeName(tensor.dtype()) + tensor.shape().ToString();
}

}  // namespace

Result<Model> AddLora(const Model& model, const LoraOptions& options) {
  RETURN_IF_ERROR(CheckRank(options.rank, options.alpha).WithPrefix("lora: "));
  if (HasAdapter(model))
    return InvalidArgument("lora: the model has an adapter already; merge it first");
  const std::vector<LinearLayer> layers = LinearLayers(*model.graph);
  std::vector<LinearLayer> chosen;
  std::vector<std::string> without_layer;
  for (const std::string& target : options.targets) {
    const auto is_target = [&](const LinearLayer& layer) { return IsTarget(target, layer); };
    if (std::none_of(layers.begin(), layers.end(), is_target)) without_layer.push_back(target);
  }
  for (const LinearLayer& layer : layers) {
    const auto takes = [&](const std::string& target) { return IsTarget(target, layer); };
    if (std::any_of(options.targets.begin(), options.targets.end(), takes)) chosen.push_back(layer);
  }
  if (chosen.empty() || !without_layer.empty())
    return InvalidArgument("lora: targets: " +
                           (without_layer.empty()
                                ? "none were given"
                                : "no layer is named " + ListedNames(without_layer)) +
                           "; the model has " + NamesOf(layers));
  return WithAdapter(model, options.rank, options.alpha, chosen,
                     [&](const LinearLayer& layer, size_t number) -> Result<Adapter::Layer> {
                       const DType dtype = AdapterDType(InputDType(layer));
                       return Adapter::Layer{
                           StartOfA(dtype, options.rank, layer.in, options.seed, number),
                           Tensor::Zeros(dtype, Shape{layer.out, options.rank})};
                     });
}

Result<Adapter> AdapterOf(const Model& model) {
  ASSIGN_OR_RETURN(const AdapterFacts facts, ReadAdapterFacts(model));
  Adapter adapter{facts.rank, facts.alpha, {}};
  for (const std::string& layer : facts.layers) {
    const Tensor* a = Held(*model.graph, NameOfA(layer));
    const Tensor* b = Held(*model.graph, NameOfB(layer));
    const bool fit = a != nullptr && b != nullptr && a->shape().rank() == 2 &&
                     b->shape().rank() == 2 && a->shape()[0] == facts.rank &&
                     b->shape()[1] == facts.rank && IsDifferentiable(a->dtype()) &&
                     IsDifferentiable(b->dtype());
    if (!fit)
      return InvalidModel("layer '" + layer + "': expected initializers '" + NameOfA(layer) +
                          "' and '" + NameOfB(layer) + "' of rank " + std::to_string(facts.rank));
    adapter.layers[layer] = {*a, *b};
  }
  return adapter;
}

Result<Model> AddAdapter(const Model& model, const Adapter& adapter) {
  RETURN_IF_ERROR(CheckRank(adapter.rank, adapter.alpha).WithPrefix("adapter: "));
  if (adapter.layers.empty()) return InvalidArgument("adapter: it has no layers");
  const bool has_own = HasAdapter(model);
  std::map<std::string, LinearLayer> layers;
  for (LinearLayer& layer : LinearLayers(*model.graph)) layers[layer.name] = std::move(layer);
  std::string wrong;
  if (has_own) {
    ASSIGN_OR_RETURN(const AdapterFacts facts, ReadAdapterFacts(model));
    if (facts.rank != adapter.rank || facts.alpha != adapter.alpha)
      wrong += "\n  the model's rank and alpha are " + std::to_string(facts.rank) + " and " +
               std::to_string(facts.alpha) + ", the adapter's " + std::to_string(adapter.rank) +
               " and " + std::to_string(adapter.alpha);
    for (const std::string& name : facts.layers) {
      if (adapter.layers.count(name) == 0) wrong += "\n  the adapter has no layer '" + name + "'";
    }
    for (const auto& [name, matrices] : adapter.layers) {
      if (std::find(facts.layers.begin(), facts.layers.end(), name) == facts.layers.end())
        wrong += "\n  the model's adapter has no layer '" + name + "'";
    }
  }
  std::vector<LinearLayer> chosen;
  std::map<std::string, Adapter::Layer> taken;
  for (const auto& [name, matrices] : adapter.layers) {
    const auto it = layers.find(name);
    if (it == layers.end()) {
      wrong += "\n  the model has no layer '" + name + "'";
      continue;
    }
    const DType dtype = AdapterDType(InputDType(it->second));
    for (const auto& [part, tensor, shape] :
         {std::tuple(NameOfA(name), &matrices.a, Shape{adapter.rank, it->second.in}),
          std::tuple(NameOfB(name), &matrices.b, Shape{it->second.out, adapter.rank})}) {
      if (tensor->shape() != shape || !IsDifferentiable(tensor->dtype()))
        wrong += "\n  '" + part + "': expected " + DTypeName(dtype) + shape.ToString() + ", got " +
                 Described(*tensor);
    }
    chosen.push_back(it->second);
    if (wrong.empty()) taken[name] = {AsDType(matrices.a, dtype), AsDType(matrices.b, dtype)};
  }
  if (!wrong.empty()) {
    std::vector<LinearLayer> all;
    for (auto& [name, layer] : layers) all.push_back(layer);
    return InvalidArgument("the adapter does not fit the model, which has " + NamesOf(all) + ":" +
                           wrong);
  }
  if (!has_own) {
    return WithAdapter(model, adapter.rank, adapter.alpha, chosen,
                       [&](const LinearLayer& layer, size_t) -> Result<Adapter::Layer> {
                         return taken.at(layer.name);
                       });
  }
  Model out = model.Clone();
  for (const auto& [name, matrices] : taken) {
    out.graph->SetInitializer(out.graph->FindValue(NameOfA(name)), matrices.a);
    out.graph->SetInitializer(out.graph->FindValue(NameOfB(name)), matrices.b);
  }
  return out;
}

Result<Adapter> AdapterOf(const SessionParameters& parameters) {
  ASSIGN_OR_RETURN(Adapter adapter, AdapterOf(parameters.model()));
  for (auto& [name, matrices] : adapter.layers) {
    ASSIGN_OR_RETURN(matrices.a, parameters.Get(NameOfA(name)));
    ASSIGN_OR_RETURN(matrices.b, parameters.Get(NameOfB(name)));
  }
  return adapter;
}

Status SetAdapter(const Adapter& adapter, SessionParameters* parameters) {
  RETURN_IF_ERROR(ReadAdapterFacts(parameters->model()).status());
  ASSIGN_OR_RETURN(const Model adapted, AddAdapter(parameters->model(), adapter));
  ASSIGN_OR_RETURN(const Adapter fitted, AdapterOf(adapted));
  for (const auto& [name, matrices] : fitted.layers) {
    RETURN_IF_ERROR(parameters->Set(NameOfA(name), matrices.a));
    RETURN_IF_ERROR(parameters->Set(NameOfB(name), matrices.b));
  }
  return {};
}

}  // namespace caesura
