// SPDX-License-Identifier: Apache-2.0
// The rows of control flow (core/graph/op_def.h), and their gradient rules.
#include <algorithm>
#include <optional>
#include <vector>

#include "core/gradient/body_gradient.h"
#include "core/gradient/gradient_rules.h"
#include "core/gradient/loop_gradient.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

struct Branch {
  const char* attribute;
  Graph* body;
  std::optional<BodyGradient> gradient;
  std::vector<Value*> saved;
};

// Adds an output of the type and rank of `value` to the branch that did not make it.
void AddPlaceholder(Graph& body, const Value* value) {
  if (value->type().kind == ValueType::Kind::kSequence) {
    const DType dtype = value->type().element->dtype;
    body.AddOutput(
        body.AddOp("SequenceEmpty", {}, {{"dtype", static_cast<int64_t>(dtype)}})->output(0));
  } else {
    const auto& shape = value->type().shape;
    const Shape none(std::vector<int64_t>(shape ? shape->size() : 1, 0));
    AddCopyAsOutput(
        body, body.AddInitializer(body.UniqueName("absent"), Tensor::Zeros(value->dtype(), none)));
  }
}

bool CanSave(const Value* value) {
  const ValueType& type = value->type();
  if (type.kind == ValueType::Kind::kSequence)
    return type.element != nullptr && type.element->dtype != DType::kUndefined;
  return type.is_tensor() && type.dtype != DType::kUndefined;
}

// Hands a branch's saved values out of the node; both branches get an output for each.
ValueMap SaveFromBranch(GradientContext& g, Branch& from, Branch& other) {
  ValueMap outer;
  for (Value* value : from.saved) {
    ValueType type = value->type();
    if (type.shape) type.shape->assign(type.shape->size(), Dim{});
    AddCopyAsOutput(*from.body, value);
    AddPlaceholder(*other.body, value);
    outer[value] = AddOutput(g, from.body->outputs().size() - 1, "saved", std::move(type));
  }
  return outer;
}

// Differentiates the branch's body by `xs` for the outputs `ys`; refuses where that fails.
void DifferentiateBranch(GradientContext& g, const std::vector<int>& ys,
                         const std::vector<Value*>& xs, Branch* branch) {
  branch->body = &BodyOf(g, branch->attribute);
  std::vector<Value*> results;
  for (int i : ys) results.push_back(branch->body->outputs()[i]);
  auto built = BodyGradient::Build(*branch->body, results, xs, g.node().name() + "/");
  if (!built.ok()) {
    return g.Refuse(std::string("has a body that cannot be differentiated, ") + branch->attribute +
                    ": " + built.status().message());
  }
  branch->gradient = *std::move(built);
  branch->saved = branch->gradient->Saved(branch->gradient->dxs());
  if (!std::all_of(branch->saved.begin(), branch->saved.end(), CanSave))
    g.Refuse("saves a value of unknown type");
}

// The body that computes the gradients when this branch ran; reads outer values alone.
std::shared_ptr<Graph> BackwardBranch(GradientContext& g, const std::vector<int>& ys,
                                      Branch& branch, Branch& other) {
  auto backward =
      std::make_shared<Graph>(std::string(branch.attribute) + "_gradient", &g.writer().graph());
  ValueMap bindings = SaveFromBranch(g, branch, other);
  for (size_t i = 0; i < ys.size(); ++i)
    bindings[branch.gradient->seeds()[i]] = g.dY(ys[i]).value();
  for (Value* dx : branch.gradient->CopyTo(*backward, branch.gradient->dxs(), bindings))
    backward->AddOutput(dx);
  return backward;
}

// Y = then-body where C, else else-body;  dX = gradient of the one that ran
void IfRule(GradientContext& g) {
  const std::vector<Value*> xs = NeededCaptures(g);
  std::vector<int> ys;
  for (int i = 0; i < g.output_count(); ++i) {
    if (g.dY(i)) ys.push_back(i);
  }
  Branch branches[2] = {{"then_branch", nullptr, {}, {}}, {"else_branch", nullptr, {}, {}}};
  for (Branch& branch : branches) DifferentiateBranch(g, ys, xs, &branch);
  AttributeMap attributes;
  for (int b = 0; b < 2 && g.refusal().empty(); ++b) {
    attributes[branches[b].attribute] = BackwardBranch(g, ys, branches[b], branches[1 - b]);
  }
  for (Branch& branch : branches) {
    if (branch.gradient) branch.gradient->RemoveFromBody();
  }
  if (!g.refusal().empty()) return;
  const Exprs dxs = Ops("If", {g.input(0)}, static_cast<int>(xs.size()), attributes);
  for (size_t i = 0; i < xs.size(); ++i) g.SetValueGradient(xs[i], dxs[i]);
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> ControlFlowOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "If", .rule = {.function = gradient::IfRule, .stops = {0}}, .derivative_note = "both bodies"},
    {.op_type = "Loop", .rule = {.function = gradient::LoopRule, .stops = {0, 1}},
     .derivative_note = "body backwards over the iterations"},
    {.op_type = "Scan", .rule = {.function = gradient::ScanRule},
     .derivative_note = "body backwards over the slices; not the form of opset 8"},
    {.op_type = "SequenceLength", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "SequenceMap", .derivative = Derivative::kBody,
     .derivative_note = "function body: a Loop, in place since the model was loaded; elements of one shape"},
    {.op_type = "OptionalHasElement", .derivative = Derivative::kZero},
    {.op_type = "SequenceEmpty", .derivative = Derivative::kZero},
  };
}
// clang-format on

}  // namespace caesura
