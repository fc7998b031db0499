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

// One launch over all rows, then one that adds up the parts of each sum over rows.
class CudaRows {
 public:
  CudaRows(KernelInfo& info, const CudaDevicePtr& device)
      : info_(info), device_(device), group_(GroupOf(info)) {}

  static Status Create(KernelInfo& info, const CudaDevicePtr& device);

 private:
  struct Sum {
    int output;
    size_t scratch;
    CudaKernel finish;
  };
  // The pieces of the source while it is made.
  struct Source {
    RowScribe scribe;
    std::string parameters, sums, stores, parts;
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
  int64_t rows_ = 1, columns_ = 1, parts_ = 1;
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

// Each block adds up its rows; a second kernel adds up the blocks' parts in their order. A sum of
// halves may be asked for as float32.
Status CudaRows::AddSum(Source& source, int output, const RowValue& what) {
  if (!kFloatTypes.Contains(what.dtype) || what.columns != columns_)
    return info_.Refuse("sums over rows of this kind have no CUDA source");
  const auto dtype = static_cast<DType>(
      group_.outputs[output]->producer()->Attr<int64_t>("dtype", static_cast<int64_t>(what.dtype)));
  const bool doubles = what.dtype == DType::kFloat64;
  const std::string accumulator = doubles ? "double" : "float";
  const int index = static_cast<int>(sums_.size());
  const std::string number = std::to_string(index);
  source.parameters += accumulator + "* part" + number + ", ";
  source.sums += accumulator + " sums" + number + "[" +
                 std::to_string(source.scribe.Items(columns_)) + "] = {};\n";
  source.scribe.AddColumnSum(index, group_.outputs[output]);
  source.parts += "part" + number + "[blockIdx.x * columns + column] = sums" + number + "[k];\n";
  const std::string finish = "extern \"C\" __global__ void add_parts(const " + accumulator +
                             "* part, " + CudaStorageType(dtype) +
                             "* y, i64 parts, i64 columns) {\n"
                             "const i64 column = blockIdx.x * (i64)blockDim.x + threadIdx.x;\n"
                             "if (column >= columns) return;\n" +
                             accumulator +
                             " sum = 0;\n"
                             "for (i64 p = 0; p < parts; ++p) sum += part[p * columns + column];\n"
                             "Store(y + column, sum);\n}\n";
  const CudaGrid grid{static_cast<unsigned>((columns_ + 127) / 128), 128};
  ASSIGN_OR_RETURN(CudaKernel add, CudaKernel::Make(device_, finish, "add_parts", grid));
  const size_t bytes = static_cast<size_t>(parts_ * columns_) * (doubles ? 8 : 4);
  sums_.push_back({output, info_.BookScratch(bytes), std::move(add)});
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
  Source source{RowScribe(columns_, threads), {}, {}, {}, {}, {}};
  if (source.scribe.Items(columns_) > kMaxItems)
    return info_.Refuse("rows of so many columns do not fit into registers");
  // Sums over rows go by blocks: their number follows from the device and the rows only.
  parts_ = std::min<int64_t>(rows_, int64_t{4} * device_->multiprocessors());
  RETURN_IF_ERROR(AddInputs(source));
  for (const Node* node : group_.nodes) {
    if (!source.scribe.Add(*node)) return info_.Refuse("has no CUDA source for " + node->Label());
  }
  RETURN_IF_ERROR(AddOutputs(source));
  const StridedWalk walk = StridedWalk::Make(row_dims_, source.strides);
  walk_ = walk.Numbers();
  const std::string text =
      CudaRowPrelude() + walk.Struct() + "extern \"C\" __global__ void rows(" + source.parameters +
      "i64 rows, i64 columns, Walk walk) {\n" + source.sums +
      "for (i64 i = blockIdx.x; i < rows; i += gridDim.x) {\n" + walk.Offsets() +
      source.scribe.text() + source.stores + "}\n" +
      (source.parts.empty() ? "" : source.scribe.Loop(columns_, source.parts)) + "}\n";
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
    arguments.AddPointer(next_is_sum ? context.Scratch<void>((sum++)->scratch)
                                     : context.Output<void>(*written++));
  }
  for (const int64_t* number : {&rows_, &columns_, static_cast<const int64_t*>(walk_.data())})
    arguments.Add(number);
  RETURN_IF_ERROR(kernel_->LaunchWith(arguments.addresses()));
  for (const Sum& of_rows : sums_) {
    RETURN_IF_ERROR(of_rows.finish.Launch(context.Scratch<void>(of_rows.scratch),
                                          context.Output<void>(of_rows.output), parts_, columns_));
  }
  return {};
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
