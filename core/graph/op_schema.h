// SPDX-License-Identifier: Apache-2.0
// What is known about an op type apart from any kernel: formal inputs and outputs, attributes,
// versions. ONNX's own schemas, and those that other rooms register for their domains.
//
// Thread safety: all functions may be called from any thread. What FindOpSchema returns lives as
// long as the process.
#ifndef CAESURA_CORE_GRAPH_OP_SCHEMA_H_
#define CAESURA_CORE_GRAPH_OP_SCHEMA_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/node.h"

namespace caesura {

class GradientHook;  // gradient_hook.h

// The schema of one op type from one version of its domain on.
struct OpSchema {
  // ONNX's mark; kUnknown where the file format leaves it open.
  enum class Differentiability : uint8_t { kUnknown, kDifferentiable, kNotDifferentiable };
  // ONNX's mark of ops whose results differ from run to run.
  enum class Determinism : uint8_t { kUnknown, kNonDeterministic, kDeterministic };

  // A formal input or output.
  struct Formal {
    std::string name;
    std::string type;  // a type variable ("T") or a type ("tensor(int64)")
    DTypeSet
        dtypes;  // element types of the tensors allowed; empty when only sequences and the like are
    std::vector<std::string> types;  // "tensor(float)", "seq(tensor(float))", ...
    bool is_optional = false;
    bool is_variadic = false;  // the last one may repeat
    bool is_homogeneous = true;
    int min_arity = 1;  // of a variadic one
    Differentiability differentiability = Differentiability::kUnknown;
  };
  // An attribute that nodes may or must have.
  struct AttributeFact {
    std::string name;
    bool is_required = false;
    std::optional<Attribute> default_value;
  };

  std::string op_type, domain;
  int since_version = 0;
  bool is_deprecated = false;
  // The op is defined by a body of other ops (core/graph/function_body.h), perhaps only for some
  // inputs.
  bool has_function = false;
  Determinism determinism = Determinism::kUnknown;
  int min_inputs = 0, max_inputs = 0, min_outputs = 0, max_outputs = 0;
  std::vector<Formal> inputs, outputs;
  std::vector<AttributeFact> attributes;

  // The formal that the i-th actual input (output) belongs to; null beyond the last one.
  const Formal* input(int i) const { return FormalAt(inputs, i); }
  const Formal* output(int i) const { return FormalAt(outputs, i); }
  const AttributeFact* attribute(const std::string& name) const;

 private:
  static const Formal* FormalAt(const std::vector<Formal>& formals, int i);
};

// The schema in force at opset `version` of `domain` (0: the newest), or null.
const OpSchema* FindOpSchema(const std::string& op_type, const std::string& domain,
                             int version = 0);
// That of the node's own semantics: at its since_version, or the newest where it has none.
const OpSchema* FindOpSchema(const Node& node);
// `since_version` of that schema; 0 when there is none.
int SinceVersion(const std::string& op_type, const std::string& domain = "", int opset = 0);
// The newest version that this library knows; 0 for a domain that it does not know.
int LatestOpset(const std::string& domain = "");
// True if every op type of the domain has a schema here: an unlisted op of such a domain is an
// error.
bool IsClosedDomain(const std::string& domain);
// The newest schema of every op type, deprecated ones left out, in order of domain and name.
std::vector<const OpSchema*> AllOpSchemas();

// A schema of ours, in few words.
struct OpSchemaSpec {
  std::string op_type;
  int min_inputs = 1, max_inputs = 1;
  int min_outputs = 1, max_outputs = 1;
  // Output i has the type of input type_of_output[i] (the last entry repeats); -1: not inferred.
  std::vector<int> type_of_output = {-1};
  std::string domain = kCaesuraDomain;
  // Where types follow from more than one input: sets the types of the node's outputs.
  std::function<Status(Graph&, Node*)> infer = nullptr;
  bool is_deterministic = true;
  // The domain's first version whose nodes mean this. Process-wide schemas are all of version 1.
  int since_version = 1;
  // Adds the nodes that compute the gradients of the node's inputs; null: there is none. For the
  // ops of an OpSchemaSet; called while a training graph is built, from one thread for each graph.
  std::function<Status(GradientHook&)> gradient = nullptr;
  // Inputs that have no gradient, or none that is other than zero (-1 - i: input i and all after
  // it).
  std::vector<int> no_gradient_inputs = {};
};

// The schemas of the ops that a session is given: known to its graphs (Graph::op_schemas) and to no
// other. Thread safety: const access from many threads.
class OpSchemaSet {
 public:
  // kInvalidArgument for a domain of ONNX's, for an op that the process knows already, and for a
  // version of an op that is here already.
  Status Add(OpSchemaSpec spec);
  // The newest one of the op that is not newer than `version` (0: the newest), or null.
  const OpSchemaSpec* Find(const std::string& op_type, const std::string& domain,
                           int version = 0) const;
  bool HasDomain(const std::string& domain) const;

 private:
  std::map<std::pair<std::string, std::string>, std::map<int, OpSchemaSpec>>
      specs_;  // by domain and op type
};

// Makes the schemas known to checks and inference. Registering an op type again replaces nothing
// and is no error when the counts agree; kInvalidArgument when they do not, or for one of ONNX's
// own domains.
Status RegisterOpSchemas(const std::vector<OpSchemaSpec>& specs);
// The spec that was registered, or null.
const OpSchemaSpec* FindOpSchemaSpec(const std::string& op_type, const std::string& domain);
// That of the node: among its graph's own schemas, then among the registered ones.
const OpSchemaSpec* FindOpSchemaSpec(const Node& node);

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_OP_SCHEMA_H_
