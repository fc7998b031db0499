// SPDX-License-Identifier: Apache-2.0
// The rows of Einsum (core/graph/op_def.h), and their gradient rules.
// The gradient of Einsum is an Einsum: Y's term takes the place of the operand that is
// differentiated.
#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

constexpr char kEllipsis = '.';  // "..." is kept as one character

struct Equation {
  std::vector<std::string> terms;
  std::string output;
};

bool Has(const std::string& term, char label) { return term.find(label) != std::string::npos; }

// Without "->" the output has the labels that occur once, in alphabetical order, after the
// ellipsis.
std::string ImplicitOutput(const std::vector<std::string>& terms) {
  std::string all;
  for (const std::string& term : terms) all += term;
  const std::set<char> labels(all.begin(), all.end());
  std::string out = Has(all, kEllipsis) ? std::string(1, kEllipsis) : "";
  for (char label : labels) {
    if (label != kEllipsis && std::count(all.begin(), all.end(), label) == 1) out += label;
  }
  return out;
}

Equation Parse(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  for (size_t at; (at = text.find("...")) != std::string::npos;) text.replace(at, 3, 1, kEllipsis);
  Equation out;
  const size_t arrow = text.find("->");
  std::istringstream left(text.substr(0, arrow));
  for (std::string term; std::getline(left, term, ',');) out.terms.push_back(term);
  if (text.substr(0, arrow).empty() || text[std::min(arrow, text.size()) - 1] == ',')
    out.terms.push_back("");
  out.output = arrow == std::string::npos ? ImplicitOutput(out.terms) : text.substr(arrow + 2);
  return out;
}

std::string Write(const std::vector<std::string>& terms, const std::string& output) {
  std::string text;
  for (size_t i = 0; i < terms.size(); ++i) text += (i ? "," : "") + terms[i];
  text += "->" + output;
  for (size_t at = 0; (at = text.find(kEllipsis, at)) != std::string::npos; at += 3)
    text.replace(at, 1, "...");
  return text;
}

char UnusedLabel(const Equation& equation, const std::string& more) {
  std::string all = equation.output + more;
  for (const std::string& term : equation.terms) all += term;
  char label = 'a';
  while (Has(all, label)) label = label == 'z' ? 'A' : static_cast<char>(label + 1);
  return label;
}

// The identity matrix of the size of one axis.
Expr Eye(Expr x, int64_t axis) {
  return Op("EyeLike", {Filled(0, Concat({DimOf(x, axis), DimOf(x, axis)}, 0), x)});
}

// The operands of the gradient of operand k.
struct Contraction {
  std::vector<std::string> terms;
  Exprs operands;
  std::string result;
  bool wider = false;  // the result may have more elements than the operand, to be summed
};

// Counts from the back after an ellipsis, whose rank is open.
int64_t AxisOf(const std::string& term, size_t position) {
  const int64_t i = static_cast<int64_t>(position);
  return Has(term.substr(0, position), kEllipsis) ? i - static_cast<int64_t>(term.size()) : i;
}

// A label twice in the operand ("ii") took its diagonal: an identity matrix puts the gradient back
// there.
void AddDiagonals(const Equation& equation, Expr x, std::string* term, Contraction* out) {
  for (size_t i = 1; i < term->size(); ++i) {
    const char label = (*term)[i];
    if (term->find(label) >= i) continue;
    const char fresh = UnusedLabel(equation, *term);
    out->operands.push_back(Eye(x, AxisOf(*term, i)));
    out->terms.push_back({label, fresh});
    (*term)[i] = fresh;
  }
}

// A label that only this operand has was summed: ones spread the gradient over it.
void AddSums(const std::string& available, Expr x, const std::string& term, Contraction* out) {
  for (size_t i = 0; i < term.size(); ++i) {
    if (Has(available, term[i]) || term[i] == kEllipsis) continue;
    out->operands.push_back(Filled(1, DimOf(x, AxisOf(term, i)), x));
    out->terms.push_back(std::string(1, term[i]));
  }
}

// True if a label is 1 in one place and something else in another: the ones are broadcast.
bool Broadcasts(const GradientContext& g, const Equation& equation, char label) {
  bool one = false, more = false;
  for (int i = 0; i < g.input_count(); ++i) {
    const std::string& term = equation.terms[i];
    const auto& shape = g.input(i).value()->type().shape;
    for (size_t at = 0; shape && at < term.size(); ++at) {
      if (term[at] != label) continue;
      const int64_t axis = AxisOf(term, at);
      const Dim& dim = (*shape)[axis < 0 ? axis + static_cast<int64_t>(shape->size()) : axis];
      const bool is_one = dim.known() && dim.value == 1;
      one |= is_one;
      more |= !is_one;
    }
  }
  return one && more;
}

Contraction Contract(const GradientContext& g, const Equation& equation, int k) {
  Contraction out{{equation.output}, {g.dY()}, equation.terms[k]};
  for (int i = 0; i < g.input_count(); ++i) {
    if (i == k) continue;
    out.terms.push_back(equation.terms[i]);
    out.operands.push_back(g.input(i));
  }
  AddDiagonals(equation, g.input(k), &out.result, &out);
  std::string available;
  for (const std::string& term : out.terms) available += term;
  AddSums(available, g.input(k), out.result, &out);
  for (size_t i = 0; i < out.result.size(); ++i) {
    const char label = out.result[i];
    if (label == kEllipsis || !Broadcasts(g, equation, label)) continue;
    out.operands.push_back(Filled(1, DimOf(g.input(k), AxisOf(out.result, i)), g.input(k)));
    out.terms.push_back(std::string(1, label));
    out.wider = true;
  }
  // An ellipsis that the operand lacks comes out in front, to be summed there.
  if (Has(available, kEllipsis) && !Has(out.result, kEllipsis)) out.result.insert(0, 1, kEllipsis);
  out.wider |= Has(out.result, kEllipsis);
  return out;
}

// Why the ellipsis of operand k is beyond the rule; null when it is not.
const char* EllipsisProblem(GradientContext& g, const Equation& equation, int k) {
  const std::string& term = equation.terms[k];
  if (!Has(term, kEllipsis)) return nullptr;
  if (!Has(equation.output, kEllipsis)) return "sums over an ellipsis that Y lacks";
  if (term[0] == kEllipsis) return nullptr;
  const int in_x = g.Rank(k) - static_cast<int>(term.size());
  const int in_y = KnownRank(g.output().value()->type()) - static_cast<int>(equation.output.size());
  return in_x == in_y ? nullptr : "broadcasts an ellipsis that is not in front";
}

// Y = sum over labels that are not in Y of the product of all operands;  dXk = the same with dY in
// place of Xk
void EinsumRule(GradientContext& g) {
  const Equation equation = Parse(g.Attr<std::string>("equation", ""));
  if (static_cast<int>(equation.terms.size()) != g.input_count())
    return g.Refuse("has another count of terms than inputs");
  for (int k = 0; k < g.input_count(); ++k) {
    if (!g.Needs(k)) continue;
    if (const char* problem = EllipsisProblem(g, equation, k)) return g.Refuse(problem);
    const Contraction c = Contract(g, equation, k);
    const Expr dx = Op("Einsum", c.operands, {{"equation", Write(c.terms, c.result)}});
    g.SetInputGradient(k, c.wider ? SumTo(dx, g.input(k)) : dx);
  }
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> EinsumOps() {
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "Einsum", .computes_in_half = true, .half_inputs = kAll,
     .rule = {.function = gradient::EinsumRule},
     .derivative_note = "any term; an ellipsis in front may broadcast"},
  };
}
// clang-format on

}  // namespace caesura
