// SPDX-License-Identifier: Apache-2.0
#include "core/profile/value_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "core/execute/execution_state.h"

namespace caesura {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string LabelOf(const Node& node) {
  return node.Label() + (node.source().empty() ? "" : " (" + node.source() + ")");
}

// Calls fn(index, value) for each element of a floating tensor.
template <typename Fn>
void ForEachElement(const Tensor& tensor, const Fn& fn) {
  DispatchFloat(tensor.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < tensor.elements(); ++i) fn(i, static_cast<double>(tensor.data<T>()[i]));
  });
}

ValueRange RangeOf(const std::string& name, const Tensor& tensor) {
  ValueRange out{name, DTypeName(tensor.dtype()) + tensor.shape().ToString()};
  out.least = std::numeric_limits<double>::infinity();
  out.most = -out.least;
  ForEachElement(tensor, [&](int64_t, double value) {
    if (std::isnan(value)) {
      ++out.nans;
    } else if (std::isinf(value)) {
      ++out.infinite;
    } else {
      ++out.finite;
      out.least = std::min(out.least, value);
      out.most = std::max(out.most, value);
    }
  });
  return out;
}

// The step's values among its inputs or outputs, on the host; those that are no tensors left out.
std::vector<std::pair<std::string, Tensor>> ValuesOf(const ExecutionPlan& plan,
                                                     const ExecutionState& state, int index,
                                                     bool outputs) {
  const PlanStep& step = plan.steps()[index];
  const uint32_t* ids = plan.argument_values().data() + step.first_argument;
  const uint32_t begin = outputs ? step.input_count : 0;
  const uint32_t end = step.input_count + (outputs ? step.output_count : 0);
  std::vector<std::pair<std::string, Tensor>> out;
  for (uint32_t i = begin; i < end; ++i) {
    if (ids[i] == 0) continue;
    const Result<RuntimeValue> value = state.HostValueOf(ids[i]);
    if (value.ok() && value->is_tensor())
      out.emplace_back(plan.values()[ids[i]].value->name(), value->tensor());
  }
  return out;
}

WatchedNode Watch(const ExecutionPlan& plan, const ExecutionState& state, int index) {
  const PlanStep& step = plan.steps()[index];
  WatchedNode out;
  out.label = step.node->Label();
  out.provider = step.provider->name();
  out.source = step.node->source();
  if (step.node->Is("FusedRows", kCaesuraDomain)) {
    for (const Graph* body : step.node->Subgraphs()) {
      for (const auto& part : body->nodes()) out.parts.push_back(LabelOf(*part));
    }
  }
  for (const auto& [name, tensor] : ValuesOf(plan, state, index, /*outputs=*/false)) {
    if (IsDifferentiable(tensor.dtype())) out.inputs.push_back(RangeOf(name, tensor));
  }
  return out;
}

int64_t Sum(const std::vector<ValueRange>& ranges, int64_t ValueRange::* count) {
  int64_t sum = 0;
  for (const ValueRange& range : ranges) sum += range.*count;
  return sum;
}

}  // namespace

std::string ValueRange::ToString() const {
  std::string out = name + " " + type;
  if (finite > 0) out += " from " + Number(least) + " to " + Number(most);
  if (nans > 0) out += ", " + std::to_string(nans) + " NaN";
  if (infinite > 0) out += ", " + std::to_string(infinite) + " infinite";
  return out;
}

std::string WatchedNode::ToString() const {
  std::string out = label + " on " + provider;
  if (!source.empty()) out += "\n  in " + source;
  for (const std::string& part : parts) out += "\n  fused of " + part;
  for (const ValueRange& input : inputs) out += "\n  reads " + input.ToString();
  return out;
}

// --- what is not finite ---

void NonfiniteFinder::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state,
                                  int step) {
  if (!first_nan_) current_ = Watch(plan, state, step);
}

void NonfiniteFinder::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                                const Status& status) {
  if (first_nan_ || !status.ok() || plan.steps()[step].kind == PlanStep::Kind::kYield) return;
  std::vector<ValueRange> made;
  for (const auto& [name, tensor] : ValuesOf(plan, state, step, /*outputs=*/true))
    made.push_back(RangeOf(name, tensor));
  const int64_t nans = Sum(current_.inputs, &ValueRange::nans);
  const int64_t infinite = Sum(current_.inputs, &ValueRange::infinite);
  if (nans == 0 && Sum(made, &ValueRange::nans) > 0) first_nan_ = current_;
  if (!first_infinite_ && nans + infinite == 0 && Sum(made, &ValueRange::infinite) > 0)
    first_infinite_ = current_;
}

// --- where two runs part ---

void ValueLog::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) {
  nodes_.push_back(Watch(plan, state, step));
}

void ValueLog::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                         const Status& status) {
  const PlanStep::Kind kind = plan.steps()[step].kind;
  if (!status.ok() || kind == PlanStep::Kind::kYield || kind == PlanStep::Kind::kCopy) return;
  for (auto& [name, tensor] : ValuesOf(plan, state, step, /*outputs=*/true)) {
    Result<Tensor> copy = tensor.Clone();
    if (copy.ok()) entries_.push_back({name, *std::move(copy), nodes_.size() - 1});
  }
}

std::string ValueDifference::ToString() const {
  std::string out = "'" + value + "' of " + node.ToString() + "\n  ";
  if (!shapes.empty()) return out + "is " + shapes;
  return out + "element " + std::to_string(element) + ": expected " + Number(expected) + ", got " +
         Number(got) + " (largest magnitude " + Number(largest) + "); " +
         std::to_string(equal_before) + " values before it agree";
}

std::optional<ValueDifference> FirstDifference(const ValueLog& expected, const ValueLog& got,
                                               double tolerance) {
  std::unordered_map<std::string, const ValueLog::Entry*> there;
  for (const ValueLog::Entry& entry : got.entries()) there[entry.name] = &entry;
  ValueDifference out;
  for (const ValueLog::Entry& entry : expected.entries()) {
    const auto found = there.find(entry.name);
    if (found == there.end()) continue;
    const Tensor &a = entry.value, &b = found->second->value;
    out.value = entry.name;
    out.node = got.nodes()[found->second->node];
    if (a.dtype() != b.dtype() || a.shape() != b.shape()) {
      out.shapes = DTypeName(b.dtype()) + b.shape().ToString() + ", expected " +
                   DTypeName(a.dtype()) + a.shape().ToString();
      return out;
    }
    if (!IsDifferentiable(a.dtype())) {
      const bool same =
          a.dtype() == DType::kString || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
      if (!same) {
        out.shapes = DTypeName(b.dtype()) + b.shape().ToString() + " of other values";
        return out;
      }
      ++out.equal_before;
      continue;
    }
    std::vector<double> values(static_cast<size_t>(a.elements()));
    out.largest = 0;
    ForEachElement(a, [&](int64_t i, double value) {
      values[i] = value;
      if (std::isfinite(value)) out.largest = std::max(out.largest, std::fabs(value));
    });
    double worst = -1;
    ForEachElement(b, [&](int64_t i, double value) {
      const bool same = value == values[i] || (std::isnan(value) && std::isnan(values[i]));
      if (same) return;
      double error = std::fabs(value - values[i]);
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
      if (error <= worst || error <= tolerance * out.largest) return;
      worst = error;
      out.element = i;
      out.expected = values[i];
      out.got = value;
    });
    if (worst >= 0) return out;
    ++out.equal_before;
  }
  return std::nullopt;
}

}  // namespace caesura
