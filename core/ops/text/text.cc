// SPDX-License-Identifier: Apache-2.0
// String ops (ONNX): StringConcat, StringSplit, StringNormalizer, RegexFullMatch.
#include <algorithm>
#include <limits>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/ops/text/regex.h"
#include "core/ops/text/unicode.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

// Strides of a tensor of `shape` that is broadcast to `rank` axes: 0 where it repeats.
std::vector<int64_t> BroadcastStrides(const Shape& shape, int rank) {
  std::vector<int64_t> out(rank, 0);
  const std::vector<int64_t> own = shape.Strides();
  for (int a = 0; a < shape.rank(); ++a) {
    if (shape[a] != 1) out[rank - shape.rank() + a] = own[a];
  }
  return out;
}

Status CreateStringConcat(KernelInfo& info) {
  if (info.InputDType(1) != DType::kString) return info.Invalid("joins strings");
  auto shape = BroadcastShape(info.InputShape(0), info.InputShape(1));
  if (!shape.ok()) return info.Invalid(shape.status().message());
  if (shape->rank() > kMaxWalkAxes) return info.Refuse("takes at most 32 axes");
  info.SetOutput(0, DType::kString, *shape);
  auto left = BroadcastStrides(info.InputShape(0), shape->rank());
  auto right = BroadcastStrides(info.InputShape(1), shape->rank());
  info.SetCompute(
      [extents = shape->dims(), count = shape->elements(), left, right](KernelContext& context) {
        const std::string* x = context.Input<std::string>(0);
        const std::string* y = context.Input<std::string>(1);
        std::string* z = context.Output<std::string>(0);
        if (count == 0) return;
        Odometer<2> walk(extents, {&left, &right});
        walk.Seek(0);
        for (int64_t i = 0; i < count; ++i, walk.Next())
          z[i] = x[walk.offset(0)] + y[walk.offset(1)];
      });
  return {};
}

// --- StringSplit ---

using Pieces = std::vector<std::string>;

// On a delimiter: neighbours of it enclose empty pieces.
Pieces SplitOn(const std::string& text, const std::string& delimiter, int64_t max_splits) {
  Pieces out;
  size_t first = 0;
  while (static_cast<int64_t>(out.size()) < max_splits) {
    const size_t at = text.find(delimiter, first);
    if (at == std::string::npos) break;
    out.push_back(text.substr(first, at - first));
    first = at + delimiter.size();
  }
  out.push_back(text.substr(first));
  return out;
}

// On runs of white space: none at the ends, and what is left after the last split keeps its own.
Pieces SplitOnSpace(const std::string& text, int64_t max_splits) {
  Pieces out;
  size_t position = 0;
  while (position < text.size()) {
    size_t first = position;
    if (IsSpace(NextCodePoint(text, &position))) continue;
    if (static_cast<int64_t>(out.size()) >= max_splits) {
      out.push_back(text.substr(first));
      break;
    }
    size_t end = position;
    while (end < text.size() && !IsSpace(NextCodePoint(text, &position))) end = position;
    out.push_back(text.substr(first, end - first));
  }
  return out;
}

Status CreateStringSplit(KernelInfo& info) {
  const std::string delimiter = info.Attr<std::string>("delimiter", "");
  int64_t max_splits = info.Attr<int64_t>("maxsplit", -1);
  if (max_splits < 0) max_splits = std::numeric_limits<int64_t>::max();
  const Shape shape = info.InputShape(0);
  info.SetOutputSizedInCompute(0);
  info.SetOutput(1, DType::kInt64, shape);
  const bool has_counts = info.HasOutput(1);
  info.SetCompute([delimiter, max_splits, shape, has_counts](KernelContext& context) -> Status {
    const std::string* x = context.Input<std::string>(0);
    std::vector<Pieces> pieces(shape.elements());
    size_t longest = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i] =
          delimiter.empty() ? SplitOnSpace(x[i], max_splits) : SplitOn(x[i], delimiter, max_splits);
      longest = std::max(longest, pieces[i].size());
      if (has_counts) context.Output<int64_t>(1)[i] = static_cast<int64_t>(pieces[i].size());
    }
    std::vector<int64_t> dims = shape.dims();
    dims.push_back(static_cast<int64_t>(longest));
    ASSIGN_OR_RETURN(const Shape padded, CheckedShape(std::move(dims), DType::kString));
    ASSIGN_OR_RETURN(const Tensor y, context.AllocateOutput(0, DType::kString, padded));
    for (size_t i = 0; i < pieces.size(); ++i) {
      std::move(pieces[i].begin(), pieces[i].end(), y.data<std::string>() + i * longest);
    }
    return {};
  });
  return {};
}

// --- StringNormalizer ---

struct Normalizer {
  enum class Change { kNone, kLower, kUpper };
  Change change = Change::kNone;
  bool case_sensitive = false;
  std::unordered_set<std::string> stopwords;  // in lower case unless case_sensitive

  bool IsStopword(const std::string& word) const {
    return stopwords.count(case_sensitive ? word : ToLower(std::string_view(word))) > 0;
  }
  std::string Changed(const std::string& word) const {
    if (change == Change::kNone) return word;
    return change == Change::kLower ? ToLower(std::string_view(word))
                                    : ToUpper(std::string_view(word));
  }
};

Status CreateStringNormalizer(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const bool is_matrix = shape.rank() == 2 && shape[0] == 1;
  if (shape.rank() != 1 && !is_matrix)
    return info.Invalid("takes shape [C] or [1, C], got " + shape.ToString());
  Normalizer normalizer;
  const std::string change = info.Attr<std::string>("case_change_action", "NONE");
  if (change == "LOWER") normalizer.change = Normalizer::Change::kLower;
  else if (change == "UPPER") normalizer.change = Normalizer::Change::kUpper;
  else if (change != "NONE")
    return info.Invalid("case_change_action must be LOWER, UPPER or NONE, is " + change);
  normalizer.case_sensitive = info.Attr<int64_t>("is_case_sensitive", 0) != 0;
  for (const std::string& word : info.Attr<std::vector<std::string>>("stopwords", {})) {
    normalizer.stopwords.insert(normalizer.case_sensitive ? word : ToLower(std::string_view(word)));
  }
  info.SetOutputSizedInCompute(0);
  info.SetCompute(
      [normalizer, is_matrix, count = shape.elements()](KernelContext& context) -> Status {
        const std::string* x = context.Input<std::string>(0);
        std::vector<std::string> kept;
        for (int64_t i = 0; i < count; ++i) {
          if (!normalizer.IsStopword(x[i])) kept.push_back(normalizer.Changed(x[i]));
        }
        if (kept.empty()) kept.emplace_back();  // as the specification says
        const int64_t size = static_cast<int64_t>(kept.size());
        ASSIGN_OR_RETURN(
            const Tensor y,
            context.AllocateOutput(0, DType::kString, is_matrix ? Shape{1, size} : Shape{size}));
        std::move(kept.begin(), kept.end(), y.data<std::string>());
        return {};
      });
  return {};
}

Status CreateRegexFullMatch(KernelInfo& info) {
  Result<Regex> regex = Regex::Compile(info.Attr<std::string>("pattern", ""));
  if (regex.status().code() == StatusCode::kUnsupported)
    return info.Refuse(regex.status().message());
  if (!regex.ok()) return regex.status().WithPrefix(info.node().Label() + " ");
  info.SetOutput(0, DType::kBool, info.InputShape(0));
  info.SetCompute(
      [regex = *std::move(regex), count = info.InputShape(0).elements()](KernelContext& context) {
        const std::string* x = context.Input<std::string>(0);
        bool* y = context.Output<bool>(0);
        for (int64_t i = 0; i < count; ++i) y[i] = regex.FullMatch(x[i]);
      });
  return {};
}

}  // namespace

void RegisterText(KernelRegistry& registry) {
  const DTypeSet strings = {DType::kString};
  registry.Add({.op_type = "StringConcat", .types = strings, .create = CreateStringConcat});
  registry.Add({.op_type = "StringSplit", .types = strings, .create = CreateStringSplit});
  registry.Add({.op_type = "StringNormalizer", .types = strings, .create = CreateStringNormalizer});
  registry.Add({.op_type = "RegexFullMatch", .types = strings, .create = CreateRegexFullMatch});
}

}  // namespace caesura
