// SPDX-License-Identifier: Apache-2.0
// Kernels made of row_source: FusedRows (ai.caesura), and each op that treats rows by itself where
// no group took it in.
#include <algorithm>
#include <numeric>

#include "core/cuda/cuda_source.h"
#include "core/graph/op_def.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/ops/fused_rows/cuda_row_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/walks/row_grid.h"

namespace caesura {
namespace {

constexpr int64_t kMaxThreads = 1024, kMaxItems = 32, kMaxVector = 4;
// A thread of a warp that takes a whole row holds at most this of it: two thirds of its registers.
constexpr int64_t kWarpBytes = 170 * 4;
constexpr int64_t kRegisters = 65536;  // of a multiprocessor
// Blocks are added up in groups: a counter a group, and one for the groups.
constexpr int64_t kMaxGroups = CudaDevice::kCounters - 1;

// After a block has stored its part of each sum over rows.
constexpr char kGroupOfBlocks[] =
    "const int begin = blockIdx.x / span * span;\n"
    "const int end = begin + span < gridDim.x ? begin + span : gridDim.x;\n"
    "if (!IsLast(counters + 1 + blockIdx.x / span, end - begin)) return;\n";
constexpr char kAllGroups[] = "if (!IsLast(counters, (gridDim.x + span - 1) / span)) return;\n";

// A group's nodes and values: the node itself, or its body.
struct RowGroup {
  std::vector<const Node*> nodes;
  std::vector<const Value*> inputs, outputs;  // by the node's inputs and outputs
  std::vector<int64_t> columns;               // outputs that are sums over rows
  std::vector<int> reads;                     // inputs that kernels read
  bool is_sum = false;                        // SumTo by itself
};

RowGroup GroupOf(const KernelInfo& info) {
  RowGroup out;
  const OpDef& traits = OpDefOf(info.node());
  if (const auto* body = info.node().FindAttr<std::shared_ptr<Graph>>("body")) {
    for (const auto& node : (*body)->nodes()) out.nodes.push_back(node.get());
    out.inputs.assign((*body)->inputs().begin(), (*body)->inputs().end());
    out.outputs.assign((*body)->outputs().begin(), (*body)->outputs().end());
    out.columns = info.Attr<std::vector<int64_t>>("column_outputs", {});
  } else {
    out.nodes = {&info.node()};
    out.inputs.assign(info.node().inputs().begin(), info.node().inputs().end());
    out.outputs.assign(info.node().outputs().begin(), info.node().outputs().end());
    out.columns.assign(traits.row_sums.begin(), traits.row_sums.end());
    out.is_sum = traits.rows == OpDef::Rows::kSums;
  }
  // The second input of an op that reduces by itself is on the host.
  const bool one = out.is_sum || traits.rows == OpDef::Rows::kReduces;
  for (int i = 0; i < (one ? 1 : info.input_count()); ++i) {
    if (info.HasInput(i)) out.reads.push_back(i);
  }
  return out;
}

int64_t ColumnsOf(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One warp where each of its threads then holds at most `in_warp` columns: no barrier is needed.
// Otherwise few threads with several columns each, so that many blocks are resident.
int64_t ThreadsFor(int64_t columns, int64_t vector, int64_t in_warp) {
  constexpr int64_t kFewThreads = 256, kFewItems = 16;
  const int64_t vectors = Quotient(columns, vector);
  if (Quotient(vectors, 32) * vector <= in_warp) return 32;
  int64_t most = kFewThreads;
  while (most < kMaxThreads && Quotient(vectors, most) * vector > kFewItems) most *= 2;
  return Quotient(Quotient(vectors, Quotient(vectors, most)), 32) * 32;
}

// One launch over all rows. In a sum over rows each block stores a part, the last block of a group
// adds up the group's parts, and the last group those of all groups, each time in their order:
// which block is the last does not show in the result.
class CudaRows {
 public:
  CudaRows(const KernelInfo& info, const CudaDevicePtr& device)
      : device_(device), group_(GroupOf(info)) {}

  static Status Create(KernelInfo& info, const CudaDevicePtr& device);

 private:
  struct Sum {
    int output;
    size_t scratch;
  };
  // A tensor that the kernel reads or writes, with the alignment at which vectors of it move as a
  // whole.
  struct Operand {
    int index;
    size_t alignment;
  };
  // The pieces of the source while it is made.
  struct Source {
    RowScribe scribe;
    std::string parameters, sums, stores;
    std::string parts, of_group, of_all;        // of a column, in each of the three stages of sums
    std::vector<std::vector<int64_t>> strides;  // tensors with the same ones share an offset
  };

  // The numbers of columns, which Concat may add to, and of threads.
  Status Measure(const KernelInfo& info);
  Status Make(KernelInfo& info);
  Status AddInputs(const KernelInfo& info, Source& source);
  Status AddOutputs(KernelInfo& info, Source& source);
  Status AddSum(KernelInfo& info, Source& source, int output, const RowValue& what);
  // The source for the address at which a row of a tensor of this shape begins.
  std::string RowOf(Source& source, const std::string& name, const Shape& shape) const;
  Operand OperandOf(int index, const RowValue& what) const {
    return {index, what.wide() ? CudaVectorAlignment(what.dtype, vector_) : 1};
  }
  Status Run(KernelContext& context) const;

  const CudaDevicePtr device_;
  const RowGroup group_;
  bool adds_ = false;  // it has sums over rows
  // While a block works on a row, its next row is under way. Threads with more than one vector lack
  // registers for that, and have more loads under way without it.
  bool ahead_ = false;
  std::vector<int64_t> row_dims_;
  std::vector<Operand> inputs_, outputs_;  // that the kernel reads, and writes but for sums
  std::vector<Sum> sums_;
  std::vector<int64_t> walk_;
  int64_t rows_ = 1, columns_ = 1, vector_ = 1, threads_ = 1;
  int64_t resident_ = 1;          // blocks that a multiprocessor has registers for, by an estimate
  int64_t parts_ = 1;             // blocks
  int span_ = 1, columns32_ = 1;  // the blocks of a group; columns_ as the kernel's argument
  std::optional<CudaKernel> kernel_;
};

std::string CudaRows::RowOf(Source& source, const std::string& name, const Shape& shape) const {
  const std::vector<int64_t> strides = RowStrides(row_dims_, shape);
  auto same = std::find(source.strides.begin(), source.strides.end(), strides);
  if (same == source.strides.end()) same = source.strides.insert(same, strides);
  return name + " + offset" + std::to_string(same - source.strides.begin());
}

Status CudaRows::AddInputs(const KernelInfo& info, Source& source) {
  for (int i : group_.reads) {
    const DType dtype = info.InputDType(i);
    if (!kCudaTypes.Contains(dtype)) return info.Refuse("has no CUDA source for these types");
    const Shape& shape = info.InputShape(i);
    const RowValue what{dtype, ColumnsOf(shape)};
    const std::string name = "x" + std::to_string(i);
    source.parameters += std::string("const ") + CudaStorageType(dtype) + "* " + name + ", ";
    const std::string at = HasRows(row_dims_, shape) ? RowOf(source, name, shape) : name;
    source.scribe.Declare(group_.inputs[i], what, at, info.InputValue(i));
    inputs_.push_back(OperandOf(i, what));
  }
  return {};
}

Status CudaRows::AddOutputs(KernelInfo& info, Source& source) {
  for (int i = 0; i < info.output_count(); ++i) {
    if (!info.HasOutput(i)) continue;
    const RowValue* what = source.scribe.Find(group_.outputs[i]);
    if (what == nullptr) return info.Refuse("an output has no CUDA source");
    if (std::count(group_.columns.begin(), group_.columns.end(), i) > 0) {
      RETURN_IF_ERROR(AddSum(info, source, i, *what));
      continue;
    }
    std::vector<int64_t> dims = row_dims_;
    dims.push_back(what->columns);
    Shape shape(dims);
    const std::string name = "y" + std::to_string(i);
    source.parameters += std::string(CudaStorageType(what->dtype)) + "* " + name + ", ";
    source.stores += source.scribe.StoreTo(RowOf(source, name, shape), group_.outputs[i]);
    outputs_.push_back(OperandOf(i, *what));
    info.SetOutput(i, what->dtype, std::move(shape));
  }
  return {};
}

// A sum of halves may be asked for as float32.
Status CudaRows::AddSum(KernelInfo& info, Source& source, int output, const RowValue& what) {
  if (!kFloatTypes.Contains(what.dtype) || what.columns != columns_)
    return info.Refuse("sums over rows of this kind have no CUDA source");
  const auto dtype = static_cast<DType>(
      group_.outputs[output]->producer()->Attr<int64_t>("dtype", static_cast<int64_t>(what.dtype)));
  const bool doubles = what.dtype == DType::kFloat64;
  const std::string accumulator = doubles ? "double" : "float";
  const int index = static_cast<int>(sums_.size());
  const std::string number = std::to_string(index), part = "part" + number,
                    name = "y" + std::to_string(output), vector = std::to_string(vector_);
  source.parameters +=
      accumulator + "* " + part + ", " + CudaStorageType(dtype) + "* " + name + ", ";
  source.sums += accumulator + " sums" + number + "[" +
                 std::to_string(source.scribe.Items(columns_)) + "] = {};\n";
  source.scribe.AddColumnSum(index, group_.outputs[output]);
  source.parts += part + "[blockIdx.x * columns + column] = sums" + number + "[k];\n";
  const std::string add_up = "AddUp<" + vector + ">(" + part + " + first, ";
  source.of_group += "StoreVector<true>(" + part + " + begin * columns + first, " + add_up +
                     "begin, end, 1, columns));\n";
  source.of_all += "{\nconst auto total = " + add_up +
                   "0, gridDim.x, span, columns);\nfor (int j = 0; j < " + vector +
                   "; ++j) Store(" + name + " + first + j, total.at[j]);\n}\n";
  const size_t bytes = static_cast<size_t>(parts_ * columns_) * (doubles ? 8 : 4);
  sums_.push_back({output, info.BookScratch(bytes)});
  Shape shape{columns_};
  if (group_.is_sum) {
    ASSIGN_OR_RETURN(shape, CheckDims(info, info.HostInts(1), dtype));
    if (shape.elements() != columns_) return info.Refuse("is no sum over rows");
  }
  info.SetOutput(output, dtype, std::move(shape));
  return {};
}

Status CudaRows::Measure(const KernelInfo& info) {
  ASSIGN_OR_RETURN(row_dims_, RowDimsOf(info));
  for (int64_t dim : row_dims_) rows_ *= dim;
  RowScribe scribe(0, kMaxThreads, 1);
  for (int i : group_.reads) {
    scribe.Declare(group_.inputs[i], {info.InputDType(i), ColumnsOf(info.InputShape(i))}, "",
                   info.InputValue(i));
  }
  for (const Node* node : group_.nodes) {
    if (!scribe.Add(*node)) return info.Refuse("has no CUDA source for " + node->Label());
  }
  columns_ = scribe.most_columns();
  vector_ = std::gcd(std::max<int64_t>(scribe.common_columns(), 1), kMaxVector);
  int64_t sums = 0;
  for (int i : group_.columns) sums += info.HasOutput(i) ? 1 : 0;
  adds_ = sums > 0;
  int64_t bytes = 8;  // of a column: what is loaded, and two values that follow from it
  for (int i : group_.reads) {
    const RowValue what = *scribe.Find(group_.inputs[i]);
    if (what.wide()) bytes += static_cast<int64_t>(DTypeSize(what.dtype));
  }
  // Threads that keep sums have fewer columns, so that the blocks' parts are added up by more.
  const int64_t in_warp = adds_ ? 0 : kWarpBytes / bytes;
  threads_ = ThreadsFor(columns_, vector_, std::min(in_warp, kMaxItems));
  columns32_ = static_cast<int>(columns_);
  const int64_t items = Quotient(columns_, threads_ * vector_) * vector_;
  ahead_ = adds_ && items == vector_;
  const int64_t registers = 32 + items * (bytes * (ahead_ ? 2 : 1) + sums * 4) / 4;
  resident_ = std::clamp<int64_t>(kRegisters / (threads_ * registers), 1, 16);
  return {};
}

Status CudaRows::Make(KernelInfo& info) {
  RETURN_IF_ERROR(Measure(info));
  Source source{RowScribe(columns_, threads_, vector_), {}, {}, {}, {}, {}, {}, {}};
  if (source.scribe.Items(columns_) > kMaxItems)
    return info.Refuse("rows of so many columns do not fit into registers");
  // Sums over rows go by blocks. Their number follows from the device and the group only, and is
  // one that the device runs at once: more blocks would leave more parts to add up.
  parts_ = std::min({rows_, (adds_ ? resident_ : 64) * device_->multiprocessors()});
  if (adds_) parts_ = std::min(parts_, kMaxGroups * kMaxGroups);
  while (int64_t{span_} * span_ < parts_) ++span_;
  RETURN_IF_ERROR(AddInputs(info, source));
  for (const Node* node : group_.nodes) {
    if (!source.scribe.Add(*node)) return info.Refuse("has no CUDA source for " + node->Label());
  }
  RETURN_IF_ERROR(AddOutputs(info, source));
  const StridedWalk walk = StridedWalk::Make(row_dims_, source.strides);
  walk_ = walk.Numbers();
  const RowScribe& scribe = source.scribe;
  const std::string loads = scribe.Loads();
  std::string text = CudaInclude("core/kernels/cuda/row_reduce.cuh") +
                     (adds_ ? CudaInclude("core/ops/fused_rows/row_sums.cuh") : "") +
                     walk.Struct() + "extern \"C\" __global__ void __launch_bounds__(" +
                     std::to_string(threads_) + (adds_ ? ", " + std::to_string(resident_) : "") +
                     ") rows(" + source.parameters +
                     (adds_ ? "unsigned* counters, int span, " : "") +
                     "i64 rows, int columns, int aligned, Walk walk) {\n" + source.sums +
                     scribe.buffers() + "int turn = 0;\n";
  if (ahead_) {
    text += "{\nconst i64 i = blockIdx.x;\n" + walk.Offsets() + loads + "}\n";
  }
  text += "for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {\n" + walk.Offsets() +
          (ahead_ ? "" : loads) + scribe.unpacked();
  if (ahead_) {
    text += "if (i + gridDim.x < rows) {\nconst i64 next = i + gridDim.x;\n" +
            walk.Offsets("next") + loads + "}\n";
  }
  text += scribe.text() + scribe.OnceAligned(source.stores) + "}\n";
  if (adds_) {
    text += scribe.Loop(columns_, source.parts) + kGroupOfBlocks +
            scribe.VectorLoop(columns_, source.of_group) + kAllGroups +
            scribe.VectorLoop(columns_, source.of_all);
  }
  text += "}\n";
  const CudaGrid grid{static_cast<unsigned>(parts_), static_cast<unsigned>(threads_)};
  ASSIGN_OR_RETURN(kernel_, CudaKernel::Make(device_, text, "rows", grid));
  return {};
}

Status CudaRows::Create(KernelInfo& info, const CudaDevicePtr& device) {
  auto rows = std::make_shared<CudaRows>(info, device);
  RETURN_IF_ERROR(rows->Make(info));
  info.SetCompute([rows](KernelContext& context) { return rows->Run(context); });
  return {};
}

Status CudaRows::Run(KernelContext& context) const {
  CudaArguments arguments;
  int aligned = 1;
  const auto add = [&](const void* pointer, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) aligned = 0;
    arguments.AddPointer(pointer);
  };
  for (const Operand& input : inputs_) add(context.Input<void>(input.index), input.alignment);
  // Parameters stand in the order of the outputs, sums among them.
  auto sum = sums_.begin();
  auto written = outputs_.begin();
  while (sum != sums_.end() || written != outputs_.end()) {
    const bool next_is_sum =
        written == outputs_.end() || (sum != sums_.end() && sum->output < written->index);
    if (next_is_sum) {
      arguments.AddPointer(context.Scratch<void>(sum->scratch));
      arguments.AddPointer(context.Output<void>((sum++)->output));
    } else {
      add(context.Output<void>(written->index), written->alignment);
      ++written;
    }
  }
  if (adds_) {
    arguments.AddPointer(device_->counters());
    arguments.Add(&span_);
  }
  arguments.Add(&rows_);
  arguments.Add(&columns32_);
  arguments.Add(&aligned);
  arguments.Add(walk_.data());
  return kernel_->LaunchWith(arguments.addresses());
}

// An op by itself, where it works along the last dim.
Status CreateRowOp(KernelInfo& info, const CudaDevicePtr& device) {
  const OpDef& traits = OpDefOf(info.node());
  const int rank = info.InputShape(0).rank();
  if (traits.rows == OpDef::Rows::kAlongAxis) {
    ASSIGN_OR_RETURN(const int axis,
                     CheckAxis(info, info.Attr<int64_t>("axis", traits.row_axis), rank));
    if (axis != rank - 1) return info.Refuse("on CUDA it works along the last axis only");
  } else if (traits.rows == OpDef::Rows::kReduces) {
    const std::vector<int64_t> axes = info.HostInts(1);
    if (axes.size() != 1 || (axes[0] != -1 && axes[0] != rank - 1))
      return info.Refuse("on CUDA it reduces the last axis only");
  } else {
    // SumTo: what is left has the rows' columns, and one row.
    const std::vector<int64_t> dims = info.HostInts(1);
    const bool one_row = !dims.empty() && Shape(dims).elements() == dims.back();
    if (!one_row || rank < 2 || dims.back() != info.InputShape(0)[rank - 1])
      return info.Refuse("on CUDA it sums over rows only");
  }
  return CudaRows::Create(info, device);
}

}  // namespace

void RegisterCudaFusedRows(KernelRegistry& registry, const CudaDevicePtr& device) {
  registry.Add({.op_type = "FusedRows",
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .create = [device](KernelInfo& info) { return CudaRows::Create(info, device); }});
  for (const OpDef& traits : AllOpDefs()) {
    if (traits.rows == OpDef::Rows::kNone) continue;
    const std::string op = traits.op_type;
    if (op == "Concat" || op == "Split") continue;  // movement.cc
    const bool reads_axes =
        traits.rows == OpDef::Rows::kReduces || traits.rows == OpDef::Rows::kSums;
    registry.Add({.op_type = op,
                  .domain = traits.domain,
                  .types = kFloatTypes,
                  .host_inputs = reads_axes ? std::vector<int>{1} : std::vector<int>(),
                  .create = [device](KernelInfo& info) { return CreateRowOp(info, device); }});
  }
}

}  // namespace caesura
