// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/c10d_communicator.h"

#include <algorithm>
#include <exception>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/base/status_macros.h"
#include "core/distributed/perform_collective.h"
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

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// The ranks of the group that do not say within a second that they have failed, too, as text; the
// others' failures come as late as their own time-outs. By the group's store, which is on another
// thread: it may be gone with its rank.
std::string Unheard(const GroupPtr& group) {
  constexpr milliseconds kPatience(1000), kPause(20);
  auto found = std::make_shared<std::promise<std::string>>();
  std::future<std::string> unheard = found->get_future();
  std::thread([group, found, kPatience, kPause] {
    std::string text;
    try {
      const auto store = group->getStore();
      const auto key = [&](int rank) {
        return "caesura.failed." + group->getGroupName() + "." + std::to_string(rank);
      };
      store->set(key(group->getRank()), std::string("1"));
      const auto end = Clock::now() + kPatience;
      for (int r = 0; r < group->getSize(); ++r) {
        while (!store->check({key(r)}) && Clock::now() < end) std::this_thread::sleep_for(kPause);
        if (!store->check({key(r)})) text += (text.empty() ? "" : ", ") + std::to_string(r);
      }
    } catch (const std::exception&) {  // its rank is lost, or the group has none
    }
    found->set_value(text);
  }).detach();
  const bool answers = unheard.wait_for(2 * kPatience) == std::future_status::ready;
  const std::string text = answers ? unheard.get() : "";
  return text.empty() ? "" : " (nothing was heard of rank " + text + ")";
}

// Communicator::room of a group, as long as the group lives.
std::shared_ptr<int64_t> RoomOf(const GroupPtr& group) {
  struct Room {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> of;
    std::shared_ptr<int64_t> words;
  };
  static std::mutex mutex;
  static std::list<Room> rooms;
  const std::lock_guard lock(mutex);
  rooms.remove_if([](const Room& room) { return room.of.expired(); });
  for (const Room& room : rooms) {
    if (room.of.lock() == group) return room.words;
  }
  rooms.push_back(
      {c10::weak_intrusive_ptr<c10d::ProcessGroup>(group), std::make_shared<int64_t>(0)});
  return rooms.back().words;
}

// The state that all works of one communicator share.
struct InFlight {
  std::mutex mutex;
  std::list<Started> works;  // so that an abort can wait for their end
  std::optional<std::string> aborted;
  std::list<at::Tensor> spare;  // memory that no work uses now; it is kept for later ones
};

class C10dWork : public Work {
 public:
  // `parts`: each rank's part, of a reduce-scatter to be reduced in Wait; undefined: the engine
  // does it all.
  C10dWork(Started work, const Collective& collective, at::Tensor parts,
           std::shared_ptr<InFlight> in_flight, GroupPtr group)
      : work_(std::move(work)),
        collective_(collective),
        parts_(std::move(parts)),
        in_flight_(std::move(in_flight)),
        group_(std::move(group)) {}

  Status Wait(Clock::time_point deadline) override {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    try {
      work_->wait(std::max(milliseconds(1), left));  // 0 would be no time-out
    } catch (const std::exception& error) {
      return RankFailure(collective_.ToString() + ": " + FirstLine(error) + Unheard(group_));
    }
    if (parts_.defined() && collective_.kind == Kind::kReduceScatter) Reduce();
    const std::lock_guard lock(in_flight_->mutex);
    in_flight_->works.remove(work_);
    if (parts_.defined()) in_flight_->spare.push_back(parts_);
    return {};
  }

 private:
  void Reduce() const {
    const auto* first = static_cast<const char*>(parts_.const_data_ptr());
    const size_t part = static_cast<size_t>(collective_.count) * DTypeSize(collective_.dtype);
    std::vector<const void*> inputs;
    for (int r = 0; r < group_->getSize(); ++r) inputs.push_back(first + part * r);
    ReduceInOrder(collective_.dtype, collective_.op, inputs, collective_.count, collective_.output);
  }

  const Started work_;
  const Collective collective_;
  const at::Tensor parts_;
  const std::shared_ptr<InFlight> in_flight_;
  const GroupPtr group_;
};

class C10dGroup : public Communicator {
 public:
  C10dGroup(GroupPtr group, milliseconds timeout)
      : group_(std::move(group)), timeout_(timeout), room_(RoomOf(group_)) {}

  std::string name() const override { return "c10d " + group_->getBackendName(); }
  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  milliseconds timeout() const override { return timeout_; }
  int64_t& room() override { return *room_; }

  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    RETURN_IF_ERROR(CheckCollective(collective, size()));
    const auto type = ScalarTypeOf(collective.dtype);
    if (!type) return Unsupported(collective.ToString() + ": PyTorch has no such dtype");
    {
      const std::lock_guard lock(in_flight_->mutex);
      if (in_flight_->aborted) return RankFailure(*in_flight_->aborted);
    }
    const auto memory = [&](int count, const void* data) {
      return BorrowBytes(const_cast<void*>(data), *type, Shape{count * collective.count});
    };
    at::Tensor input = memory(collective.InputParts(size()), collective.input);
    at::Tensor output = memory(collective.OutputParts(size()), collective.output);
    Started work;
    at::Tensor parts;
    try {
      Collective exchange = collective;
      // Gloo's own reduce_scatter reduces all parts on all ranks; its all_gather takes more than
      // twice as long as its all_to_all (findings/gloo_gathers_slowly.sh).
      if (is_gloo_ &&
          (collective.kind == Kind::kReduceScatter || collective.kind == Kind::kAllGather)) {
        exchange.kind = Kind::kAllToAll;
        const auto part = collective.count * static_cast<int64_t>(DTypeSize(collective.dtype));
        parts = TakeSpare(size() * part);
        const at::Tensor all = parts.narrow(0, 0, size() * part).view(*type);
        if (collective.kind == Kind::kAllGather) {
          all.view({size(), collective.count}).copy_(input);
          input = all;
        } else {
          output = all;
        }
      }
      work = Begin(exchange, input, output);
    } catch (const std::exception& error) {
      return RankFailure(collective.ToString() + ": " + FirstLine(error));
    }
    const std::lock_guard lock(in_flight_->mutex);
    in_flight_->works.push_back(work);
    return std::unique_ptr<Work>(std::make_unique<C10dWork>(std::move(work), collective,
                                                            std::move(parts), in_flight_, group_));
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
  // At least so many bytes, which C10dWork gives back: to touch new memory takes longer than to
  // send it.
  at::Tensor TakeSpare(int64_t bytes) {
    const std::lock_guard lock(in_flight_->mutex);
    std::list<at::Tensor>& spare = in_flight_->spare;
    auto found = std::find_if(spare.begin(), spare.end(),
                              [&](const at::Tensor& room) { return room.numel() >= bytes; });
    const bool fits = found != spare.end();
    if (!fits) found = spare.begin();  // it makes way for the larger one
    at::Tensor room;
    if (found != spare.end()) {
      room = std::move(*found);
      spare.erase(found);
    }
    return fits ? room : at::empty({bytes}, at::kByte);
  }

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
        return group_->reduce_scatter_single(output, input, options);
      }
      case Kind::kAllGather: {
        c10d::AllgatherOptions options;
        options.timeout = timeout_;
        return group_->all_gather_single(output, input, options);
      }
      case Kind::kAllToAll: {
        c10d::AllToAllOptions options;
        options.timeout = timeout_;
        std::vector<int64_t> none;
        return group_->all_to_all_single(output, input, none, none, options);
      }
      case Kind::kSend: return group_->send(inputs, collective.peer, 0);
      case Kind::kReceive: return group_->recv(outputs, collective.peer, 0);
    }
    return {};
  }

  const GroupPtr group_;
  const milliseconds timeout_;
  const std::shared_ptr<int64_t> room_;
  const bool is_gloo_ = group_->getDefaultBackend()->getBackendName() == "gloo";
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
