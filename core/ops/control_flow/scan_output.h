// SPDX-License-Identifier: Apache-2.0
// What Loop and Scan make of the values that their bodies return: results that nobody else may
// overwrite, and stacks of one slice an iteration.
#ifndef CAESURA_CORE_OPS_CONTROL_FLOW_SCAN_OUTPUT_H_
#define CAESURA_CORE_OPS_CONTROL_FLOW_SCAN_OUTPUT_H_

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"

namespace caesura {

// `value`, or a copy of it when it lies in the memory of one of the `borrowed` tensors (a body that
// hands an input through). Sequences are immutable and shared.
Result<RuntimeValue> Owned(RuntimeValue value, const std::vector<RuntimeValue>& borrowed,
                           const KernelContext& context);

// The slices of one scan output, in order of iteration.
class ScanOutput {
 public:
  // `declared`: the body's output type, which is all there is to say when no iteration ran.
  ScanOutput(std::string label, ValueType declared)
      : label_(std::move(label)), declared_(std::move(declared)) {}

  // Fails when dtype or shape differ from those of the slices before.
  Status Append(RuntimeValue slice);
  // Stacks the slices along the new axis `axis` (of the result; may be negative), the last one
  // first if `reverse`, and drops them. No slice: zero along that axis, unknown dims as zero.
  Result<Tensor> Stack(int64_t axis, bool reverse);
  // Stack into output `index` of the node.
  Status Write(const KernelContext& context, int index, int64_t axis, bool reverse);

 private:
  struct Layout {
    DType dtype;
    Shape shape;
    int axis;
  };
  Result<Layout> StackedLayout(int64_t axis) const;
  void CopySlices(const Layout& layout, bool reverse, void* dst);

  std::string label_;
  ValueType declared_;
  std::vector<Tensor> slices_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CONTROL_FLOW_SCAN_OUTPUT_H_
