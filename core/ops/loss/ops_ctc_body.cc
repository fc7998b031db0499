// SPDX-License-Identifier: Apache-2.0
// CtcLoss in ONNX's operators: Scans over the steps forwards and backwards, as ctc_loss.cc has it.
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// log(e^a + e^b + ...), -infinity where all are.
Expr LogSum(const Exprs& terms) {
  const Expr most = Op("Max", terms), none = Number(-kInfinity, most);
  const Expr is_none = Equal(most, none), base = Where(is_none, Number(0, most), most);
  Expr sum;
  for (const Expr& term : terms) sum = sum ? sum + Exp(term - base) : Exp(term - base);
  return Where(is_none, none, base + Log(Where(is_none, Number(1, sum), sum)));
}

// x [N, S] moved by `count` places along the states, those that come in are `fill`.
Expr Moved(Expr x, int64_t count, Expr fill) {
  const Expr size = DimOf(x, 1), zero = Ints({0}, x);
  const Expr filler = Expand(fill, Concat({DimOf(x, 0), Ints({std::abs(count)}, x)}, 0));
  if (count > 0) return Slice(Concat({filler, x}, 1), zero, size, 1);
  const Expr by = Ints({-count}, x);
  return Slice(Concat({x, filler}, 1), by, size + by, 1);
}

struct Ctc {
  Expr place, labels, skips, own;  // [1, S], [N, S] (a state's label), [N, S] bool, [T, N, S]
  Expr last;                       // [N, 1]: the last state, 2 * labels
  Expr times, steps;               // [T], [N, 1]
};

// The states after all steps, [N, S], and those after each step, [T, N, S], forwards or backwards.
Exprs Paths(const Ctc& c, Expr start, bool is_backwards) {
  const int64_t way = is_backwards ? -1 : 1;
  const auto step = [&](const Exprs& states, const Exprs& slices) -> Exprs {
    const Expr before = states[0], none = Number(-kInfinity, before);
    const auto outer = [&](Expr value) { return Expr(value.value(), before.writer()); };
    // It is the state that is skipped to that knows.
    const Expr skipped = is_backwards ? Moved(Where(outer(c.skips), before, none), -2, none)
                                      : Where(outer(c.skips), Moved(before, 2, none), none);
    const Expr now = LogSum({before, Moved(before, way, none), skipped}) + slices[0];
    const Expr next = Where(Less(slices[1], outer(c.steps)), now, before);
    return {next, next};
  };
  return ScanOver({start}, {c.own, c.times}, 0, is_backwards, step);
}

Ctc StatesOf(OpBody& b) {
  const Expr log_probs = b.input(0), targets = b.input(1), lengths = b.input(3);
  const bool in_rows = b.Rank(1) == 2;
  const Expr zero = Int(0, targets), one = Int(1, targets), two = Int(2, targets);
  Ctc c;
  const Expr most = Op("ReduceMax", {lengths}, {{"keepdims", int64_t{0}}});
  const auto range = [&](Expr count) { return Op("Range", {zero, count, one}); };
  c.place = Unsqueeze(range(most * two + one), {0});
  c.last = Unsqueeze(lengths * two, {1});
  const Expr batch = Squeeze(DimOf(log_probs, 1), {0});
  const Expr begin = in_rows ? range(batch) * Squeeze(DimOf(targets, 1), {0})
                             : Op("CumSum", {lengths, zero}, {{"exclusive", int64_t{1}}});
  const Expr number = c.place / two, is_label = Greater(c.place - number * two, zero);
  const Expr padded =
      Concat({Reshape(targets, Ints({-1}, targets)), Ints({b.IntAttr("blank", 0)}, targets)}, 0);
  const Expr has_label = And(is_label, Less(c.place, c.last));
  const Expr at = Where(has_label, Unsqueeze(begin, {1}) + number, Op("Size", {targets}));
  c.labels = Gather(padded, at, 0);
  const Expr before = Moved(c.labels, 2, Int(-1, targets));
  c.skips = And(And(has_label, Greater(c.place, one)), Op("Not", {Equal(c.labels, before)}));
  const Expr shape = Concat({ShapeOf(log_probs, 0, 2), DimOf(c.place, 1)}, 0);
  c.labels = Expand(Unsqueeze(c.labels, {0}), shape);
  const Expr own = Op("GatherElements", {log_probs, c.labels}, {{"axis", int64_t{2}}});
  c.own = Where(LessOrEqual(c.place, c.last), own, Number(-kInfinity, own));
  ValueType type = ValueType::Tensor(log_probs.dtype());
  type.shape = std::vector<Dim>(3);
  c.own.value()->set_type(std::move(type));
  c.times = range(Squeeze(DimOf(log_probs, 0), {0}));
  type = ValueType::Tensor(DType::kInt64);
  type.shape = std::vector<Dim>(1);
  c.times.value()->set_type(std::move(type));
  c.steps = Unsqueeze(b.input(2), {1});
  return c;
}

}  // namespace

void CtcLossBody(OpBody& b) {
  const Expr log_probs = b.input(0), zero = Number(0, log_probs),
             none = Number(-kInfinity, log_probs);
  const Ctc c = StatesOf(b);
  const Expr states = Concat({DimOf(log_probs, 1), DimOf(c.place, 1)}, 0);
  const Expr first = Expand(Where(Equal(c.place, Int(0, log_probs)), zero, none), states);
  const Exprs forwards = Paths(c, first, false);
  const Expr ends =
      And(GreaterOrEqual(c.place, c.last - Int(1, log_probs)), LessOrEqual(c.place, c.last));
  const Expr at_ends = Where(ends, forwards[0], none);
  const Expr most = Op("ReduceMax", {at_ends, Ints({1}, zero)});
  const Expr has_path = Greater(most, none), base = Where(has_path, most, zero);
  const Expr sum = ReduceSum(Exp(at_ends - base), {1}, true);
  const Expr loss = Where(has_path, -(base + Log(Where(has_path, sum, Number(1, sum)))), -none);
  b.SetOutput(0, Squeeze(loss, {1}));  // [N, 1]
  if (!b.Wants(1)) return;
  const Exprs backwards = Paths(c, Where(Equal(c.place, c.last), zero, none), true);
  const Expr both = forwards[1] + backwards[1], is_none = Equal(both, none);
  // The share of the paths that are in a state at a step.
  const Expr share = Where(is_none, zero, Exp(Where(is_none, zero, both + loss - c.own)));
  const Expr shares = Op("ScatterElements", {ZerosLike(log_probs), c.labels, share},
                         {{"axis", int64_t{2}}, {"reduction", std::string("add")}});
  const double missing =
      b.IntAttr("zero_infinity", 0) != 0 ? 0 : std::numeric_limits<double>::quiet_NaN();
  const Expr known = Unsqueeze(has_path, {0});
  const Expr slopes = Where(known, Exp(log_probs) - shares, Number(missing, zero));
  const Expr lasts = Less(Unsqueeze(c.times, {1, 2}), Unsqueeze(c.steps, {0}));
  b.SetOutput(1, Where(lasts, slopes, zero));
}

}  // namespace caesura::gradient
