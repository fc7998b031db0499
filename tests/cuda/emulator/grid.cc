// SPDX-License-Identifier: Apache-2.0
#include "emulator/grid.h"
#include <algorithm>
#include <bit>
#include <numeric>
#include <sstream>

namespace caesura_emulator {
namespace {
Stacks& ThreadStacks() {
  static thread_local Stacks stacks;
  return stacks;
}
std::string Coordinates(const unsigned (&at)[3]) {
  std::ostringstream text;
  text << '(' << at[0] << ", " << at[1] << ", " << at[2] << ')';
  return text.str();
}
void Split(std::uint64_t index, const unsigned (&size)[3], unsigned (&at)[3]) {
  at[0] = static_cast<unsigned>(index % size[0]);
  at[1] = static_cast<unsigned>(index / size[0] % size[1]);
  at[2] = static_cast<unsigned>(index / size[0] / size[1]);
}
}  // namespace

const Api Grid::kApi = {&Grid::OnAccess, &Grid::OnBarrier, &Grid::OnWarp, &Grid::OnFault};

Grid::Grid(const Launch& launch, Memory& memory, std::vector<std::string>& reports)
    : launch_(launch),
      memory_(memory),
      reports_(reports),
      shared_(launch.shared, launch.block[0] * launch.block[1] * launch.block[2]),
      order_(launch.order),
      random_(launch.seed),
      lanes_(launch.block[0] * launch.block[1] * launch.block[2]),
      threads_(lanes_) {
  if (order_ == LaneOrder::kDrawn) order_ = static_cast<LaneOrder>(1 + Draw() % 5);
}

std::uint64_t Grid::Draw() {  // splitmix64
  std::uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

bool Grid::Run() {
  Stacks& stacks = ThreadStacks();
  stacks.Grow(lanes_);
  host_ = HostContext();
  for (unsigned i = 0; i < lanes_; ++i) {
    Lane& lane = *stacks.lane(i);
    Split(i, launch_.block, lane.thread);
    std::copy(launch_.block, launch_.block + 3, lane.block_size);
    std::copy(launch_.grid, launch_.grid + 3, lane.grid_size);
    lane.api = &kApi;
    lane.scheduler = this;
  }
  std::vector<std::uint64_t> blocks(std::uint64_t{launch_.grid[0]} * launch_.grid[1] *
                                    launch_.grid[2]);
  std::iota(blocks.begin(), blocks.end(), 0);
  for (std::size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[Draw() % i]);
  return std::all_of(blocks.begin(), blocks.end(),
                     [&](std::uint64_t block) { return RunBlock(block); });
}

bool Grid::RunBlock(std::uint64_t block) {
  Stacks& stacks = ThreadStacks();
  shared_.BeginBlock();
  block_ = static_cast<std::uint32_t>(block);
  for (unsigned i = 0; i < lanes_; ++i) {
    Split(block, launch_.grid, stacks.lane(i)->block);
    threads_[i] = {};
    threads_[i].context = stacks.Start(i, &Grid::Entry);
  }
  done_ = 0;
  while (done_ < lanes_ && !failed_) {
    const bool ahead = order_ == LaneOrder::kOneWarpAhead || order_ == LaneOrder::kAnyWarpAhead;
    if (ahead ? RunWarpsAhead() : RunInOrder()) continue;
    if (failed_ || FinishBarrier()) continue;
    return false;
  }
  return !failed_;
}

bool Grid::RunInOrder() {
  std::vector<unsigned> order(lanes_);
  std::iota(order.begin(), order.end(), 0u);
  if (order_ == LaneOrder::kReverse) std::reverse(order.begin(), order.end());
  if (order_ == LaneOrder::kShuffled) {
    for (unsigned i = lanes_; i > 1; --i) std::swap(order[i - 1], order[Draw() % i]);
  }
  bool any = false;
  for (unsigned i : order) {
    if (failed_ || threads_[i].state != State::kReady) continue;
    any = true;
    Step(i);
  }
  return any;
}

bool Grid::RunWarpsAhead() {
  const unsigned warps = (lanes_ + 31) / 32;
  const unsigned start =
      order_ == LaneOrder::kAnyWarpAhead ? static_cast<unsigned>(Draw() % warps) : 0;
  for (unsigned k = 0; k < warps; ++k) {
    const unsigned first = (start + k) % warps * 32, end = std::min(lanes_, first + 32);
    bool any = false;
    for (bool more = true; more;) {
      more = false;
      for (unsigned i = first; i < end; ++i) {
        if (failed_ || threads_[i].state != State::kReady) continue;
        any = more = true;
        Step(i);
      }
    }
    if (any) return true;
  }
  return false;
}

void Grid::Step(unsigned index) {
  Thread& thread = threads_[index];
  Switch(host_, thread.context);
  if (failed_) return;
  if (thread.state == State::kDone) ++done_;
  if (thread.state == State::kWarp) FinishWarp(index);
}

void Grid::FinishWarp(unsigned index) {
  const Thread& thread = threads_[index];
  const unsigned first = index / 32 * 32;
  for (unsigned k = 0; k < 32; ++k) {
    if ((thread.mask >> k & 1) == 0) continue;
    if (first + k >= lanes_) {
      return Fail(index, "the mask of a warp operation names a lane that the block has not",
                  thread.place);
    }
    const Thread& other = threads_[first + k];
    if (other.state == State::kReady) return;  // it may still come
    if (other.state != State::kWarp) {
      return Fail(index,
                  "a warp operation misses lane " + std::to_string(k) + " of its mask, which " +
                      (other.state == State::kDone ? "has returned" : "waits for the block"),
                  thread.place);
    }
    if (other.mask != thread.mask || other.op != thread.op) {
      return Fail(index,
                  "lanes of one mask meet in different warp operations, lane " + std::to_string(k) +
                      " at " + PlaceName(other.place),
                  thread.place);
    }
  }
  for (unsigned k = 0; k < 32; ++k) {
    if ((thread.mask >> k & 1) != 0) {
      threads_[first + k].result = WarpResult(first + k, first);
      if (failed_) return;
    }
  }
  if (thread.op == WarpOp::kSync) shared_.WarpBarrier(index / 32, thread.mask);
  const unsigned mask = thread.mask;
  for (unsigned k = 0; k < 32; ++k) {
    if ((mask >> k & 1) != 0) threads_[first + k].state = State::kReady;
  }
}

std::uint64_t Grid::WarpResult(unsigned index, unsigned first) {
  const Thread& thread = threads_[index];
  if (thread.op == WarpOp::kSync) return 0;
  if (thread.op <= WarpOp::kShuffleXor) return Shuffled(index, first);
  std::uint64_t result = thread.op == WarpOp::kReduceMin ? 0xffffffffu : 0;
  for (unsigned k = 0; k < 32; ++k) {
    if ((thread.mask >> k & 1) == 0) continue;
    const std::uint64_t value = threads_[first + k].value;
    switch (thread.op) {
      case WarpOp::kBallot: result |= (value & 1) << k; break;
      case WarpOp::kMatchAny: result |= std::uint64_t{value == thread.value} << k; break;
      case WarpOp::kReduceAdd: result = (result + value) & 0xffffffffu; break;
      case WarpOp::kReduceMin: result = std::min(result, value); break;
      default: result = std::max(result, value);
    }
  }
  return result;
}

// As the tables of the shuffle instructions say: a source beyond the segment gives a lane its own
// value.
std::uint64_t Grid::Shuffled(unsigned index, unsigned first) {
  const Thread& thread = threads_[index];
  const int width = thread.width, own = static_cast<int>(index - first);
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
    Fail(index, "the width of a shuffle is " + std::to_string(width) + ", not a power of 2",
         thread.place);
    return 0;
  }
  const int segment = own / width * width;
  int source = own;
  switch (thread.op) {
    case WarpOp::kShuffle: source = segment + (thread.argument & (width - 1)); break;
    case WarpOp::kShuffleUp: source = own - thread.argument; break;
    case WarpOp::kShuffleDown: source = own + thread.argument; break;
    default: source = own ^ thread.argument;
  }
  if (thread.op == WarpOp::kShuffleUp ? source < segment : source >= segment + width) source = own;
  if ((thread.mask >> source & 1) == 0) {
    Fail(index,
         "a shuffle reads from lane " + std::to_string(source) + ", which its mask leaves out",
         thread.place);
    return 0;
  }
  return threads_[first + static_cast<unsigned>(source)].value;
}

// No thread can go on before the block's barrier opens.
bool Grid::FinishBarrier() {
  unsigned count = 0, waiting = 0, returned = 0;
  for (unsigned i = 0; i < lanes_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.state == State::kWarp) {  // it waits for lanes that do not come
      FinishWarp(i);
      return false;
    }
    (thread.state == State::kDone ? returned : waiting) = i;
    count += thread.predicate != 0;
  }
  if (done_ > 0) {
    Fail(waiting,
         "a barrier of the block is divergent: thread " +
             Coordinates(ThreadStacks().lane(returned)->thread) + " has returned before it",
         threads_[waiting].place);
    return false;
  }
  shared_.Barrier();
  for (Thread& thread : threads_) {
    thread.state = State::kReady;
    thread.result = count;
    thread.predicate = 0;
  }
  return true;
}

void Grid::Report(unsigned index, const std::string& what, const void* place) {
  if (!reported_.emplace(what, place).second) return;
  const Lane& lane = *ThreadStacks().lane(index);
  std::string text = "kernel " + launch_.kernel + ", block " + Coordinates(lane.block) +
                     ", thread " + Coordinates(lane.thread) + ": " + what;
  if (place != nullptr) text += ", at " + PlaceName(place);
  reports_.push_back(std::move(text));
}

void Grid::Fail(unsigned index, const std::string& what, const void* place) {
  failed_ = true;
  Report(index, what, place);
}

// --- What the threads call ---

Grid* Grid::Of(Lane* lane) { return static_cast<Grid*>(lane->scheduler); }

unsigned Grid::Index(const Lane* lane) const {
  return lane->thread[0] +
         launch_.block[0] * (lane->thread[1] + launch_.block[1] * lane->thread[2]);
}

void Grid::Entry() {
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  auto* lane = reinterpret_cast<Lane*>(frame & ~(kLaneBytes - 1));
  Grid* grid = Of(lane);
  Thread& thread = grid->threads_[grid->Index(lane)];
  Arrived(thread.context);
  grid->launch_.body();
  thread.state = State::kDone;
  Switch(thread.context, grid->host_, true);
}

// Does not come back after a failure: the thread is never run again.
void Grid::Yield(unsigned index) { Switch(threads_[index].context, host_, failed_); }

void Grid::OnAccess(Lane* lane, const void* pointer, unsigned bytes, unsigned flags,
                    const void* place) {
  Grid* grid = Of(lane);
  if ((flags & kFence) != 0) return grid->memory_.Fence(grid->block_);
  const unsigned index = grid->Index(lane);
  const auto at = reinterpret_cast<std::uintptr_t>(pointer);
  const char* verb = (flags & kAtomic) != 0  ? "changes"
                     : (flags & kWrite) != 0 ? "writes"
                                             : "reads";
  if (grid->shared_.Contains(at)) {
    if (grid->shared_.Valid(at, bytes)) {
      const SharedMemory::Race race = grid->shared_.Access(at, bytes, flags, index, place);
      if (race.found && grid->races_.emplace(place, race.other_place).second) {
        grid->Report(
            index,
            std::string("a barrier is missing: it ") + verb + " shared memory that thread " +
                Coordinates(ThreadStacks().lane(race.other_lane)->thread) +
                (race.other_wrote ? " wrote at " : " read at ") + PlaceName(race.other_place),
            place);
      }
      return;
    }
    grid->Fail(index,
               std::string(verb) + " out of bounds: beyond the " +
                   std::to_string(grid->launch_.shared.dynamic_bytes) +
                   " bytes of dynamic shared memory of the launch",
               place);
  } else {
    std::string race;
    const std::string why = grid->memory_.Access(at, bytes, flags, grid->block_, place, race);
    if (!race.empty()) grid->Report(index, "blocks race: it " + (verb + (" " + race)), place);
    if (why.empty()) return;
    grid->Fail(index, std::string(verb) + " out of bounds: " + why, place);
  }
  grid->Yield(index);  // for good: nothing here may hold memory
}

unsigned Grid::OnBarrier(Lane* lane, int predicate, const void* place) {
  Grid* grid = Of(lane);
  const unsigned index = grid->Index(lane);
  Thread& thread = grid->threads_[index];
  thread.state = State::kBarrier;
  thread.predicate = predicate;
  thread.place = place;
  grid->Yield(index);
  return static_cast<unsigned>(thread.result);
}

std::uint64_t Grid::OnWarp(Lane* lane, WarpOp op, unsigned mask, std::uint64_t value, int argument,
                           int width, const void* place) {
  Grid* grid = Of(lane);
  const unsigned index = grid->Index(lane);
  if (op == WarpOp::kActive) {  // any answer that holds the lane itself is right
    return std::uint64_t{1} << index % 32;
  }
  if ((mask >> index % 32 & 1) == 0) {
    grid->Fail(index, "a lane is not in the mask of its own warp operation", place);
    grid->Yield(index);
  }
  Thread& thread = grid->threads_[index];
  thread.state = State::kWarp;
  thread.op = op;
  thread.mask = mask;
  thread.value = value;
  thread.argument = argument;
  thread.width = width;
  thread.place = place;
  grid->Yield(index);
  return thread.result;
}

void Grid::OnFault(Lane* lane, const char* what, const char* file, unsigned line,
                   const void* place) {
  Grid* grid = Of(lane);
  const unsigned index = grid->Index(lane);
  grid->Fail(
      index,
      file == nullptr ? what : std::string(what) + ", at " + file + ":" + std::to_string(line),
      place);
  grid->Yield(index);
}

}  // namespace caesura_emulator
