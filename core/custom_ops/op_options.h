// SPDX-License-Identifier: Apache-2.0
// Options of custom ops and model ops: strings by name, for one node, or for all nodes of an op
// type.
//
//   OpOptions options;
//   options.ForNode("detector").Update({{"device", "CPU"}, {"threads", "2"}});
//   options.ForOp("ModelOp", "ai.caesura").Update("threads", "1");
//   session_options.custom_ops.options = options;
//
// If several places name an option, the first of these counts:
//   1. the session's options of the node, by its name
//   2. those that the node brings along in its model (attributes option_names and option_values)
//   3. the session's options of the op type
//   4. what the op's own description gives as default
// A node that a gradient hook has added has the options of the node that it belongs to.
//
// Values: copies share nothing. Thread safety: as a std::map.
#ifndef CAESURA_CORE_CUSTOM_OPS_OP_OPTIONS_H_
#define CAESURA_CORE_CUSTOM_OPS_OP_OPTIONS_H_

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/graph/node.h"

namespace caesura {

// Options by name, each name once.
class OptionSet {
 public:
  OptionSet() = default;
  OptionSet(std::initializer_list<std::pair<const std::string, std::string>> values)
      : values_(values) {}

  // Adds an option; kInvalidArgument when it is there already.
  Status Append(const std::string& key, std::string value);
  // Sets options, whether they are there or not; others stay.
  void Update(const std::string& key, std::string value) { values_[key] = std::move(value); }
  void Update(const OptionSet& other);
  void Remove(const std::string& key) { values_.erase(key); }
  bool Has(const std::string& key) const { return values_.count(key) > 0; }
  // kNotFound, listing what there is.
  Result<std::string> Get(const std::string& key) const;
  const std::map<std::string, std::string>& values() const { return values_; }
  bool empty() const { return values_.empty(); }

  // "device=CPU;threads=2", in order of the names; "\", ";", "=" and line ends are escaped. Parse
  // takes it again.
  std::string Serialise() const;
  static Result<OptionSet> Parse(const std::string& text);

  bool operator==(const OptionSet& other) const { return values_ == other.values_; }

 private:
  std::map<std::string, std::string> values_;
};

// A session's options of nodes and of op types.
class OpOptions {
 public:
  // To read and to change; made empty when they are not there yet.
  OptionSet& ForNode(const std::string& node_name) { return nodes_[node_name]; }
  OptionSet& ForOp(const std::string& op_type, const std::string& domain) {
    return ops_[{domain, op_type}];
  }
  const std::map<std::string, OptionSet>& nodes() const { return nodes_; }
  // By domain and op type.
  const std::map<std::pair<std::string, std::string>, OptionSet>& ops() const { return ops_; }

  // All options of the node, by the order of precedence above; `defaults` are the op's own.
  // kInvalidModel where the node's attributes are no options.
  Result<OptionSet> Resolve(const Node& node, const OptionSet& defaults = {}) const;

 private:
  std::map<std::string, OptionSet> nodes_;
  std::map<std::pair<std::string, std::string>, OptionSet> ops_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_OP_OPTIONS_H_
