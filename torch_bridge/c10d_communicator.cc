// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/c10d_communicator.h"

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/status_macros.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

using Kind = Collective::Kind;
using Started = c10::intrusive_ptr<c10d::Work>;
using std::chrono::milliseconds;

// The first line of what PyTorch says: the rest is a stack.
std::string FirstLine(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

c10d::ReduceOp::RedOpType OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return c10d::ReduceOp::SUM;
    case ReduceOp::kMax: return c10d::ReduceOp::MAX;
    case ReduceOp::kMin: return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

// The works in flight, so that an abort can wait for their end.
struct InFlight {
  std::mutex mutex;
  std::list<Started> works;
  std::optional<std::string> aborted;
};

class C10dWork : public Work {
 public:
  C10dWork(Started work, std::string text, std::shared_ptr<InFlight> in_flight)
      : work_(std::move(work)), text_(std::move(text)), in_flight_(std::move(in_flight)) {}

  Status Wait(Clock::time_point deadline) override {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      work_->wait(std::max(milliseconds(1), left));  // 0 would be no time-out
    } catch (const std::exception& error) {
      return RankFailure(text_ + ": " + FirstLine(error));
    }
    const std::lock_guard lock(in_flight_->mutex);
    in_flight_->works.remove(work_);
    return {};
  }

 private:
  const Started work_;
  const std::string text_;
  const std::shared_ptr<InFlight> in_flight_;
};

class C10dGroup : public Communicator {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, milliseconds timeout)
      : group_(std::move(group)), timeout_(timeout) {}

  std::string name() const override { return "c10d " + group_->getBackendName(); }
  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  milliseconds timeout() const override { return timeout_; }

  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    RETURN_IF_ERROR(CheckCollective(collective, size()));
    const auto type = ScalarTypeOf(collective.dtype);
    if (!type) return Unsupported(collective.ToString() + ": PyTorch has no such dtype");
    {
      const std::lock_guard lock(in_flight_->mutex);
      if (in_flight_->aborted) return RankFailure(*in_flight_->aborted);
    }
    const auto parts = [&](int count, const void* data) {
      return BorrowBytes(const_cast<void*>(data), *type, Shape{count * collective.count});
    };
    at::Tensor input = parts(collective.InputParts(size()), collective.input);
    at::Tensor output = parts(collective.OutputParts(size()), collective.output);
    Started work;
    try {
      work = Begin(collective, input, output);
    } catch (const std::exception& error) {
      return RankFailure(collective.ToString() + ": " + FirstLine(error));
    }
    const std::lock_guard lock(in_flight_->mutex);
    in_flight_->works.push_back(work);
    return std::unique_ptr<Work>(
        std::make_unique<C10dWork>(std::move(work), collective.ToString(), in_flight_));
  }

  // The engine ends each collective by its own time-out; this waits for it.
  void Abort(const std::string& why) override {
    std::list<Started> works;
    {
      const std::lock_guard lock(in_flight_->mutex);
      if (!in_flight_->aborted)
        in_flight_->aborted = "rank " + std::to_string(rank()) + " has given up: " + why;
      works = std::exchange(in_flight_->works, {});
    }
    try {
      if (!works.empty()) group_->abort();
    } catch (const std::exception&) {  // an engine that has no abort
    }
    for (const Started& work : works) {
      try {
        work->wait(timeout_);
      } catch (const std::exception&) {  // it has ended, as it should
      }
    }
  }

 private:
  Started Begin(const Collective& collective, at::Tensor& input, at::Tensor& output) {
    std::vector<at::Tensor> inputs = {input}, outputs = {output};
    const auto move = [&] {  // for what PyTorch does in place
      if (collective.input != collective.output) output.copy_(input);
    };
    switch (collective.kind) {
      case Kind::kAllReduce: {
        move();
        c10d::AllreduceOptions options;
        options.reduceOp = OpOf(collective.op);
        options.timeout = timeout_;
        return group_->allreduce(outputs, options);
      }
      case Kind::kBroadcast: {
        move();
        c10d::BroadcastOptions options;
        options.rootRank = collective.peer;
        options.timeout = timeout_;
        return group_->broadcast(outputs, options);
      }
      case Kind::kReduceScatter: {
        c10d::ReduceScatterOptions options;
        options.reduceOp = OpOf(collective.op);
        options.timeout = timeout_;
        return group_->_reduce_scatter_base(output, input, options);
      }
      case Kind::kAllGather: {
        c10d::AllgatherOptions options;
        options.timeout = timeout_;
        return group_->_allgather_base(output, input, options);
      }
      case Kind::kAllToAll: {
        c10d::AllToAllOptions options;
        options.timeout = timeout_;
        std::vector<int64_t> none;
        return group_->alltoall_base(output, input, none, none, options);
      }
      case Kind::kSend: return group_->send(inputs, collective.peer, 0);
      case Kind::kReceive: return group_->recv(outputs, collective.peer, 0);
    }
    return {};
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const milliseconds timeout_;
  const std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
};

}  // namespace

Result<std::unique_ptr<Communicator>> C10dCommunicator(const std::string& group_name) {
  try {
    auto group = c10d::resolve_process_group(group_name);
    const milliseconds timeout = group->getDefaultBackend()->getBackendOptions()->timeout;
    return std::unique_ptr<Communicator>(std::make_unique<C10dGroup>(std::move(group), timeout));
  } catch (const std::exception& error) {
    return NotFound("process group '" + group_name + "': " + FirstLine(error));
  }
}

}  // namespace caesura::torch
