// SPDX-License-Identifier: Apache-2.0
// A rank that breaks at its n-th collective, for ranks that Python has started: rank_faults_test.py
// calls these functions by ctypes.
#include <csignal>
#include <vector>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace {

using Started = c10::intrusive_ptr<c10d::Work>;

// The collectives of a group's own backend. The process sends itself a signal before one of them.
class BreakingBackend : public c10d::Backend {
 public:
  BreakingBackend(c10::intrusive_ptr<c10d::Backend> inner, int at, int sent)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        at_(at),
        sent_(sent) {}
  int starts() const { return starts_; }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void abort() override { inner_->abort(); }
  Started broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    return Count(), inner_->broadcast(tensors, options);
  }
  Started allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    return Count(), inner_->allreduce(tensors, options);
  }
  Started _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return Count(), inner_->_allgather_base(output, input, options);
  }
  Started alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override {
    return Count(), inner_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }
  Started barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }

 private:
  void Count() {
    if (starts_++ == at_) std::raise(sent_);
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const int at_, sent_;
  int starts_ = 0;
};

c10::intrusive_ptr<BreakingBackend> backend;

}  // namespace

// From here on the group's collectives are counted. This process sends itself the signal before
// collective number `at`; -1: never. To be called once.
extern "C" __attribute__((visibility("default"))) void caesura_break_group(const char* name, int at,
                                                                           int sent) {
  const auto group = c10d::resolve_process_group(name);
  backend = c10::make_intrusive<BreakingBackend>(group->getDefaultBackend(), at, sent);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
}

// The collectives so far.
extern "C" __attribute__((visibility("default"))) int caesura_group_starts() {
  return backend->starts();
}
