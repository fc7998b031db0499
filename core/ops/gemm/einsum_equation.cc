// SPDX-License-Identifier: Apache-2.0
#include "core/ops/gemm/einsum_equation.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

// Labels of ellipsis dims count down from here, the innermost first, so that operands align at the
// right.
constexpr int kEllipsis = 1000;

// A term such as "b...ij": its letters, and where the ellipsis stands among them.
struct Term {
  std::vector<int> letters;
  int ellipsis = -1;
};

Result<Term> ParseTerm(const std::string& text) {
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      term.letters.push_back(text[i]);
    } else if (text.compare(i, 3, "...") == 0 && term.ellipsis < 0) {
      term.ellipsis = static_cast<int>(term.letters.size());
      i += 2;
    } else {
      return InvalidArgument("equation has a bad term '" + text + "'");
    }
  }
  return term;
}

// The labels of a term for a tensor with `hidden` dims after the ellipsis.
std::vector<int> Labels(const Term& term, int hidden) {
  std::vector<int> out = term.letters;
  if (term.ellipsis < 0) return out;
  for (int i = 0; i < hidden; ++i)
    out.insert(out.begin() + term.ellipsis + i, kEllipsis - (hidden - 1 - i));
  return out;
}

std::vector<std::string> SplitTerms(const std::string& text) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == ',') out.emplace_back();
    else out.back() += c;
  }
  return out;
}

Status AddOperand(const Term& term, const Shape& shape, EinsumEquation& out,
                  std::map<int, int64_t>& sizes) {
  const int hidden = shape.rank() - static_cast<int>(term.letters.size());
  if (hidden < 0 || (hidden > 0 && term.ellipsis < 0)) {
    return InvalidArgument("equation does not fit an operand of shape " + shape.ToString());
  }
  const std::vector<int> labels = Labels(term, hidden);
  const std::vector<int64_t> strides = shape.Strides();
  std::vector<EinsumDim> dims;
  for (int d = 0; d < shape.rank(); ++d) {
    auto [size, is_new] = sizes.emplace(labels[d], shape[d]);
    if (size->second == 1) size->second = shape[d];
    if (shape[d] != 1 && shape[d] != size->second) {
      return InvalidArgument("dims of one label differ: " + std::to_string(size->second) + " and " +
                             std::to_string(shape[d]));
    }
    auto same = std::find_if(dims.begin(), dims.end(),
                             [&](const EinsumDim& e) { return e.label == labels[d]; });
    if (same == dims.end()) {
      dims.push_back({labels[d], shape[d], strides[d]});
    } else if (same->size != shape[d]) {
      return InvalidArgument("a diagonal needs equal dims, got " + shape.ToString());
    } else {
      same->stride += strides[d];
    }
  }
  out.operands.push_back(std::move(dims));
  return {};
}

// Without "->": the ellipsis, then the letters that occur once, in alphabetical order.
Term ImplicitOutput(const std::vector<Term>& terms) {
  std::map<int, int> counts;
  Term out;
  for (const Term& term : terms) {
    if (term.ellipsis >= 0) out.ellipsis = 0;
    for (int letter : term.letters) ++counts[letter];
  }
  for (auto [letter, count] : counts) {
    if (count == 1) out.letters.push_back(letter);
  }
  return out;
}

}  // namespace

Result<EinsumEquation> ParseEinsumEquation(const std::string& equation,
                                           const std::vector<Shape>& shapes) {
  std::string text;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(text),
               [](char c) { return c != ' '; });
  const size_t arrow = text.find("->");
  const std::vector<std::string> inputs = SplitTerms(text.substr(0, arrow));
  if (inputs.size() != shapes.size()) {
    return InvalidArgument("equation '" + equation + "' names " + std::to_string(inputs.size()) +
                           " operands, got " + std::to_string(shapes.size()));
  }
  EinsumEquation out;
  std::vector<Term> terms;
  std::map<int, int64_t> sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSIGN_OR_RETURN(Term term, ParseTerm(inputs[i]));
    RETURN_IF_ERROR(AddOperand(term, shapes[i], out, sizes));
    terms.push_back(std::move(term));
  }
  Term output = ImplicitOutput(terms);
  if (arrow != std::string::npos) {
    ASSIGN_OR_RETURN(output, ParseTerm(text.substr(arrow + 2)));
  }
  const int hidden = static_cast<int>(
      std::count_if(sizes.begin(), sizes.end(), [](auto& s) { return s.first > 255; }));
  for (int label : Labels(output, hidden)) {
    const bool twice = std::any_of(out.output.begin(), out.output.end(),
                                   [&](auto& dim) { return dim.label == label; });
    if (sizes.count(label) == 0 || twice)
      return InvalidArgument("equation '" + equation + "' has a bad output");
    out.output.push_back({label, sizes[label], 0});
  }
  return out;
}

}  // namespace caesura
