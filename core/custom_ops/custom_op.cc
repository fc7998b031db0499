// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/op_binding.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/custom_ops/model_op.h"
#include "core/custom_ops/plugin_op.h"
#include "core/graph/op_attributes.h"
#include "core/kernels/kernel_registry.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

// Another provider's memory, with kernels of custom ops.
class CustomKernels : public ExecutionProvider {
 public:
  explicit CustomKernels(std::shared_ptr<const ExecutionProvider> base) : base_(std::move(base)) {}
  const std::string& name() const override { return base_->name(); }
  Device device() const override { return base_->device(); }
  const KernelRegistry& kernels() const override { return kernels_; }
  Allocator& allocator() const override { return base_->allocator(); }
  std::string rounding() const override { return base_->rounding(); }
  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes) const override {
    return base_->Copy(kind, to, from, bytes);
  }
  Status Synchronise() const override { return base_->Synchronise(); }
  void* stream() const override { return base_->stream(); }
  void Add(KernelDef def) { kernels_.Add(std::move(def)); }

 private:
  std::shared_ptr<const ExecutionProvider> base_;
  KernelRegistry kernels_;
};

std::string NameOf(const CustomOp& op) {
  return "custom op " + op.schema.domain + "::" + op.schema.op_type;
}

std::string Listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

const Tensor* ConstantBehind(const Value& value) {
  const Node* producer = value.producer();
  if (producer != nullptr)
    return producer->Is("Constant") ? producer->FindAttr<Tensor>("value") : nullptr;
  return value.graph()->IsGraphInput(&value) ? nullptr : value.graph()->Initializer(&value);
}

Status CheckCounts(const Node& node, const OpDef& spec) {
  auto check = [&](size_t count, int low, int high, const char* what) {
    const int given = static_cast<int>(count);
    if (given >= low && given <= high) return Status();
    return InvalidModel(node.Label() + " has " + std::to_string(given) + " " + what +
                        ", the op takes " + std::to_string(low) + " to " +
                        (high == INT_MAX ? "any number" : std::to_string(high)));
  };
  RETURN_IF_ERROR(check(node.inputs().size(), spec.min_inputs, spec.max_inputs, "inputs"));
  return check(node.outputs().size(), spec.min_outputs, spec.max_outputs, "outputs");
}

}  // namespace

Status CustomOps::AddLibrary(const std::string& path) {
  ASSIGN_OR_RETURN(const PluginLibrary library, LoadPluginLibrary(path));
  for (const CaesuraOp& op : library.ops) {
    ASSIGN_OR_RETURN(CustomOp made, MakePluginOp(op));
    ops.push_back(std::move(made));
  }
  model_runtimes.insert(model_runtimes.end(), library.model_runtimes.begin(),
                        library.model_runtimes.end());
  return {};
}

Result<std::unique_ptr<OpBinding>> OpBinding::Create(const CustomOps& custom_ops) {
  std::unique_ptr<OpBinding> out(new OpBinding);
  for (const CustomOp& op : custom_ops.ops) RETURN_IF_ERROR(out->AddOp(op));
  for (CustomOp& op : MakeModelOps(custom_ops.model_runtimes))
    RETURN_IF_ERROR(out->AddOp(std::move(op)));
  out->options_ = custom_ops.options;
  for (const auto& [key, options] : out->options_.ops()) {
    if (options.empty() || out->schemas_->Find(key.second, key.first) != nullptr) continue;
    std::vector<std::string> known;
    for (const CustomOp& op : out->ops_)
      known.push_back(op.schema.domain + "::" + op.schema.op_type);
    return InvalidArgument("options are given for " + key.first + "::" + key.second +
                           ", which is no custom op of the session; there are: " + Listed(known));
  }
  return out;
}

Status OpBinding::AddOp(CustomOp op) {
  const bool has_kernel = op.create_instance != nullptr ||
                          (!op.kernels.empty() &&
                           std::all_of(op.kernels.begin(), op.kernels.end(),
                                       [](const KernelDef& def) { return def.create != nullptr; }));
  if (!has_kernel) return InvalidArgument(NameOf(op) + " has neither a kernel nor create_instance");
  if (!op.options.empty() && op.create_instance == nullptr) {
    return InvalidArgument(NameOf(op) + " has options, which only create_instance could read");
  }
  RETURN_IF_ERROR(schemas_->Add(op.schema));
  ops_.push_back(std::move(op));
  return {};
}

const CustomOp* OpBinding::Find(const Node& node) const {
  for (const CustomOp& op : ops_) {
    const OpDef& schema = op.schema;
    if (node.Is(schema.op_type.c_str(), schema.domain.c_str()) &&
        node.since_version() == schema.since_version)
      return &op;
  }
  return nullptr;
}

Status OpBinding::Declare(Model& model) {
  std::vector<std::string> names;
  RETURN_IF_ERROR(Adopt(*model.graph, model, &names));
  for (const auto& [name, options] : options_.nodes()) {
    if (options.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    return InvalidArgument(
        "options are given for node '" + name +
        "', and the model has no node of a custom op of this name; it has: " + Listed(names));
  }
  is_used_ = !names.empty();
  if (!is_used_) return {};
  model.graph->set_own_ops(schemas_);
  return InferShapes(model);
}

Status OpBinding::Attach(Model& model, const std::vector<std::string>& trained) {
  model_folder_ = model.folder;
  trained_ = {trained.begin(), trained.end()};
  RETURN_IF_ERROR(Declare(model));
  return is_used_ ? MakeInstances(*model.graph) : Status();
}

// Gives nodes of these ops the versions that the model means; `names` are theirs.
Status OpBinding::Adopt(Graph& graph, const Model& model, std::vector<std::string>* names) {
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) RETURN_IF_ERROR(Adopt(*body, model, names));
    const OpDef* newest = schemas_->Find(node->op_type(), node->domain());
    if (newest == nullptr) continue;
    auto imported = model.opsets.find(node->domain());
    const int version = imported == model.opsets.end() ? 0 : imported->second;
    const OpDef* spec = schemas_->Find(node->op_type(), node->domain(), version);
    if (spec == nullptr) {
      return InvalidModel(node->Label() + " is of version " + std::to_string(version) +
                          " of domain '" + node->domain() +
                          "', and the op was added for versions from " +
                          std::to_string(newest->since_version) + " on only");
    }
    RETURN_IF_ERROR(CheckCounts(*node, *spec));
    node->set_since_version(spec->since_version);
    node->RemoveAttribute(kInstanceAttribute);
    names->push_back(node->name());
  }
  return {};
}

Status OpBinding::MakeInstances(Graph& graph) {
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) RETURN_IF_ERROR(MakeInstances(*body));
    if (!node->HasAttribute(kInstanceAttribute)) RETURN_IF_ERROR(MakeInstance(node.get()));
  }
  return {};
}

Status OpBinding::MakeInstance(Node* node) {
  const CustomOp* op = Find(*node);
  if (op == nullptr) return {};
  OpNodeInfo info = Describe(*node);
  ASSIGN_OR_RETURN(info.options, OptionsOf(*node, *op));
  if (op->create_instance == nullptr) return {};
  auto instance = op->create_instance(info);
  if (!instance.ok()) return instance.status().WithPrefix(node->Label() + " ");
  if (*instance == nullptr) return Internal(node->Label() + " its op made no instance");
  node->SetAttribute(kInstanceAttribute, static_cast<int64_t>(instances_->size()));
  instances_->push_back(*std::move(instance));
  return {};
}

Result<OptionSet> OpBinding::OptionsOf(const Node& node, const CustomOp& op) const {
  ASSIGN_OR_RETURN(OptionSet out, options_.Resolve(node, op.options));
  if (op.checks_options) return out;
  std::vector<std::string> known, unknown;
  for (const auto& [key, value] : op.options.values()) known.push_back(key);
  for (const auto& [key, value] : out.values()) {
    if (!op.options.Has(key)) unknown.push_back("'" + key + "'");
  }
  if (unknown.empty()) return out;
  return InvalidArgument(node.Label() + " has no option " + Listed(unknown) +
                         "; known are: " + Listed(known));
}

OpNodeInfo OpBinding::Describe(const Node& node) const {
  OpNodeInfo info;
  info.name = node.name();
  info.op_type = node.op_type();
  info.domain = node.domain();
  info.version = node.since_version();
  info.attributes = node.attributes();
  for (const char* own : {kForwardNodeAttribute, kOptionNamesAttribute, kOptionValuesAttribute})
    info.attributes.erase(own);
  info.model_folder = model_folder_;
  auto describe = [&](const Value* value) {
    OpNodeInfo::Argument argument;
    if (value == nullptr) return argument;
    argument.present = true;
    argument.name = value->name();
    argument.type = value->type();
    const Tensor* constant = trained_.count(value->name()) ? nullptr : ConstantBehind(*value);
    if (constant != nullptr) argument.constant = *constant;
    return argument;
  };
  for (const Value* input : node.inputs()) info.inputs.push_back(describe(input));
  for (const Value* output : node.outputs()) info.outputs.push_back(describe(output));
  return info;
}

Result<ProviderList> OpBinding::WithKernels(const ProviderList& providers) const {
  if (!is_used_) return providers;
  std::vector<std::shared_ptr<CustomKernels>> added(providers.size());
  for (const CustomOp& op : ops_) {
    auto serves = [&](const auto& provider) {
      return op.provider.empty() ? provider->device().is_host() : provider->name() == op.provider;
    };
    const size_t i = std::find_if(providers.begin(), providers.end(), serves) - providers.begin();
    if (i == providers.size()) {
      return InvalidArgument(NameOf(op) + " needs " +
                             (op.provider.empty() ? "a provider of host memory" : op.provider) +
                             ", which is not among the session's providers");
    }
    if (added[i] == nullptr) added[i] = std::make_shared<CustomKernels>(providers[i]);
    for (KernelDef def : op.kernels.empty() ? std::vector<KernelDef>(1) : op.kernels) {
      def.op_type = op.schema.op_type;
      def.domain = op.schema.domain;
      def.since = def.until = op.schema.since_version;
      def.deterministic = def.deterministic && op.schema.is_deterministic;
      if (def.create == nullptr) {
        def.create = [instances = instances_,
                      provider = providers[i].get()](KernelInfo& info) -> Status {
          const int64_t id = info.Attr<int64_t>(kInstanceAttribute, -1);
          if (id < 0 || id >= static_cast<int64_t>(instances->size())) {
            return Internal(info.node().Label() +
                            " came into the graph after the session's instances were made");
          }
          return (*instances)[static_cast<size_t>(id)]->CreateKernel(info, *provider);
        };
      }
      added[i]->Add(std::move(def));
    }
  }
  ProviderList out;
  for (size_t i = 0; i < providers.size(); ++i) {
    out.push_back(providers[i]);
    if (added[i] != nullptr) out.push_back(added[i]);
  }
  return out;
}

}  // namespace caesura
