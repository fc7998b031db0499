// SPDX-License-Identifier: Apache-2.0
// The answers of a session to steps that fail (FailurePolicy).
#include <algorithm>
#include <new>

#include "core/base/status_macros.h"
#include "core/providers/tensor_copy.h"
#include "core/runtime/feeds.h"
#include "training/session/rank_group.h"
#include "training/session/waiting_step.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

// Rows of the batch: the elements [part, part + 1) * count / parts along axis 0.
Tensor RowsOf(const Tensor& tensor, int part, int parts) {
  std::vector<int64_t> dims(tensor.shape().begin(), tensor.shape().end());
  dims[0] /= parts;
  const Shape shape(dims);
  const size_t bytes = tensor.bytes() / static_cast<size_t>(parts);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(tensor.raw()) -
                                            static_cast<const char*>(tensor.buffer()->data()));
  return Tensor(tensor.dtype(), shape, tensor.buffer(), offset + static_cast<size_t>(part) * bytes);
}

bool IsSplit(const Value& input) {
  const auto& shape = input.type().shape;
  return !IsProgramInput(input.name()) && shape && !shape->empty() && !shape->front().known();
}

// The feeds of each part.
Result<std::vector<NamedValues>> Split(const Graph& graph, const NamedValues& feeds, int parts) {
  std::vector<NamedValues> out(static_cast<size_t>(parts), feeds);
  int64_t rows = -1;
  for (const Value* input : graph.inputs()) {
    const auto feed = feeds.find(input->name());
    if (!IsSplit(*input) || feed == feeds.end() || !feed->second.is_tensor()) continue;
    const Tensor& tensor = feed->second.tensor();
    const int64_t own = tensor.shape().rank() > 0 ? tensor.shape()[0] : 0;
    if (own % parts != 0 || own == 0 || (rows >= 0 && own != rows) || !tensor.device().is_host()) {
      return Unsupported("'" + input->name() + "' is " + feed->second.Describe() +
                         ", which cannot be split into " + std::to_string(parts) +
                         " equal parts of one batch");
    }
    rows = own;
    for (int part = 0; part < parts; ++part)
      out[static_cast<size_t>(part)][input->name()] = RowsOf(tensor, part, parts);
  }
  if (rows < 0) return Unsupported("no input of the model has a first dimension that may change");
  return out;
}

}  // namespace

// The calls that go on after a lost step.
std::string StepRuns::WayBack() const {
  if (!ranks_.setup().has_others()) return "Restore a checkpoint first";
  const bool needs_all =
      !parameters_.shards().empty() || options_.step.commit == CommitMode::kEagerConsume;
  return needs_all ? "Restore the last checkpoint on all ranks"
                   : "Regroup, or Restore a checkpoint first";
}

// Returns what to do after another rank was lost.
std::string StepRuns::NextOfRanks() const {
  const bool is_whole = parameters_.shards().empty() && options_.step.rank_parts.empty();
  return is_whole
             ? "Regroup the ranks that are left, or start all ranks again from a checkpoint"
             : "Start all ranks again from a checkpoint: each has its own part of what is trained";
}

// "the step is lost, parameters may be half updated ('w0', 'b0' and 3 more): "; among ranks with
// the way back.
std::string StepRuns::DescribeLoss() const {
  const std::vector<std::string>& lost = *parameters_.lost();
  if (lost.empty()) return "the step is lost here, other ranks may have done it: ";
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(lost.size(), kNamed); ++i)
    names += (i == 0 ? "'" : ", '") + lost[i] + "'";
  if (lost.size() > kNamed) names += " and " + std::to_string(lost.size() - kNamed) + " more";
  const std::string advice = ranks_.setup().has_others() ? "; " + WayBack() : "";
  return "the step is lost, parameters may be half updated (" + names + ")" + advice + ": ";
}

bool StepRuns::AnswerFailure(const Request& request, RunResult& result) {
  const FailurePolicy& policy = options_.failures;
  for (int attempt = 0;; ++attempt) {
    const StatusCode code = result.status.code();
    if (code == StatusCode::kSuspended || code == StatusCode::kCancelled) return false;
    if (attempt == 0 && result.refused_feeds()) return false;
    ++failures_.failed;
    failures_.last = result.status.ToString();
    if (result.left_parameters_changed() || policy.action == OnFailure::kStop) return false;
    if (policy.action == OnFailure::kSkip) {
      ++failures_.skipped;
      return true;
    }
    if (attempt == policy.retries) return false;
    ++failures_.retried;
    result = RunAgain(request, result.status);
    if (!result.status.ok()) continue;
    ++failures_.saved;
    return false;
  }
}

RunResult StepRuns::RunAgain(const Request& request, const Status& cause) try {
  if (options_.failures.action == OnFailure::kRetryInParts) return RunInParts(request, cause);
  Program& program = ProgramOf(request.is_update);
  if (options_.failures.action == OnFailure::kRetryOnDefaults) {
    const Status switched = program.FallBack(cause, request.run.feeds);
    if (!switched.ok()) return {.status = switched};
  }
  return program.Run(request.run);
} catch (const std::bad_alloc&) {
  return {.status = OutOfMemory("memory ran out while a step was done again")};
}

// Only the last part updates. What the others write are sums of gradients, which nothing reads
// before a first part has reset them, and running statistics, which are put back.
RunResult StepRuns::RunInParts(const Request& request, const Status& cause) {
  const int parts = options_.failures.parts;
  auto split = Split(update_->graph(), request.feeds, parts);
  if (!split.ok()) return {.status = cause.WithPrefix(split.status().message() + "; ")};
  const ParameterSet& whole = parameters_.set();
  for (int i = 0; i < parts_->size(); ++i) {  // their owners may have bound others
    const int own = whole.Find(parts_->name(i));
    if (own >= 0) parts_->Replace(i, whole.tensor(own));
  }
  std::vector<Tensor> statistics;
  const int first = parameters_.trained();
  for (int i = first; i < first + parameters_.statistics(); ++i) {
    auto copy = HostCopyOf(whole.tensor(i), fallback_->providers());
    if (!copy.ok()) return {.status = copy.status()};
    statistics.push_back(*std::move(copy));
  }
  RunResult result;
  double loss = 0;
  for (int part = 0; part < parts && result.status.ok(); ++part) {
    Program& program = part + 1 < parts ? *parts_accumulate_ : *parts_update_;
    auto bound = BindFeeds(program.graph(), (*split)[static_cast<size_t>(part)], FeedCheck::kDType,
                           ProgramFeeds(part));
    if (!bound.ok()) {
      result.status = bound.status();
      break;
    }
    RunRequest run = request.run;
    run.feeds = *std::move(bound);
    run.options.parameters = parts_.get();
    run.options.seed = run.options.seed.value_or(0) + static_cast<uint64_t>(part);
    run.options.suspend = nullptr;  // a retry is not suspended
    run.options.deadline = std::nullopt;
    result = program.Run(std::move(run));
    if (result.status.ok()) loss += ScalarOf(result.values.front()) / parts;
  }
  if (result.status.ok()) {
    result.values.front() = Tensor::Scalar<double>(loss);
    return result;
  }
  for (size_t i = 0; i < statistics.size(); ++i) {
    const int statistic = first + static_cast<int>(i);
    if (!CopyElements(statistics[i], whole.tensor(statistic), fallback_->providers()).ok())
      result.parameters = {ParameterState::kInconsistent, {whole.name(statistic)}};
  }
  parameters_.ForRun().TouchAll();
  if (result.parameters.state == ParameterState::kCommitted) result.parameters = {};
  return result;
}

}  // namespace caesura
