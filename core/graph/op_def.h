// SPDX-License-Identifier: Apache-2.0
// OpDef: the row of an op type. It holds all facts apart from kernels: the schema, traits for
// passes, and the gradient rule. ONNX's ops have their schemas from ONNX
// (core/graph/op_schema.h). The rows are in core/ops, a file ops.cc for each family; sessions may
// bring ops of their own. The needs of a provider's kernel (host inputs, layouts, aliases) are in
// its definition instead (core/kernels/kernel.h).
//
// Thread safety: all functions may be called from any thread. Rows of the table live as long as the
// process.
#ifndef CAESURA_CORE_GRAPH_OP_DEF_H_
#define CAESURA_CORE_GRAPH_OP_DEF_H_

#include <climits>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

class GradientHook;
namespace gradient {
class GradientContext;  // core/gradient/gradient_context.h
class OpBody;           // core/gradient/op_body.h
}  // namespace gradient

// Computes the gradients of an op's inputs (core/gradient/gradient_rules.h).
struct GradientRule {
  // Null, and not `by_body`: there is no rule, or the op's gradient is zero wherever it exists
  // (OpDef::kZero).
  void (*function)(gradient::GradientContext&) = nullptr;
  // Inputs broadcast against each other: the driver sums each gradient to its input's shape.
  bool broadcasts = false;
  // Inputs whose gradient is zero or that are no numbers (indices, shapes). -1 - i: input i and all
  // after it.
  std::vector<int> stops = {};
  // Inputs that have a gradient which the rule does not compute: an error where one is needed,
  // never silence.
  std::vector<int> refuses = {};
  // Outputs from this index on carry no gradient back: an error where one arrives.
  int outputs = INT_MAX;
  // If given and false for a node, the node is replaced by its function body, which is
  // differentiated instead.
  bool (*applies)(const gradient::GradientContext&) = nullptr;
  // In place of `function`: the op's body (OpDef::body) stands in the node's place and is
  // differentiated instead.
  bool by_body = false;

  bool has_gradient() const { return function != nullptr || by_body; }
};

// OpDef::derivative_note of ops that compute a gradient, and have none themselves.
inline constexpr char kNoSecondDerivative[] = "there is no second derivative of this op";

// The row of an op.
struct OpDef {
  // Output 0 is input 0 as it is, in another shape, or in another order of dims.
  enum class View : uint8_t { kNone, kSame, kReshape, kPermutation };
  // The way in which an op that is not elementwise treats the rows of its tensors (all dims but the
  // last).
  enum class Rows : uint8_t {
    kNone,
    kAlongAxis,  // each row by itself, where the attribute "axis" is the last dim
    kReduces,    // each row to one element, where input 1 names only the last dim
    kSums,       // sums over all rows
  };
  // Ops with many more multiply-adds than elements.
  enum class Work : uint8_t { kElements, kProduct, kConvolution, kAttention };
  static constexpr int kAll = INT_MAX;
  // The fate of a gradient that arrives at an op without a rule.
  enum class Derivative : uint8_t {
    kUnsaid,
    kBody,     // the op's function body is differentiated
    kZero,     // the gradient is zero wherever there is one
    kRefusal,  // an error that gives derivative_note as the reason
  };

  std::string op_type = "";
  std::string domain = "";

  // The schema of an op that ONNX does not have.
  int min_inputs = 1, max_inputs = 1;
  int min_outputs = 1, max_outputs = 1;
  // Output i has the type of input type_of_output[i] (the last entry repeats); -1: not inferred.
  std::vector<int> type_of_output = {-1};
  // Sets the types of the node's outputs, for an op whose types depend on several inputs.
  std::function<Status(Graph&, Node*)> infer = nullptr;
  bool is_deterministic = true;

  // These are for a session's op (OpDefSet) only: the domain's first version whose nodes mean this;
  // how the gradients of its inputs are computed, by nodes that this adds (null: there is none),
  // called while a training graph is built, from one thread for each graph; and inputs that have no
  // gradient, or none that is other than zero (-1 - i: input i and all after it).
  int since_version = 1;
  std::function<Status(GradientHook&)> gradient = nullptr;
  std::vector<int> no_gradient_inputs = {};

  // Each element of the output is made from the elements of the inputs at its place, which may
  // broadcast.
  bool elementwise = false;
  bool arithmetic = false;  // Add, Sub, Mul, Div
  bool random = false;      // its outputs may differ from run to run
  View view = View::kNone;
  Rows rows = Rows::kNone;
  int64_t row_axis = -1;           // Rows::kAlongAxis: the attribute's default
  std::vector<int> row_sums = {};  // outputs that are sums over all rows
  // Elementwise in the row groups of devices. The CPU runs it by itself: in a group the sums that
  // follow it would have another order.
  bool device_rows = false;
  // Mixed precision: true for an op that is worth computing in half types.
  bool computes_in_half = false;
  // The number of first inputs of the type that the op computes in, and may be half; 0: the
  // op stays as it is.
  int half_inputs = 0;
  Work work = Work::kElements;
  DType result = DType::kUndefined;  // of output 0, where it is not that of the inputs

  GradientRule rule = {};
  Derivative derivative = Derivative::kUnsaid;
  // The rule's reach beyond or short of the plain case; the reason of a refusal.
  std::string derivative_note = "";

  // Writes the op in ONNX's operators, for files that other runtimes read. Null: ONNX has the op
  // itself, or, where it has not, body_refusal is the reason (empty: nobody has written one yet).
  void (*body)(gradient::OpBody&) = nullptr;
  std::string body_refusal = "";
};

// The whole table (core/ops/op_defs.cc).
const std::vector<OpDef>& AllOpDefs();
// The op's row in the table, or one that says nothing.
const OpDef& OpDefOf(const std::string& op_type, const std::string& domain = "");
const OpDef& OpDefOf(const Node& node);
// The row of an op that ONNX does not have: of caesura's, or null. Of a node: that of its graph's
// own ops (Graph::own_ops) first.
const OpDef* FindOwnOp(const std::string& op_type, const std::string& domain);
const OpDef* FindOwnOp(const Node& node);
// True for ai.caesura.YieldOp, where a run hands values out and waits.
inline bool IsYield(const Node& node) { return node.Is("YieldOp", kCaesuraDomain); }

// The inputs of a YieldOp whose gradients are its outputs, in order.
std::vector<int> DifferentiableInputs(const Node& yield);

// The ops that a session is given: known to its graphs and to no other. Thread safety: const access
// from many threads.
class OpDefSet {
 public:
  // kInvalidArgument for a domain of ONNX's, for an op of caesura's, and for a version of an op
  // that is here already.
  Status Add(OpDef op);
  // The newest one of the op that is not newer than `version` (0: the newest), or null.
  const OpDef* Find(const std::string& op_type, const std::string& domain, int version = 0) const;
  bool HasDomain(const std::string& domain) const;

 private:
  std::map<std::pair<std::string, std::string>, std::map<int, OpDef>> ops_;  // by domain, op type
};

// --- gradients of ops of the user's ---
//
//   // y = a x
//   // dx = a dy
//   Status ScaleGradient(GradientHook& g) {
//     auto dx = g.AddNode("Scale", {g.OutputGradient(0)}, g.node().attributes(), "mine");
//     if (!dx.ok()) return dx.status();
//     g.SetInputGradient(0, (*dx)[0]);
//     return {};
//   }

// One call of a gradient hook: the forward node, and the graph that the hook adds nodes to. It
// lives during the call only.
class GradientHook {
 public:
  virtual ~GradientHook() = default;
  // The forward node: its inputs and outputs may be read by the nodes that are added.
  virtual const Node& node() const = 0;
  // Null where no gradient comes in through output i; at least one does.
  virtual Value* OutputGradient(int i) const = 0;
  // True if the gradient of input i is asked for. A hook that gives none where it is asked for is
  // an error.
  virtual bool NeedsInputGradient(int i) const = 0;
  // A node with fresh outputs, whose types are inferred; null inputs are absent ones, and so are
  // outputs (null in the result) where `outputs` says false. Nodes of ops of the user's have the
  // options of the forward node. Fails where the op's rules for types are broken.
  virtual Result<std::vector<Value*>> AddNode(const std::string& op_type,
                                              const std::vector<Value*>& inputs,
                                              AttributeMap attributes = {},
                                              const std::string& domain = "",
                                              const std::vector<bool>& outputs = {true}) = 0;
  virtual Value* AddConstant(Tensor tensor) = 0;
  // The gradient has the input's shape. Several for one input add up.
  virtual void SetInputGradient(int i, Value* gradient) = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_OP_DEF_H_
