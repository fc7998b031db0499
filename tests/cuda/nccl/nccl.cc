// SPDX-License-Identifier: Apache-2.0
// A stand-in for NCCL. A collective stands at the head of its stream until all ranks' streams have
// come to theirs, as NCCL's kernels wait for each other. Ranks are threads of one process; or,
// where the variable STANDIN_NCCL_FOLDER names a folder, of several ones that all have it.
#include "nccl/exchange.h"
#include <cuda.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include "standin.h"

using standin_nccl::Group;
using standin_nccl::Part;

struct ncclComm {
  std::shared_ptr<Group> group;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  int rank = 0;
  CUcontext context = nullptr;
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sends, receives;  // by peer
  bool asked = false;  // ncclCommGetAsyncError since the last call that was in progress
  std::string error;
};

namespace {

std::mutex lock;  // of what follows; the driver's own lock guards a group while streams run
std::map<std::string, std::shared_ptr<Group>> groups;
std::uint64_t next_id = 1, living = 0;

// Between ncclGroupStart and ncclGroupEnd: on this thread.
struct Call {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  Part part;
};
thread_local int depth = 0;
thread_local std::vector<Call> grouped;

ncclResult_t Planned(const char* function) {
  return static_cast<ncclResult_t>(standin_called(function));
}

// One launch: what one communicator does on one stream.
struct Launch {
  std::shared_ptr<Group> group;
  std::shared_ptr<std::atomic<bool>> aborted;  // by this rank: the others would wait for ever
  int rank = 0;
  std::vector<Part> parts;
  bool arrived = false;
};

int Run(void* argument) {
  auto& launch = *static_cast<Launch*>(argument);
  Group& group = *launch.group;
  if (*launch.aborted) return CUDA_SUCCESS;
  if (!launch.arrived) {
    for (const Part& part : launch.parts) group.Arrive(launch.rank, part);
  }
  launch.arrived = true;
  for (const Part& part : launch.parts) {
    if (!group.IsWhole(launch.rank, part)) return CUDA_ERROR_NOT_READY;
  }
  for (const Part& part : launch.parts) group.Finish(launch.rank, part);
  return CUDA_SUCCESS;
}

ncclResult_t Enqueue(const std::vector<Call>& calls) {
  auto launch = std::make_unique<Launch>();
  launch->group = calls.front().comm->group;
  launch->aborted = calls.front().comm->aborted;
  launch->rank = calls.front().comm->rank;
  std::vector<standin_range> ranges;
  for (const Call& call : calls) {
    const std::size_t in = standin_nccl::InputBytes(call.part, launch->group->ranks);
    const std::size_t out = standin_nccl::OutputBytes(call.part, launch->group->ranks);
    if (in > 0) ranges.push_back({call.part.input, in, 0});
    if (out > 0) ranges.push_back({call.part.output, out, 1});
    launch->parts.push_back(call.part);
  }
  const int error = standin_enqueue(
      calls.front().stream, "nccl", ranges.data(), ranges.size(), Run,
      [](void* at) { delete static_cast<Launch*>(at); }, launch.release());
  return error == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t Refuse(ncclComm_t comm, const std::string& why) {
  if (comm != nullptr) comm->error = why;
  standin_add_report(("nccl: " + why).c_str());
  return ncclInvalidArgument;
}

// The next of this communicator's collectives, or of its messages to or from a peer.
std::uint64_t Number(ncclComm& comm, const Part& part) {
  if (part.kind == Part::Kind::kSend) return comm.sends[part.peer]++;
  if (part.kind == Part::Kind::kReceive) return comm.receives[part.peer]++;
  return comm.collectives++;
}

ncclResult_t Add(const char* function, ncclComm_t comm, cudaStream_t stream, Part part) {
  if (const ncclResult_t planned = Planned(function); planned != ncclSuccess) return planned;
  if (comm == nullptr) return Refuse(comm, std::string(function) + " without a communicator");
  if (standin_nccl::SizeOf(part.type) == 0) return Refuse(comm, "no such data type");
  if (part.peer < 0 || part.peer >= comm->group->ranks) return Refuse(comm, "no such rank");
  if (part.op != ncclSum && part.op != ncclMax && part.op != ncclMin)
    return Refuse(comm, "an operation that the stand-in does not have");
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  if (current != comm->context)
    return Refuse(comm, std::string(function) + ": the context of another device is current");
  part.number = Number(*comm, part);
  if (depth > 0) {
    grouped.push_back({comm, stream, part});
    return ncclSuccess;
  }
  return Enqueue({{comm, stream, part}});
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "" : comm->error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t planned = Planned("ncclGetUniqueId"); planned != ncclSuccess)
    return planned;
  const std::lock_guard guard(lock);
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "standin-%d-%llu", static_cast<int>(getpid()),
                static_cast<unsigned long long>(next_id++));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (const ncclResult_t planned = Planned("ncclCommInitRankConfig"); planned != ncclSuccess)
    return planned;
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0)
    return Refuse(nullptr, "the stand-in has communicators that do not block only");
  if (rank < 0 || rank >= ranks) return Refuse(nullptr, "no such rank");
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  if (current == nullptr) return Refuse(nullptr, "no context is current");
  const std::lock_guard guard(lock);
  std::shared_ptr<Group>& group = groups[id.internal];
  if (group == nullptr) {
    const char* const folder = std::getenv("STANDIN_NCCL_FOLDER");
    group = folder == nullptr
                ? standin_nccl::GroupOfThreads(ranks)
                : standin_nccl::GroupInFolder(ranks, std::string(folder) + "/" + id.internal);
  }
  group->Join(rank);
  *comm = new ncclComm;
  (*comm)->group = group;
  (*comm)->rank = rank;
  (*comm)->context = current;
  ++living;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (const ncclResult_t planned = Planned("ncclCommGetAsyncError"); planned != ncclSuccess) {
    *error = planned;
    return ncclSuccess;
  }
  const std::lock_guard guard(lock);
  const bool whole = comm->group->HasAll() && comm->asked;
  comm->asked = true;  // the first answer is that it goes on
  *error = whole ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard guard(lock);
  comm->asked = false;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard guard(lock);
  --living;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard guard(lock);
    *comm->aborted = true;
    --living;
  }
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0 || --depth > 0) return depth > 0 ? ncclSuccess : ncclInvalidUsage;
  // A launch for each communicator.
  std::vector<std::vector<Call>> launches;
  for (const Call& call : std::exchange(grouped, {})) {
    auto same = [&](const auto& launch) { return launch.front().comm == call.comm; };
    auto found = std::find_if(launches.begin(), launches.end(), same);
    if (found == launches.end()) found = launches.emplace(launches.end());
    found->push_back(call);
  }
  for (const auto& launch : launches) {
    if (const ncclResult_t result = Enqueue(launch); result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, stream, {Part::Kind::kAllReduce, in, out, count, type, op});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, stream, {Part::Kind::kReduceScatter, in, out, count, type, op});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, stream, {Part::Kind::kAllGather, in, out, count, type});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, stream, {Part::Kind::kBroadcast, in, out, count, type, ncclSum, root});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(__func__, comm, stream, {Part::Kind::kSend, in, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(__func__, comm, stream,
             {Part::Kind::kReceive, nullptr, out, count, type, ncclSum, peer});
}

uint64_t standin_nccl_communicators(void) {
  const std::lock_guard guard(lock);
  return living;
}

}  // extern "C"
