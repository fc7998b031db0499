// SPDX-License-Identifier: Apache-2.0
// Scan (ONNX): opset 9 and later with axes and directions, and opset 8, which has a batch axis in
// front.
#include "core/base/status_macros.h"
#include "core/graph/graph.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/control_flow/scan_output.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

// Cuts one scan input into the slices that the iterations see.
struct Slicer {
  int input = 0;
  DType dtype = DType::kUndefined;
  Shape slice;
  int64_t length = 0, outer = 1, inner = 1;
  bool reverse = false;

  static Slicer Along(int axis, int input, DType dtype, const Shape& shape, bool reverse) {
    std::vector<int64_t> dims = shape.dims();
    dims.erase(dims.begin() + axis);
    return {input,
            dtype,
            Shape(dims),
            shape[axis],
            shape.Elements(0, axis),
            shape.Elements(axis + 1, shape.rank()),
            reverse};
  }
  // Slice `t` of the tensor that starts at `base`: a view where its elements are adjacent.
  Result<Tensor> Slice(const void* base, int64_t t) const {
    const int64_t place = reverse ? length - 1 - t : t;
    const int64_t run = inner * static_cast<int64_t>(DTypeSize(dtype));
    char* first = static_cast<char*>(const_cast<void*>(base)) + place * run;
    if (outer == 1) return Tensor::Borrow(dtype, slice, first);
    ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, slice));
    for (int64_t o = 0; o < outer; ++o) {
      CopyElements(dtype, first + o * length * run, static_cast<char*>(out.raw()) + o * run, inner);
    }
    return out;
  }
};

struct ScanSpec {
  std::shared_ptr<SubgraphRunner> body;
  std::string label;
  int states = 0;
  int first_input = 0;  // of the states: 1 in opset 8, after sequence_lens
  std::vector<Slicer> slicers;
  int64_t length = 0;
  std::vector<ValueType> scan_types;
  std::vector<int64_t> output_axes, output_reversed;
  int64_t batch = 1;  // opset 8
};

// Runs all iterations over the tensors at `bases`; `row` is that of the batch.
Status RunIterations(const ScanSpec& scan, int64_t row, const std::vector<const void*>& bases,
                     Values* state, std::vector<ScanOutput>* outputs, KernelContext& context) {
  for (int64_t t = 0; t < scan.length; ++t) {
    Values inputs;
    inputs.reserve(scan.states + bases.size());
    for (RuntimeValue& value : *state) inputs.push_back(std::move(value));
    for (size_t m = 0; m < bases.size(); ++m) {
      ASSIGN_OR_RETURN(Tensor slice, scan.slicers[m].Slice(bases[m], t));
      inputs.push_back(std::move(slice));
    }
    const uint64_t call = static_cast<uint64_t>(row * scan.length + t);
    Result<Values> run = scan.body->Run(std::move(inputs), context, call);
    if (!run.ok())
      return run.status().WithPrefix(scan.label + " in iteration " + std::to_string(t) + ": ");
    for (int i = 0; i < scan.states; ++i) (*state)[i] = std::move((*run)[i]);
    for (size_t k = 0; k < outputs->size(); ++k) {
      RETURN_IF_ERROR((*outputs)[k].Append(std::move((*run)[scan.states + k])));
    }
  }
  return {};
}

std::vector<ScanOutput> MakeOutputs(const ScanSpec& scan) {
  std::vector<ScanOutput> outputs;
  for (const ValueType& type : scan.scan_types) outputs.emplace_back(scan.label, type);
  return outputs;
}

Status RunScan(const ScanSpec& scan, KernelContext& context) {
  Values borrowed;
  std::vector<const void*> bases;
  for (int i = 0; i < scan.states; ++i) borrowed.push_back(context.InputValue(i));
  Values state = borrowed;
  for (const Slicer& slicer : scan.slicers) {
    bases.push_back(context.Input<void>(slicer.input));
    borrowed.push_back(context.InputValue(slicer.input));
  }
  std::vector<ScanOutput> outputs = MakeOutputs(scan);
  RETURN_IF_ERROR(RunIterations(scan, 0, bases, &state, &outputs, context));
  for (int i = 0; i < scan.states; ++i) {
    ASSIGN_OR_RETURN(RuntimeValue value, Owned(std::move(state[i]), borrowed, context));
    context.SetOutputValue(i, std::move(value));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    const int index = scan.states + static_cast<int>(k);
    RETURN_IF_ERROR(
        outputs[k].Write(context, index, scan.output_axes[k], scan.output_reversed[k] != 0));
  }
  return {};
}

// Opset 8: each row of the batch is a scan of its own; all results are stacked along the batch
// axis.
Status RunBatchedScan(const ScanSpec& scan, KernelContext& context) {
  std::vector<ScanOutput> stacked;
  for (int i = 0; i < scan.states; ++i)
    stacked.emplace_back(scan.label, scan.body->graph().outputs()[i]->type());
  for (ScanOutput& output : MakeOutputs(scan)) stacked.push_back(std::move(output));
  for (int64_t b = 0; b < scan.batch; ++b) {
    Values state;
    std::vector<const void*> bases;
    for (int i = 0; i < scan.states; ++i) {
      const RuntimeValue all = context.InputValue(scan.first_input + i);
      const Slicer rows = Slicer::Along(0, 0, all.tensor().dtype(), all.tensor().shape(), false);
      ASSIGN_OR_RETURN(Tensor row, rows.Slice(all.tensor().raw(), b));
      state.push_back(std::move(row));
    }
    for (const Slicer& slicer : scan.slicers) {
      const int64_t row_bytes =
          slicer.length * slicer.inner * static_cast<int64_t>(DTypeSize(slicer.dtype));
      bases.push_back(context.Input<char>(slicer.input) + b * row_bytes);
    }
    std::vector<ScanOutput> outputs = MakeOutputs(scan);
    RETURN_IF_ERROR(RunIterations(scan, b, bases, &state, &outputs, context));
    for (int i = 0; i < scan.states; ++i) RETURN_IF_ERROR(stacked[i].Append(std::move(state[i])));
    for (size_t k = 0; k < outputs.size(); ++k) {
      ASSIGN_OR_RETURN(Tensor rows, outputs[k].Stack(0, false));
      RETURN_IF_ERROR(stacked[scan.states + k].Append(std::move(rows)));
    }
  }
  for (size_t i = 0; i < stacked.size(); ++i) {
    RETURN_IF_ERROR(stacked[i].Write(context, static_cast<int>(i), 0, false));
  }
  return {};
}

// Attribute `name` with `count` entries; zeros when absent.
Result<std::vector<int64_t>> Flags(const KernelInfo& info, const char* name, size_t count) {
  auto values = info.Attr<std::vector<int64_t>>(name, std::vector<int64_t>(count, 0));
  if (values.size() != count) {
    return info.Invalid(std::string(name) + " must have " + std::to_string(count) +
                        " entries, has " + std::to_string(values.size()));
  }
  return values;
}

Result<ScanSpec> PlanBody(const KernelInfo& info, int first_input) {
  ScanSpec scan;
  scan.body = info.Subgraph("body");
  if (scan.body == nullptr) return info.Refuse("needs an executor that runs its body");
  scan.label = info.node().Label();
  scan.first_input = first_input;
  const int64_t inputs = static_cast<int64_t>(info.node().inputs().size()) - first_input;
  const int64_t scan_inputs = info.Attr<int64_t>("num_scan_inputs", 0);
  const Graph& graph = scan.body->graph();
  const int64_t results = static_cast<int64_t>(graph.outputs().size());
  scan.states = static_cast<int>(inputs - scan_inputs);
  if (scan_inputs < 1 || scan_inputs > inputs ||
      static_cast<int64_t>(graph.inputs().size()) != inputs || results < scan.states ||
      info.output_count() != results) {
    return info.Invalid("num_scan_inputs " + std::to_string(scan_inputs) + " does not fit " +
                        std::to_string(inputs) + " inputs and a body of " +
                        std::to_string(graph.inputs().size()) + " inputs and " +
                        std::to_string(results) + " outputs");
  }
  for (int i = 0; i < inputs; ++i) {
    if (!info.HasInput(first_input + i) || !info.input(first_input + i).is_tensor) {
      return info.Invalid("input " + std::to_string(first_input + i) + " must be a tensor");
    }
  }
  for (int64_t i = scan.states; i < results; ++i)
    scan.scan_types.push_back(graph.outputs()[i]->type());
  return scan;
}

// All scan inputs must have one length; the first one sets it.
Status AddSlicer(const KernelInfo& info, ScanSpec* scan, int input, int64_t axis, bool reverse) {
  const Shape& shape = info.InputShape(input);
  auto normalized = NormalizeAxis(axis, shape.rank());
  if (!normalized.ok()) {
    return info.Invalid("scan axis of input " + std::to_string(input) + ": " +
                        normalized.status().message());
  }
  scan->slicers.push_back(
      Slicer::Along(*normalized, input, info.InputDType(input), shape, reverse));
  if (scan->slicers.size() == 1) scan->length = shape[*normalized];
  if (shape[*normalized] != scan->length) {
    return info.Invalid("scan inputs differ in length: " + std::to_string(scan->length) + " and " +
                        std::to_string(shape[*normalized]));
  }
  return {};
}

Status CreateScan(KernelInfo& info) {
  ASSIGN_OR_RETURN(ScanSpec scan, PlanBody(info, 0));
  const size_t scan_inputs = info.node().inputs().size() - scan.states;
  ASSIGN_OR_RETURN(const auto axes, Flags(info, "scan_input_axes", scan_inputs));
  ASSIGN_OR_RETURN(const auto reversed, Flags(info, "scan_input_directions", scan_inputs));
  ASSIGN_OR_RETURN(scan.output_axes, Flags(info, "scan_output_axes", scan.scan_types.size()));
  ASSIGN_OR_RETURN(scan.output_reversed,
                   Flags(info, "scan_output_directions", scan.scan_types.size()));
  for (size_t m = 0; m < scan_inputs; ++m) {
    RETURN_IF_ERROR(
        AddSlicer(info, &scan, scan.states + static_cast<int>(m), axes[m], reversed[m] != 0));
  }
  for (int i = 0; i < info.output_count(); ++i) info.SetOutputSizedInCompute(i);
  info.SetCompute(
      [scan = std::move(scan)](KernelContext& context) { return RunScan(scan, context); });
  return {};
}

Status CreateBatchedScan(KernelInfo& info) {
  if (info.HasInput(0)) return info.Refuse("does not implement sequence_lens of opset 8");
  ASSIGN_OR_RETURN(ScanSpec scan, PlanBody(info, 1));
  const size_t scan_inputs = info.node().inputs().size() - 1 - scan.states;
  ASSIGN_OR_RETURN(const auto reversed, Flags(info, "directions", scan_inputs));
  for (size_t i = 1; i < info.node().inputs().size(); ++i) {
    const Shape& shape = info.InputShape(static_cast<int>(i));
    const bool is_state = i < 1 + static_cast<size_t>(scan.states);
    if (shape.rank() < (is_state ? 1 : 2))
      return info.Invalid("input " + std::to_string(i) + " lacks the batch axis");
    if (i == 1) scan.batch = shape[0];
    if (shape[0] != scan.batch) return info.Invalid("inputs differ in the size of the batch axis");
    if (is_state) continue;
    RETURN_IF_ERROR(
        AddSlicer(info, &scan, static_cast<int>(i), 1, reversed[i - 1 - scan.states] != 0));
    scan.slicers.back().outer = 1;  // within one row of the batch
    std::vector<int64_t> dims(shape.begin() + 2, shape.end());
    scan.slicers.back().slice = Shape(dims);
  }
  for (int i = 0; i < info.output_count(); ++i) info.SetOutputSizedInCompute(i);
  info.SetCompute(
      [scan = std::move(scan)](KernelContext& context) { return RunBatchedScan(scan, context); });
  return {};
}

}  // namespace

void RegisterScan(KernelRegistry& registry) {
  registry.Add({.op_type = "Scan", .since = 9, .create = CreateScan});
  registry.Add({.op_type = "Scan", .since = 8, .until = 8, .create = CreateBatchedScan});
}

}  // namespace caesura
