// SPDX-License-Identifier: Apache-2.0
// The checks of a ModelProto before anything in it is used; also onnx's own checker.
#include <algorithm>
#include <cassert>
#include <climits>
#include <map>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"
#include "core/onnx/graph_import.h"
#include "core/onnx/model_import.h"
#include "core/onnx/tensor_bank.h"
#include "onnx/checker.h"

namespace caesura {
namespace {

constexpr size_t kMaxListed = 20;

// Faults of one kind, each told once.
class FaultList {
 public:
  explicit FaultList(const char* title) : title_(title) {}
  void Add(const std::string& fault) {
    ++count_;
    if (count_ <= kMaxListed && told_.insert(fault).second) text_ += "\n  " + fault;
  }
  bool empty() const { return count_ == 0; }
  std::string ToString() const {
    return title_ + (":" + text_) +
           (count_ > kMaxListed ? "\n  and " + std::to_string(count_ - kMaxListed) + " more" : "");
  }

 private:
  const char* title_;
  size_t count_ = 0;
  std::set<std::string> told_;
  std::string text_;
};

std::string Label(const onnx::NodeProto& node) {
  const std::string domain = FoldDomain(node.domain());
  return "[" + (domain.empty() ? "" : domain + "::") + node.op_type() + " '" + node.name() + "']";
}

// GroupNormalization came withdrawn, with a mistake that opset 21 mended; models of opsets 18 to 20
// have it all the same, and what it means is clear.
bool IsBornWithdrawn(const onnx::NodeProto& node) {
  return node.op_type() == "GroupNormalization" && FoldDomain(node.domain()).empty();
}

using FunctionKey = std::tuple<std::string, std::string, std::string>;  // domain, name, overload

FunctionKey KeyOf(const onnx::FunctionProto& function) {
  return {FoldDomain(function.domain()), function.name(), function.overload()};
}

// Names that are made so far in a graph and around it.
struct Names {
  const Names* outer = nullptr;
  std::unordered_set<std::string_view> made;
  std::unordered_set<std::string_view> made_later;  // by some node of this graph

  bool Has(std::string_view name) const {
    return made.count(name) > 0 || (outer != nullptr && outer->Has(name));
  }
  bool WillHave(std::string_view name) const {
    return made_later.count(name) > 0 || (outer != nullptr && outer->WillHave(name));
  }
};

class ModelProtoCheck {
 public:
  ModelProtoCheck(const onnx::ModelProto& model, const ReadOptions& options)
      : model_(model), options_(options) {}

  Status Run() {
    if (model_.ir_version() <= 0 || model_.ir_version() > onnx::IR_VERSION) {
      return InvalidModel("IR version " + std::to_string(model_.ir_version()) +
                          " is not between 1 and " + std::to_string(onnx::IR_VERSION));
    }
    if (!model_.has_graph()) return InvalidModel("the model has no graph");
    RETURN_IF_ERROR(CheckMetadata());
    OpsetMap opsets;
    RETURN_IF_ERROR(CheckOpsets("the model", model_.opset_import(), &opsets));
    RETURN_IF_ERROR(ListFunctions());
    RETURN_IF_ERROR(CheckSize(model_.graph().node(), 0));
    for (const auto& function : model_.functions()) RETURN_IF_ERROR(CheckSize(function.node(), 0));
    RETURN_IF_ERROR(CheckExpansion());
    opsets_ = &opsets;
    CheckGraph(model_.graph(), nullptr);
    RETURN_IF_ERROR(CheckFunctions());
    return Verdict();
  }

 private:
  using Imports = google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>;
  using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
  struct FunctionFacts {
    const onnx::FunctionProto* proto;
    bool is_open = false;   // its calls are being counted
    int64_t expanded = -1;  // nodes, with those of the functions that it calls
  };

  Status Verdict() const {
    std::string text;
    for (const FaultList* list : {&names_, &imports_, &unknown_, &values_, &attributes_}) {
      if (!list->empty()) text += (text.empty() ? "" : "\n") + list->ToString();
    }
    return text.empty() ? Status() : InvalidModel(text);
  }

  Status CheckMetadata() const {
    std::unordered_set<std::string_view> keys;
    for (const auto& entry : model_.metadata_props()) {
      if (!IsUtf8(entry.key()))
        return InvalidModel("metadata key '" + EscapedToUtf8(entry.key()) + "' is not UTF-8");
      if (!keys.insert(entry.key()).second)
        return InvalidModel("metadata key '" + entry.key() + "' is there twice");
    }
    return {};
  }

  static Status CheckOpsets(const std::string& who, const Imports& imports, OpsetMap* out) {
    if (imports.empty()) return InvalidModel(who + " imports no opset");
    for (const auto& import : imports) {
      const std::string domain = FoldDomain(import.domain());
      if (!IsUtf8(domain))
        return InvalidModel(who + " imports domain '" + EscapedToUtf8(domain) +
                            "', which is not UTF-8");
      const std::string shown = domain.empty() ? "the default domain" : "domain '" + domain + "'";
      const int64_t version = import.version();
      if (version < 1 || version > INT32_MAX ||
          (IsClosedDomain(domain) && version > LatestOpset(domain))) {
        const std::string newest =
            IsClosedDomain(domain) ? std::to_string(LatestOpset(domain)) : "2147483647";
        return InvalidModel(who + " imports version " + std::to_string(version) + " of " + shown +
                            "; known are 1 to " + newest);
      }
      const auto [it, fresh] = out->emplace(domain, static_cast<int>(version));
      if (!fresh && it->second != version)
        return InvalidModel(who + " imports two versions of " + shown);
    }
    return {};
  }

  Status ListFunctions() {
    for (const auto& function : model_.functions()) {
      for (const std::string* name : {&function.domain(), &function.name(), &function.overload()})
        CheckName(*name);
      if (!functions_.emplace(KeyOf(function), FunctionFacts{&function}).second) {
        return InvalidModel("function " + function.domain() + "::" + function.name() +
                            " is there twice");
      }
    }
    return {};
  }

  // Counts the model's nodes with all functions expanded, before any is.
  Status CheckExpansion() {
    int64_t count = 0;
    RETURN_IF_ERROR(CountExpanded(model_.graph().node(), 0, &count));
    return {};
  }

  Status CountExpanded(const Nodes& nodes, int depth, int64_t* count) {
    if (depth > options_.max_depth) {
      return InvalidModel("graphs and functions are nested deeper than " +
                          std::to_string(options_.max_depth));
    }
    for (const auto& node : nodes) {
      auto it = functions_.find({FoldDomain(node.domain()), node.op_type(), node.overload()});
      if (it == functions_.end()) {
        ++*count;
      } else {
        RETURN_IF_ERROR(CountFunction(&it->second, depth));
        *count += it->second.expanded;  // both are at most max_nodes
      }
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g())
          RETURN_IF_ERROR(CountExpanded(attribute.g().node(), depth + 1, count));
        for (const auto& graph : attribute.graphs())
          RETURN_IF_ERROR(CountExpanded(graph.node(), depth + 1, count));
      }
      if (*count > options_.max_nodes) {
        return InvalidModel("the model has more than " + std::to_string(options_.max_nodes) +
                            " nodes when its functions are expanded");
      }
    }
    return {};
  }

  Status CountFunction(FunctionFacts* facts, int depth) {
    if (facts->expanded >= 0) return {};
    if (facts->is_open) return InvalidModel("function " + facts->proto->name() + " calls itself");
    facts->is_open = true;
    int64_t count = 0;
    RETURN_IF_ERROR(CountExpanded(facts->proto->node(), depth + 1, &count));
    facts->is_open = false;
    facts->expanded = count;
    return {};
  }

  // Bounds what the other checks walk through.
  Status CheckSize(const Nodes& nodes, int depth) {
    if (depth > options_.max_depth) {
      return InvalidModel("graphs are nested deeper than " + std::to_string(options_.max_depth));
    }
    node_count_ += nodes.size();
    if (node_count_ > options_.max_nodes) {
      return InvalidModel("the model has more than " + std::to_string(options_.max_nodes) +
                          " nodes");
    }
    for (const auto& node : nodes) {
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) RETURN_IF_ERROR(CheckSize(attribute.g().node(), depth + 1));
        for (const auto& graph : attribute.graphs())
          RETURN_IF_ERROR(CheckSize(graph.node(), depth + 1));
      }
    }
    return {};
  }

  // Names go into messages, files and Python's strings, which must be able to take them.
  void CheckName(const std::string& name) {
    if (!IsUtf8(name)) names_.Add("'" + EscapedToUtf8(name) + "'");
  }

  void CheckGraph(const onnx::GraphProto& graph, const Names* outer) {
    Names names;
    names.outer = outer;
    CheckName(graph.name());
    for (const auto& input : graph.input())
      Make(input.name(), "graph '" + graph.name() + "' as input", &names);
    std::unordered_set<std::string_view> initializers;
    auto initializer = [&](const onnx::TensorProto& tensor) {
      CheckName(tensor.name());
      if (tensor.name().empty() || !initializers.insert(tensor.name()).second) {
        values_.Add("initializer '" + tensor.name() + "' has no name or is there twice");
      }
      names.made.insert(tensor.name());
    };
    for (const auto& tensor : graph.initializer()) initializer(tensor);
    for (const auto& tensor : graph.sparse_initializer()) initializer(tensor.values());
    CheckNodes(graph.node(), &names);
    for (const auto& output : graph.output()) {
      if (names.made.count(output.name()) == 0) {
        values_.Add("graph '" + graph.name() + "' puts out '" + output.name() +
                    "', which nothing in it makes");
      }
    }
  }

  void Make(const std::string& name, const std::string& maker, Names* names) {
    CheckName(name);
    if (name.empty()) {
      values_.Add(maker + " makes a value without a name");
    } else if (names->Has(name)) {
      values_.Add(maker + " makes '" + name + "', which is made already");
    }
    names->made.insert(name);
  }

  void CheckNodes(const Nodes& nodes, Names* names) {
    for (const auto& node : nodes)
      names->made_later.insert(node.output().begin(), node.output().end());
    for (const auto& node : nodes) {
      CheckOp(node);
      for (const std::string& input : node.input()) {
        if (input.empty() || names->Has(input)) continue;
        values_.Add(Label(node) + " reads '" + input + "', which " +
                    (names->WillHave(input)
                         ? "is made only later: the nodes are out of order or on a cycle"
                         : "nothing makes"));
      }
      CheckAttributes(node, names);
      for (const std::string& output : node.output()) {
        if (!output.empty()) Make(output, Label(node), names);
      }
    }
  }

  void CheckAttributes(const onnx::NodeProto& node, const Names* names) {
    std::unordered_set<std::string_view> seen;
    for (const auto& attribute : node.attribute()) {
      CheckName(attribute.name());
      CheckName(attribute.ref_attr_name());
      if (!seen.insert(attribute.name()).second)
        attributes_.Add(Label(node) + " has '" + attribute.name() + "' twice");
      if (attribute.name().empty()) attributes_.Add(Label(node) + " has one without a name");
      if (attribute.has_g()) CheckGraph(attribute.g(), names);
      for (const auto& graph : attribute.graphs()) CheckGraph(graph, names);
    }
  }

  void CheckOp(const onnx::NodeProto& node) {
    for (const std::string* name :
         {&node.op_type(), &node.domain(), &node.name(), &node.overload()})
      CheckName(*name);
    const std::string domain = FoldDomain(node.domain());
    if (node.op_type().empty()) return unknown_.Add(Label(node) + " has no op type");
    auto opset = opsets_->find(domain);
    if (opset == opsets_->end()) {
      return imports_.Add("domain '" + domain + "' of " + Label(node));
    }
    if (functions_.count({domain, node.op_type(), node.overload()}) || !IsClosedDomain(domain))
      return CheckCounts(node);
    const OpSchema* schema = FindOpSchema(node.op_type(), domain, opset->second);
    if (schema == nullptr) {
      const int since = SinceVersion(node.op_type(), domain);
      unknown_.Add(Label(node) + " at opset " + std::to_string(opset->second) +
                   (since > 0 ? " (it came later)" : ""));
    } else if (schema->is_deprecated && !IsBornWithdrawn(node)) {
      unknown_.Add(Label(node) + ", withdrawn in opset " + std::to_string(schema->since_version));
    }
  }

  // For ops that other rooms have registered; onnx's checker does its own.
  void CheckCounts(const onnx::NodeProto& node) {
    const OpDef* spec = FindOwnOp(node.op_type(), FoldDomain(node.domain()));
    if (spec == nullptr) return;
    auto check = [&](int count, int low, int high, const char* what) {
      if (low <= count && count <= high) return;
      attributes_.Add(Label(node) + " has " + std::to_string(count) + " " + what +
                      ", the op takes " + std::to_string(low) + " to " +
                      (high == INT_MAX ? "any number" : std::to_string(high)));
    };
    check(node.input_size(), spec->min_inputs, spec->max_inputs, "inputs");
    check(node.output_size(), spec->min_outputs, spec->max_outputs, "outputs");
  }

  Status CheckFunctions() {
    for (const auto& function : model_.functions()) {
      OpsetMap opsets;
      const std::string who = "function " + function.domain() + "::" + function.name();
      RETURN_IF_ERROR(CheckOpsets(who, function.opset_import(), &opsets));
      opsets_ = &opsets;
      Names names;
      for (const std::string& input : function.input()) Make(input, who, &names);
      CheckNodes(function.node(), &names);
      for (const std::string& output : function.output()) {
        if (names.made.count(output) == 0)
          values_.Add(who + " returns '" + output + "', which nothing in it makes");
      }
    }
    return {};
  }

  const onnx::ModelProto& model_;
  const ReadOptions& options_;
  const OpsetMap* opsets_ = nullptr;
  std::map<FunctionKey, FunctionFacts> functions_;
  int64_t node_count_ = 0;
  FaultList names_{"these names are not UTF-8"};
  FaultList imports_{"these domains are used but not imported"};
  FaultList unknown_{"these ops are not known"};
  FaultList values_{"these values are not made once, before they are read"};
  FaultList attributes_{"these nodes have wrong attributes, inputs or outputs"};
};

// Exporters leave out shapes of ends whose rank is not known, and types of outputs; onnx's checker
// wants the fields.
void FillTypes(onnx::GraphProto* graph) {
  for (auto& info : *graph->mutable_output()) {
    if (!info.has_type())
      info.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    if (info.type().has_tensor_type()) info.mutable_type()->mutable_tensor_type()->mutable_shape();
  }
  for (auto& info : *graph->mutable_input()) {
    if (info.type().has_tensor_type()) info.mutable_type()->mutable_tensor_type()->mutable_shape();
  }
}

// Takes nodes that the checker would refuse for a reason that is none out of its sight: those that
// IsBornWithdrawn names, and calls of the model's own functions. The checker looks for an op of
// ONNX's in a call of a function of domain "", but functions come before ops.
void HideFromChecker(const std::set<FunctionKey>& functions,
                     google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes) {
  for (auto& node : *nodes) {
    if (IsBornWithdrawn(node) ||
        functions.count({FoldDomain(node.domain()), node.op_type(), node.overload()}))
      node.set_domain(kCaesuraDomain);
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) HideFromChecker(functions, attribute.mutable_g()->mutable_node());
      for (auto& graph : *attribute.mutable_graphs())
        HideFromChecker(functions, graph.mutable_node());
    }
  }
}

void HideFromChecker(onnx::ModelProto* model) {
  std::set<FunctionKey> functions;
  for (const auto& function : model->functions()) functions.insert(KeyOf(function));
  HideFromChecker(functions, model->mutable_graph()->mutable_node());
  auto import = [](auto* imports) {
    for (const auto& one : *imports) {
      if (one.domain() == kCaesuraDomain) return;
    }
    auto* fresh = imports->Add();
    fresh->set_domain(kCaesuraDomain);
    fresh->set_version(1);
  };
  import(model->mutable_opset_import());
  for (auto& function : *model->mutable_functions()) {
    HideFromChecker(functions, function.mutable_node());
    import(function.mutable_opset_import());
  }
}

}  // namespace

Status CheckModelProto(const onnx::ModelProto& model, const ReadOptions& options) {
  return ModelProtoCheck(model, options).Run();
}

Status RunOnnxChecker(const onnx::ModelProto& model) {
  assert(std::all_of(model.graph().initializer().begin(), model.graph().initializer().end(),
                     [](const auto& tensor) { return BankIndex(tensor) >= 0; }));
  try {
    ArenaMessage<onnx::ModelProto> copy;
    *copy = model;  // small: tensors are placeholders
    FillTypes(copy->mutable_graph());
    if (copy->ir_version() >= 3) HideFromChecker(copy.get());
    onnx::checker::check_model(*copy, /*full_check=*/false,
                               /*skip_opset_compatibility_check=*/true);
    return {};
  } catch (const std::bad_alloc&) {
    throw;  // not the model's fault
  } catch (const std::exception& e) {
    return InvalidModel(e.what());
  }
}

}  // namespace caesura
