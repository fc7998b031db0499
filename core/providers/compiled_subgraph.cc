// SPDX-License-Identifier: Apache-2.0
#include "core/providers/compiled_subgraph.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "core/base/status_macros.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

constexpr size_t kMaxKept = 32;  // compiled subgraphs of one body, by shapes
constexpr size_t kMaxNamed = 8;  // nodes in an error's text

// A body compiled for shapes of its inputs.
struct Compiled {
  std::vector<Shape> input_shapes;
  std::vector<DType> input_dtypes;
  int threads;
  std::shared_ptr<const CompiledSubgraph> subgraph;
  std::vector<std::optional<Shape>> output_shapes;  // where they follow from the inputs'
  std::vector<DType> output_dtypes;
  std::string nodes;  // for errors

  bool Fits(const KernelInfo& info) const {
    if (threads != info.threads()) return false;
    for (size_t i = 0; i < input_shapes.size(); ++i) {
      const InputInfo& input = info.input(static_cast<int>(i));
      if (input.dtype != input_dtypes[i] || input.shape != input_shapes[i]) return false;
    }
    return true;
  }
};

std::string NamesOf(const Graph& body) {
  std::string out;
  for (size_t i = 0; i < std::min(kMaxNamed, body.nodes().size()); ++i) {
    out += (i == 0 ? "" : ", ") + body.nodes()[i]->Label();
  }
  if (body.nodes().size() > kMaxNamed)
    out += ", ... (" + std::to_string(body.nodes().size()) + " nodes)";
  return out;
}

class SubgraphKernel {
 public:
  SubgraphKernel(const SubgraphCompiler& compiler, std::string provider)
      : compiler_(compiler), provider_(std::move(provider)) {}

  Status Create(KernelInfo& info) {
    const auto* body = info.node().FindAttr<std::shared_ptr<Graph>>(kCompiledBody);
    if (body == nullptr) return info.Invalid("has no body");
    ASSIGN_OR_RETURN(const std::shared_ptr<const Compiled> compiled, Find(info, *body));
    for (int i = 0; i < info.output_count(); ++i) {
      const std::optional<Shape>& shape = compiled->output_shapes[i];
      if (shape) info.SetOutput(i, compiled->output_dtypes[i], *shape);
      else info.SetOutputSizedInCompute(i);
    }
    info.SetCompute([compiled, provider = provider_](KernelContext& context) {
      return Run(*compiled, provider, context);
    });
    return {};
  }

 private:
  static Status Run(const Compiled& compiled, const std::string& provider, KernelContext& context) {
    std::vector<SubgraphArgument> inputs, outputs;
    for (size_t i = 0; i < compiled.input_shapes.size(); ++i) {
      void* data = const_cast<void*>(context.Input<void>(static_cast<int>(i)));
      inputs.push_back({data, compiled.input_dtypes[i], &compiled.input_shapes[i]});
    }
    for (size_t i = 0; i < compiled.output_shapes.size(); ++i) {
      const std::optional<Shape>& shape = compiled.output_shapes[i];
      void* data = shape ? context.Output<void>(static_cast<int>(i)) : nullptr;
      outputs.push_back({data, compiled.output_dtypes[i], shape ? &*shape : nullptr});
    }
    auto make_output = [&](int i, DType dtype, Shape shape) {
      return context.AllocateOutput(i, dtype, std::move(shape));
    };
    const Status status = compiled.subgraph->Run(inputs, outputs, make_output);
    const StatusCode code = status.code();
    if (status.ok() || code == StatusCode::kInvalidArgument || code == StatusCode::kOutOfMemory)
      return status;
    return ProviderFailure(provider + " failed to run " + compiled.nodes + ": " + status.message());
  }

  // One body's compiled forms; the last one used first.
  struct Kept {
    std::weak_ptr<Graph> body;
    std::list<std::shared_ptr<const Compiled>> compiled;
  };

  Result<std::shared_ptr<const Compiled>> Find(const KernelInfo& info,
                                               const std::shared_ptr<Graph>& body) {
    std::lock_guard<std::mutex> lock(mutex_);  // one compiles, the others wait for it
    kept_.remove_if([](const Kept& kept) { return kept.body.expired(); });
    auto found = std::find_if(kept_.begin(), kept_.end(),
                              [&](const Kept& k) { return k.body.lock() == body; });
    if (found == kept_.end()) found = kept_.insert(kept_.end(), {body, {}});
    std::list<std::shared_ptr<const Compiled>>& list = found->compiled;
    for (auto it = list.begin(); it != list.end(); ++it) {
      if (!(*it)->Fits(info)) continue;
      list.splice(list.begin(), list, it);
      return list.front();
    }
    std::shared_ptr<const CompiledSubgraph> for_any_shape;
    if (compiler_.any_shape() && !list.empty() && list.front()->threads == info.threads()) {
      for_any_shape = list.front()->subgraph;
    }
    ASSIGN_OR_RETURN(std::shared_ptr<const Compiled> made,
                     Make(info, *body, std::move(for_any_shape)));
    list.push_front(std::move(made));
    if (list.size() > kMaxKept) list.pop_back();
    return list.front();
  }

  Result<std::shared_ptr<const Compiled>> Make(
      const KernelInfo& info, const Graph& body,
      std::shared_ptr<const CompiledSubgraph> subgraph) const {
    auto out = std::make_shared<Compiled>();
    out->threads = info.threads();
    out->nodes = NamesOf(body);
    Model sized;
    sized.graph = body.Clone();
    for (int i = 0; i < info.input_count(); ++i) {
      out->input_shapes.push_back(info.InputShape(i));
      out->input_dtypes.push_back(info.InputDType(i));
      sized.graph->inputs()[i]->set_type(ValueType::Tensor(info.InputDType(i), info.InputShape(i)));
    }
    const Status inferred = InferShapes(*sized.graph);
    if (!inferred.ok())
      return info.Invalid("cannot take inputs of these shapes: " + inferred.message());
    for (const Value* output : sized.graph->outputs()) {
      out->output_shapes.push_back(output->type().ConcreteShape());
      out->output_dtypes.push_back(output->dtype());
    }
    if (subgraph == nullptr) {
      if (compiler_.any_shape()) sized.graph = body.Clone();
      auto compiled = compiler_.Compile(sized, info.threads());
      if (!compiled.ok() && compiled.status().code() == StatusCode::kOutOfMemory)
        return compiled.status();
      if (!compiled.ok()) {
        return ProviderFailure(provider_ + " failed to compile " + out->nodes + ": " +
                               compiled.status().message());
      }
      subgraph = *std::move(compiled);
    }
    out->subgraph = std::move(subgraph);
    return std::shared_ptr<const Compiled>(std::move(out));
  }

  const SubgraphCompiler& compiler_;
  const std::string provider_;
  std::mutex mutex_;
  std::list<Kept> kept_;
};

}  // namespace

KernelDef CompiledSubgraphKernel(const SubgraphCompiler& compiler, const std::string& provider) {
  auto kernel = std::make_shared<SubgraphKernel>(compiler, provider);
  KernelDef def;
  def.op_type = kCompiledSubgraphOp;
  def.domain = kCaesuraDomain;
  def.create = [kernel](KernelInfo& info) { return kernel->Create(info); };
  return def;
}

}  // namespace caesura
