// SPDX-License-Identifier: Apache-2.0
// FusedRows (ai.caesura): runs its body tile by tile. All ops of the body treat rows alone, so a
// tile of rows goes through all of them while it is in cache, and what only the body reads never
// leaves it. The kernels are those of the ops themselves, created for the shape of a tile.
//
// A row is what the last dim holds. Attributes: `body`; `column_outputs`: outputs that are sums
// over all rows (gradients of a bias), of which each tile gives a part; `ops`: the body's op types,
// for plan fingerprints and readers.
#ifndef CAESURA_CORE_OPS_FUSED_ROWS_FUSED_ROWS_H_
#define CAESURA_CORE_OPS_FUSED_ROWS_FUSED_ROWS_H_

#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {

// The rows as a grid: dims that all operands walk alike are merged; tiles are cut from the last
// one.
struct RowGrid {
  std::vector<int64_t> dims;
  int64_t tile = 1;           // rows in a full tile
  int64_t tiles_in_line = 1;  // of the last dim
  int64_t tiles = 1;

  int64_t tail() const { return dims.back() - (tiles_in_line - 1) * tile; }
};

// An input or output that has rows.
struct RowOperand {
  uint32_t id;   // of the body's value
  int argument;  // of the node: an input, or an output after them
  int64_t element_bytes;
  std::vector<int64_t> strides;  // in elements, along the grid's dims; 0 repeats
};

struct TileKernel {
  ComputeFunction compute;
  std::vector<uint32_t> ids;  // inputs, then outputs: of the body's values; 0: absent
  uint32_t first_output;
  size_t scratch_bytes;
};

// A value of the body.
struct TileValue {
  bool rows = false;  // has one of each row, not one for all
  DType dtype = DType::kUndefined;
  Shape shape;  // in a full tile
  const Tensor* known = nullptr;
};

// A sum over all rows, into which each tile's part goes.
struct ColumnOutput {
  uint32_t id;
  int output;
  int64_t elements;
  void (*add)(const void* part, void* sum, int64_t n);
};

// Thread safety: Run may be called from many threads.
class FusedRows {
 public:
  static constexpr int kMaxParts = 128;  // threads that take tiles

  FusedRows(const Graph& body, const KernelRegistry& registry) : registry_(registry), body_(body) {}

  // kDeclined where the shapes are not as the pass that built the body took them to be.
  Status Create(KernelInfo& info);
  Status Run(KernelContext& context) const;

 private:
  Status MakeValues(KernelInfo& info);
  void MakeGrid(const KernelInfo& info);
  Status MakeTileKernels(KernelInfo& info, int64_t rows, std::vector<TileKernel>* steps);
  Status MakeOutputs(KernelInfo& info);
  // Values that stay in the tile take turns in its memory. Returns the bytes of all parts.
  size_t PlaceScratch();
  uint32_t Id(const Value* value);
  // The shape that `whole` has in a tile of so many rows.
  Shape TileShape(const Shape& whole, int64_t rows) const;
  std::vector<int64_t> GridStrides(const Shape& whole) const;
  Status RunTiles(KernelContext& context, int part, int64_t first, int64_t last) const;

  const KernelRegistry& registry_;
  const Graph& body_;

  std::unordered_map<const Value*, uint32_t> ids_;
  std::vector<TileValue> values_{1};  // 0: the absent value
  std::vector<int64_t> row_dims_;     // of the whole
  int inputs_ = 0, parts_ = 1;
  RowGrid grid_;
  std::vector<RowOperand> row_operands_;
  std::vector<std::pair<uint32_t, int>> shared_;  // values without rows and the inputs they are
  std::vector<std::pair<uint32_t, const void*>> constants_;
  std::vector<ColumnOutput> columns_;
  std::vector<TileKernel> full_, tail_;
  // A part's scratch: the table of addresses, values that stay in the tile, sums over rows, the
  // kernels' own.
  size_t scratch_ = 0, part_bytes_ = 0, table_bytes_ = 0, kernel_scratch_ = 0;
  std::vector<std::pair<uint32_t, size_t>> inside_;
  std::vector<size_t> sums_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_FUSED_ROWS_FUSED_ROWS_H_
