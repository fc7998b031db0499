// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/simulated_communicator.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <thread>
#include <utility>

#include "core/base/status_macros.h"

namespace caesura {

double CollectiveSeconds(const Collective& collective, int ranks, const Link& link) {
  assert(link.bytes_per_second > 0);
  using Kind = Collective::Kind;
  if (ranks == 1) return 0;
  const double n = ranks;
  const double part = static_cast<double>(collective.count) *
                      static_cast<double>(DTypeSize(collective.dtype)) / link.bytes_per_second;
  switch (collective.kind) {
    case Kind::kAllReduce: return 2 * (n - 1) * (link.latency_seconds + part / n);
    case Kind::kReduceScatter:
    case Kind::kAllGather:
    case Kind::kAllToAll: return (n - 1) * (link.latency_seconds + part);
    case Kind::kBroadcast: return std::ceil(std::log2(n)) * link.latency_seconds + part;
    case Kind::kSend:
    case Kind::kReceive: return link.latency_seconds + part;
  }
  return 0;
}

namespace {

class DelayedWork : public Work {
 public:
  DelayedWork(std::unique_ptr<Work> inner, Clock::time_point due, std::string text)
      : inner_(std::move(inner)), due_(due), text_(std::move(text)) {}
  Status Wait(Clock::time_point deadline) override {
    RETURN_IF_ERROR(inner_->Wait(deadline));
    std::this_thread::sleep_until(std::min(due_, deadline));
    return due_ <= deadline ? Status() : RankFailure(text_ + ": the time is over");
  }

 private:
  const std::unique_ptr<Work> inner_;
  const Clock::time_point due_;
  const std::string text_;
};

class Simulated : public Communicator {
 public:
  Simulated(std::unique_ptr<Communicator> inner, Link link)
      : inner_(std::move(inner)), link_(link) {}
  std::string name() const override { return "simulated " + inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Device device() const override { return inner_->device(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }
  void Abort(const std::string& why) override { inner_->Abort(why); }

  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Work> work, inner_->Start(collective));
    const std::chrono::duration<double> takes(CollectiveSeconds(collective, size(), link_));
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(takes);
    return std::unique_ptr<Work>(
        std::make_unique<DelayedWork>(std::move(work), free_, collective.ToString()));
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  const Link link_;
  Clock::time_point free_ = {};  // when the link has done all that was started
};

}  // namespace

std::unique_ptr<Communicator> SimulatedCommunicator(std::unique_ptr<Communicator> inner,
                                                    Link link) {
  return std::make_unique<Simulated>(std::move(inner), link);
}

}  // namespace caesura
