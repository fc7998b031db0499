// SPDX-License-Identifier: Apache-2.0
#include "core/providers/cuda/cuda_provider.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/cuda/cuda_device.h"
#include "core/distributed/machine.h"

namespace caesura {
namespace {

using Kind = Collective::Kind;

// Sleeps a little longer each time.
class Backoff {
 public:
  void Sleep() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds pause_{10};
};

std::optional<nccl::DataType> ReducibleType(DType dtype) {
  switch (dtype) {
    case DType::kInt8: return nccl::kInt8;
    case DType::kUInt8: return nccl::kUint8;
    case DType::kInt32: return nccl::kInt32;
    case DType::kUInt32: return nccl::kUint32;
    case DType::kInt64: return nccl::kInt64;
    case DType::kUInt64: return nccl::kUint64;
    case DType::kFloat16: return nccl::kFloat16;
    case DType::kBFloat16: return nccl::kBfloat16;
    case DType::kFloat32: return nccl::kFloat32;
    case DType::kFloat64: return nccl::kFloat64;
    default: return std::nullopt;
  }
}

nccl::RedOp OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax: return nccl::kMax;
    case ReduceOp::kMin: return nccl::kMin;
    default: return nccl::kSum;
  }
}

bool Reduces(const Collective& collective) {
  return collective.kind == Kind::kAllReduce || collective.kind == Kind::kReduceScatter;
}

// An event that is recorded on the stream of collectives.
class Event {
 public:
  explicit Event(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~Event() {
    if (event_ != nullptr && device_->MakeCurrent().ok()) driver().cuEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // All methods: REQUIRES: the device's context is current.
  Status Record(CUstream stream) {
    if (event_ == nullptr)
      RETURN_IF_ERROR(
          Checked("cuEventCreate", driver().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING)));
    return Checked("cuEventRecord", driver().cuEventRecord(event_, stream));
  }
  Status MakeWait(CUstream stream) const {
    return Checked("cuStreamWaitEvent", driver().cuStreamWaitEvent(stream, event_, 0));
  }
  Result<bool> HasPassed() const {
    const CUresult result = driver().cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    RETURN_IF_ERROR(Checked("cuEventQuery", result));
    return true;
  }

 private:
  const decltype(CudaLibraries::driver)& driver() const { return device_->libraries().driver; }
  Status Checked(const char* call, CUresult result) const {
    return result == CUDA_SUCCESS ? Status() : device_->Failure(call, result);
  }

  const std::shared_ptr<CudaDevice> device_;
  CUevent event_ = nullptr;
};

// Collectives that NCCL was given in one go, or will be.
struct Launch {
  explicit Launch(std::shared_ptr<CudaDevice> device) : done(std::move(device)) {}
  std::vector<Collective> parts;
  Status status;  // of the start
  Event done;
};

class NcclRanks : public Communicator {
 public:
  NcclRanks(std::unique_ptr<Communicator> control, std::shared_ptr<CudaDevice> device,
            NcclFunctions nccl)
      : control_(std::move(control)), device_(std::move(device)), nccl_(nccl), ready_(device_) {}
  ~NcclRanks() override;

  std::string name() const override { return "nccl"; }
  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  Device device() const override { return device_->device(); }
  std::chrono::milliseconds timeout() const override { return control_->timeout(); }
  Result<std::unique_ptr<Work>> Start(const Collective& collective) override;
  void Abort(const std::string& why) override;

  Status Join(const nccl::UniqueId& id);
  // Makes the stream wait for the launch; null: the host.
  Status Wait(Launch& launch, void* stream, Clock::time_point deadline);
  Result<std::unique_ptr<Gathering>> StartGather(std::span<const int64_t> words,
                                                 std::vector<int64_t> load) override {
    return control_->StartGather(words, std::move(load));
  }
  int64_t& room() override { return control_->room(); }

 protected:
  Result<std::vector<int64_t>> GatherWords(std::span<const int64_t> words,
                                           Clock::time_point deadline) override;

 private:
  // Gives NCCL the sends and receives that wait to begin together. REQUIRES: start_mutex_ is held.
  Status Flush();
  Status Begin(Launch& launch);
  nccl::Result Call(const Collective& part);
  nccl::Result CallAllToAll(const Collective& part);
  // Waits until NCCL has taken what it was given: it does that on threads of its own.
  Status Settle(nccl::Result result, const std::string& what, Clock::time_point deadline);
  Status AwaitOnHost(const Launch& launch, Clock::time_point deadline);
  Status AsyncError(const std::string& what, bool* in_progress = nullptr);
  Status Failure(nccl::Result result, const std::string& what) const;
  Status AbortedStatus() const;

  const std::unique_ptr<Communicator> control_;
  const std::shared_ptr<CudaDevice> device_;
  const NcclFunctions nccl_;
  Event ready_;
  std::mutex mutex_;  // for comm_ and aborted_; is not held while anything waits
  nccl::Comm comm_ = nullptr;
  std::optional<std::string> aborted_;              // why
  std::mutex start_mutex_;                          // for pending_ and in_flight_
  std::shared_ptr<Launch> pending_;                 // sends and receives
  std::vector<std::shared_ptr<Launch>> in_flight_;  // since the last Gather
};

class NcclWork : public Work {
 public:
  NcclWork(NcclRanks* ranks, std::shared_ptr<Launch> launch, void* stream)
      : ranks_(ranks), launch_(std::move(launch)), stream_(stream) {}
  Status Wait(Clock::time_point deadline) override {
    return ranks_->Wait(*launch_, stream_, deadline);
  }

 private:
  NcclRanks* const ranks_;
  const std::shared_ptr<Launch> launch_;
  void* const stream_;
};

Status NcclRanks::AbortedStatus() const {
  return RankFailure("nccl: rank " + std::to_string(rank()) + " has given up: " + *aborted_);
}

Status NcclRanks::Failure(nccl::Result result, const std::string& what) const {
  const char* more = comm_ == nullptr ? nullptr : nccl_.GetLastError(comm_);
  std::string message = "nccl: " + what + " failed on rank " + std::to_string(rank()) + ": " +
                        nccl_.GetErrorString(result);
  if (more != nullptr && *more != '\0') message += std::string(": ") + more;
  const bool ours = result == nccl::kInvalidArgument || result == nccl::kInvalidUsage;
  return ours ? Internal(std::move(message)) : RankFailure(std::move(message));
}

Status NcclRanks::AsyncError(const std::string& what, bool* in_progress) {
  const std::lock_guard lock(mutex_);
  if (aborted_) return AbortedStatus();
  nccl::Result error = nccl::kSuccess;
  const nccl::Result asked = nccl_.CommGetAsyncError(comm_, &error);
  if (asked != nccl::kSuccess) return Failure(asked, "ncclCommGetAsyncError");
  if (in_progress != nullptr) *in_progress = error == nccl::kInProgress;
  return error == nccl::kSuccess || error == nccl::kInProgress ? Status() : Failure(error, what);
}

Status NcclRanks::Settle(nccl::Result result, const std::string& what, Clock::time_point deadline) {
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    const std::lock_guard lock(mutex_);
    return Failure(result, what);
  }
  bool in_progress = result == nccl::kInProgress;
  for (Backoff backoff; in_progress;) {
    RETURN_IF_ERROR(AsyncError(what, &in_progress));
    if (!in_progress) break;
    if (Clock::now() >= deadline)
      return RankFailure("nccl: " + what +
                         " did not begin in time: a rank has not come, or is lost");
    backoff.Sleep();
  }
  return {};
}

Status NcclRanks::Join(const nccl::UniqueId& id) {
  RETURN_IF_ERROR(device_->MakeCurrent());
  nccl::Config config;
  nccl::Result result;
  {
    const std::lock_guard lock(mutex_);
    result = nccl_.CommInitRankConfig(&comm_, size(), id, rank(), &config);
  }
  return Settle(result, "the communicator's start", Clock::now() + timeout());
}

NcclRanks::~NcclRanks() {
  if (comm_ == nullptr || !device_->MakeCurrent().ok()) return;
  // Other ranks may still read memory of ours; but one that is lost never says that it has ended.
  const auto patience = Clock::now() + std::chrono::seconds(5);
  bool whole = true;
  for (const auto& launch : in_flight_) whole = whole && AwaitOnHost(*launch, patience).ok();
  whole = whole && Settle(nccl_.CommFinalize(comm_), "its end", patience).ok();
  if (whole) nccl_.CommDestroy(comm_);
  else nccl_.CommAbort(comm_);
  device_->libraries().driver.cuStreamSynchronize(device_->stream());
}

void NcclRanks::Abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = why;
    if (comm_ != nullptr && device_->MakeCurrent().ok()) nccl_.CommAbort(comm_);
    comm_ = nullptr;
  }
  // NCCL's kernels end now, if they have not.
  device_->libraries().driver.cuStreamSynchronize(device_->stream());
  control_->Abort(why);
}

Result<std::unique_ptr<Work>> NcclRanks::Start(const Collective& collective) {
  RETURN_IF_ERROR(CheckCollective(collective, size()));
  if (Reduces(collective) && !ReducibleType(collective.dtype))
    return Unsupported("nccl: " + collective.ToString() + ": it has no sums of this dtype");
  const std::lock_guard lock(start_mutex_);
  if (collective.kind == Kind::kSend || collective.kind == Kind::kReceive) {
    if (pending_ == nullptr) pending_ = std::make_shared<Launch>(device_);
    pending_->parts.push_back(collective);
    return std::unique_ptr<Work>(new NcclWork(this, pending_, collective.stream));
  }
  RETURN_IF_ERROR(Flush());
  auto launch = std::make_shared<Launch>(device_);
  launch->parts.push_back(collective);
  RETURN_IF_ERROR(Begin(*launch));
  in_flight_.push_back(launch);
  return std::unique_ptr<Work>(new NcclWork(this, std::move(launch), collective.stream));
}

Status NcclRanks::Flush() {
  if (pending_ == nullptr) return {};
  const std::shared_ptr<Launch> launch = std::exchange(pending_, nullptr);
  launch->status = Begin(*launch);
  if (launch->status.ok()) in_flight_.push_back(launch);
  return launch->status;
}

Status NcclRanks::Begin(Launch& launch) {
  RETURN_IF_ERROR(device_->MakeCurrent());
  for (const Collective& part : launch.parts) {
    if (part.stream == nullptr) continue;
    RETURN_IF_ERROR(ready_.Record(static_cast<CUstream>(part.stream)));
    RETURN_IF_ERROR(ready_.MakeWait(device_->stream()));
  }
  nccl::Result result;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return AbortedStatus();
    result = nccl_.GroupStart();
    for (const Collective& part : launch.parts) {
      if (result == nccl::kSuccess || result == nccl::kInProgress) result = Call(part);
    }
    const nccl::Result end = nccl_.GroupEnd();
    if (result == nccl::kSuccess || result == nccl::kInProgress) result = end;
  }
  RETURN_IF_ERROR(Settle(result, launch.parts.front().ToString(), Clock::now() + timeout()));
  return launch.done.Record(device_->stream());
}

nccl::Result NcclRanks::Call(const Collective& part) {
  const CUstream stream = device_->stream();
  const nccl::RedOp op = OpOf(part.op);
  const std::optional<nccl::DataType> reducible = ReducibleType(part.dtype);
  const nccl::DataType type = reducible.value_or(nccl::kUint8);
  const auto count = static_cast<size_t>(part.count) * (reducible ? 1 : DTypeSize(part.dtype));
  switch (part.kind) {
    case Kind::kAllReduce:
      return nccl_.AllReduce(part.input, part.output, count, type, op, comm_, stream);
    case Kind::kReduceScatter:
      return nccl_.ReduceScatter(part.input, part.output, count, type, op, comm_, stream);
    case Kind::kAllGather:
      return nccl_.AllGather(part.input, part.output, count, type, comm_, stream);
    case Kind::kBroadcast:
      return nccl_.Broadcast(part.input, part.output, count, type, part.peer, comm_, stream);
    case Kind::kSend: return nccl_.Send(part.input, count, type, part.peer, comm_, stream);
    case Kind::kReceive: return nccl_.Recv(part.output, count, type, part.peer, comm_, stream);
    case Kind::kAllToAll: return CallAllToAll(part);
  }
  return nccl::kInvalidUsage;
}

nccl::Result NcclRanks::CallAllToAll(const Collective& part) {
  const auto bytes = static_cast<size_t>(part.count) * DTypeSize(part.dtype);
  const auto* from = static_cast<const char*>(part.input);
  auto* to = static_cast<char*>(part.output);
  nccl::Result result = nccl::kSuccess;
  for (int peer = 0; peer < size(); ++peer, from += bytes, to += bytes) {
    const CUstream stream = device_->stream();
    result = nccl_.Send(from, bytes, nccl::kUint8, peer, comm_, stream);
    if (result == nccl::kSuccess || result == nccl::kInProgress)
      result = nccl_.Recv(to, bytes, nccl::kUint8, peer, comm_, stream);
    if (result != nccl::kSuccess && result != nccl::kInProgress) return result;
  }
  return result;
}

Status NcclRanks::AwaitOnHost(const Launch& launch, Clock::time_point deadline) {
  const std::string what = launch.parts.front().ToString();
  RETURN_IF_ERROR(device_->MakeCurrent());
  for (Backoff backoff;; backoff.Sleep()) {
    ASSIGN_OR_RETURN(const bool passed, launch.done.HasPassed());
    RETURN_IF_ERROR(AsyncError(what));
    if (passed) return {};
    if (Clock::now() >= deadline)
      return RankFailure("nccl: " + what + " did not end in time on rank " +
                         std::to_string(rank()) + ": a rank has not come to it, or is lost");
  }
}

Status NcclRanks::Wait(Launch& launch, void* stream, Clock::time_point deadline) {
  {
    const std::lock_guard lock(start_mutex_);
    if (pending_.get() == &launch) RETURN_IF_ERROR(Flush());
  }
  RETURN_IF_ERROR(launch.status);
  if (stream == nullptr) return AwaitOnHost(launch, deadline);
  RETURN_IF_ERROR(device_->MakeCurrent());
  RETURN_IF_ERROR(AsyncError(launch.parts.front().ToString()));
  return launch.done.MakeWait(static_cast<CUstream>(stream));
}

Result<std::vector<int64_t>> NcclRanks::GatherWords(std::span<const int64_t> words,
                                                    Clock::time_point deadline) {
  const std::lock_guard lock(start_mutex_);
  Status status = Flush();
  for (const auto& launch : in_flight_) {
    if (status.ok()) status = AwaitOnHost(*launch, deadline);
  }
  if (!status.ok()) {
    Abort(status.message());
    return status;
  }
  in_flight_.clear();
  return control_->Gather(words, deadline);
}

// The words that ranks exchange before they join: whether each can, its machine, its GPU there, and
// NCCL's identity.
constexpr size_t kIntroductionWords = 3 + sizeof(nccl::UniqueId) / sizeof(int64_t);

// The device's place on the machine's bus, by which NCCL tells devices apart. Their numbers depend
// on what a process is shown.
Result<int64_t> PlaceOfGpu(const CudaDevice& device) {
  const auto& driver = device.libraries().driver;
  CUdevice handle = 0;
  CUresult result = driver.cuDeviceGet(&handle, device.device().index);
  int64_t place = 0;
  for (const CUdevice_attribute part :
       {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID}) {
    int value = 0;
    if (result == CUDA_SUCCESS) result = driver.cuDeviceGetAttribute(&value, part, handle);
    place = place << 16 | value;
  }
  if (result != CUDA_SUCCESS) return device.Failure("cuDeviceGetAttribute", result);
  return place;
}

// The error that keeps the ranks from joining, by what each has said; rank: the one that says so.
Status CheckIntroductions(std::span<const int64_t> all, int rank) {
  std::string others;
  const size_t size = all.size() / kIntroductionWords;
  const auto of = [&](size_t r) { return all.subspan(r * kIntroductionWords, 3); };
  const std::string says = " (rank " + std::to_string(rank) + " says so)";
  for (size_t r = 0; r < size; ++r) {
    if (of(r)[0] == 0) others += (others.empty() ? "" : ", ") + std::to_string(r);
  }
  if (!others.empty())
    return Unsupported("nccl: rank " + others + " has no GPU, or no NCCL; it says more" + says);
  for (size_t r = 0; r < size; ++r) {
    for (size_t before = 0; before < r; ++before) {
      if (!std::ranges::equal(of(r), of(before))) continue;
      return InvalidArgument("nccl: ranks " + std::to_string(before) + " and " + std::to_string(r) +
                             " have the same GPU; expected one of its own for each rank" + says);
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator(std::unique_ptr<Communicator> control,
                                                       const CudaOptions& given) {
  CudaOptions options = given;
  options.stream = nullptr;
  Result<std::shared_ptr<CudaDevice>> device = CudaDevice::Create(options);
  Result<NcclFunctions> nccl = OpenNccl(options.libraries);
  Status status = device.ok() ? nccl.status() : device.status();
  nccl::UniqueId id = {};
  if (status.ok() && control->rank() == 0) {
    const nccl::Result result = nccl->GetUniqueId(&id);
    if (result != nccl::kSuccess)
      status =
          Unsupported(std::string("nccl: ncclGetUniqueId failed: ") + nccl->GetErrorString(result));
  }
  int64_t words[kIntroductionWords] = {0, static_cast<int64_t>(ThisMachine())};
  if (status.ok()) {
    const Result<int64_t> place = PlaceOfGpu(**device);
    status = place.status();
    words[2] = place.ok() ? *place : 0;
  }
  words[0] = status.ok() ? 1 : 0;
  std::memcpy(words + 3, &id, sizeof(id));
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   control->Gather(words, Clock::now() + control->timeout()));
  RETURN_IF_ERROR(status);
  RETURN_IF_ERROR(CheckIntroductions(all, control->rank()));
  std::memcpy(&id, all.data() + 3, sizeof(id));
  auto ranks = std::make_unique<NcclRanks>(std::move(control), *std::move(device), *nccl);
  RETURN_IF_ERROR(ranks->Join(id));
  return std::unique_ptr<Communicator>(std::move(ranks));
}

}  // namespace caesura
