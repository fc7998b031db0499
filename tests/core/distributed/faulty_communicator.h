// SPDX-License-Identifier: Apache-2.0
// A rank that breaks when told to.
#ifndef CAESURA_TESTS_CORE_DISTRIBUTED_FAULTY_COMMUNICATOR_H_
#define CAESURA_TESTS_CORE_DISTRIBUTED_FAULTY_COMMUNICATOR_H_

#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "core/distributed/communicator.h"

namespace caesura::testing {

// Another communicator's collectives, with an event before each start, before each wait and after
// each wait. At event number `event` a fault is called with the collective; where it fails, so does
// that call. Agreements are collectives, too.
class FaultyCommunicator : public Communicator {
 public:
  using Fault = std::function<Status(const Collective&)>;
  // Sees each collective that is started, before it is, and whether its event is the one.
  using StartFault = std::function<void(const Collective&, int event)>;

  explicit FaultyCommunicator(Communicator& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::chrono::milliseconds timeout() const override { return inner_.timeout(); }

  // Counts anew; -1: nothing happens.
  void At(int event, Fault fault = {}) {
    events_ = 0;
    at_ = event;
    fault_ = std::move(fault);
  }
  void AtStarts(StartFault fault) { start_fault_ = std::move(fault); }
  int events() const { return events_; }
  // From here on each wait takes so long at most.
  void Limit(std::chrono::milliseconds patience) { patience_ = patience; }

  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    if (start_fault_) start_fault_(collective, events_);
    RETURN_IF_ERROR(Event(collective));
    ASSIGN_OR_RETURN(std::unique_ptr<Work> work, inner_.Start(collective));
    return std::unique_ptr<Work>(std::make_unique<FaultyWork>(*this, collective, std::move(work)));
  }
  void Abort(const std::string& why) override { inner_.Abort(why); }

 private:
  class FaultyWork : public Work {
   public:
    FaultyWork(FaultyCommunicator& owner, const Collective& collective, std::unique_ptr<Work> inner)
        : owner_(owner), collective_(collective), inner_(std::move(inner)) {}
    Status Wait(Clock::time_point deadline) override {
      RETURN_IF_ERROR(owner_.Event(collective_));
      if (owner_.patience_.count() > 0)
        deadline = std::min(deadline, Clock::now() + owner_.patience_);
      RETURN_IF_ERROR(inner_->Wait(deadline));
      return owner_.Event(collective_);
    }

   private:
    FaultyCommunicator& owner_;
    const Collective collective_;
    const std::unique_ptr<Work> inner_;
  };

  Status Event(const Collective& collective) {
    return events_++ == at_ && fault_ ? fault_(collective) : Status();
  }

  Communicator& inner_;
  int events_ = 0, at_ = -1;
  Fault fault_;
  StartFault start_fault_;
  std::chrono::milliseconds patience_{0};
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_DISTRIBUTED_FAULTY_COMMUNICATOR_H_
