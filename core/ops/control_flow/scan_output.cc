// SPDX-License-Identifier: Apache-2.0
#include "core/ops/control_flow/scan_output.h"

#include "core/base/status_macros.h"

namespace caesura {
namespace {

bool Overlaps(const Tensor& a, const Tensor& b) {
  const char* a_first = static_cast<const char*>(a.raw());
  const char* b_first = static_cast<const char*>(b.raw());
  return a_first < b_first + b.bytes() && b_first < a_first + a.bytes();
}

}  // namespace

Result<RuntimeValue> Owned(RuntimeValue value, const std::vector<RuntimeValue>& borrowed,
                           const KernelContext& context) {
  if (!value.is_tensor()) return value;
  for (const RuntimeValue& other : borrowed) {
    if (other.is_tensor() && Overlaps(value.tensor(), other.tensor())) {
      ASSIGN_OR_RETURN(Tensor copy, context.CopyOf(value.tensor()));
      return RuntimeValue(std::move(copy));
    }
  }
  return value;
}

Status ScanOutput::Append(RuntimeValue slice) {
  if (!slice.is_tensor()) return InvalidArgument(label_ + " scan outputs must be tensors");
  const Tensor& tensor = slice.tensor();
  if (!slices_.empty() &&
      (tensor.dtype() != slices_[0].dtype() || tensor.shape() != slices_[0].shape())) {
    return InvalidArgument(label_ + " scan output changes between iterations: expected " +
                           DTypeName(slices_[0].dtype()) + slices_[0].shape().ToString() +
                           ", got " + DTypeName(tensor.dtype()) + tensor.shape().ToString());
  }
  slices_.push_back(tensor);
  return {};
}

Result<ScanOutput::Layout> ScanOutput::StackedLayout(int64_t axis) const {
  Layout layout;
  std::vector<int64_t> dims;
  if (!slices_.empty()) {
    layout.dtype = slices_[0].dtype();
    dims = slices_[0].shape().dims();
  } else {
    layout.dtype = declared_.dtype;
    if (layout.dtype == DType::kUndefined) {
      return Unsupported(label_ + " ran no iteration and the type of its scan output is not known");
    }
    if (declared_.shape) {
      for (const Dim& dim : *declared_.shape) dims.push_back(dim.known() ? dim.value : 0);
    }
  }
  auto normalized = NormalizeAxis(axis, static_cast<int>(dims.size()) + 1);
  if (!normalized.ok()) return normalized.status().WithPrefix(label_ + " scan output: ");
  layout.axis = *normalized;
  dims.insert(dims.begin() + layout.axis, static_cast<int64_t>(slices_.size()));
  ASSIGN_OR_RETURN(layout.shape, CheckedShape(std::move(dims), layout.dtype));
  return layout;
}

void ScanOutput::CopySlices(const Layout& layout, bool reverse, void* dst) {
  const int64_t count = static_cast<int64_t>(slices_.size());
  const int64_t outer = layout.shape.Elements(0, layout.axis);
  const int64_t inner = layout.shape.Elements(layout.axis + 1, layout.shape.rank());
  const int64_t run = inner * static_cast<int64_t>(DTypeSize(layout.dtype));
  for (int64_t t = 0; t < count; ++t) {
    const int64_t place = reverse ? count - 1 - t : t;
    const char* src = static_cast<const char*>(slices_[t].raw());
    for (int64_t o = 0; o < outer; ++o) {
      CopyElements(layout.dtype, src + o * run, static_cast<char*>(dst) + (o * count + place) * run,
                   inner);
    }
    slices_[t] = {};
  }
  slices_.clear();
}

Result<Tensor> ScanOutput::Stack(int64_t axis, bool reverse) {
  ASSIGN_OR_RETURN(const Layout layout, StackedLayout(axis));
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(layout.dtype, layout.shape));
  CopySlices(layout, reverse, out.raw());
  return out;
}

Status ScanOutput::Write(const KernelContext& context, int index, int64_t axis, bool reverse) {
  ASSIGN_OR_RETURN(const Layout layout, StackedLayout(axis));
  ASSIGN_OR_RETURN(const Tensor out, context.AllocateOutput(index, layout.dtype, layout.shape));
  CopySlices(layout, reverse, out.raw());
  return {};
}

}  // namespace caesura
