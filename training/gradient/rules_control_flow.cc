// SPDX-License-Identifier: Apache-2.0
// Gradient rules of If, Loop and Scan: the backward node runs the gradients of the bodies, a loop's from its last
// iteration to its first. What they need of the forward bodies becomes further outputs of the forward node: for a
// loop one stack a value.
#include <algorithm>
#include <map>
#include <optional>

#include "training/gradient/body_gradient.h"
#include "training/gradient/gradient_rules.h"
#include "training/gradient/sequence_map.h"

namespace caesura::gradient {
namespace {

std::string Prefix(const GradientContext& g) { return g.node().name() + "/"; }

Graph& BodyOf(const GradientContext& g, const char* name) {
  return **g.node().FindAttr<std::shared_ptr<Graph>>(name);
}

// The outer values that the node's bodies read and that need a gradient.
std::vector<Value*> NeededCaptures(const GradientContext& g) {
  std::vector<Value*> out;
  for (Value* value : Graph::ImplicitInputs(g.node())) {
    if (g.NeedsValue(value)) out.push_back(value);
  }
  return out;
}

Value* AddIdentity(Graph& graph, Value* value, Phase phase) {
  Node* node = graph.AddOp("Identity", {value}, {}, "", 1, value->name() + "/kept");
  node->set_phase(phase);
  node->output(0)->set_type(value->type());
  return node->output(0);
}

// Appends an output to the forward node; returns its index.
int AppendOutput(GradientContext& g, const std::string& stem, ValueType type) {
  const int index = g.output_count();
  Graph& graph = g.writer().graph();
  g.mutable_node().SetOutput(index, graph.AddValue(graph.UniqueName(g.node().name() + "/" + stem), std::move(type)));
  return index;
}

// --- If ---

struct Branch {
  const char* attribute;
  Graph* body;
  std::optional<BodyGradient> gradient;
  std::vector<Value*> saved;
};

// A value of the type of `value` for the branch that is not taken.
Value* AddPlaceholder(Graph& graph, const Value* value) {
  if (value->type().kind == ValueType::Kind::kSequence) {
    const DType dtype = value->type().element->dtype;
    return graph.AddOp("SequenceEmpty", {}, {{"dtype", static_cast<int64_t>(dtype)}})->output(0);
  }
  Value* zeros = graph.AddInitializer(graph.UniqueName("absent"), Tensor::Zeros(value->dtype(), Shape{0}));
  return AddIdentity(graph, zeros, Phase::kForward);
}

bool CanSave(const Value* value) {
  const ValueType& type = value->type();
  if (type.kind == ValueType::Kind::kSequence) return type.element != nullptr && type.element->dtype != DType::kUndefined;
  return type.is_tensor() && type.dtype != DType::kUndefined;
}

// Hands a branch's saved values out of the node; both branches get an output for each.
ValueMap SaveFromBranch(GradientContext& g, Branch& from, Branch& other) {
  ValueMap outer;
  for (Value* value : from.saved) {
    ValueType type = value->type();
    type.shape.reset();
    const int index = AppendOutput(g, "saved", std::move(type));
    from.body->AddOutput(AddIdentity(*from.body, value, Phase::kForward));
    other.body->AddOutput(AddPlaceholder(*other.body, value));
    outer[value] = g.node().output(index);
  }
  return outer;
}

// Y = then-body where C, else else-body;  dX = gradient of the one that ran
void IfRule(GradientContext& g) {
  const std::vector<Value*> xs = NeededCaptures(g);
  std::vector<Value*> dys;
  std::vector<int> ys;
  for (int i = 0; i < g.output_count(); ++i) {
    if (!g.dY(i)) continue;
    ys.push_back(i);
    dys.push_back(g.dY(i).value());
  }
  Branch branches[2] = {{"then_branch", nullptr, {}, {}}, {"else_branch", nullptr, {}, {}}};
  for (Branch& branch : branches) {
    branch.body = &BodyOf(g, branch.attribute);
    std::vector<Value*> results;
    for (int i : ys) results.push_back(branch.body->outputs()[i]);
    auto built = BodyGradient::Build(*branch.body, results, xs, Prefix(g));
    if (!built.ok()) g.Refuse(std::string("has a body that cannot be differentiated, ") + branch.attribute + ": " + built.status().message());
    if (built.ok()) branch.gradient = *std::move(built);
    if (built.ok()) branch.saved = branch.gradient->Saved(branch.gradient->dxs());
    if (!std::all_of(branch.saved.begin(), branch.saved.end(), CanSave)) g.Refuse("saves a value of unknown type");
  }
  AttributeMap attributes;
  for (int b = 0; b < 2 && g.refusal().empty(); ++b) {
    Branch& branch = branches[b];
    auto backward = std::make_shared<Graph>(std::string(branch.attribute) + "_gradient", &g.writer().graph());
    ValueMap bindings = SaveFromBranch(g, branch, branches[1 - b]);
    for (size_t i = 0; i < dys.size(); ++i) bindings[branch.gradient->seeds()[i]] = dys[i];
    for (Value* dx : branch.gradient->CopyTo(*backward, branch.gradient->dxs(), bindings)) backward->AddOutput(dx);
    attributes[branch.attribute] = backward;
  }
  for (Branch& branch : branches) {
    if (branch.gradient) branch.gradient->RemoveFromBody();
  }
  if (!g.refusal().empty()) return;
  const Exprs dxs = Ops("If", {g.input(0)}, static_cast<int>(xs.size()), attributes);
  for (size_t i = 0; i < xs.size(); ++i) g.SetValueGradient(xs[i], dxs[i]);
}

// --- Loop and Scan ---

// What of a loop takes part: states are counted from 0, as are scan outputs and scan inputs.
struct LoopParts {
  Graph* body = nullptr;
  int first_state = 0;   // of the body's inputs
  int state_outputs = 0; // where states begin among the body's outputs
  int states = 0;        // how many there are
  std::vector<int> carried;       // states that a gradient runs through
  std::vector<int> scan_outputs;  // those with an output gradient
  std::vector<int> scan_inputs;   // those that need one
  std::vector<Value*> captures;

  Value* StateInput(int k) const { return body->inputs()[first_state + k]; }
  Value* StateOutput(int k) const { return body->outputs()[state_outputs + k]; }
  Value* ScanInput(int k) const { return body->inputs()[first_state + states + k]; }
  Value* ScanOutput(int k) const { return body->outputs()[state_outputs + states + k]; }
  // The values that the body is differentiated by: carried states, scan inputs, captured values.
  std::vector<Value*> Xs() const {
    std::vector<Value*> xs;
    for (int k : carried) xs.push_back(StateInput(k));
    for (int k : scan_inputs) xs.push_back(ScanInput(k));
    xs.insert(xs.end(), captures.begin(), captures.end());
    return xs;
  }
  std::vector<Value*> Ys() const {
    std::vector<Value*> ys;
    for (int k : carried) ys.push_back(StateOutput(k));
    for (int k : scan_outputs) ys.push_back(ScanOutput(k));
    return ys;
  }
};

// A state takes part when its first value needs a gradient, or when what does reaches it within some iterations.
void FindCarried(GradientContext& g, int first_input, LoopParts* parts) {
  std::vector<bool> in(parts->states);
  for (int k = 0; k < parts->states; ++k) in[k] = g.Needs(first_input + k);
  for (bool grew = true; grew;) {
    parts->carried.clear();
    for (int k = 0; k < parts->states; ++k) {
      if (in[k]) parts->carried.push_back(k);
    }
    grew = false;
    for (int k = 0; k < parts->states; ++k) {
      if (in[k] || !MayCarryGradient(parts->StateInput(k)->type())) continue;
      const GradientPath path(*parts->body, parts->Xs(), {parts->StateOutput(k)}, {});
      in[k] = path.Contains(parts->StateOutput(k));
      grew |= in[k];
    }
  }
}

// Stacks the saved values as further scan outputs of the forward loop: body value -> stack.
ValueMap StackSaved(GradientContext& g, Graph& body, const std::vector<Value*>& saved) {
  ValueMap stacks;
  for (Value* value : saved) {
    ValueType type = value->type();
    if (type.shape) type.shape->insert(type.shape->begin(), Dim{});
    body.AddOutput(AddIdentity(body, value, Phase::kForward));
    stacks[value] = g.node().output(AppendOutput(g, "stacked", std::move(type)));
  }
  return stacks;
}

// The gradient that flows into the last iteration's state.
Expr FinalGradient(GradientContext& g, int output) {
  g.EnsureOutput(output, ValueType{});
  return g.dYOrZeros(output);
}

// Differentiates the body; refuses where that fails or where a value cannot be stacked.
std::optional<BodyGradient> DifferentiateBody(GradientContext& g, const LoopParts& parts) {
  auto built = BodyGradient::Build(*parts.body, parts.Ys(), parts.Xs(), Prefix(g));
  if (!built.ok()) {
    g.Refuse("has a body that cannot be differentiated: " + built.status().message());
    return std::nullopt;
  }
  for (const Value* value : built->Saved(built->dxs())) {
    if (value->type().is_tensor() && value->dtype() != DType::kUndefined) continue;
    g.Refuse("would have to stack '" + value->name() + "', which is no tensor of known type");
    built->RemoveFromBody();
    return std::nullopt;
  }
  return *std::move(built);
}

// The backward body under construction: inputs and outputs in the order that Loop and Scan share.
struct BackwardBody {
  std::shared_ptr<Graph> graph;
  ValueMap bindings;  // seeds and saved values of the forward body
  Exprs initial;      // of the states: gradients of carried states, then sums for captured values
  std::vector<Value*> sums;  // body inputs that accumulate
};

// Adds the state inputs: a gradient for each carried state, a sum for each captured value that is reached.
void AddStates(GradientContext& g, const LoopParts& parts, const BodyGradient& gradient, BackwardBody* backward) {
  for (size_t i = 0; i < parts.carried.size(); ++i) {
    const Expr initial = FinalGradient(g, parts.carried[i]);
    backward->initial.push_back(initial);
    Value* seed = gradient.seeds()[i];
    backward->bindings[seed] = backward->graph->AddInput(backward->graph->UniqueName(seed->name()), seed->type());
  }
  for (Value* captured : parts.captures) {
    backward->initial.push_back(ZerosOf(g.Wrap(captured)));
    const std::string name = backward->graph->UniqueName(captured->name() + "/sum");
    backward->sums.push_back(backward->graph->AddInput(name, captured->type()));
  }
}

// Copies the gradient in and adds the state outputs; returns the gradients of the scan inputs.
std::vector<Value*> FinishBody(const LoopParts& parts, const BodyGradient& gradient, BackwardBody* backward) {
  const std::vector<Value*> dxs = gradient.CopyTo(*backward->graph, gradient.dxs(), backward->bindings);
  const size_t carried = parts.carried.size(), scans = parts.scan_inputs.size();
  NodeWriter writer(*backward->graph, Phase::kBackward, backward->graph->name() + "/");
  for (size_t i = 0; i < carried; ++i) backward->graph->AddOutput(dxs[i]);
  for (size_t i = 0; i < parts.captures.size(); ++i) {
    const Expr sum(backward->sums[i], &writer), d(dxs[carried + scans + i], &writer);
    Value* next = SumOf(sum, d).value();
    next->set_type(backward->sums[i]->type());
    backward->graph->AddOutput(next);
  }
  return {dxs.begin() + static_cast<std::ptrdiff_t>(carried), dxs.begin() + static_cast<std::ptrdiff_t>(carried + scans)};
}

// Gives the results of the backward loop to the node's inputs and captured values.
void SetLoopGradients(GradientContext& g, const LoopParts& parts, int first_input, const Exprs& results) {
  size_t r = 0;
  for (int k : parts.carried) g.SetInputGradient(first_input + k, results[r++]);
  for (Value* captured : parts.captures) g.SetValueGradient(captured, results[r++]);
  for (int k : parts.scan_inputs) g.SetInputGradient(first_input + parts.states + k, results[r++]);
}

// The element of a stack that belongs to the iteration at hand.
Value* Element(Graph& graph, Value* stack, Value* index, ValueType type) {
  Node* node = graph.AddOp("Gather", {stack, index}, {{"axis", int64_t{0}}}, "", 1, stack->name() + "/element");
  node->set_phase(Phase::kBackward);
  node->output(0)->set_type(std::move(type));
  return node->output(0);
}

// s_(t+1), y_t = body(t, s_t);  from the last t to the first: ds_t, and the sum of each captured dX, from ds_(t+1), dy_t
void LoopRule(GradientContext& g) {
  LoopParts parts;
  parts.body = &BodyOf(g, "body");
  parts.first_state = 2;
  parts.state_outputs = 1;
  parts.states = g.input_count() - 2;
  parts.captures = NeededCaptures(g);
  for (int i = parts.states; i < g.output_count(); ++i) {
    if (g.dY(i)) parts.scan_outputs.push_back(i - parts.states);
  }
  FindCarried(g, 2, &parts);
  std::optional<BodyGradient> gradient = DifferentiateBody(g, parts);
  if (!gradient) return;
  std::vector<Value*> saved = gradient->Saved(gradient->dxs());
  Value* number = parts.body->inputs()[0];  // stacked always: it counts the iterations
  if (std::find(saved.begin(), saved.end(), number) == saved.end()) saved.push_back(number);
  number->set_type(ValueType::Tensor(DType::kInt64, Shape{}));
  const ValueMap stacks = StackSaved(g, *parts.body, saved);
  const Expr trips = Squeeze(DimOf(g.Wrap(stacks.at(number)), 0), {0});

  BackwardBody backward;
  backward.graph = std::make_shared<Graph>(g.writer().FreshName("body"), &g.writer().graph());
  Graph& graph = *backward.graph;
  NodeWriter writer(graph, Phase::kBackward, graph.name() + "/");
  const Expr i(graph.AddInput("i", ValueType::Tensor(DType::kInt64, Shape{})), &writer);
  Value* go = graph.AddInput("go", ValueType::Tensor(DType::kBool, Shape{}));
  Value* index = (Expr(trips.value(), &writer) - Int(1, i) - i).value();
  AddStates(g, parts, *gradient, &backward);
  for (Value* value : saved) backward.bindings[value] = Element(graph, stacks.at(value), index, value->type());
  for (size_t s = 0; s < parts.scan_outputs.size(); ++s) {
    Value* seed = gradient->seeds()[parts.carried.size() + s];
    backward.bindings[seed] = Element(graph, g.dY(parts.states + parts.scan_outputs[s]).value(), index, seed->type());
  }
  graph.AddOutput(writer.Add("Identity", {go})->output(0));
  FinishBody(parts, *gradient, &backward);
  gradient->RemoveFromBody();
  Exprs inputs = {trips, Expr()};
  inputs.insert(inputs.end(), backward.initial.begin(), backward.initial.end());
  SetLoopGradients(g, parts, 2, Ops("Loop", inputs, static_cast<int>(backward.initial.size()), {{"body", backward.graph}}));
}

// --- Scan ---

using Ints64 = std::vector<int64_t>;

// As Loop, over slices of the inputs;  every direction is reversed, scan inputs' gradients are scan outputs
void ScanRule(GradientContext& g) {
  if (g.node().since_version() == 8) return g.Refuse("has the form of opset 8, with a batch axis");
  const int scans = static_cast<int>(g.IntAttr("num_scan_inputs", 0));
  LoopParts parts;
  parts.body = &BodyOf(g, "body");
  parts.states = g.input_count() - scans;
  parts.captures = NeededCaptures(g);
  for (int i = parts.states; i < g.output_count(); ++i) {
    if (g.dY(i)) parts.scan_outputs.push_back(i - parts.states);
  }
  for (int k = 0; k < scans; ++k) {
    if (g.Needs(parts.states + k)) parts.scan_inputs.push_back(k);
  }
  FindCarried(g, 0, &parts);
  std::optional<BodyGradient> gradient = DifferentiateBody(g, parts);
  if (!gradient) return;
  const int outputs = g.output_count() - parts.states;
  auto attribute = [&](const char* name, int count) {
    Ints64 values = g.Attr<Ints64>(name, {});
    values.resize(count, 0);
    return values;
  };
  const Ints64 in_axes = attribute("scan_input_axes", scans), in_directions = attribute("scan_input_directions", scans);
  const Ints64 out_axes = attribute("scan_output_axes", outputs);
  const Ints64 out_directions = attribute("scan_output_directions", outputs);
  const std::vector<Value*> saved = gradient->Saved(gradient->dxs());
  const ValueMap stacks = StackSaved(g, *parts.body, saved);
  for (const char* name : {"scan_output_axes", "scan_output_directions"}) {  // the stacks go forward along axis 0
    if (!g.node().HasAttribute(name)) continue;
    g.mutable_node().SetAttribute(name, attribute(name, outputs + static_cast<int>(saved.size())));
  }

  BackwardBody backward;
  backward.graph = std::make_shared<Graph>(g.writer().FreshName("body"), &g.writer().graph());
  Graph& graph = *backward.graph;
  AddStates(g, parts, *gradient, &backward);
  Exprs inputs = backward.initial;
  Ints64 axes, directions, dx_axes, dx_directions;
  auto scan_over = [&](Expr stack, const Value* element, int64_t axis, int64_t forward_direction) {
    inputs.push_back(stack);
    axes.push_back(axis);
    directions.push_back(1 - forward_direction);
    return graph.AddInput(graph.UniqueName(element->name()), element->type());
  };
  for (Value* value : saved) backward.bindings[value] = scan_over(g.Wrap(stacks.at(value)), value, 0, 0);
  for (size_t s = 0; s < parts.scan_outputs.size(); ++s) {
    const int k = parts.scan_outputs[s];
    Value* seed = gradient->seeds()[parts.carried.size() + s];
    backward.bindings[seed] = scan_over(g.dY(parts.states + k), seed, out_axes[k], out_directions[k]);
  }
  // A Scan needs something to count its iterations by.
  if (axes.empty()) scan_over(g.input(parts.states), parts.ScanInput(0), in_axes[0], in_directions[0]);
  for (Value* dx : FinishBody(parts, *gradient, &backward)) graph.AddOutput(dx);
  gradient->RemoveFromBody();
  for (int k : parts.scan_inputs) {
    dx_axes.push_back(in_axes[k]);
    dx_directions.push_back(1 - in_directions[k]);
  }
  AttributeMap attributes = {{"body", backward.graph}, {"num_scan_inputs", static_cast<int64_t>(axes.size())},
                             {"scan_input_axes", axes}, {"scan_input_directions", directions}};
  if (!dx_axes.empty()) attributes["scan_output_axes"] = dx_axes;
  if (!dx_axes.empty()) attributes["scan_output_directions"] = dx_directions;
  const int results = static_cast<int>(backward.initial.size() + dx_axes.size());
  SetLoopGradients(g, parts, 0, Ops("Scan", inputs, results, attributes));
}

}  // namespace

std::vector<GradientRule> ControlFlowRules() {
  return {
      {.op_type = "If", .function = IfRule, .stops = {0}},
      {.op_type = "Loop", .function = LoopRule, .stops = {0, 1}},
      {.op_type = "Scan", .function = ScanRule},
  };
}

}  // namespace caesura::gradient
