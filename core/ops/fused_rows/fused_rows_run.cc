// SPDX-License-Identifier: Apache-2.0
// The run itself, and the kernel.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/status_macros.h"
#include "core/ops/fused_rows/fused_rows.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"

namespace caesura {

Status FusedRows::RunTiles(KernelContext& context, int part, int64_t first, int64_t last) const {
  char* memory = context.Scratch<char>(scratch_) + part * part_bytes_;
  void** table = reinterpret_cast<void**>(memory);
  table[0] = nullptr;
  for (const auto& [id, offset] : inside_) table[id] = memory + offset;
  for (const auto& [id, input] : shared_) table[id] = const_cast<void*>(context.Input<void>(input));
  for (const auto& [id, address] : constants_) table[id] = const_cast<void*>(address);
  for (size_t i = 0; i < columns_.size(); ++i) {
    std::memset(memory + sums_[i], 0,
                columns_[i].elements * DTypeSize(values_[columns_[i].id].dtype));
  }
  const size_t outer = grid_.dims.size() - 1;
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t in_line = tile % grid_.tiles_in_line;
    for (const RowOperand& operand : row_operands_) {
      int64_t at = in_line * grid_.tile * operand.strides[outer], line = tile / grid_.tiles_in_line;
      for (size_t d = outer; d-- > 0;) {
        at += line % grid_.dims[d] * operand.strides[d];
        line /= grid_.dims[d];
      }
      const void* base = operand.argument < inputs_
                             ? context.Input<void>(operand.argument)
                             : context.Output<void>(operand.argument - inputs_);
      table[operand.id] =
          const_cast<char*>(static_cast<const char*>(base)) + at * operand.element_bytes;
    }
    const bool is_tail = !tail_.empty() && in_line == grid_.tiles_in_line - 1;
    for (const TileKernel& step : is_tail ? tail_ : full_) {
      KernelContext inner(table, step.ids.data(), step.first_output, memory + kernel_scratch_, 0,
                          nullptr);
      RETURN_IF_ERROR(step.compute(inner));
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      columns_[i].add(table[columns_[i].id], memory + sums_[i], columns_[i].elements);
    }
  }
  return {};
}

Status FusedRows::Run(KernelContext& context) const {
  if (parts_ == 1) {
    RETURN_IF_ERROR(RunTiles(context, 0, 0, grid_.tiles));
  } else {
    std::array<Status, kMaxParts> statuses;
    ParallelFor(parts_, parts_, 1, [&](int64_t from, int64_t to) {
      for (int64_t p = from; p < to; ++p) {
        statuses[p] = RunTiles(context, static_cast<int>(p), grid_.tiles * p / parts_,
                               grid_.tiles * (p + 1) / parts_);
      }
    });
    for (int p = 0; p < parts_; ++p) RETURN_IF_ERROR(statuses[p]);
  }
  for (size_t i = 0; i < columns_.size(); ++i) {  // in the order of parts: the same sum each time
    const ColumnOutput& column = columns_[i];
    void* sum = context.Output<void>(column.output);
    std::memset(sum, 0, column.elements * DTypeSize(values_[column.id].dtype));
    for (int p = 0; p < parts_; ++p) {
      column.add(context.Scratch<char>(scratch_) + p * part_bytes_ + sums_[i], sum,
                 column.elements);
    }
  }
  return {};
}

namespace {

Status CreateFusedRows(KernelInfo& info, const KernelRegistry& registry) {
  auto fused =
      std::make_shared<FusedRows>(**info.node().FindAttr<std::shared_ptr<Graph>>("body"), registry);
  const Status status = fused->Create(info);
  if (status.ok()) {
    info.SetCompute([fused](KernelContext& context) { return fused->Run(context); });
    return {};
  }
  // The shapes are others than the pass knew: the body as it stands.
  std::shared_ptr<SubgraphRunner> body = info.Subgraph("body");
  if (body == nullptr) return status;
  info.Reset();
  const int inputs = info.input_count(), outputs = info.output_count();
  for (int i = 0; i < outputs; ++i) info.SetOutputSizedInCompute(i);
  info.SetCompute([=](KernelContext& context) -> Status {
    std::vector<RuntimeValue> values;
    for (int i = 0; i < inputs; ++i) values.push_back(context.InputValue(i));
    ASSIGN_OR_RETURN(std::vector<RuntimeValue> results, body->Run(std::move(values), context));
    for (int i = 0; i < outputs; ++i) context.SetOutputValue(i, std::move(results[i]));
    return {};
  });
  return {};
}

}  // namespace

void RegisterFusedRows(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "FusedRows",
       .domain = kCaesuraDomain,
       .types = kFixedTypes,
       .create = [&registry](KernelInfo& info) { return CreateFusedRows(info, registry); }});
}

}  // namespace caesura
