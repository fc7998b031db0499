// SPDX-License-Identifier: Apache-2.0
#include "training/command/dim_bindings.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "core/base/status_macros.h"

namespace caesura::command {
namespace {

struct Assignment {
  std::string name;
  std::vector<int64_t> numbers;
};

// "name=1,2,3"
Result<Assignment> ParseAssignment(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    return InvalidArgument("'" + text + "' is not NAME=NUMBERS");
  Assignment out{text.substr(0, equals), {}};
  std::string_view rest = std::string_view(text).substr(equals + 1);
  while (!rest.empty()) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const bool ends = rest.empty() || (rest[0] == ',' && rest.size() > 1);
    if (error != std::errc() || number < 0 || !ends)
      return InvalidArgument("'" + text + "' is not NAME=NUMBERS");
    if (!rest.empty()) rest.remove_prefix(1);
    out.numbers.push_back(number);
  }
  return out;
}

void Append(const std::string& what, std::string* list) {
  if (!what.empty()) *list += (list->empty() ? "" : "; ") + what;
}

// Takes the values of symbols from the shape that is given; returns what does not fit, or nothing.
std::string BindSymbols(const Value& input, const std::vector<int64_t>& shape,
                        std::map<std::string, int64_t>* dims) {
  if (!input.type().shape) return "";
  const std::vector<Dim>& declared = *input.type().shape;
  bool fits = declared.size() == shape.size();
  for (size_t i = 0; fits && i < declared.size(); ++i) {
    fits = !declared[i].known() || declared[i].value == shape[i];
    if (!declared[i].known() && !declared[i].symbol.empty())
      dims->emplace(declared[i].symbol, shape[i]);
  }
  return fits ? "" : "the shape given for '" + input.name() + "' is not " + input.type().ToString();
}

// The declared shape with its symbols filled in; returns what is missing, or nothing.
std::string FillIn(const Value& input, const std::map<std::string, int64_t>& dims,
                   std::vector<int64_t>* out) {
  const std::string shape_option = "give --shape " + input.name() + "=...";
  if (!input.type().shape) return "the rank of '" + input.name() + "' is unknown: " + shape_option;
  for (const Dim& dim : *input.type().shape) {
    const auto bound = dims.find(dim.symbol);
    if (!dim.known() && (dim.symbol.empty() || bound == dims.end())) {
      return "'" + input.name() + "' is " + input.type().ToString() + ": " +
             (dim.symbol.empty() ? shape_option : "give --dim " + dim.symbol + "=...");
    }
    out->push_back(dim.known() ? dim.value : bound->second);
  }
  return "";
}

}  // namespace

Result<DimBindings> DimBindings::Parse(const std::vector<std::string>& shapes,
                                       const std::vector<std::string>& dims) {
  DimBindings out;
  for (const std::string& text : shapes) {
    ASSIGN_OR_RETURN(Assignment shape, ParseAssignment(text));
    out.shapes_[shape.name] = std::move(shape.numbers);
  }
  for (const std::string& text : dims) {
    ASSIGN_OR_RETURN(const Assignment dim, ParseAssignment(text));
    if (dim.numbers.size() != 1) return InvalidArgument("'" + text + "' is not NAME=NUMBER");
    out.dims_[dim.name] = dim.numbers[0];
  }
  return out;
}

Result<std::vector<FeedSpec>> DimBindings::Feeds(const std::vector<Value*>& inputs) const {
  std::map<std::string, int64_t> dims = dims_;
  std::map<std::string, std::vector<int64_t>> shapes = shapes_;
  std::string problems;
  for (const Value* input : inputs) {
    if (const auto given = shapes.find(input->name()); given != shapes.end()) {
      Append(BindSymbols(*input, given->second, &dims), &problems);
    }
  }
  std::vector<FeedSpec> feeds;
  for (const Value* input : inputs) {
    FeedSpec feed;
    feed.is_tensor = input->type().is_tensor();
    feed.dtype = input->dtype();
    const auto given = shapes.find(input->name());
    std::vector<int64_t> numbers;
    if (given != shapes.end()) numbers = given->second;
    else if (feed.is_tensor) Append(FillIn(*input, dims, &numbers), &problems);
    if (feed.is_tensor) {
      ASSIGN_OR_RETURN(feed.shape, CheckedShape(std::move(numbers), feed.dtype));
    }
    feeds.push_back(std::move(feed));
    shapes.erase(input->name());
  }
  for (const auto& [name, shape] : shapes) Append("there is no input '" + name + "'", &problems);
  if (!problems.empty()) return InvalidArgument(problems);
  return feeds;
}

}  // namespace caesura::command
