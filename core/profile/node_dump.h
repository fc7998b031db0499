// SPDX-License-Identifier: Apache-2.0
// NodeDump: writes what chosen nodes read and wrote to files, one a value:
// <folder>/<run>/<plan index>_<op>_<node>_in0_<value>.npy (or .txt), `out0` for outputs.
#ifndef CAESURA_CORE_PROFILE_NODE_DUMP_H_
#define CAESURA_CORE_PROFILE_NODE_DUMP_H_

#include <memory>
#include <mutex>
#include <string>

#include "core/execute/execution_observer.h"
#include "core/files/file_system.h"
#include "core/tensor/tensor.h"

namespace caesura {

struct NodeDumpOptions {
  enum class Format : uint8_t { kNpy, kText };
  std::string folder;
  // POSIX extended regular expressions; an empty one chooses nothing. A node is dumped when one of
  // them fits.
  std::string ops;    // on the op type, in full: "MatMul|Gemm"
  std::string nodes;  // on the node's name, anywhere: "layer[0-3]/"
  bool inputs = true, outputs = true;
  Format format = Format::kNpy;
  int64_t max_values = 1000;  // of a text; .npy files are whole
  int max_files = 10000;      // then it stops
};

// A failed write ends the dumping, not the run; status() says what happened. Dtypes that NumPy
// lacks are written as float32 (bfloat16), as bytes (8- and 4-bit types), strings as text. Thread
// safety: one observer may watch any number of states in any threads.
class NodeDump : public ExecutionObserver {
 public:
  // Fails on an expression that cannot be read.
  static Result<std::unique_ptr<NodeDump>> Create(NodeDumpOptions options,
                                                  FileSystem& files = PosixFileSystem());
  ~NodeDump() override;

  int files_written() const;
  Status status() const;

  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;

 private:
  struct Patterns;
  NodeDump(NodeDumpOptions options, std::unique_ptr<Patterns> patterns, FileSystem& files);
  bool Chosen(const PlanStep& step) const;
  void Dump(const ExecutionPlan& plan, const ExecutionState& state, int step, bool outputs);
  Status WriteValue(const std::string& stem, const RuntimeValue& value);

  const NodeDumpOptions options_;
  const std::unique_ptr<Patterns> patterns_;
  FileSystem& files_;
  mutable std::mutex mutex_;
  int written_ = 0;
  Status status_;
};

// "float32[2, 3] min -1 max 2 mean 0.5 nan 0 inf 0" and the first `max_values` elements, one a
// line.
std::string TensorText(const Tensor& tensor, int64_t max_values);

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_NODE_DUMP_H_
