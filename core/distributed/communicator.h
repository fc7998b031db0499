// SPDX-License-Identifier: Apache-2.0
// Communicator: how the ranks of one training run exchange tensors. It stands on an engine that
// others keep: threads of one process (LocalCommunicators), MPI (MpiCommunicator), NCCL
// (NcclCommunicator, core/providers/cuda/cuda_provider.h), PyTorch's process groups
// (torch_bridge/c10d_communicator.h).
//
//   auto work = communicator.Start(Collective::AllReduce(DType::kFloat32, sums, count)).value();
//   ...                                          // compute meanwhile
//   Status done = work->Wait(Clock::now() + 30s);
//
// All ranks start the same collectives in the same order. A rank that does not, or that is lost, is
// an error on the others: kRankFailure, which says what was waited for. Then the communicator is of
// no more use, and Abort ends what is in flight.
//
// Thread safety: one thread at a time, but for Abort and Work::Wait, which any thread may call.
#ifndef CAESURA_CORE_DISTRIBUTED_COMMUNICATOR_H_
#define CAESURA_CORE_DISTRIBUTED_COMMUNICATOR_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/tensor.h"
#include "core/tensor/dtype.h"

namespace caesura {

// The clock of deadlines.
using Clock = std::chrono::steady_clock;

// The reduction of kAllReduce and kReduceScatter, element by element.
enum class ReduceOp : uint8_t { kSum, kMax, kMin };

// One exchange. Memory belongs to the caller and stays as it is until the work has ended. Input and
// output of kAllReduce and kBroadcast may be the same memory; otherwise they do not overlap.
struct Collective {
  // The exchange, as one rank sees it.
  enum class Kind : uint8_t {
    kAllReduce,      // output[i] = reduction of all ranks' input[i]
    kReduceScatter,  // rank r gets part r of what kAllReduce gives; the input has `size` parts
    kAllGather,      // the output has part r from rank r; the input is one part
    kBroadcast,      // output = input of rank `peer`
    kAllToAll,       // part s of rank r's input is part r of rank s's output
    kSend,           // input goes to rank `peer`
    kReceive,        // output comes from rank `peer`
  };
  Kind kind = Kind::kAllReduce;
  DType dtype = DType::kFloat32;
  const void* input = nullptr;
  void* output = nullptr;
  int64_t count = 0;  // elements of one part; of kAllReduce, kBroadcast, kSend, kReceive: of all
  ReduceOp op = ReduceOp::kSum;
  int peer = 0;
  void* stream = nullptr;  // that the memory is ready on (KernelContext::device_stream)

  // In place.
  static Collective AllReduce(DType dtype, void* data, int64_t count,
                              ReduceOp op = ReduceOp::kSum) {
    return {Kind::kAllReduce, dtype, data, data, count, op};
  }
  static Collective Broadcast(DType dtype, void* data, int64_t count, int root = 0) {
    return {Kind::kBroadcast, dtype, data, data, count, ReduceOp::kSum, root};
  }
  static Collective AllGather(DType dtype, const void* part, void* all, int64_t count) {
    return {Kind::kAllGather, dtype, part, all, count};
  }
  static Collective ReduceScatter(DType dtype, const void* all, void* part, int64_t count) {
    return {Kind::kReduceScatter, dtype, all, part, count};
  }
  static Collective AllToAll(DType dtype, const void* input, void* output, int64_t count) {
    return {Kind::kAllToAll, dtype, input, output, count};
  }
  static Collective Send(DType dtype, const void* data, int64_t count, int to) {
    return {Kind::kSend, dtype, data, nullptr, count, ReduceOp::kSum, to};
  }
  static Collective Receive(DType dtype, void* data, int64_t count, int from) {
    return {Kind::kReceive, dtype, nullptr, data, count, ReduceOp::kSum, from};
  }

  // The number of parts of `count` elements that the input and the output have among `size` ranks.
  int InputParts(int size) const {
    return kind == Kind::kReduceScatter || kind == Kind::kAllToAll ? size : 1;
  }
  int OutputParts(int size) const {
    return kind == Kind::kAllGather || kind == Kind::kAllToAll ? size : 1;
  }
  // "all_reduce of 1024 float32 (sum)"
  std::string ToString() const;
};

// A collective in flight. Destroying it does not end it.
class Work {
 public:
  virtual ~Work() = default;
  // Waits until the output is there, at most until `deadline`. Ok: the memory is the caller's
  // again. Where the collective has a stream, that stream waits, not the host: the memory is the
  // caller's in its order, and a lost rank may show only at a later call, in Gather at the latest.
  // kRankFailure: a rank is lost or late, or does something else; the memory is the caller's again
  // after Communicator::Abort.
  virtual Status Wait(Clock::time_point deadline) = 0;
};

// Words that are on their way to all ranks. It does not outlive its communicator, which it aborts
// where nobody has waited for it.
class Gathering {
 public:
  virtual ~Gathering() = default;
  // Returns the words as Communicator::Gather does. Is called once.
  virtual Result<std::vector<int64_t>> Wait(Clock::time_point deadline) = 0;
  // After Wait: what this rank has sent beside its words.
  virtual std::span<const int64_t> load(int rank) const = 0;
};

// One rank's end of a group of ranks. It outlives its works.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string name() const = 0;  // of the engine: "local", "c10d gloo", "mpi"
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The device whose memory its collectives exchange.
  virtual Device device() const { return {}; }
  // The time that its users wait for the other ranks where they are not told otherwise.
  virtual std::chrono::milliseconds timeout() const { return std::chrono::minutes(10); }
  // Fails with kUnsupported where the engine has no such collective, with kInvalidArgument where
  // dtype, peer or memory make no sense.
  virtual Result<std::unique_ptr<Work>> Start(const Collective& collective) = 0;
  // Ends all works in flight and all later ones with kRankFailure for this reason. When it returns,
  // nothing reads or writes their memory any more.
  virtual void Abort(const std::string& why) = 0;
  // The control plane: every rank's words in the order of ranks (size() * words.size() of them). In
  // host memory, whatever device the tensors are on; a device's collectives have ended before it
  // comes back. Ranks decide by these words whether a step counts, so each rank's checksum goes
  // with them: words that arrive otherwise than they were sent are kRankFailure. Where it fails it
  // has ended the communicator (Abort): the others learn of it, wherever they wait.
  Result<std::vector<int64_t>> Gather(std::span<const int64_t> words, Clock::time_point deadline);
  // Gather beside other work. It waits for no collective of a device. `load`: goes with the words,
  // without a checksum, and is as long on all ranks.
  virtual Result<std::unique_ptr<Gathering>> StartGather(std::span<const int64_t> words,
                                                         std::vector<int64_t> load = {});
  // A meeting: all ranks come to it, whatever each of them does next. It is StartGather with a load
  // of room() words, which is filled up with zeros. The room that a rank asks for here is there
  // from the end of the meeting on; where ranks ask for different ones, the largest of these.
  // REQUIRES: load.size() <= room(); 0 <= asks <= kMostRoom.
  Result<std::unique_ptr<Gathering>> StartMeeting(std::span<const int64_t> words,
                                                  std::vector<int64_t> load = {}, int64_t asks = 0);
  // The words of a meeting to which this rank brings no load. Where it fails it has ended the
  // communicator.
  Result<std::vector<int64_t>> Meet(std::span<const int64_t> words, Clock::time_point deadline);
  // 0 at first. It belongs to the group of ranks: communicators of one group have it in common.
  virtual int64_t& room() { return room_; }
  static constexpr int64_t kMostRoom = (512 << 10) / sizeof(int64_t);

 protected:
  // Gather without the checksums.
  virtual Result<std::vector<int64_t>> GatherWords(std::span<const int64_t> words,
                                                   Clock::time_point deadline);

 private:
  int64_t room_ = 0;
};

// kInvalidArgument for a collective that no communicator of `size` ranks can do.
Status CheckCollective(const Collective& collective, int size);

// --- engines ---

// Ranks as threads of one process: the communicators of `size` ranks, one for each thread.
// Collectives run on a thread of their own; sums are made in the order of ranks, in float64 or the
// integer's own type: all ranks get the same bits in every run. REQUIRES: size >= 1.
std::vector<std::unique_ptr<Communicator>> LocalCommunicators(int size);

// Ranks that `mpirun` or SLURM's `srun` has started, without LibTorch: those of this process's
// launcher (env::LaunchedRanks). Once a process. Open MPI's library is opened at run time: nothing
// needs it to build or to start. Collectives run on a
// thread of their own. MPI has no way to end a collective that a lost rank never comes to: Abort,
// where one is in flight, says why on stderr and ends the whole job. Fails with kNotFound where
// there is no Open MPI, with kUnsupported without a launcher, or where MPI does not find its ranks.
Result<std::unique_ptr<Communicator>> MpiCommunicator();

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_COMMUNICATOR_H_
