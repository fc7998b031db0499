// SPDX-License-Identifier: Apache-2.0
// Kernels made of row_source: FusedRows (ai.caesura), and each op that treats rows by itself where
// no group took it in.
#include <algorithm>

#include "core/graph/op_traits.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/row_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/factory_checks.h"
#include "core/kernels/spec/row_grid.h"

namespace caesura {
namespace {

constexpr int64_t kMaxThreads = 1024, kMaxItems = 32;
// Blocks are added up in groups: a counter a group, and one for the groups.
constexpr int64_t kMaxGroups = CudaDevice::kCounters - 1;

constexpr char kLastBlock[] = R"(
// True in all threads of the block that comes last of so many; it sees what the others have stored.
// The counter is zero before and after.
__device__ inline bool IsLast(unsigned* counter, i64 blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, (unsigned)blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}
)";

// After a block has stored its part of each sum over rows.
constexpr char kGroupOfBlocks[] =
    "const i64 first = blockIdx.x / span * span;\n"
    "const i64 end = first + span < gridDim.x ? first + span : gridDim.x;\n"
    "if (!IsLast(counters + 1 + blockIdx.x / span, end - first)) return;\n";
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
  const OpTraits& traits = TraitsOf(info.node());
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
    out.is_sum = traits.rows == OpTraits::Rows::kSums;
  }
  // The second input of an op that reduces by itself is on the host.
  const bool one = out.is_sum || traits.rows == OpTraits::Rows::kReduces;
  for (int i = 0; i < (one ? 1 : info.input_count()); ++i) {
    if (info.HasInput(i)) out.reads.push_back(i);
  }
  return out;
}

int64_t ColumnsOf(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }

// The columns of the widest value, which Concat may make.
Result<int64_t> MostColumns(const KernelInfo& info, const RowGroup& group) {
  RowScribe scribe(0, kMaxThreads);
  for (int i : group.reads) {
    scribe.Declare(group.inputs[i], {info.InputDType(i), ColumnsOf(info.InputShape(i))}, "0",
                   info.InputValue(i));
  }
  for (const Node* node : group.nodes) {
    if (!scribe.Add(*node)) return info.Refuse("has no CUDA source for " + node->Label());
  }
  return scribe.most_columns();
}

// One launch over all rows. In a sum over rows each block stores a part, the last block of a group
// adds up the group's parts, and the last group those of all groups, each time in their order:
// which block is the last does not show in the result.
class CudaRows {
 public:
  CudaRows(KernelInfo& info, const CudaDevicePtr& device)
      : info_(info), device_(device), group_(GroupOf(info)) {}

  static Status Create(KernelInfo& info, const CudaDevicePtr& device);

 private:
  struct Sum {
    int output;
    size_t scratch;
  };
  // The pieces of the source while it is made.
  struct Source {
    RowScribe scribe;
    std::string parameters, sums, stores;
    std::string parts, of_group, of_all;  // of a column, in each of the three stages of sums
    std::vector<std::vector<int64_t>> strides;
  };

  Status Make();
  Status AddInputs(Source& source);
  Status AddOutputs(Source& source);
  Status AddSum(Source& source, int output, const RowValue& what);
  // The source for the address at which a row of a tensor of this shape begins.
  std::string RowOf(Source& source, const std::string& name, const Shape& shape) const;
  Status Run(KernelContext& context) const;

  KernelInfo& info_;  // during Create
  const CudaDevicePtr device_;
  const RowGroup group_;
  std::vector<int64_t> row_dims_;
  std::vector<int> outputs_;  // that the kernel writes
  std::vector<Sum> sums_;
  std::vector<int64_t> walk_;
  int64_t rows_ = 1, columns_ = 1, parts_ = 1, span_ = 1;  // span_: the blocks of a group
  std::optional<CudaKernel> kernel_;
};

std::string CudaRows::RowOf(Source& source, const std::string& name, const Shape& shape) const {
  source.strides.push_back(RowStrides(row_dims_, shape));
  return name + " + offset" + std::to_string(source.strides.size() - 1);
}

Status CudaRows::AddInputs(Source& source) {
  for (int i : group_.reads) {
    const DType dtype = info_.InputDType(i);
    if (!kCudaTypes.Contains(dtype)) return info_.Refuse("has no CUDA source for these types");
    const Shape& shape = info_.InputShape(i);
    const RowValue what{dtype, ColumnsOf(shape)};
    const std::string name = "x" + std::to_string(i);
    source.parameters += std::string("const ") + CudaStorageType(dtype) + "* " + name + ", ";
    const std::string at = HasRows(row_dims_, shape) ? RowOf(source, name, shape) : name;
    source.scribe.Declare(group_.inputs[i], what,
                          "Load(" + at + (what.wide() ? " + column" : "") + ")",
                          info_.InputValue(i));
  }
  return {};
}

Status CudaRows::AddOutputs(Source& source) {
  for (int i = 0; i < info_.output_count(); ++i) {
    if (!info_.HasOutput(i)) continue;
    const RowValue* what = source.scribe.Find(group_.outputs[i]);
    if (what == nullptr) return info_.Refuse("an output has no CUDA source");
    if (std::count(group_.columns.begin(), group_.columns.end(), i) > 0) {
      RETURN_IF_ERROR(AddSum(source, i, *what));
      continue;
    }
    std::vector<int64_t> dims = row_dims_;
    dims.push_back(what->columns);
    Shape shape(dims);
    const std::string name = "y" + std::to_string(i);
    source.parameters += std::string(CudaStorageType(what->dtype)) + "* " + name + ", ";
    const std::string at = RowOf(source, name, shape);
    const std::string element = source.scribe.Element(group_.outputs[i]);
    source.stores +=
        what->wide()
            ? source.scribe.Loop(what->columns, "Store(" + at + " + column, " + element + ");\n")
            : "if (threadIdx.x == 0) Store(" + at + ", " + element + ");\n";
    info_.SetOutput(i, what->dtype, std::move(shape));
    outputs_.push_back(i);
  }
  return {};
}

// A sum of halves may be asked for as float32.
Status CudaRows::AddSum(Source& source, int output, const RowValue& what) {
  if (!kFloatTypes.Contains(what.dtype) || what.columns != columns_)
    return info_.Refuse("sums over rows of this kind have no CUDA source");
  const auto dtype = static_cast<DType>(
      group_.outputs[output]->producer()->Attr<int64_t>("dtype", static_cast<int64_t>(what.dtype)));
  const bool doubles = what.dtype == DType::kFloat64;
  const std::string accumulator = doubles ? "double" : "float";
  const int index = static_cast<int>(sums_.size());
  const std::string number = std::to_string(index), part = "part" + number,
                    name = "y" + std::to_string(output), total = "total" + number;
  source.parameters +=
      accumulator + "* " + part + ", " + CudaStorageType(dtype) + "* " + name + ", ";
  source.sums += accumulator + " sums" + number + "[" +
                 std::to_string(source.scribe.Items(columns_)) + "] = {};\n";
  source.scribe.AddColumnSum(index, group_.outputs[output]);
  source.parts += part + "[blockIdx.x * columns + column] = sums" + number + "[k];\n";
  const auto add_up = [&](const char* range) {
    return accumulator + " " + total + " = 0;\n#pragma unroll 8\nfor (i64 p = " + range + ") " +
           total + " += " + part + "[p * columns + column];\n";
  };
  source.of_group +=
      add_up("first; p < end; ++p") + part + "[first * columns + column] = " + total + ";\n";
  source.of_all +=
      add_up("0; p < gridDim.x; p += span") + "Store(" + name + " + column, " + total + ");\n";
  const size_t bytes = static_cast<size_t>(parts_ * columns_) * (doubles ? 8 : 4);
  sums_.push_back({output, info_.BookScratch(bytes)});
  Shape shape{columns_};
  if (group_.is_sum) {
    ASSIGN_OR_RETURN(shape, CheckDims(info_, info_.HostInts(1), dtype));
    if (shape.elements() != columns_) return info_.Refuse("is no sum over rows");
  }
  info_.SetOutput(output, dtype, std::move(shape));
  return {};
}

Status CudaRows::Make() {
  ASSIGN_OR_RETURN(row_dims_, RowDimsOf(info_));
  ASSIGN_OR_RETURN(columns_, MostColumns(info_, group_));
  for (int64_t dim : row_dims_) rows_ *= dim;
  const int64_t threads = std::clamp<int64_t>((columns_ + 31) / 32 * 32, 32, kMaxThreads);
  Source source{RowScribe(columns_, threads), {}, {}, {}, {}, {}, {}, {}};
  if (source.scribe.Items(columns_) > kMaxItems)
    return info_.Refuse("rows of so many columns do not fit into registers");
  // Sums over rows go by blocks: their number follows from the device and the rows only.
  parts_ = std::min({rows_, int64_t{4} * device_->multiprocessors(), kMaxGroups * kMaxGroups});
  while (span_ * span_ < parts_) ++span_;
  RETURN_IF_ERROR(AddInputs(source));
  for (const Node* node : group_.nodes) {
    if (!source.scribe.Add(*node)) return info_.Refuse("has no CUDA source for " + node->Label());
  }
  RETURN_IF_ERROR(AddOutputs(source));
  const StridedWalk walk = StridedWalk::Make(row_dims_, source.strides);
  walk_ = walk.Numbers();
  const bool adds = !sums_.empty();
  std::string text = CudaRowPrelude() + (adds ? kLastBlock : "") + walk.Struct() +
                     "extern \"C\" __global__ void rows(" + source.parameters +
                     (adds ? "unsigned* counters, i64 span, " : "") +
                     "i64 rows, i64 columns, Walk walk) {\n" + source.sums +
                     "for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {\n" + walk.Offsets() +
                     source.scribe.text() + source.stores + "}\n";
  if (adds) {
    text += source.scribe.Loop(columns_, source.parts) + kGroupOfBlocks +
            source.scribe.Loop(columns_, source.of_group) + kAllGroups +
            source.scribe.Loop(columns_, source.of_all);
  }
  text += "}\n";
  const CudaGrid grid{static_cast<unsigned>(parts_), static_cast<unsigned>(threads)};
  ASSIGN_OR_RETURN(kernel_, CudaKernel::Make(device_, text, "rows", grid));
  return {};
}

Status CudaRows::Create(KernelInfo& info, const CudaDevicePtr& device) {
  auto rows = std::make_shared<CudaRows>(info, device);
  RETURN_IF_ERROR(rows->Make());
  info.SetCompute([rows](KernelContext& context) { return rows->Run(context); });
  return {};
}

Status CudaRows::Run(KernelContext& context) const {
  CudaArguments arguments;
  for (int i : group_.reads) arguments.AddPointer(context.Input<void>(i));
  // Parameters stand in the order of the outputs, sums among them.
  auto sum = sums_.begin();
  auto written = outputs_.begin();
  while (sum != sums_.end() || written != outputs_.end()) {
    const bool next_is_sum =
        written == outputs_.end() || (sum != sums_.end() && sum->output < *written);
    if (next_is_sum) arguments.AddPointer(context.Scratch<void>(sum->scratch));
    arguments.AddPointer(context.Output<void>(next_is_sum ? (sum++)->output : *written++));
  }
  if (!sums_.empty()) {
    arguments.AddPointer(device_->counters());
    arguments.Add(&span_);
  }
  for (const int64_t* number : {&rows_, &columns_, static_cast<const int64_t*>(walk_.data())})
    arguments.Add(number);
  return kernel_->LaunchWith(arguments.addresses());
}

// An op by itself, where it works along the last dim.
Status CreateRowOp(KernelInfo& info, const CudaDevicePtr& device) {
  const OpTraits& traits = TraitsOf(info.node());
  const int rank = info.InputShape(0).rank();
  if (traits.rows == OpTraits::Rows::kAlongAxis) {
    ASSIGN_OR_RETURN(const int axis,
                     CheckAxis(info, info.Attr<int64_t>("axis", traits.row_axis), rank));
    if (axis != rank - 1) return info.Refuse("on CUDA it works along the last axis only");
  } else if (traits.rows == OpTraits::Rows::kReduces) {
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
  for (const OpTraits& traits : AllOpTraits()) {
    if (traits.rows == OpTraits::Rows::kNone) continue;
    const std::string op = traits.op_type;
    if (op == "Concat" || op == "Split") continue;  // movement.cc
    const bool reads_axes =
        traits.rows == OpTraits::Rows::kReduces || traits.rows == OpTraits::Rows::kSums;
    registry.Add({.op_type = op,
                  .domain = traits.domain,
                  .types = kFloatTypes,
                  .host_inputs = reads_axes ? std::vector<int>{1} : std::vector<int>(),
                  .create = [device](KernelInfo& info) { return CreateRowOp(info, device); }});
  }
}

}  // namespace caesura
