// SPDX-License-Identifier: Apache-2.0
#include "core/profile/node_dump.h"

#include <regex.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <sstream>

#include "core/base/status_macros.h"
#include "core/files/npy.h"
#include "core/profile/profiler.h"

namespace caesura {
namespace {

// A POSIX expression: no exceptions, no backtracking surprises.
class Expression {
 public:
  ~Expression() {
    if (compiled_) regfree(&regex_);
  }
  Status Compile(const std::string& text) {
    if (text.empty()) return {};
    const int error = regcomp(&regex_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    compiled_ = error == 0;
    if (compiled_) return {};
    char why[256];
    regerror(error, &regex_, why, sizeof(why));
    return InvalidArgument("regular expression '" + text + "': " + why);
  }
  bool Fits(const std::string& text) const {
    return compiled_ && regexec(&regex_, text.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t regex_;
  bool compiled_ = false;
};

// Names come from models: nothing of them may leave the folder.
std::string FileName(const std::string& text) {
  std::string out;
  for (char c : text.substr(0, 80)) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
    out += plain ? c : '_';
  }
  return out.empty() || out[0] == '.' ? "_" + out : out;
}

// In a dtype that NumPy has.
Tensor ForNumpy(const Tensor& tensor) {
  if (tensor.dtype() == DType::kBFloat16)
    return Tensor::Of<float>(tensor.shape(), tensor.ToVector<float>());
  const bool has_dtype = kNumericTypes.Contains(tensor.dtype()) || tensor.dtype() == DType::kBool ||
                         tensor.dtype() == DType::kComplex64 ||
                         tensor.dtype() == DType::kComplex128;
  return has_dtype ? tensor : Tensor::Borrow(DType::kUInt8, tensor.shape(), tensor.raw());
}

}  // namespace

std::string TensorText(const Tensor& tensor, int64_t max_values) {
  std::ostringstream out;
  out.precision(9);
  out << DTypeName(tensor.dtype()) << tensor.shape().ToString();
  const int64_t shown = std::min(max_values, tensor.elements());
  if (tensor.dtype() == DType::kString) {
    out << "\n";
    for (int64_t i = 0; i < shown; ++i) out << tensor.data<std::string>()[i] << "\n";
    return out.str();
  }
  const bool numeric = kNumericTypes.Contains(tensor.dtype()) || tensor.dtype() == DType::kBool;
  const std::vector<double> values = (numeric ? tensor : ForNumpy(tensor)).ToVector<double>();
  double least = std::numeric_limits<double>::infinity(), most = -least, sum = 0;
  int64_t nan = 0, inf = 0;
  for (double v : values) {
    nan += std::isnan(v);
    inf += std::isinf(v);
    if (!std::isfinite(v)) continue;
    least = std::min(least, v);
    most = std::max(most, v);
    sum += v;
  }
  const int64_t finite = static_cast<int64_t>(values.size()) - nan - inf;
  if (finite > 0)
    out << " min " << least << " max " << most << " mean " << sum / static_cast<double>(finite);
  out << " nan " << nan << " inf " << inf << "\n";
  for (int64_t i = 0; i < std::min<int64_t>(shown, values.size()); ++i) out << values[i] << "\n";
  return out.str();
}

struct NodeDump::Patterns {
  Expression ops, nodes;
};

NodeDump::NodeDump(NodeDumpOptions options, std::unique_ptr<Patterns> patterns, FileSystem& files)
    : options_(std::move(options)), patterns_(std::move(patterns)), files_(files) {}

NodeDump::~NodeDump() = default;

Result<std::unique_ptr<NodeDump>> NodeDump::Create(NodeDumpOptions options, FileSystem& files) {
  auto patterns = std::make_unique<Patterns>();
  if (!options.ops.empty()) RETURN_IF_ERROR(patterns->ops.Compile("^(" + options.ops + ")$"));
  RETURN_IF_ERROR(patterns->nodes.Compile(options.nodes));
  return std::unique_ptr<NodeDump>(new NodeDump(std::move(options), std::move(patterns), files));
}

int NodeDump::files_written() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return written_;
}

Status NodeDump::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

bool NodeDump::Chosen(const PlanStep& step) const {
  return patterns_->ops.Fits(step.node->op_type()) || patterns_->nodes.Fits(step.node->name());
}

// REQUIRES: mutex_ is held.
Status NodeDump::WriteValue(const std::string& stem, const RuntimeValue& value) {
  if (value.is_sequence()) {
    for (size_t i = 0; i < value.sequence().size(); ++i) {
      RETURN_IF_ERROR(WriteValue(stem + "_" + std::to_string(i), value.sequence()[i]));
    }
  }
  if (value.is_map()) {
    RETURN_IF_ERROR(WriteValue(stem + "_keys", value.map().keys));
    RETURN_IF_ERROR(WriteValue(stem + "_values", value.map().values));
  }
  if (!value.is_tensor() || written_ >= options_.max_files) return {};
  const Tensor& tensor = value.tensor();
  const bool text =
      options_.format == NodeDumpOptions::Format::kText || tensor.dtype() == DType::kString;
  std::string bytes;
  if (text) {
    bytes = TensorText(tensor, options_.max_values);
  } else {
    ASSIGN_OR_RETURN(bytes, TensorToNpy(ForNumpy(tensor)));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                   files_.Create(stem + (text ? ".txt" : ".npy")));
  RETURN_IF_ERROR(file->Write(bytes));
  ++written_;
  return file->Close();
}

void NodeDump::Dump(const ExecutionPlan& plan, const ExecutionState& state, int index,
                    bool outputs) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!status_.ok() || written_ >= options_.max_files) return;
  const PlanStep& step = plan.steps()[index];
  const std::string folder = options_.folder + "/" + FileName(RunTag(state));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    status_ = IoError(folder + ": " + error.message());
    return;
  }
  const std::string stem = folder + "/" + std::to_string(index) + "_" +
                           FileName(step.node->op_type()) + "_" + FileName(step.node->name()) +
                           (outputs ? "_out" : "_in");
  const uint32_t first = outputs ? step.input_count : 0,
                 count = outputs ? step.output_count : step.input_count;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t id = plan.argument_values()[step.first_argument + first + i];
    if (id == 0) continue;
    const std::string name =
        stem + std::to_string(i) + "_" + FileName(plan.values()[id].value->name());
    const Result<RuntimeValue> value = state.HostValueOf(id);
    status_ = value.ok() ? WriteValue(name, *value) : value.status();
    if (!status_.ok()) return;
  }
}

void NodeDump::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int index) {
  if (options_.inputs && Chosen(plan.steps()[index])) Dump(plan, state, index, false);
}

void NodeDump::OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int index,
                         const Status& status) {
  const PlanStep& step = plan.steps()[index];
  // A yield's outputs come in later.
  if (options_.outputs && status.ok() && step.kind != PlanStep::Kind::kYield && Chosen(step))
    Dump(plan, state, index, true);
}

}  // namespace caesura
