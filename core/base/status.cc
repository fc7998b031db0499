// SPDX-License-Identifier: Apache-2.0
#include "core/base/status.h"

#include <cassert>
#include <new>
#include <stdexcept>

namespace caesura {
namespace {

// Lack of memory is thrown as the standard library throws it, so that one handler at the border
// knows both.
class OutOfMemoryError : public std::bad_alloc {
 public:
  explicit OutOfMemoryError(std::string what)
      : what_(std::make_shared<const std::string>(std::move(what))) {}
  const char* what() const noexcept override { return what_->c_str(); }

 private:
  std::shared_ptr<const std::string> what_;  // copying an exception must not throw
};

}  // namespace

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "OK";
    case StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case StatusCode::kInvalidModel: return "INVALID_MODEL";
    case StatusCode::kUnsupported: return "UNSUPPORTED";
    case StatusCode::kNotFound: return "NOT_FOUND";
    case StatusCode::kOutOfMemory: return "OUT_OF_MEMORY";
    case StatusCode::kProviderFailure: return "PROVIDER_FAILURE";
    case StatusCode::kIoError: return "IO_ERROR";
    case StatusCode::kCancelled: return "CANCELLED";
    case StatusCode::kSuspended: return "SUSPENDED";
    case StatusCode::kDeclined: return "DECLINED";
    case StatusCode::kRankFailure: return "RANK_FAILURE";
    case StatusCode::kInternal: return "INTERNAL";
  }
  return "UNKNOWN";
}

Status::Status(StatusCode code, std::string message)
    : rep_(std::make_unique<Rep>(Rep{code, std::move(message)})) {}

Status::Status(const Status& other)
    : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
  return *this;
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::ToString() const {
  return ok() ? "OK" : std::string(StatusCodeName(code())) + ": " + message();
}

Status Status::WithPrefix(const std::string& prefix) const {
  Status out = *this;
  if (!ok()) out.rep_->message = prefix + message();
  return out;
}

const FailureLocation* Status::location() const { return rep_ ? rep_->location.get() : nullptr; }

Status Status::At(FailureLocation location, std::string message) const {
  assert(!ok());
  Status out = *this;
  if (!out.rep_->location)
    out.rep_->location = std::make_shared<const FailureLocation>(std::move(location));
  out.rep_->message = std::move(message);
  return out;
}

Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status InvalidModel(std::string message) { return {StatusCode::kInvalidModel, std::move(message)}; }
Status Unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status OutOfMemory(std::string message) { return {StatusCode::kOutOfMemory, std::move(message)}; }
Status ProviderFailure(std::string message) {
  return {StatusCode::kProviderFailure, std::move(message)};
}
Status IoError(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
Status Suspended(std::string message) { return {StatusCode::kSuspended, std::move(message)}; }
Status Declined(std::string message) { return {StatusCode::kDeclined, std::move(message)}; }
Status RankFailure(std::string message) { return {StatusCode::kRankFailure, std::move(message)}; }
Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

void ThrowStatus(const Status& status) {
  if (status.code() == StatusCode::kOutOfMemory) throw OutOfMemoryError(status.ToString());
  throw std::runtime_error(status.ToString());
}

}  // namespace caesura
