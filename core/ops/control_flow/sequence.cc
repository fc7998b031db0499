// SPDX-License-Identifier: Apache-2.0
// Sequences (ONNX). A sequence is immutable and its elements are shared, so an element is copied
// once: when a tensor enters. SequenceMap is a function of these and is expanded on load.
#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

// A value that stays valid after the step: tensors in planned memory do not.
Result<RuntimeValue> Keep(RuntimeValue value) {
  if (!value.is_tensor()) return value;
  ASSIGN_OR_RETURN(Tensor copy, value.tensor().Clone());
  return RuntimeValue(std::move(copy));
}

Result<Values> Elements(const KernelContext& context, int input, const std::string& label) {
  const RuntimeValue value = context.InputValue(input);
  if (!value.is_sequence())
    return InvalidArgument(label + " input " + std::to_string(input) + " must be a sequence");
  return value.sequence();
}

// A host scalar that names a place, read at run time; `last` counts from the back when it is
// negative.
struct Position {
  int input = -1;  // absent
  bool is_int32 = false;

  Result<int64_t> Read(const KernelContext& context, int64_t first, int64_t last, int64_t size,
                       const std::string& label) const {
    const int64_t given =
        is_int32 ? *context.Input<int32_t>(input) : *context.Input<int64_t>(input);
    if (given < first || given > last) {
      return InvalidArgument(label + " position " + std::to_string(given) + " is outside of [" +
                             std::to_string(first) + ", " + std::to_string(last) + "]");
    }
    return given < 0 ? given + size : given;
  }
};

Result<Position> ReadPosition(const KernelInfo& info, int input) {
  if (!info.HasInput(input)) return Position();
  const InputInfo& position = info.input(input);
  const bool is_integer = position.dtype == DType::kInt32 || position.dtype == DType::kInt64;
  if (!position.is_tensor || !is_integer || position.shape.elements() != 1) {
    return info.Invalid("the position must be one int32 or int64");
  }
  return Position{input, position.dtype == DType::kInt32};
}

Status CheckSequence(const KernelInfo& info, int input) {
  if (!info.HasInput(input) || info.input(input).is_tensor) {
    return info.Invalid("input " + std::to_string(input) + " must be a sequence");
  }
  return {};
}

Status CreateSequenceEmpty(KernelInfo& info) {
  info.SetOutputSizedInCompute(0);
  info.SetCompute(
      [](KernelContext& context) { context.SetOutputValue(0, RuntimeValue::Sequence({})); });
  return {};
}

Status CreateSequenceConstruct(KernelInfo& info) {
  const int count = static_cast<int>(info.node().inputs().size());
  for (int i = 0; i < count; ++i) {
    const bool same = info.HasInput(i) && info.input(i).is_tensor == info.input(0).is_tensor &&
                      info.input(i).dtype == info.input(0).dtype;
    if (!same) return info.Invalid("all elements of a sequence must have one dtype");
  }
  info.SetOutputSizedInCompute(0);
  info.SetCompute([count](KernelContext& context) -> Status {
    Values elements(count);
    for (int i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(elements[i], Keep(context.InputValue(i)));
    }
    context.SetOutputValue(0, RuntimeValue::Sequence(std::move(elements)));
    return {};
  });
  return {};
}

Status CreateSequenceInsert(KernelInfo& info) {
  RETURN_IF_ERROR(CheckSequence(info, 0));
  if (!info.HasInput(1)) return info.Invalid("needs the tensor to insert");
  ASSIGN_OR_RETURN(const Position position, ReadPosition(info, 2));
  info.SetOutputSizedInCompute(0);
  info.SetCompute([position, label = info.node().Label()](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(Values elements, Elements(context, 0, label));
    const int64_t size = static_cast<int64_t>(elements.size());
    int64_t place = size;
    if (position.input >= 0) {
      ASSIGN_OR_RETURN(place, position.Read(context, -size, size, size, label));
    }
    ASSIGN_OR_RETURN(RuntimeValue element, Keep(context.InputValue(1)));
    if (size > 0 && elements[0].is_tensor() && element.is_tensor() &&
        elements[0].tensor().dtype() != element.tensor().dtype()) {
      return InvalidArgument(label + " inserts " + DTypeName(element.tensor().dtype()) +
                             " into a sequence of " + DTypeName(elements[0].tensor().dtype()));
    }
    elements.insert(elements.begin() + place, std::move(element));
    context.SetOutputValue(0, RuntimeValue::Sequence(std::move(elements)));
    return {};
  });
  return {};
}

Status CreateSequenceErase(KernelInfo& info) {
  RETURN_IF_ERROR(CheckSequence(info, 0));
  ASSIGN_OR_RETURN(const Position position, ReadPosition(info, 1));
  info.SetOutputSizedInCompute(0);
  info.SetCompute([position, label = info.node().Label()](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(Values elements, Elements(context, 0, label));
    const int64_t size = static_cast<int64_t>(elements.size());
    int64_t place = size - 1;
    if (position.input >= 0) {
      ASSIGN_OR_RETURN(place, position.Read(context, -size, size - 1, size, label));
    }
    if (size == 0) return InvalidArgument(label + " cannot erase from an empty sequence");
    elements.erase(elements.begin() + place);
    context.SetOutputValue(0, RuntimeValue::Sequence(std::move(elements)));
    return {};
  });
  return {};
}

Status CreateSequenceAt(KernelInfo& info) {
  RETURN_IF_ERROR(CheckSequence(info, 0));
  ASSIGN_OR_RETURN(const Position position, ReadPosition(info, 1));
  if (position.input < 0) return info.Invalid("needs a position");
  info.SetOutputSizedInCompute(0);
  info.SetCompute([position, label = info.node().Label()](KernelContext& context) -> Status {
    const RuntimeValue value = context.InputValue(0);
    if (!value.is_sequence()) return InvalidArgument(label + " input 0 must be a sequence");
    const int64_t size = static_cast<int64_t>(value.sequence().size());
    ASSIGN_OR_RETURN(const int64_t place, position.Read(context, -size, size - 1, size, label));
    // A copy: whoever gets the output may overwrite it.
    ASSIGN_OR_RETURN(RuntimeValue element, Keep(value.sequence()[place]));
    context.SetOutputValue(0, std::move(element));
    return {};
  });
  return {};
}

Status CreateSequenceLength(KernelInfo& info) {
  RETURN_IF_ERROR(CheckSequence(info, 0));
  info.SetOutput(0, DType::kInt64, Shape{});
  info.SetCompute([label = info.node().Label()](KernelContext& context) -> Status {
    const RuntimeValue value = context.InputValue(0);
    if (!value.is_sequence()) return InvalidArgument(label + " input 0 must be a sequence");
    *context.Output<int64_t>(0) = static_cast<int64_t>(value.sequence().size());
    return {};
  });
  return {};
}

// --- SplitToSequence ---

struct SplitSpec {
  std::string label;
  DType dtype;
  Shape shape;
  int axis;
  bool has_split, scalar_split, split_is_int32, keep_axis;
  int64_t split_count;
};

constexpr int64_t kMaxParts = int64_t{1}
                              << 24;  // a tensor without elements may have a dim of any size

// The lengths of the parts along the axis.
Result<std::vector<int64_t>> PartLengths(const SplitSpec& plan, const KernelContext& context) {
  const int64_t size = plan.shape[plan.axis];
  std::vector<int64_t> given = {1};
  if (plan.has_split) {
    given.resize(plan.split_count);
    for (int64_t i = 0; i < plan.split_count; ++i) {
      given[i] = plan.split_is_int32 ? context.Input<int32_t>(1)[i] : context.Input<int64_t>(1)[i];
    }
  }
  std::vector<int64_t> lengths;
  int64_t left = size;
  if (!plan.has_split || plan.scalar_split) {
    if (given[0] < 1)
      return InvalidArgument(plan.label + " split must be positive, is " +
                             std::to_string(given[0]));
    if (size / given[0] > kMaxParts) {
      return InvalidArgument(plan.label + " makes a sequence of more than " +
                             std::to_string(kMaxParts) + " tensors");
    }
    for (; left > 0; left -= lengths.back()) lengths.push_back(std::min(given[0], left));
    return lengths;
  }
  for (int64_t length : given) {
    if (length < 0 || length > left) break;
    lengths.push_back(length);
    left -= length;
  }
  if (lengths.size() != given.size() || left != 0) {
    return InvalidArgument(plan.label + " split must be lengths that add up to " +
                           std::to_string(size));
  }
  return lengths;
}

Status SplitIntoSequence(const SplitSpec& plan, const KernelContext& context) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, PartLengths(plan, context));
  const int64_t outer = plan.shape.Elements(0, plan.axis);
  const int64_t inner = plan.shape.Elements(plan.axis + 1, plan.shape.rank());
  const int64_t size = static_cast<int64_t>(DTypeSize(plan.dtype));
  const char* src = context.Input<char>(0);
  Values parts;
  int64_t first = 0;
  for (int64_t length : lengths) {
    std::vector<int64_t> dims = plan.shape.dims();
    dims[plan.axis] = length;
    if (!plan.keep_axis) dims.erase(dims.begin() + plan.axis);
    ASSIGN_OR_RETURN(Tensor part, Tensor::Allocate(plan.dtype, Shape(dims)));
    for (int64_t o = 0; o < outer; ++o) {
      CopyElements(plan.dtype, src + (o * plan.shape[plan.axis] + first) * inner * size,
                   static_cast<char*>(part.raw()) + o * length * inner * size, length * inner);
    }
    parts.push_back(std::move(part));
    first += length;
  }
  context.SetOutputValue(0, RuntimeValue::Sequence(std::move(parts)));
  return {};
}

Status CreateSplitToSequence(KernelInfo& info) {
  if (!info.HasInput(0) || !info.input(0).is_tensor)
    return info.Invalid("input 0 must be a tensor");
  SplitSpec plan{info.node().Label(),
                 info.InputDType(0),
                 info.InputShape(0),
                 0,
                 info.HasInput(1),
                 false,
                 false,
                 true,
                 0};
  auto axis = NormalizeAxis(info.Attr<int64_t>("axis", 0), plan.shape.rank());
  if (!axis.ok()) return info.Invalid(axis.status().message());
  plan.axis = *axis;
  if (plan.has_split) {
    const InputInfo& split = info.input(1);
    const bool is_integer = split.dtype == DType::kInt32 || split.dtype == DType::kInt64;
    if (!split.is_tensor || !is_integer || split.shape.rank() > 1) {
      return info.Invalid("split must be an int32 or int64 tensor of rank 0 or 1");
    }
    plan.scalar_split = split.shape.rank() == 0;
    plan.split_is_int32 = split.dtype == DType::kInt32;
    plan.split_count = split.shape.elements();
  } else {
    plan.keep_axis = info.Attr<int64_t>("keepdims", 1) != 0;
  }
  info.SetOutputSizedInCompute(0);
  info.SetCompute([plan = std::move(plan)](KernelContext& context) {
    return SplitIntoSequence(plan, context);
  });
  return {};
}

// --- ConcatFromSequence ---

// The shape of the result; `stack` adds an axis. On return `axis` is normalised.
Result<Shape> JoinedShape(const Values& elements, bool stack, int64_t* axis,
                          const std::string& label) {
  if (elements.empty()) return InvalidArgument(label + " cannot join an empty sequence");
  if (!elements[0].is_tensor()) return InvalidArgument(label + " joins tensors");
  std::vector<int64_t> dims = elements[0].tensor().shape().dims();
  auto normalized = NormalizeAxis(*axis, static_cast<int>(dims.size()) + (stack ? 1 : 0));
  if (!normalized.ok()) return normalized.status().WithPrefix(label + " ");
  *axis = *normalized;
  int64_t total = 0;
  for (const RuntimeValue& element : elements) {
    if (!element.is_tensor()) return InvalidArgument(label + " joins tensors");
    std::vector<int64_t> other = element.tensor().shape().dims();
    const bool same_rank = other.size() == dims.size();
    if (same_rank && !stack) {
      total += other[*axis];
      other[*axis] = dims[*axis];
    }
    if (other != dims || element.tensor().dtype() != elements[0].tensor().dtype()) {
      return InvalidArgument(label +
                             " elements do not fit: " + elements[0].tensor().shape().ToString() +
                             " and " + element.tensor().shape().ToString());
    }
  }
  if (stack) dims.insert(dims.begin() + *axis, static_cast<int64_t>(elements.size()));
  else dims[*axis] = total;
  return CheckedShape(std::move(dims), elements[0].tensor().dtype());
}

Status CreateConcatFromSequence(KernelInfo& info) {
  RETURN_IF_ERROR(CheckSequence(info, 0));
  if (!info.node().HasAttribute("axis")) return info.Invalid("needs the attribute axis");
  const bool stack = info.Attr<int64_t>("new_axis", 0) != 0;
  const int64_t given_axis = info.Attr<int64_t>("axis", 0);
  info.SetOutputSizedInCompute(0);
  info.SetCompute(
      [stack, given_axis, label = info.node().Label()](KernelContext& context) -> Status {
        ASSIGN_OR_RETURN(const Values elements, Elements(context, 0, label));
        int64_t axis = given_axis;
        ASSIGN_OR_RETURN(const Shape shape, JoinedShape(elements, stack, &axis, label));
        const DType dtype = elements[0].tensor().dtype();
        ASSIGN_OR_RETURN(const Tensor out, context.AllocateOutput(0, dtype, shape));
        const int64_t outer = shape.Elements(0, static_cast<int>(axis));
        const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
        const int64_t row = shape.Elements(static_cast<int>(axis), shape.rank());
        char* dst = static_cast<char*>(out.raw());
        for (const RuntimeValue& element : elements) {
          const int64_t run = outer == 0 ? 0 : element.tensor().elements() / outer;
          const char* src = static_cast<const char*>(element.tensor().raw());
          for (int64_t o = 0; o < outer; ++o)
            CopyElements(dtype, src + o * run * size, dst + o * row * size, run);
          dst += run * size;
        }
        return Status();
      });
  return {};
}

}  // namespace

void RegisterSequence(KernelRegistry& registry) {
  registry.Add({.op_type = "SequenceEmpty", .create = CreateSequenceEmpty});
  registry.Add({.op_type = "SequenceConstruct", .create = CreateSequenceConstruct});
  registry.Add({.op_type = "SequenceInsert", .create = CreateSequenceInsert});
  registry.Add({.op_type = "SequenceErase", .create = CreateSequenceErase});
  registry.Add({.op_type = "SequenceAt", .create = CreateSequenceAt});
  registry.Add({.op_type = "SequenceLength", .create = CreateSequenceLength});
  registry.Add({.op_type = "SplitToSequence", .create = CreateSplitToSequence});
  registry.Add({.op_type = "ConcatFromSequence", .create = CreateConcatFromSequence});
}

}  // namespace caesura
