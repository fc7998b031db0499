// SPDX-License-Identifier: Apache-2.0
// What is decided before a run: the grid of rows, the tiles, their kernels and their memory.
#include "core/ops/fused_rows/fused_rows.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/walks/row_grid.h"

namespace caesura {
namespace {

// The bytes that a tile's values may take together: most of a core's second-level cache is left to
// what streams through.
constexpr int64_t kTileBytes = 128 << 10;

int64_t Aligned(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

template <typename T>
void AddTo(const void* part, void* sum, int64_t n) {
  const T* from = static_cast<const T*>(part);
  T* to = static_cast<T*>(sum);
  OnBestIsa([=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(to[i] + from[i]);
  });
}

}  // namespace

uint32_t FusedRows::Id(const Value* value) {
  if (value == nullptr) return 0;
  auto [it, fresh] = ids_.try_emplace(value, static_cast<uint32_t>(values_.size()));
  if (fresh) values_.emplace_back();
  return it->second;
}

Status FusedRows::MakeValues(KernelInfo& info) {
  inputs_ = info.input_count();
  ASSIGN_OR_RETURN(row_dims_, RowDimsOf(info));
  for (int i = 0; i < inputs_; ++i) {
    const uint32_t id = Id(body_.inputs()[i]);
    const bool rows = HasRows(row_dims_, info.InputShape(i));
    values_[id] = {rows, info.InputDType(i), info.InputShape(i),
                   rows ? nullptr : info.InputValue(i)};
    if (!values_[id].rows) shared_.emplace_back(id, i);
  }
  for (const auto& [value, tensor] : body_.initializers()) {
    const uint32_t id = Id(value);
    values_[id] = {false, tensor.dtype(), tensor.shape(), &tensor};
    constants_.emplace_back(id, tensor.raw());
  }
  return {};
}

Shape FusedRows::TileShape(const Shape& whole, int64_t rows) const {
  Shape out = whole;
  const int last = whole.rank() - 2;
  // The last dim of the grid repeats an operand whose stride there is 0.
  if (last < 0) return out;
  const bool moves = GridStrides(whole).back() != 0;
  for (int d = 0; d <= last; ++d) out[d] = 1;
  if (moves) out[last] = rows;
  return out;
}

std::vector<int64_t> FusedRows::GridStrides(const Shape& whole) const {
  const std::vector<int64_t> dense = whole.Strides();
  const int rank = static_cast<int>(row_dims_.size()), lead = rank + 1 - whole.rank();
  std::vector<int64_t> out;
  size_t g = 0;
  int64_t merged = 1;
  for (int d = 0; d < rank;
       ++d) {  // the grid's dims are products of neighbours: the stride is that of the last one
    if (row_dims_[d] == 1) continue;
    merged *= row_dims_[d];
    if (merged < grid_.dims[g]) continue;
    const int own = d - lead;
    out.push_back(own < 0 || whole[own] == 1 ? 0 : dense[own]);
    merged = 1;
    ++g;
  }
  if (out.empty()) out.push_back(0);  // one row
  return out;
}

void FusedRows::MakeGrid(const KernelInfo& info) {
  std::vector<const Shape*> operands;
  for (int i = 0; i < inputs_; ++i) operands.push_back(&info.InputShape(i));
  const int rank = static_cast<int>(row_dims_.size());
  // Neighbours merge where every operand has both, or neither.
  auto has = [&](const Shape& s, int d) {
    const int own = d - (rank + 1 - s.rank());
    return own >= 0 && s[own] != 1;
  };
  int previous = -1;
  for (int d = 0; d < rank; ++d) {
    if (row_dims_[d] == 1) continue;
    const bool merges =
        previous >= 0 && std::all_of(operands.begin(), operands.end(), [&](const Shape* s) {
          return has(*s, previous) == has(*s, d);
        });
    if (merges) {
      grid_.dims.back() *= row_dims_[d];
    } else {
      grid_.dims.push_back(row_dims_[d]);
    }
    previous = d;
  }
  if (grid_.dims.empty()) grid_.dims.push_back(1);
}

Status FusedRows::MakeTileKernels(KernelInfo& info, int64_t rows, std::vector<TileKernel>* steps) {
  const bool full = steps == &full_;
  std::vector<Shape> shapes(values_.size());
  for (int i = 0; i < inputs_; ++i) {
    const uint32_t id = Id(body_.inputs()[i]);
    shapes[id] = values_[id].rows ? TileShape(info.InputShape(i), rows) : info.InputShape(i);
  }
  for (const auto& [value, tensor] : body_.initializers()) shapes[Id(value)] = tensor.shape();
  for (const auto& node : body_.nodes()) {
    TileKernel step;
    std::vector<InputInfo> inputs;
    bool has_rows = false;
    for (const Value* value : node->inputs()) {
      const uint32_t id = Id(value);
      step.ids.push_back(id);
      InputInfo input;
      if (id != 0) {
        input.present = input.is_tensor = true;
        input.dtype = values_[id].dtype;
        input.shape = shapes[id];
        input.value = values_[id].known;
        has_rows |= values_[id].rows;
      }
      inputs.push_back(std::move(input));
    }
    step.first_output = static_cast<uint32_t>(step.ids.size());
    KernelInfo kernel(*node, std::move(inputs), 1);
    Result<const KernelDef*> def = registry_.Create(kernel, "FusedRows");
    if (!def.ok()) return info.Refuse("a tile cannot run: " + def.status().message());
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      const uint32_t id = Id(node->outputs()[o]);
      step.ids.push_back(id);
      if (id == 0) continue;
      const OutputInfo& output = kernel.outputs()[o];
      if (output.kind != OutputInfo::Kind::kPlanned)
        return info.Refuse("an output is sized at run time");
      if (shapes.size() < values_.size()) shapes.resize(values_.size());
      shapes[id] = output.shape;
      if (full) values_[id] = {has_rows, output.dtype, output.shape, nullptr};
    }
    step.scratch_bytes = kernel.scratch_bytes();
    step.compute = kernel.TakeCompute();
    if (!step.compute || !kernel.aliases().empty())
      return info.Refuse("a kernel of a tile works in place");
    steps->push_back(std::move(step));
  }
  return {};
}

Status FusedRows::MakeOutputs(KernelInfo& info) {
  const auto columns = info.Attr<std::vector<int64_t>>("column_outputs", {});
  for (int i = 0; i < info.output_count(); ++i) {
    const uint32_t id = Id(body_.outputs()[i]);
    const TileValue& value = values_[id];
    if (std::count(columns.begin(), columns.end(), i) > 0) {
      ColumnOutput column{id, i, value.shape.elements(), nullptr};
      DispatchDType<float, double>(
          value.dtype, [&](auto tag) { column.add = AddTo<typename decltype(tag)::type>; });
      if (column.add == nullptr)
        return info.Refuse(std::string("no sums over rows of ") + DTypeName(value.dtype));
      columns_.push_back(column);
      info.SetOutput(i, value.dtype, value.shape);
      continue;
    }
    // The tile's shape with all rows in it.
    const int rank = static_cast<int>(row_dims_.size()) + 1;
    if (!value.rows || value.shape.rank() != rank || value.shape[rank - 2] != grid_.tile) {
      return info.Refuse("an output has no rows");
    }
    std::vector<int64_t> dims = row_dims_;
    dims.push_back(value.shape[rank - 1]);
    Shape whole(dims);
    const std::vector<int64_t> strides = GridStrides(whole);
    row_operands_.push_back(
        {id, inputs_ + i, static_cast<int64_t>(DTypeSize(value.dtype)), strides});
    info.SetOutput(i, value.dtype, std::move(whole));
  }
  return {};
}

size_t FusedRows::PlaceScratch() {
  std::vector<int> last_use(values_.size(), -1);
  std::vector<bool> placed(values_.size(), false);
  placed[0] = true;
  for (const RowOperand& operand : row_operands_) placed[operand.id] = true;
  for (const auto& [id, input] : shared_) placed[id] = true;
  for (const auto& [id, address] : constants_) placed[id] = true;
  const int count = static_cast<int>(full_.size());
  for (int s = 0; s < count; ++s) {
    for (uint32_t id : full_[s].ids) last_use[id] = s;
  }
  for (const ColumnOutput& column : columns_)
    last_use[column.id] = count;  // added after the last step
  table_bytes_ = Aligned(static_cast<int64_t>(values_.size() * sizeof(void*)));
  size_t end = table_bytes_;
  struct Slot {
    size_t offset;
    int64_t bytes;
    int free_after;
  };
  std::vector<Slot> slots;
  for (int s = 0; s < count; ++s) {
    kernel_scratch_ =
        std::max(kernel_scratch_,
                 std::max(full_[s].scratch_bytes, tail_.empty() ? 0 : tail_[s].scratch_bytes));
    for (size_t i = full_[s].first_output; i < full_[s].ids.size(); ++i) {
      const uint32_t id = full_[s].ids[i];
      if (placed[id]) continue;
      placed[id] = true;
      const int64_t bytes = Aligned(values_[id].shape.elements() *
                                    static_cast<int64_t>(DTypeSize(values_[id].dtype)));
      const int until = std::max(last_use[id], s);
      auto slot = std::find_if(slots.begin(), slots.end(),
                               [&](const Slot& t) { return t.free_after < s && t.bytes == bytes; });
      if (slot == slots.end()) {
        slots.push_back({end, bytes, until});
        slot = slots.end() - 1;
        end += bytes;
      }
      slot->free_after = until;
      inside_.emplace_back(id, slot->offset);
    }
  }
  for (const ColumnOutput& column : columns_) {
    sums_.push_back(end);
    end += Aligned(column.elements * static_cast<int64_t>(DTypeSize(values_[column.id].dtype)));
  }
  const size_t kernels = end;
  end += Aligned(static_cast<int64_t>(kernel_scratch_));
  kernel_scratch_ = kernels;
  part_bytes_ = end;
  return part_bytes_ * parts_;
}

Status FusedRows::Create(KernelInfo& info) {
  RETURN_IF_ERROR(MakeValues(info));
  MakeGrid(info);
  int64_t row_bytes = 0, all_rows = 1, row_elements = 1;
  for (int64_t dim : grid_.dims) all_rows *= dim;
  for (int i = 0; i < inputs_; ++i) {
    const Shape& shape = info.InputShape(i);
    if (!HasRows(row_dims_, shape)) continue;
    const int64_t elements = shape[shape.rank() - 1];
    row_elements = std::max(row_elements, elements);
    row_bytes += elements * static_cast<int64_t>(DTypeSize(info.InputDType(i)));
  }
  // The body's results are taken to be as wide as its inputs.
  row_bytes += static_cast<int64_t>(body_.nodes().size()) * row_elements * 4;
  grid_.tile = std::clamp<int64_t>(kTileBytes / row_bytes, 1, grid_.dims.back());
  const int64_t work = all_rows * row_elements * static_cast<int64_t>(body_.nodes().size());
  const int64_t threads = std::min<int64_t>(info.threads(), kMaxParts);
  parts_ =
      static_cast<int>(std::clamp<int64_t>(std::min(threads, work / kParallelGrain), 1, all_rows));
  // Every thread has tiles to do, about as many as the others.
  const int64_t lines = all_rows / grid_.dims.back();
  if (lines < parts_) grid_.tile = std::min(grid_.tile, (grid_.dims.back() + parts_ - 1) / parts_);
  grid_.tiles_in_line = (grid_.dims.back() + grid_.tile - 1) / grid_.tile;
  grid_.tiles = lines * grid_.tiles_in_line;
  for (int i = 0; i < inputs_; ++i) {
    const uint32_t id = Id(body_.inputs()[i]);
    if (!values_[id].rows) continue;
    const auto bytes = static_cast<int64_t>(DTypeSize(info.InputDType(i)));
    row_operands_.push_back({id, i, bytes, GridStrides(info.InputShape(i))});
  }
  RETURN_IF_ERROR(MakeTileKernels(info, grid_.tile, &full_));
  if (grid_.tail() != grid_.tile) RETURN_IF_ERROR(MakeTileKernels(info, grid_.tail(), &tail_));
  RETURN_IF_ERROR(MakeOutputs(info));
  scratch_ = info.BookScratch(PlaceScratch());
  return {};
}

}  // namespace caesura
