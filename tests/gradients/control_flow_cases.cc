// SPDX-License-Identifier: Apache-2.0
#include "tests/gradients/gradient_case.h"

namespace caesura {
namespace {

const char kIf[] = R"(
  y, z = If(c) <
    then_branch = then_body () => (double[2,3] p, double[2,3] q) { s = Sin(a) p = Mul(s, b) q = Identity(a) },
    else_branch = else_body () => (double[2,3] r, double[2,3] t) { e = Exp(b) r = Mul(e, e) t = Mul(a, b) }
  >)";

// A state, a captured weight, a scan output, and a state that only becomes dependent after one
// iteration.
const char kLoop[] = R"(
  y, u, z = Loop(n, , x, v) <
    body = body (int64 i, bool go, double[2] h, double[2] k) => (bool go_on, double[2] h2, double[2] k2, double[2] o) {
      go_on = Identity(go)
      wh = Mul(h, w)
      h2 = Tanh(wh)
      k2 = Identity(h)
      hk = Mul(h2, k)
      o = Add(hk, w)
    }
  >)";

const char kWhile[] = R"(
  t0 = Constant<value = bool {1}>()
  y = Loop(, t0, x) <
    body = body (int64 i, bool go, double[2] h) => (bool go_on, double[2] h2) {
      h2 = Mul(h, w)
      norm = ReduceSumSquare<keepdims = 0>(h2)
      go_on = Greater(norm, limit)
    }
  >)";

const char kScan[] = R"(
  y, z = Scan(h0, x) <
    num_scan_inputs = 1,
    body = body (double[2] h, double[2] e) => (double[2] h2, double[2] o) {
      eh = Mul(e, h)
      s = Add(eh, w)
      h2 = Tanh(s)
      o = Mul(h2, e)
    }
  >)";

const char kScanReversed[] = R"(
  y, z = Scan(h0, x, v) <
    num_scan_inputs = 2, scan_input_directions = [1, 0], scan_input_axes = [0, 1],
    scan_output_directions = [1], scan_output_axes = [1],
    body = body (double[2] h, double[2] e, double[2] f) => (double[2] h2, double[2] o) {
      eh = Mul(e, h)
      s = Add(eh, f)
      h2 = Sin(s)
      o = Mul(h2, e)
    }
  >)";

}  // namespace

std::vector<GradientCase> ControlFlowCases() {
  const std::string n = "<int64 n = {4}>";
  return {
      {.name = "IfThen",
       .inputs = "bool[] c, double[2,3] a, double[3] b",
       .body = kIf,
       .outputs = "y, z",
       .feeds = {{"c", {1}}}},
      {.name = "IfElse",
       .inputs = "bool[] c, double[2,3] a, double[2,3] b",
       .body = kIf,
       .outputs = "y, z",
       .feeds = {{"c", {0}}}},
      {.name = "Loop",
       .inputs = "double[2] x, double[2] v, double[2] w",
       .body = kLoop,
       .outputs = "y, u, z",
       .initializers = n},
      {.name = "LoopScanOnly",
       .inputs = "double[2] x, double[2] v, double[2] w",
       .body = kLoop,
       .outputs = "z",
       .initializers = n},
      {.name = "LoopNoTrip",
       .inputs = "double[2] x, double[2] v, double[2] w",
       .body = kLoop,
       .outputs = "y, u",
       .initializers = "<int64 n = {0}>"},
      {.name = "LoopWhile",
       .inputs = "double[2] x, double[2] w",
       .body = kWhile,
       .low = 0.3,
       .high = 0.7,
       .initializers = "<double limit = {0.001}>"},
      {.name = "Scan",
       .inputs = "double[2] h0, double[3,2] x, double[2] w",
       .body = kScan,
       .outputs = "y, z"},
      {.name = "ScanReversed",
       .inputs = "double[2] h0, double[3,2] x, double[2,3] v",
       .body = kScanReversed,
       .outputs = "y, z"},
      {.name = "ScanStateOnly",
       .inputs = "double[2] h0, double[3,2] x, double[2] w",
       .body = kScan,
       .outputs = "y"},
      {.name = "SequenceAt",
       .inputs = "double[2] a, double[3] b",
       .body = "s = SequenceConstruct(a, b) q = SequenceAt(s, p) y = Mul(q, q)",
       .initializers = "<int64 p = {-1}>"},
      {.name = "SequenceTwice",
       .inputs = "double[2] a, double[3] b",
       .body = "s = SequenceConstruct(a, b) q = SequenceAt(s, p) z = ConcatFromSequence<axis = "
               "0>(s) y = Mul(q, q)",
       .outputs = "y, z",
       .initializers = "<int64 p = {1}>"},
      {.name = "SequenceInsert",
       .inputs = "double[2] a, double[3] b, double[1] c",
       .body = "s = SequenceConstruct(a, b) t = SequenceInsert(s, c, p) z = "
               "ConcatFromSequence<axis = 0>(t) y = Mul(z, z)",
       .initializers = "<int64 p = {1}>"},
      {.name = "SequenceErase",
       .inputs = "double[2] a, double[3] b, double[1] c",
       .body = "s = SequenceConstruct(a, b, c) t = SequenceErase(s, p) z = ConcatFromSequence<axis "
               "= 0>(t) y = Mul(z, z)",
       .initializers = "<int64 p = {1}>"},
      {.name = "SplitToSequence",
       .inputs = "double[5,2] x",
       .body = "s = SplitToSequence<axis = 0>(x, l) q = SequenceAt(s, p) y = Sin(q)",
       .initializers = "<int64 p = {1}, int64[2] l = {2, 3}>"},
      {.name = "ConcatFromSequenceNewAxis",
       .inputs = "double[2,3] x",
       .body = "s = SplitToSequence<axis = 0, keepdims = 0>(x) z = ConcatFromSequence<axis = 1, "
               "new_axis = 1>(s) y = Mul(z, z)"},
      {.name = "OptionalGetElement",
       .inputs = "double[2] x",
       .body = "o = Optional(x) e = OptionalGetElement(o) y = Mul(e, e)"},
  };
}

}  // namespace caesura
