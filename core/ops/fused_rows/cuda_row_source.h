// SPDX-License-Identifier: Apache-2.0
// CUDA source for ops that treat rows by themselves, and for groups of them (FusedRows): a block a
// row at a time. A row's values stay in registers: a thread holds every so many vectors of columns
// that lie side by side, so that one access moves a vector. Sums along a row meet by shuffles and
// shared memory, in a fixed order. Sums over rows are kept by the threads that hold the columns,
// and written as one part a block. Parts of rows (Split, Concat) stay in their threads where their
// columns allow it; others change threads by way of shared memory.
#ifndef CAESURA_CORE_OPS_FUSED_ROWS_CUDA_ROW_SOURCE_H_
#define CAESURA_CORE_OPS_FUSED_ROWS_CUDA_ROW_SOURCE_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// A value in a row: an element a column, or, with one column, one for the whole row.
struct RowValue {
  DType dtype = DType::kUndefined;
  int64_t columns = 1;
  bool wide() const { return columns > 1; }
};

// Writes the statements of a row, node by node. A value is a name: of an array of `items` where it
// is wide.
class RowScribe {
 public:
  // `columns`: of the widest value. It is a variable of the source, so that rows of about the same
  // length share a kernel; other numbers of columns, and of threads, are literals. `vector`: the
  // columns that lie side by side in a thread; it divides all numbers of columns.
  RowScribe(int64_t columns, int64_t threads, int64_t vector)
      : columns_(columns), threads_(threads), vector_(vector) {}

  // The columns of a value that one thread holds.
  int64_t Items(int64_t columns) const { return Vectors(columns) * vector_; }
  // The most that any value so far has, and the greatest number that divides those of all.
  int64_t most_columns() const { return most_columns_; }
  int64_t common_columns() const { return common_columns_; }
  // A loop over a thread's columns, with `k` and `column` in its body.
  std::string Loop(int64_t columns, const std::string& body) const;
  // A loop over a thread's vectors: `c` counts them, `first` is the first column.
  std::string VectorLoop(int64_t columns, const std::string& body) const;
  // Statements that use `whole` for kWhole: it says what the kernel's argument `aligned` does.
  std::string OnceAligned(const std::string& body) const;

  // Declares the value as what lies at the address `from`: that of the first column where it is
  // wide. `contents`: where they are known while planning; otherwise null.
  void Declare(const Value* value, RowValue what, const std::string& from, const Tensor* contents);
  // The statement that stores the value at the address `to`, as that of Declare.
  std::string StoreTo(const std::string& to, const Value* value) const;
  // False where the node, or its types, have no source: then nothing must be used. Axes
  // are not looked at: the source is that of a node that works along the last one.
  bool Add(const Node& node);

  const RowValue* Find(const Value* value) const;
  // The expression of one element, in a loop over `k` where it is wide.
  std::string Element(const Value* value) const;
  // Declarations of what loads fill; the loads; values of what has been loaded, which is then free
  // to hold another row; and what follows from them.
  const std::string& buffers() const { return buffers_; }
  std::string Loads() const { return OnceAligned(loads_); }
  const std::string& unpacked() const { return unpacked_; }
  const std::string& text() const { return text_; }
  // The sum over rows of a value: adds to `sums<index>` what this row has of it.
  void AddColumnSum(int index, const Value* value);

 private:
  struct Known {
    std::string name;
    RowValue what;
  };

  int64_t Vectors(int64_t columns) const {
    return (columns + threads_ * vector_ - 1) / (threads_ * vector_);
  }
  std::string Name() { return "v" + std::to_string(count_++); }
  std::string Width(int64_t columns) const;
  // The value of `element` by the name, as statements.
  std::string Definition(const std::string& name, RowValue what, const std::string& element);
  // A new value of `element`, which may read wide values at `k`.
  std::string Let(RowValue what, const std::string& element);
  // A new scalar: `element` of each column, merged by the function object `op`, which starts with
  // `first`.
  std::string Reduce(RowValue what, const std::string& op, const std::string& first,
                     const std::string& element);
  std::string Sum(RowValue what, const std::string& element);
  void Bind(const Value* value, const std::string& name, RowValue what);
  // True where columns that begin at such a number, or are so many, are in the same threads in a
  // part of a row and in the whole: parts then change no threads.
  bool StaysInThreads(int64_t columns) const;
  // An element of a part of the value, which begins at a column, in a loop over `k`.
  std::string ElementFrom(const Value* value, int64_t begin) const;
  bool AddElementwise(const Node& node);
  bool AddReduction(const Node& node);
  bool AddSoftmax(const Node& node);
  bool AddSoftmaxGrad(const Node& node);
  bool AddNorm(const Node& node);
  bool AddNormGrad(const Node& node);
  bool AddSplit(const Node& node);
  bool AddConcat(const Node& node);

  const int64_t columns_, threads_, vector_;
  int64_t most_columns_ = 1, common_columns_ = 0;
  int count_ = 0;
  std::string buffers_, loads_, unpacked_, text_;
  std::unordered_map<const Value*, Known> known_;
  std::unordered_map<const Value*, const Tensor*> contents_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_FUSED_ROWS_CUDA_ROW_SOURCE_H_
