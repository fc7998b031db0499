// SPDX-License-Identifier: Apache-2.0
// Status and Result<T>: how every function of the library reports failure. The library throws
// nothing.
//
//   Result<Model> model = Model::Read("net.onnx");
//   if (!model.ok()) return model.status();
//   Use(*model);
//
// Thread safety: values; as safe as an int.
#ifndef CAESURA_CORE_BASE_STATUS_H_
#define CAESURA_CORE_BASE_STATUS_H_

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace caesura {

// A code exists only if some caller acts on it.
enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller's feeds, options or names are wrong
  kInvalidModel,     // the model's bytes or graph break the rules
  kUnsupported,      // a missing kernel, gradient or feature: final, trying again cannot help
  kNotFound,         // a name or a file that is not there
  kOutOfMemory,      // host memory
  kProviderFailure,  // compiling or running on a provider failed: the session may fall back
  kIoError,          // the file system refused
  kCancelled,        // the user asked to stop
  kInternal,         // our own invariant broke: a bug
  kSuspended,        // the user asked to pause: nothing is lost, the run waits to go on
  kDeclined,     // one of several candidates passes: the next one is asked. If all pass, the caller
                 // gets kUnsupported.
  kRankFailure,  // another rank of a distributed run is lost, late, or does something else
};

// "INVALID_MODEL" and so on.
const char* StatusCodeName(StatusCode code);

// The place at which a run or a plan has failed.
struct FailureLocation {
  std::string node;      // "Op 'node'"; "memory" for an allocation that belongs to no node
  std::string provider;  // by its name
  std::string what;      // the message without the place
};

// Success, or an error with a code and a message. A success costs no allocation.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ == nullptr ? StatusCode::kOk : rep_->code; }
  // Empty when ok.
  const std::string& message() const;
  // "INVALID_MODEL: message", or "OK".
  std::string ToString() const;
  // This status with `prefix` in front of its message. Ok stays ok.
  Status WithPrefix(const std::string& prefix) const;
  // The innermost place, where a node's body has failed; null where none is known.
  const FailureLocation* location() const;
  // This status with `message` in place of its own, at `location` unless a place is known already.
  // REQUIRES: !ok().
  Status At(FailureLocation location, std::string message) const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
    std::shared_ptr<const FailureLocation> location = nullptr;
  };
  std::unique_ptr<Rep> rep_;
};

// Makes an error of the code of the same name.
Status InvalidArgument(std::string message);
Status InvalidModel(std::string message);
Status Unsupported(std::string message);
Status NotFound(std::string message);
Status OutOfMemory(std::string message);
Status ProviderFailure(std::string message);
Status IoError(std::string message);
Status Cancelled(std::string message);
Status Suspended(std::string message);
Status Declined(std::string message);
Status RankFailure(std::string message);
Status Internal(std::string message);

// Throws std::runtime_error with the text (bad_alloc for kOutOfMemory): the only throw here,
// reached through value().
[[noreturn]] void ThrowStatus(const Status& status);

// Either a T or a failed Status.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  // REQUIRES: !status.ok()
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok()
  T& operator*() & { return assert(ok()), *value_; }
  const T& operator*() const& { return assert(ok()), *value_; }
  T&& operator*() && { return assert(ok()), *std::move(value_); }
  T* operator->() { return assert(ok()), &*value_; }
  const T* operator->() const { return assert(ok()), &*value_; }

  // The value; throws when there is none. For programs and tests; library code checks ok().
  T& value() & {
    if (!ok()) ThrowStatus(status_);
    return *value_;
  }
  T&& value() && {
    if (!ok()) ThrowStatus(status_);
    return *std::move(value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_STATUS_H_
