// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/loop_gradient.h"

#include <algorithm>
#include <optional>

#include "core/gradient/body_gradient.h"
#include "core/gradient/sequence_map.h"

namespace caesura::gradient {
namespace {

using Ints64 = std::vector<int64_t>;

// The places of a loop's states and scans among the inputs and outputs of the node and of its body.
struct LoopForm {
  int first_input;        // states among the node's inputs
  int first_body_input;   // among the body's
  int first_body_output;  // among the body's outputs; the node's outputs begin with them
  int states;
  int scan_inputs;  // after the states
};

class LoopGradient {
 public:
  LoopGradient(GradientContext& g, const LoopForm& form);

  // Differentiates the body and makes the stacks. False when the node is refused.
  bool Build();
  // The backward loop's body, so far with an input for each state: gradients of carried ones, sums
  // for captured values.
  void AddStates();
  // Copies the body's gradient in and adds the states' outputs; returns the gradients of the scan
  // inputs.
  std::vector<Value*> FinishBody();
  void SetGradients(const Exprs& results);

  // The states that a gradient runs through, the scan outputs that one comes in by, the scan inputs
  // that need one.
  std::vector<int> carried, scan_outputs, scan_inputs;
  std::vector<Value*> saved;        // values of the forward body
  ValueMap stacks;                  // saved value -> its stack
  std::shared_ptr<Graph> backward;  // the body of the backward loop
  ValueMap bindings;                // seeds and saved values -> values of `backward`
  Exprs initial;                    // of the backward loop's states

  Graph& body() { return *body_; }
  Value* ScanSeed(size_t s) const { return gradient_->seeds()[carried.size() + s]; }
  Expr ScanOutputGradient(int k) const { return g_.dY(form_.states + k); }

 private:
  Value* StateInput(int k) const { return body_->inputs()[form_.first_body_input + k]; }
  Value* StateOutput(int k) const { return body_->outputs()[form_.first_body_output + k]; }
  std::vector<Value*> Xs() const;
  std::vector<Value*> Ys() const;
  void FindCarried();
  void StackSaved();

  GradientContext& g_;
  const LoopForm form_;
  Graph* body_;
  std::vector<Value*> captures_;
  std::optional<BodyGradient> gradient_;
  std::vector<Value*> sums_;  // inputs of `backward` that add up the gradients of captured values
};

LoopGradient::LoopGradient(GradientContext& g, const LoopForm& form)
    : g_(g), form_(form), body_(&BodyOf(g, "body")), captures_(NeededCaptures(g)) {
  for (int i = form.states; i < g.output_count(); ++i) {
    if (g.dY(i)) scan_outputs.push_back(i - form.states);
  }
  for (int k = 0; k < form.scan_inputs; ++k) {
    if (g.Needs(form.first_input + form.states + k)) scan_inputs.push_back(k);
  }
}

// The values that the body is differentiated by: carried states, scan inputs, captured values.
std::vector<Value*> LoopGradient::Xs() const {
  std::vector<Value*> xs;
  for (int k : carried) xs.push_back(StateInput(k));
  for (int k : scan_inputs)
    xs.push_back(body_->inputs()[form_.first_body_input + form_.states + k]);
  xs.insert(xs.end(), captures_.begin(), captures_.end());
  return xs;
}

std::vector<Value*> LoopGradient::Ys() const {
  std::vector<Value*> ys;
  for (int k : carried) ys.push_back(StateOutput(k));
  for (int k : scan_outputs)
    ys.push_back(body_->outputs()[form_.first_body_output + form_.states + k]);
  return ys;
}

// A state takes part when its first value needs a gradient, or when what does reaches it within
// some iterations.
void LoopGradient::FindCarried() {
  std::vector<bool> in(form_.states);
  for (int k = 0; k < form_.states; ++k) in[k] = g_.Needs(form_.first_input + k);
  for (bool grew = true; grew;) {
    carried.clear();
    for (int k = 0; k < form_.states; ++k) {
      if (in[k]) carried.push_back(k);
    }
    grew = false;
    for (int k = 0; k < form_.states; ++k) {
      if (in[k] || !MayCarryGradient(StateInput(k)->type())) continue;
      const GradientPath path(*body_, Xs(), {StateOutput(k)}, {});
      in[k] = path.Contains(StateOutput(k));
      grew |= in[k];
    }
  }
}

bool LoopGradient::Build() {
  FindCarried();
  auto built = BodyGradient::Build(*body_, Ys(), Xs(), g_.node().name() + "/");
  if (!built.ok()) {
    g_.Refuse("has a body that cannot be differentiated: " + built.status().message());
    return false;
  }
  gradient_ = *std::move(built);
  saved = gradient_->Saved(gradient_->dxs());
  for (const Value* value : saved) {
    if (value->type().is_tensor() && value->dtype() != DType::kUndefined) continue;
    g_.Refuse("would have to stack '" + value->name() + "', which is no tensor of known type");
    gradient_->RemoveFromBody();
    return false;
  }
  backward = std::make_shared<Graph>(g_.writer().FreshName("body"), &g_.writer().graph());
  return true;
}

void LoopGradient::StackSaved() {
  for (Value* value : saved) {
    ValueType type = value->type();
    if (type.shape) type.shape->insert(type.shape->begin(), Dim{});
    AddCopyAsOutput(*body_, value);
    const size_t index = body_->outputs().size() - 1 - static_cast<size_t>(form_.first_body_output);
    stacks[value] = AddOutput(g_, index, "stacked", std::move(type));
  }
}

void LoopGradient::AddStates() {
  StackSaved();
  for (size_t i = 0; i < carried.size(); ++i) {
    g_.EnsureOutput(carried[i], StateOutput(carried[i])->type());
    initial.push_back(g_.dYOrZeros(carried[i]));
    Value* seed = gradient_->seeds()[i];
    bindings[seed] = backward->AddInput(backward->UniqueName(seed->name()), seed->type());
  }
  for (Value* captured : captures_) {
    initial.push_back(ZerosOf(g_.Wrap(captured)));
    sums_.push_back(
        backward->AddInput(backward->UniqueName(captured->name() + "/sum"), captured->type()));
  }
}

std::vector<Value*> LoopGradient::FinishBody() {
  const std::vector<Value*> dxs = gradient_->CopyTo(*backward, gradient_->dxs(), bindings);
  NodeWriter writer(*backward, Phase::kBackward, backward->name() + "/");
  const size_t states = carried.size(), scans = scan_inputs.size();
  for (size_t i = 0; i < states; ++i) backward->AddOutput(dxs[i]);
  for (size_t i = 0; i < captures_.size(); ++i) {
    Value* sum = SumOf({sums_[i], &writer}, {dxs[states + scans + i], &writer}).value();
    sum->set_type(sums_[i]->type());
    backward->AddOutput(sum);
  }
  gradient_->RemoveFromBody();
  const auto first = dxs.begin() + static_cast<std::ptrdiff_t>(states);
  return {first, first + static_cast<std::ptrdiff_t>(scans)};
}

void LoopGradient::SetGradients(const Exprs& results) {
  size_t r = 0;
  for (int k : carried) g_.SetInputGradient(form_.first_input + k, results[r++]);
  for (Value* captured : captures_) g_.SetValueGradient(captured, results[r++]);
  for (int k : scan_inputs) g_.SetInputGradient(form_.first_input + form_.states + k, results[r++]);
}

// The entry of a stack that belongs to the iteration at hand.
Value* Entry(NodeWriter& writer, Value* stack, Value* index, ValueType type) {
  Value* entry = writer.Add("Gather", {stack, index}, {{"axis", int64_t{0}}})->output(0);
  entry->set_type(std::move(type));
  return entry;
}

}  // namespace

// s_(t+1), y_t = body(t, s_t);  from the last t to the first: ds_t, and the sum of each captured
// dX, from ds_(t+1), dy_t
void LoopRule(GradientContext& g) {
  LoopGradient loop(g, {.first_input = 2,
                        .first_body_input = 2,
                        .first_body_output = 1,
                        .states = g.input_count() - 2,
                        .scan_inputs = 0});
  if (!loop.Build()) return;
  Value* number =
      loop.body().inputs()[0];  // stacked always: its stack tells how many iterations there were
  number->set_type(ValueType::Tensor(DType::kInt64, Shape{}));
  if (std::find(loop.saved.begin(), loop.saved.end(), number) == loop.saved.end())
    loop.saved.push_back(number);

  Graph& backward = *loop.backward;
  NodeWriter writer(backward, Phase::kBackward, backward.name() + "/");
  const Expr i(backward.AddInput(writer.FreshName("i"), ValueType::Tensor(DType::kInt64, Shape{})),
               &writer);
  Value* go = backward.AddInput(writer.FreshName("go"), ValueType::Tensor(DType::kBool, Shape{}));
  loop.AddStates();
  const Expr trips = Squeeze(DimOf(g.Wrap(loop.stacks.at(number)), 0), {0});
  Value* index = (Expr(trips.value(), &writer) - Int(1, i) - i).value();
  for (Value* value : loop.saved)
    loop.bindings[value] = Entry(writer, loop.stacks.at(value), index, value->type());
  for (size_t s = 0; s < loop.scan_outputs.size(); ++s) {
    Value* stack = loop.ScanOutputGradient(loop.scan_outputs[s]).value();
    loop.bindings[loop.ScanSeed(s)] = Entry(writer, stack, index, loop.ScanSeed(s)->type());
  }
  backward.AddOutput(writer.Add("Identity", {go})->output(0));
  loop.FinishBody();
  Exprs inputs = {trips, Expr()};
  inputs.insert(inputs.end(), loop.initial.begin(), loop.initial.end());
  loop.SetGradients(
      Ops("Loop", inputs, static_cast<int>(loop.initial.size()), {{"body", loop.backward}}));
}

namespace {

// A Scan's axes and directions, filled up with the defaults.
struct ScanLayout {
  Ints64 in_axes, in_directions, out_axes, out_directions;

  ScanLayout(const GradientContext& g, int inputs, int outputs) {
    auto read = [&g](const char* name, int count) {
      Ints64 values = g.Attr<Ints64>(name, {});
      values.resize(count, 0);
      return values;
    };
    in_axes = read("scan_input_axes", inputs);
    in_directions = read("scan_input_directions", inputs);
    out_axes = read("scan_output_axes", outputs);
    out_directions = read("scan_output_directions", outputs);
  }
};

// The backward Scan's sequences, each in the direction opposite to the forward one's.
struct BackwardScans {
  Graph& body;
  Exprs inputs = {};
  Ints64 axes = {}, directions = {};

  Value* Add(Expr stack, const Value* entry, int64_t axis, int64_t forward_direction) {
    inputs.push_back(stack);
    axes.push_back(axis);
    directions.push_back(1 - forward_direction);
    return body.AddInput(body.UniqueName(entry->name()), entry->type());
  }
};

// The stacks go forward along axis 0; attributes that list every scan output learn of them.
void ExtendOutputLists(GradientContext& g, const ScanLayout& layout, size_t stacks) {
  auto extend = [&](const char* name, Ints64 values) {
    values.resize(values.size() + stacks, 0);
    if (g.node().HasAttribute(name)) g.mutable_node().SetAttribute(name, std::move(values));
  };
  extend("scan_output_axes", layout.out_axes);
  extend("scan_output_directions", layout.out_directions);
}

}  // namespace

// s_(t+1), y_t = body(s_t, x_t);  from the last t to the first: ds_t, dx_t, and the sum of each
// captured dX
void ScanRule(GradientContext& g) {
  if (g.node().since_version() == 8) return g.Refuse("has the form of opset 8, with a batch axis");
  const int scans = static_cast<int>(g.IntAttr("num_scan_inputs", 0)),
            states = g.input_count() - scans;
  const ScanLayout layout(g, scans, g.output_count() - states);
  LoopGradient loop(g, {.first_input = 0,
                        .first_body_input = 0,
                        .first_body_output = 0,
                        .states = states,
                        .scan_inputs = scans});
  if (!loop.Build()) return;
  loop.AddStates();
  ExtendOutputLists(g, layout, loop.saved.size());

  BackwardScans over{*loop.backward};
  for (Value* value : loop.saved)
    loop.bindings[value] = over.Add(g.Wrap(loop.stacks.at(value)), value, 0, 0);
  for (size_t s = 0; s < loop.scan_outputs.size(); ++s) {
    const int k = loop.scan_outputs[s];
    const Expr dy = loop.ScanOutputGradient(k);
    loop.bindings[loop.ScanSeed(s)] =
        over.Add(dy, loop.ScanSeed(s), layout.out_axes[k], layout.out_directions[k]);
  }
  // A Scan needs something to count its iterations by.
  if (over.axes.empty())
    over.Add(g.input(states), loop.body().inputs()[states], layout.in_axes[0],
             layout.in_directions[0]);
  AttributeMap attributes = {{"body", loop.backward},
                             {"num_scan_inputs", static_cast<int64_t>(over.axes.size())},
                             {"scan_input_axes", over.axes},
                             {"scan_input_directions", over.directions}};
  Ints64 axes, directions;
  for (int k : loop.scan_inputs) {
    axes.push_back(layout.in_axes[k]);
    directions.push_back(1 - layout.in_directions[k]);
  }
  for (Value* dx : loop.FinishBody()) loop.backward->AddOutput(dx);
  if (!axes.empty()) attributes["scan_output_axes"] = axes;
  if (!axes.empty()) attributes["scan_output_directions"] = directions;
  Exprs inputs = loop.initial;
  inputs.insert(inputs.end(), over.inputs.begin(), over.inputs.end());
  loop.SetGradients(
      Ops("Scan", inputs, static_cast<int>(loop.initial.size() + axes.size()), attributes));
}

}  // namespace caesura::gradient
