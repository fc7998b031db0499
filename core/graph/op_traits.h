// SPDX-License-Identifier: Apache-2.0
// One table of what each op is, which all passes read. An op that is not there is none of these.
// The needs of a provider's kernel (host inputs, layouts, aliases) are in its definition instead
// (core/kernels/kernel.h).
#ifndef CAESURA_CORE_GRAPH_OP_TRAITS_H_
#define CAESURA_CORE_GRAPH_OP_TRAITS_H_

#include <climits>
#include <string>
#include <vector>

#include "core/graph/node.h"

namespace caesura {

struct OpTraits {
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

  const char* op_type = "";
  const char* domain = "";
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
};

// The op's row in the table, or one that says nothing.
const OpTraits& TraitsOf(const Node& node);
const OpTraits& TraitsOf(const std::string& op_type, const std::string& domain = "");
// The whole table.
const std::vector<OpTraits>& AllOpTraits();
// True for ai.caesura.YieldOp, where a run hands values out and waits.
inline bool IsYield(const Node& node) { return node.Is("YieldOp", kCaesuraDomain); }

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_OP_TRAITS_H_
