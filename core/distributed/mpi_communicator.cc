// SPDX-License-Identifier: Apache-2.0
// The binary interface is that of Open MPI 3 to 5 (libmpi.so.40); names as in the MPI standard.
#include "core/distributed/communicator.h"

#include <dlfcn.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/base/wait.h"

namespace caesura {
namespace {

using Kind = Collective::Kind;

constexpr char kLibrary[] = "libmpi.so.40";
constexpr int kSerialized = 2;                  // MPI_THREAD_SERIALIZED
constexpr int64_t kLargest = int64_t{1} << 30;  // elements of one call, whose counts are int

struct Mpi {
  int (*init)(int*, char***, int, int*);
  int (*initialized)(int*);
  int (*finalize)();
  int (*abort)(void*, int);
  int (*comm_rank)(void*, int*);
  int (*comm_size)(void*, int*);
  int (*set_errhandler)(void*, void*);
  int (*error_string)(int, char*, int*);
  int (*op_create)(void (*)(void*, void*, int*, void**), int, void**);
  int (*allreduce)(const void*, void*, int, void*, void*, void*);
  int (*reduce_scatter_block)(const void*, void*, int, void*, void*, void*);
  int (*allgather)(const void*, int, void*, void*, int, void*, void*);
  int (*bcast)(void*, int, void*, int, void*);
  int (*alltoall)(const void*, int, void*, void*, int, void*, void*);
  int (*isend)(const void*, int, void*, int, int, void*, void**);
  int (*recv)(void*, int, void*, int, int, void*, void*);
  int (*test)(void**, int*, void*);
  void *world, *errors_return, *byte;
  void* in_place = reinterpret_cast<void*>(1);  // MPI_IN_PLACE; a null status is MPI_STATUS_IGNORE
  void* library;

  void* Symbol(const std::string& name) const { return dlsym(library, name.c_str()); }
};

Result<Mpi> OpenMpi() {
  Mpi mpi = {};
  mpi.in_place = reinterpret_cast<void*>(1);
  mpi.library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (mpi.library == nullptr) return NotFound(std::string("Open MPI is not there: ") + dlerror());
  std::string missing;
  const auto find = [&](auto* slot, const char* name) {
    void* symbol = mpi.Symbol(name);
    if (symbol == nullptr) missing += std::string(" ") + name;
    std::memcpy(slot, &symbol, sizeof(symbol));
  };
  find(&mpi.init, "MPI_Init_thread");
  find(&mpi.initialized, "MPI_Initialized");
  find(&mpi.finalize, "MPI_Finalize");
  find(&mpi.abort, "MPI_Abort");
  find(&mpi.comm_rank, "MPI_Comm_rank");
  find(&mpi.comm_size, "MPI_Comm_size");
  find(&mpi.set_errhandler, "MPI_Comm_set_errhandler");
  find(&mpi.error_string, "MPI_Error_string");
  find(&mpi.op_create, "MPI_Op_create");
  find(&mpi.allreduce, "MPI_Allreduce");
  find(&mpi.reduce_scatter_block, "MPI_Reduce_scatter_block");
  find(&mpi.allgather, "MPI_Allgather");
  find(&mpi.bcast, "MPI_Bcast");
  find(&mpi.alltoall, "MPI_Alltoall");
  find(&mpi.isend, "MPI_Isend");
  find(&mpi.recv, "MPI_Recv");
  find(&mpi.test, "MPI_Test");
  find(&mpi.world, "ompi_mpi_comm_world");
  find(&mpi.errors_return, "ompi_mpi_errors_return");
  find(&mpi.byte, "ompi_mpi_byte");
  if (missing.empty()) return mpi;
  return NotFound(std::string(kLibrary) + " is no Open MPI, it lacks" + missing);
}

// MPI's datatype of the same arithmetic; null where it has none.
void* TypeOf(const Mpi& mpi, DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return mpi.Symbol("ompi_mpi_float");
    case DType::kFloat64: return mpi.Symbol("ompi_mpi_double");
    case DType::kInt8: return mpi.Symbol("ompi_mpi_int8_t");
    case DType::kUInt8: return mpi.Symbol("ompi_mpi_uint8_t");
    case DType::kInt16: return mpi.Symbol("ompi_mpi_int16_t");
    case DType::kInt32: return mpi.Symbol("ompi_mpi_int32_t");
    case DType::kInt64: return mpi.Symbol("ompi_mpi_int64_t");
    case DType::kUInt32: return mpi.Symbol("ompi_mpi_uint32_t");
    case DType::kUInt64: return mpi.Symbol("ompi_mpi_uint64_t");
    // Halves go as 16 bits, with reductions of ours.
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kUInt16: return mpi.Symbol("ompi_mpi_uint16_t");
    default: return nullptr;
  }
}

template <typename T, ReduceOp op>
void ReduceHalves(void* in, void* in_out, int* count, void**) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(in_out);
  for (int i = 0; i < *count; ++i) {
    const float a = static_cast<float>(from[i]), b = static_cast<float>(to[i]);
    const bool takes = op == ReduceOp::kMax ? (a > b || a != a) : (a < b || a != a);
    to[i] = static_cast<T>(op == ReduceOp::kSum ? a + b : takes ? a : b);
  }
}

template <typename T>
auto* Reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax: return &ReduceHalves<T, ReduceOp::kMax>;
    case ReduceOp::kMin: return &ReduceHalves<T, ReduceOp::kMin>;
    default: return &ReduceHalves<T, ReduceOp::kSum>;
  }
}

// One collective of the queue.
struct Task {
  Collective collective;
  void* request = nullptr;  // of a send that goes on
  bool done = false;
  Status status = {};
};

class MpiGroup : public Communicator {
 public:
  MpiGroup(Mpi mpi, int rank, int size) : mpi_(mpi), rank_(rank), size_(size) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      const int i = static_cast<int>(op);
      mpi_.op_create(Reduction<Float16>(op), 1, &float16_[i]);
      mpi_.op_create(Reduction<BFloat16>(op), 1, &bfloat16_[i]);
    }
    worker_ = std::thread([this] { Run(); });
  }
  ~MpiGroup() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    worker_.join();
    if (!aborted_) mpi_.finalize();
  }

  std::string name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<std::unique_ptr<Work>> Start(const Collective& collective) override;

  void Abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    if (!aborted_) aborted_ = "rank " + std::to_string(rank_) + " has given up: " + why;
    if (in_flight_ == 0) return;
    std::fprintf(stderr, "caesura: rank %d ends the MPI job: %s\n", rank_, why.c_str());
    mpi_.abort(mpi_.world, 1);  // does not return
  }

  Status Wait(Task& task, Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return task.done; }))
      return RankFailure(task.collective.ToString() + ": the time is over");
    return task.status;
  }

 private:
  void* OpOf(const Collective& collective) const {
    const int i = static_cast<int>(collective.op);
    if (collective.dtype == DType::kFloat16) return float16_[i];
    if (collective.dtype == DType::kBFloat16) return bfloat16_[i];
    static constexpr const char* kNames[] = {"ompi_mpi_op_sum", "ompi_mpi_op_max",
                                             "ompi_mpi_op_min"};
    return mpi_.Symbol(kNames[i]);
  }

  Status Checked(int code, const Collective& collective) const {
    if (code == 0) return {};
    char text[1024] = {};
    int length = 0;
    mpi_.error_string(code, text, &length);
    return RankFailure(collective.ToString() + ": " + text);
  }

  // All of MPI is called here, one call after the other; sends go on beside later calls.
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (sends_.empty()) WaitUntil(changed_, lock, [this] { return ended_ || !queue_.empty(); });
      if (ended_ && queue_.empty() && sends_.empty()) return;
      std::shared_ptr<Task> task;
      if (!queue_.empty()) {
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      lock.unlock();
      Status status;
      bool done = task != nullptr;
      if (task != nullptr) {
        status = Perform(*task);
        done = task->request == nullptr || !status.ok();
      }
      std::vector<std::shared_ptr<Task>> sent = TestSends();
      if (task == nullptr && sent.empty())
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
      if (task != nullptr && !done) sends_.push_back(task);
      if (task != nullptr && done) End(*task, std::move(status));
      for (const auto& send : sent) {
        sends_.erase(std::find(sends_.begin(), sends_.end(), send));
        End(*send, send->status);
      }
    }
  }

  void End(Task& task, Status status) {  // REQUIRES: the lock is held
    task.status = std::move(status);
    task.done = true;
    --in_flight_;
    changed_.notify_all();
  }

  // Sends that have ended. Only the worker changes sends_.
  std::vector<std::shared_ptr<Task>> TestSends() {
    std::vector<std::shared_ptr<Task>> ended;
    for (const auto& send : sends_) {
      int flag = 0;
      send->status = Checked(mpi_.test(&send->request, &flag, nullptr), send->collective);
      if (flag != 0 || !send->status.ok()) ended.push_back(send);
    }
    return ended;
  }

  // In parts that an int can count, where the kind has parts.
  Status Perform(Task& task) {
    const Collective& c = task.collective;
    if (c.count == 0) return {};
    const bool reduces = c.kind == Kind::kAllReduce || c.kind == Kind::kReduceScatter;
    const size_t element = DTypeSize(c.dtype);
    void* type = reduces ? TypeOf(mpi_, c.dtype) : mpi_.byte;
    const int64_t count = reduces ? c.count : c.count * static_cast<int64_t>(element);
    const auto small = static_cast<int>(count);
    const auto* input = static_cast<const char*>(c.input);
    auto* output = static_cast<char*>(c.output);
    switch (c.kind) {
      case Kind::kAllReduce:
        for (int64_t at = 0; at < count; at += kLargest) {
          const auto part = static_cast<int>(std::min(kLargest, count - at));
          const void* from = c.input == c.output ? mpi_.in_place : input + at * element;
          RETURN_IF_ERROR(Checked(
              mpi_.allreduce(from, output + at * element, part, type, OpOf(c), mpi_.world), c));
        }
        return {};
      case Kind::kBroadcast:
        if (output != input) std::memcpy(output, input, static_cast<size_t>(count));
        for (int64_t at = 0; at < count; at += kLargest) {
          const auto part = static_cast<int>(std::min(kLargest, count - at));
          RETURN_IF_ERROR(Checked(mpi_.bcast(output + at, part, type, c.peer, mpi_.world), c));
        }
        return {};
      case Kind::kReduceScatter:
        return Checked(mpi_.reduce_scatter_block(input, output, small, type, OpOf(c), mpi_.world),
                       c);
      case Kind::kAllGather:
        return Checked(mpi_.allgather(input, small, type, output, small, type, mpi_.world), c);
      case Kind::kAllToAll:
        return Checked(mpi_.alltoall(input, small, type, output, small, type, mpi_.world), c);
      case Kind::kSend:
        return Checked(mpi_.isend(input, small, type, c.peer, 0, mpi_.world, &task.request), c);
      case Kind::kReceive:
        return Checked(mpi_.recv(output, small, type, c.peer, 0, mpi_.world, nullptr), c);
    }
    return {};
  }

  const Mpi mpi_;
  const int rank_, size_;
  void *float16_[3] = {}, *bfloat16_[3] = {};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> queue_;
  std::vector<std::shared_ptr<Task>> sends_;  // under way
  std::optional<std::string> aborted_;
  int in_flight_ = 0;
  bool ended_ = false;
  std::thread worker_;
};

class MpiWork : public Work {
 public:
  MpiWork(MpiGroup& group, std::shared_ptr<Task> task) : group_(group), task_(std::move(task)) {}
  Status Wait(Clock::time_point deadline) override { return group_.Wait(*task_, deadline); }

 private:
  MpiGroup& group_;  // outlives its works
  const std::shared_ptr<Task> task_;
};

Result<std::unique_ptr<Work>> MpiGroup::Start(const Collective& collective) {
  RETURN_IF_ERROR(CheckCollective(collective, size_));
  const bool reduces =
      collective.kind == Kind::kAllReduce || collective.kind == Kind::kReduceScatter;
  if (reduces && TypeOf(mpi_, collective.dtype) == nullptr)
    return Unsupported(collective.ToString() + ": MPI has no such reduction");
  const bool splits = collective.kind == Kind::kAllReduce || collective.kind == Kind::kBroadcast;
  if (!splits && collective.count > kLargest / 8)
    return Unsupported(collective.ToString() + ": MPI counts up to " +
                       std::to_string(kLargest / 8));
  auto task = std::make_shared<Task>(Task{collective});
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return RankFailure(*aborted_);
    queue_.push_back(task);
    ++in_flight_;
  }
  changed_.notify_all();
  return std::unique_ptr<Work>(std::make_unique<MpiWork>(*this, std::move(task)));
}

}  // namespace

Result<std::unique_ptr<Communicator>> MpiCommunicator() {
  const int launched = env::LaunchedRanks();
  if (launched == 1)
    return Unsupported("there are no other ranks: start the program by 'mpirun -n RANKS ...'");
  ASSIGN_OR_RETURN(const Mpi mpi, OpenMpi());
  int initialized = 0, provided = 0, rank = 0, size = 0;
  mpi.initialized(&initialized);
  if (!initialized && mpi.init(nullptr, nullptr, kSerialized, &provided) != 0)
    return Internal("MPI_Init_thread has failed");
  mpi.set_errhandler(mpi.world, mpi.errors_return);
  mpi.comm_rank(mpi.world, &rank);
  mpi.comm_size(mpi.world, &size);
  if (size != launched) {
    return Unsupported(std::to_string(launched) + " ranks were started, but MPI finds " +
                       std::to_string(size) + ": under SLURM, start them by 'srun --mpi=pmix'");
  }
  return std::unique_ptr<Communicator>(std::make_unique<MpiGroup>(mpi, rank, size));
}

}  // namespace caesura
