// SPDX-License-Identifier: Apache-2.0
// What is known about an op type apart from any kernel: formal inputs and outputs, attributes,
// versions. ONNX's own schemas, and those of caesura's ops (core/graph/op_def.h).
//
// Thread safety: all functions may be called from any thread. What FindOpSchema returns lives as
// long as the process.
#ifndef CAESURA_CORE_GRAPH_OP_SCHEMA_H_
#define CAESURA_CORE_GRAPH_OP_SCHEMA_H_

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

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
  // The op is defined by a body of other ops (core/onnx/function_body.h), perhaps only for some
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
// The schema of the node's own semantics: at its since_version, or the newest where it has none.
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

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_OP_SCHEMA_H_
