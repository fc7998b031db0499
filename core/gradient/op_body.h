// SPDX-License-Identifier: Apache-2.0
// OpBody: a node about to be written in ONNX's operators, for a file that other runtimes can read,
// or to be differentiated (GradientRule::by_body).
// A body is a function beside its op's row (OpDef::body), in the op's own words:
//
//   // dX = dY, 0 where Y <= 0
//   void ReluGradBody(OpBody& b) {
//     const Expr dy = b.input(0), y = b.input(1);
//     b.SetOutput(0, Where(LessOrEqual(y, Number(0, y)), Number(0, dy), dy));
//   }
//
// It may use other ops of ours that have bodies. graph_transforms/standard_ops.h calls them.
#ifndef CAESURA_CORE_GRADIENT_OP_BODY_H_
#define CAESURA_CORE_GRADIENT_OP_BODY_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/gradient/node_context.h"

namespace caesura::gradient {

// Inputs that a graph gets where bodies draw random numbers: int64 scalars.
inline constexpr char kSeedInput[] = "caesura.seed";
// The number of runs so far, each of which draws other numbers.
inline constexpr char kDrawInput[] = "caesura.draw";

class OpBody : public NodeContext {
 public:
  // `is_differentiated`: gradients will be taken of what the body writes.
  OpBody(Node& node, NodeWriter* writer, bool is_differentiated = false)
      : NodeContext(node, writer), is_differentiated_(is_differentiated) {}

  // True: what the forward op has saved is to be computed from its inputs again, so that all of an
  // input's derivative is that input's own.
  bool is_differentiated() const { return is_differentiated_; }
  bool Wants(int i) const { return node_.output(i) != nullptr; }
  // Output i is `value`, of its dtype. Ignored where nobody wants it.
  void SetOutput(int i, Expr value);
  // Null where the body has set none.
  Value* result(int i) const;
  // The graph's input of that name, an int64 scalar, which is added where it is not there. Refuses
  // the node where it is in a body of control flow.
  Expr GraphInput(const char* name);

 private:
  std::map<int, Value*> results_;
  bool is_differentiated_;
};

// Says that x has the shape of `like`, as ops of ours that read it need to know.
Expr Shaped(Expr x, Expr like);

// The body of a Loop or Scan that a body writes: nodes are added to it in the same way.
class InnerGraph {
 public:
  // `outer` outlives it.
  InnerGraph(const std::string& name, NodeWriter& outer);
  // An input of this dtype with these dims; -1: unknown.
  Expr Input(const std::string& name, DType dtype, const std::vector<int64_t>& dims);
  // A value of the graph around it, to be read in here.
  Expr Outer(Expr value) { return {value.value(), &writer_}; }
  void Output(Expr value) { graph_->AddOutput(value.value()); }
  const std::shared_ptr<Graph>& graph() const { return graph_; }

 private:
  NodeWriter& outer_;
  std::shared_ptr<Graph> graph_;
  NodeWriter writer_;
};

// A Scan along `axis` of the inputs, from the last place where it is reversed. `step` gets the
// states and the inputs' slices, and gives the next states and one result. The result is the last
// states, then the results of all places along the same axis. Ranks must be known.
Exprs ScanOver(const Exprs& states, const Exprs& inputs, int64_t axis, bool is_reversed,
               const std::function<Exprs(const Exprs& states, const Exprs& slices)>& step);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_OP_BODY_H_
