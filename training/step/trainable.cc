// SPDX-License-Identifier: Apache-2.0
#include "training/step/trainable.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/log.h"
#include "core/base/names.h"
#include "core/base/status_macros.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/model_reader.h"
#include "core/gradient/gradient_path.h"
#include "core/gradient/gradient_rules.h"
#include "core/gradient/training_mode.h"
#include "training/optimizer/optimizer.h"
#include "training/step/loss.h"

namespace caesura {
namespace {

using gradient::GradientPath;

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const auto& p) { return MatchesName(p, name); });
}

// The tensor that a Constant node holds, if it is a floating one with dims.
std::optional<Tensor> FloatingConstant(const Node& node) {
  if (!node.Is("Constant")) return std::nullopt;
  std::optional<Tensor> out;
  if (const Tensor* value = node.FindAttr<Tensor>("value")) out = *value;
  if (const auto* values = node.FindAttr<std::vector<float>>("value_floats")) {
    out = Tensor::Of<float>(Shape{static_cast<int64_t>(values->size())}, *values);
  }
  if (!out || !IsDifferentiable(out->dtype()) || out->shape().rank() < 1) return std::nullopt;
  return out;
}

// A model that its exporter optimised for inference is not the module that was exported.
void WarnOfFolding(const Model& model, const std::vector<std::string>& trained) {
  const std::unordered_set<std::string> folded = FoldedInitializers(model);
  const size_t kept = std::count_if(trained.begin(), trained.end(),
                                    [&](const auto& name) { return folded.count(name) > 0; });
  if (folded.empty()) return;
  LogWarning("the model was optimised when it was exported: of its initializers " +
             std::to_string(folded.size()) + " were folded from others (" + std::to_string(kept) +
             " of them, from parameters, are trained as they are now), and equal parameters may "
             "have become one; to train what the "
             "module trains, export it with torch.onnx.export(..., optimize=False)");
}

class Selection {
 public:
  Selection(Model& model, const TrainableOptions& options) : model_(model), options_(options) {}

  Result<std::vector<std::string>> Make(const Loss* loss);

 private:
  Status Collect();
  Status FindEnds(const Loss* loss);
  void Follow();
  bool IsOnlySet(const Value* value) const;
  std::string WhyNone() const;
  std::string OfConstants() const;
  std::string OfIntegerWeights(bool with_blocks) const;
  std::vector<std::string> Stops() const;
  void ConstantsToInitializers();

  Model& model_;
  const TrainableOptions& options_;
  std::vector<std::string> candidates_;  // initializers that the options select, gradients aside
  std::vector<std::string> constants_;   // outputs of floating Constant nodes, likewise
  std::unordered_map<std::string, Tensor> held_;  // by them
  // A copy of the graph with the loss, what it says of each name, and what remains.
  std::shared_ptr<Graph> graph_;
  std::vector<Value*> ends_;
  std::vector<std::string> reached_, unreached_, reached_constants_;
  std::vector<Value*> xs_;
};

Status Selection::Collect() {
  const std::unordered_set<const Value*> statistics = RunningStatistics(*model_.graph);
  const std::unordered_set<std::string> buffers = MarkedBuffers(model_);
  std::vector<std::string> known, frozen_too, in_constants;
  for (const Value* value : model_.graph->Values()) {
    const std::string& name = value->name();
    const Tensor* tensor = model_.graph->Initializer(value);
    if (tensor == nullptr && value->producer() != nullptr) {
      std::optional<Tensor> constant = FloatingConstant(*value->producer());
      if (!constant) continue;
      in_constants.push_back(name);
      const bool wanted = options_.trainable.empty() || MatchesAny(options_.trainable, name);
      if (!wanted || MatchesAny(options_.frozen, name)) continue;
      constants_.push_back(name);
      held_.emplace(name, *std::move(constant));
      continue;
    }
    if (tensor == nullptr) continue;
    frozen_too.push_back(name);
    if (!IsDifferentiable(tensor->dtype()) || statistics.count(value)) continue;
    known.push_back(name);
    const bool wanted = options_.trainable.empty()
                            ? tensor->shape().rank() >= 1 && !buffers.count(name)
                            : MatchesAny(options_.trainable, name);
    if (wanted && !MatchesAny(options_.frozen, name)) candidates_.push_back(name);
  }
  std::string hint;
  for (const std::string& pattern : options_.trainable) {
    const bool held =
        !options_.train_constants && std::any_of(in_constants.begin(), in_constants.end(),
                                                 [&](auto& n) { return MatchesName(pattern, n); });
    if (held)
      hint =
          "; Constant nodes hold some of them: train_constants (--train-constants) makes these "
          "trainable";
  }
  if (options_.train_constants) known.insert(known.end(), in_constants.begin(), in_constants.end());
  frozen_too.insert(frozen_too.end(), in_constants.begin(), in_constants.end());
  const Status trainable =
      CheckNames("trainable: the model has no floating initializer", options_.trainable, known);
  if (!trainable.ok()) return InvalidArgument(trainable.message() + hint);
  return CheckNames("frozen: the model has no floating initializer", options_.frozen, frozen_too);
}

Status Selection::FindEnds(const Loss* loss) {
  graph_ = model_.graph->Clone();
  if (loss != nullptr) {
    ASSIGN_OR_RETURN(Value * end, AddLoss(*graph_, *loss));
    ends_ = {end};
  } else {
    ends_ = graph_->outputs();
  }
  return graph_->SortTopologically();
}

// True where all that reads the value takes it for a setting: an op without any gradient (Floor)
// does not.
bool Selection::IsOnlySet(const Value* value) const {
  return std::all_of(value->uses().begin(), value->uses().end(), [](const Value::Use& use) {
    if (!use.node->Subgraphs().empty()) return false;
    const GradientRule* rule = gradient::FindGradientRule(*use.node);
    const bool stops = rule != nullptr && rule->has_gradient() &&
                       !gradient::InputCarries(rule, *use.node, use.index);
    return stops || gradient::IsSetting(rule, *use.node, use.index);
  });
}

void Selection::Follow() {
  const gradient::QuantizedLinks links(*graph_);
  for (const std::string& name : candidates_) xs_.push_back(graph_->FindValue(name));
  std::vector<Value*> all = xs_;
  for (const std::string& name : constants_) all.push_back(graph_->FindValue(name));
  const bool by_name = !options_.trainable.empty();
  const GradientPath path(*graph_, all, ends_, {},
                          by_name ? GradientPath::Inputs::kAll : GradientPath::Inputs::kNoSettings);
  const GradientPath with_settings(*graph_, all, ends_, {});
  for (const std::string& name : candidates_) {
    const Value* value = graph_->FindValue(name);
    if (path.Contains(value)) reached_.push_back(name);
    else if (by_name || (!with_settings.Contains(value) && !IsOnlySet(value)))
      unreached_.push_back(name);
  }
  for (const std::string& name : constants_) {
    if (path.Contains(graph_->FindValue(name))) reached_constants_.push_back(name);
  }
}

// Nodes between the candidates and the ends that a gradient comes to and does not pass.
std::vector<std::string> Selection::Stops() const {
  const gradient::QuantizedLinks links(*graph_);
  const GradientPath path(*graph_, xs_, ends_, {});
  std::unordered_set<const Value*> leads(ends_.begin(),
                                         ends_.end());  // to the ends, gradient or not
  std::vector<std::string> out;
  for (auto it = graph_->nodes().rbegin(); it != graph_->nodes().rend(); ++it) {
    const Node& node = **it;
    const auto& outputs = node.outputs();
    if (std::none_of(outputs.begin(), outputs.end(),
                     [&](const Value* v) { return v != nullptr && leads.count(v); }))
      continue;
    const std::vector<Value*> inputs = gradient::AllInputs(node);
    leads.insert(inputs.begin(), inputs.end());
    const bool arrives = std::any_of(inputs.begin(), inputs.end(), [&](const Value* v) {
      return v != nullptr && path.Reaches(v);
    });
    const bool leaves = std::any_of(outputs.begin(), outputs.end(), [&](const Value* v) {
      return v != nullptr && path.Reaches(v);
    });
    if (arrives && !leaves) out.push_back(node.Label());
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::string Selection::OfConstants() const {
  if (reached_constants_.empty() || options_.train_constants) return "";
  int64_t elements = 0;
  for (const std::string& name : reached_constants_) elements += held_.at(name).elements();
  return std::to_string(reached_constants_.size()) + " Constant nodes with " +
         std::to_string(elements) +
         " floating values, which gradients reach, are not trained as they are; train_constants "
         "(--train-constants) makes "
         "them parameters";
}

// Weights in blocks are frozen as a rule, beside adapters that train.
std::string Selection::OfIntegerWeights(bool with_blocks) const {
  std::vector<std::string> weights;
  for (const auto& node : graph_->nodes()) {
    if (!with_blocks && node->Attr<int64_t>("block_size", 0) != 0) continue;
    const Value* stored = node->Is("DequantizeLinear")              ? node->input(0)
                          : node->Is("MatMulNBits", kContribDomain) ? node->input(1)
                                                                    : nullptr;
    if (stored == nullptr) continue;
    const bool is_constant = stored->producer() != nullptr && stored->producer()->Is("Constant");
    if (is_constant || graph_->Initializer(stored) != nullptr) weights.push_back(stored->name());
  }
  if (weights.empty()) return "";
  return std::to_string(weights.size()) +
         " weights are whole numbers that DequantizeLinear or MatMulNBits reads (" +
         ListedNames(weights) +
         "); they cannot be trained as they are: export the model with floating weights, followed "
         "by QuantizeLinear and "
         "DequantizeLinear where it shall learn to be quantized";
}

std::string Selection::WhyNone() const {
  std::string text = "no gradient of the ";
  text +=
      graph_->outputs().size() == ends_.size() && graph_->outputs() == ends_ ? "outputs" : "loss";
  text += candidates_.empty() ? " has a parameter to reach: the model has no floating initializer "
                                "that is selected for training"
                              : " reaches any parameter";
  const std::vector<std::string> stops = Stops();
  if (!stops.empty()) {
    text += "; it stops at";
    for (size_t i = 0; i < std::min<size_t>(stops.size(), 10); ++i)
      text += (i == 0 ? " " : ", ") + stops[i];
    if (stops.size() > 10) text += " and " + std::to_string(stops.size() - 10) + " more";
  }
  for (const std::string& more : {OfIntegerWeights(/*with_blocks=*/true), OfConstants()}) {
    if (!more.empty()) text += "; " + more;
  }
  return text;
}

void Selection::ConstantsToInitializers() {
  Graph& graph = *model_.graph;
  for (const std::string& name : reached_constants_) {
    Value* value = graph.FindValue(name);
    Node* node = value->producer();
    graph.ReleaseOutputs(node);
    graph.RemoveNode(node);
    graph.SetInitializer(value, held_.at(name));
  }
}

Result<std::vector<std::string>> Selection::Make(const Loss* loss) {
  RETURN_IF_ERROR(Collect());
  RETURN_IF_ERROR(FindEnds(loss));
  Follow();
  // A module has what it is built of, reached or not, and tells apart (SplitModule::unreachable).
  const bool all = loss == nullptr || !options_.trainable.empty();
  std::vector<std::string> names;
  for (const std::string& name : candidates_) {
    auto holds = [&](const auto& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (holds(reached_) || (all && holds(unreached_))) names.push_back(name);
  }
  if (options_.train_constants) {
    ConstantsToInitializers();
    names.insert(names.end(), reached_constants_.begin(), reached_constants_.end());
    reached_.insert(reached_.end(), reached_constants_.begin(), reached_constants_.end());
  }
  WarnOfFolding(model_, names);
  if (reached_.empty() && (loss != nullptr || !candidates_.empty())) {
    if (loss != nullptr && options_.trainable.empty()) return InvalidArgument(WhyNone());
    LogWarning(WhyNone());
  }
  if (loss == nullptr) return names;
  if (!unreached_.empty() && !options_.skips_unused) {
    LogWarning("the loss has no gradient of " + std::to_string(unreached_.size()) +
               " initializers" +
               (options_.trainable.empty() ? ", which stay as they are: "
                                           : ", which are updated with zeros: ") +
               ListedNames(unreached_));
  }
  int64_t trained = 0, held = 0;
  for (const std::string& name : names)
    trained += model_.graph->Initializer(model_.graph->FindValue(name))->elements();
  for (const std::string& name : reached_constants_) held += held_.at(name).elements();
  if (held > trained && !options_.train_constants) LogWarning(OfConstants());
  const std::string integers = OfIntegerWeights(/*with_blocks=*/false);
  if (!integers.empty()) LogWarning(integers);
  return names;
}

}  // namespace

std::vector<std::string> InitializerNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const Value* value : graph.Values()) {
    if (graph.Initializer(value) != nullptr) names.push_back(value->name());
  }
  return names;
}

Result<std::vector<std::string>> TrainableNames(Model& model, const TrainableOptions& options,
                                                const Loss* loss) {
  return Selection(model, options).Make(loss);
}

}  // namespace caesura
