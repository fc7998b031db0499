// SPDX-License-Identifier: Apache-2.0
// Tells bodies of If, Loop and Scan, at any depth, that the caller has ended the run that they
// belong to. They run on the thread of their run, and kernels, which stand between the two, know
// nothing of it.
#ifndef CAESURA_CORE_EXECUTE_RUN_CANCEL_H_
#define CAESURA_CORE_EXECUTE_RUN_CANCEL_H_

#include <atomic>
#include <memory>
#include <utility>

namespace caesura {

// RunOptions::cancel of the run on this thread, from here to the end of the scope.
class RunCancel {
 public:
  using Flag = std::shared_ptr<const std::atomic<bool>>;
  explicit RunCancel(Flag flag) : before_(std::exchange(current_, std::move(flag))) {}
  ~RunCancel() { current_ = std::move(before_); }
  RunCancel(const RunCancel&) = delete;
  RunCancel& operator=(const RunCancel&) = delete;

  static const Flag& Current() { return current_; }

 private:
  static thread_local Flag current_;
  Flag before_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_RUN_CANCEL_H_
