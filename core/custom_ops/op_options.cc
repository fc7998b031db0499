// SPDX-License-Identifier: Apache-2.0
#include "core/custom_ops/custom_op.h"

#include "core/base/status_macros.h"
#include "core/graph/op_attributes.h"

namespace caesura {
namespace {

void AppendEscaped(const std::string& text, std::string* out) {
  for (const char c : text) {
    if (c == '\\' || c == ';' || c == '=' || c == '\n') *out += '\\';
    *out += c == '\n' ? 'n' : c;
  }
}

// Reads up to an unescaped `end` (or the end of the text), and moves past it. `found`: there was
// one.
std::string TakeEscaped(const std::string& text, char end, size_t* at, bool* found) {
  std::string out;
  for (; *at < text.size() && text[*at] != end; ++*at) {
    if (text[*at] != '\\' || *at + 1 == text.size()) {
      out += text[*at];
      continue;
    }
    ++*at;
    out += text[*at] == 'n' ? '\n' : text[*at];
  }
  *found = *at < text.size();
  if (*found) ++*at;
  return out;
}

}  // namespace

Status OptionSet::Append(const std::string& key, std::string value) {
  if (values_.try_emplace(key, std::move(value)).second) return {};
  return InvalidArgument("option '" + key + "' is there already, as '" + values_[key] + "'");
}

void OptionSet::Update(const OptionSet& other) {
  for (const auto& [key, value] : other.values_) values_[key] = value;
}

Result<std::string> OptionSet::Get(const std::string& key) const {
  auto it = values_.find(key);
  if (it != values_.end()) return it->second;
  std::string known;
  for (const auto& entry : values_) known += (known.empty() ? "" : ", ") + entry.first;
  return NotFound("there is no option '" + key +
                  "'; there are: " + (known.empty() ? "none" : known));
}

std::string OptionSet::Serialise() const {
  std::string out;
  for (const auto& [key, value] : values_) {
    if (!out.empty()) out += ';';
    AppendEscaped(key, &out);
    out += '=';
    AppendEscaped(value, &out);
  }
  return out;
}

Result<OptionSet> OptionSet::Parse(const std::string& text) {
  OptionSet out;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    bool has_value = false, more = false;
    const std::string key = TakeEscaped(text, '=', &at, &has_value);
    if (key.empty() || !has_value) {
      return InvalidArgument("options: expected name=value at character " + std::to_string(start) +
                             " of '" + text + "'");
    }
    RETURN_IF_ERROR(out.Append(key, TakeEscaped(text, ';', &at, &more)));
  }
  return out;
}

Result<OptionSet> OpOptions::Resolve(const Node& node, const OptionSet& defaults) const {
  OptionSet out = defaults;
  if (auto op = ops_.find({node.domain(), node.op_type()}); op != ops_.end())
    out.Update(op->second);
  const auto names = node.Attr<std::vector<std::string>>(kOptionNamesAttribute, {});
  const auto values = node.Attr<std::vector<std::string>>(kOptionValuesAttribute, {});
  if (names.size() != values.size()) {
    return InvalidModel(node.Label() + " has " + std::to_string(names.size()) +
                        " option_names and " + std::to_string(values.size()) + " option_values");
  }
  for (size_t i = 0; i < names.size(); ++i) out.Update(names[i], values[i]);
  auto own = nodes_.find(node.Attr<std::string>(kForwardNodeAttribute, node.name()));
  if (own != nodes_.end()) out.Update(own->second);
  return out;
}

}  // namespace caesura
