// SPDX-License-Identifier: Apache-2.0
#include "tests/core/distributed/communicator_suite.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "core/base/status_macros.h"

namespace caesura::testing {
namespace {

using std::chrono::seconds;

Status Run(Communicator& c, const Collective& collective) {
  ASSIGN_OR_RETURN(const auto work, c.Start(collective));
  return work->Wait(Clock::now() + seconds(60));
}

std::string Text(const Status& status) { return status.ok() ? "" : status.ToString(); }

template <typename T>
std::string Compare(const std::vector<T>& got, const std::vector<T>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = got[i] == want[i] || (got[i] != got[i] && want[i] != want[i]);
    if (!same)
      return "element " + std::to_string(i) + ": expected " +
             std::to_string(static_cast<double>(want[i])) + ", got " +
             std::to_string(static_cast<double>(got[i]));
  }
  return "";
}

// Small whole numbers: every dtype holds their sums.
template <typename T>
std::string SumsOf(Communicator& c) {
  std::vector<T> data(37), want(37);
  const int ranks = c.size() * (c.size() + 1) / 2;
  for (int i = 0; i < 37; ++i) {
    data[i] = static_cast<T>(static_cast<float>((c.rank() + 1) * (i % 3)));
    want[i] = static_cast<T>(static_cast<float>(ranks * (i % 3)));
  }
  const Status status = Run(c, Collective::AllReduce(DTypeOf<T>::value, data.data(), 37));
  const std::string wrong = status.ok() ? Compare(data, want) : status.ToString();
  return wrong.empty() ? "" : std::string(DTypeName(DTypeOf<T>::value)) + ": " + wrong;
}

std::string AllReduce(Communicator& c) {
  return SumsOf<float>(c) + SumsOf<double>(c) + SumsOf<Float16>(c) + SumsOf<BFloat16>(c) +
         SumsOf<int32_t>(c) + SumsOf<int64_t>(c) + SumsOf<uint8_t>(c);
}

std::string MinMax(Communicator& c) {
  std::vector<float> high = {static_cast<float>(c.rank()), 5}, low = high;
  std::string wrong =
      Text(Run(c, Collective::AllReduce(DType::kFloat32, high.data(), 2, ReduceOp::kMax)));
  wrong += Text(Run(c, Collective::AllReduce(DType::kFloat32, low.data(), 2, ReduceOp::kMin)));
  return wrong + Compare(high, {static_cast<float>(c.size() - 1), 5}) + Compare(low, {0, 5});
}

// One rank's NaN and infinity arrive on all ranks.
std::string NotFinite(Communicator& c) {
  std::vector<float> data = {c.rank() == c.size() - 1 ? NAN : 1.f, c.rank() == 0 ? INFINITY : 1.f};
  const std::string wrong = Text(Run(c, Collective::AllReduce(DType::kFloat32, data.data(), 2)));
  return wrong + Compare(data, {NAN, INFINITY});
}

std::string ReduceScatter(Communicator& c) {
  const int n = c.size();
  std::vector<float> data(5 * n), part(5), want(5);
  for (int i = 0; i < 5 * n; ++i) data[i] = static_cast<float>(c.rank() + i);
  for (int i = 0; i < 5; ++i)
    want[i] = static_cast<float>(n * (n - 1) / 2 + n * (5 * c.rank() + i));
  const std::string wrong =
      Text(Run(c, Collective::ReduceScatter(DType::kFloat32, data.data(), part.data(), 5)));
  return wrong + Compare(part, want);
}

std::string AllGather(Communicator& c) {
  std::vector<int64_t> part = {c.rank(), 7}, all(2 * c.size()), want;
  for (int r = 0; r < c.size(); ++r) want.insert(want.end(), {r, 7});
  const std::string wrong =
      Text(Run(c, Collective::AllGather(DType::kInt64, part.data(), all.data(), 2)));
  return wrong + Compare(all, want);
}

std::string Broadcast(Communicator& c) {
  std::string wrong;
  for (int root = 0; root < c.size(); ++root) {
    std::vector<double> data(3, c.rank());
    wrong += Text(Run(c, Collective::Broadcast(DType::kFloat64, data.data(), 3, root)));
    wrong += Compare(data, std::vector<double>(3, root));
  }
  return wrong;
}

std::string AllToAll(Communicator& c) {
  std::vector<int32_t> in(2 * c.size()), out(2 * c.size()), want;
  std::iota(in.begin(), in.end(), 100 * c.rank());
  for (int r = 0; r < c.size(); ++r)
    want.insert(want.end(), {100 * r + 2 * c.rank(), 100 * r + 2 * c.rank() + 1});
  const std::string wrong =
      Text(Run(c, Collective::AllToAll(DType::kInt32, in.data(), out.data(), 2)));
  return wrong + Compare(out, want);
}

// Round the ring: to the next rank, from the one before.
std::string SendReceive(Communicator& c) {
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  if (c.size() == 1) return "";
  std::vector<float> out = {static_cast<float>(c.rank())}, in = {-1};
  auto sent = c.Start(Collective::Send(DType::kFloat32, out.data(), 1, next));
  auto received = c.Start(Collective::Receive(DType::kFloat32, in.data(), 1, before));
  if (!sent.ok() || !received.ok()) return Text(sent.status()) + Text(received.status());
  const auto deadline = Clock::now() + seconds(60);
  std::string wrong = Text((*sent)->Wait(deadline)) + Text((*received)->Wait(deadline));
  return wrong + Compare(in, {static_cast<float>(before)});
}

// Many in flight, waited for in another order than they were started.
std::string ManyInFlight(Communicator& c) {
  std::vector<std::vector<float>> data;
  std::vector<std::unique_ptr<Work>> works;
  for (int k = 0; k < 16; ++k) data.emplace_back(1000 * (k % 4), static_cast<float>(k));
  for (auto& block : data) {
    auto work = c.Start(
        Collective::AllReduce(DType::kFloat32, block.data(), static_cast<int64_t>(block.size())));
    if (!work.ok()) return Text(work.status());
    works.push_back(*std::move(work));
  }
  std::string wrong;
  for (int k = 15; k >= 0; --k) {
    wrong += Text(works[k]->Wait(Clock::now() + seconds(60)));
    wrong += Compare(data[k], std::vector<float>(data[k].size(), static_cast<float>(k * c.size())));
  }
  return wrong;
}

// All ranks get the same bits, whatever the order of their sums.
std::string SameBits(Communicator& c) {
  std::vector<float> data(999);
  for (int i = 0; i < 999; ++i) data[i] = std::sin(static_cast<float>(i * (c.rank() + 1)));
  std::string wrong = Text(Run(c, Collective::AllReduce(DType::kFloat32, data.data(), 999)));
  std::vector<float> first = data;
  wrong += Text(Run(c, Collective::Broadcast(DType::kFloat32, first.data(), 999)));
  return wrong + (std::memcmp(first.data(), data.data(), 999 * 4) == 0 ? "" : "other bits");
}

std::string GatherWords(Communicator& c) {
  const int64_t words[] = {c.rank(), INT64_MIN};
  auto all = c.Gather(words, Clock::now() + seconds(60));
  if (!all.ok()) return Text(all.status());
  std::vector<int64_t> want;
  for (int r = 0; r < c.size(); ++r) want.insert(want.end(), {r, INT64_MIN});
  auto started = c.StartGather(words);
  if (!started.ok()) return Text(started.status());
  auto later = (*started)->Wait(Clock::now() + seconds(60));
  if (!later.ok()) return Text(later.status());
  if (*later != want) return "other words beside other work";
  return all->size() == want.size() ? Compare(*all, want) : "another number of words";
}

// Each rank brings another load, and the last rank asks for the most room.
std::string Meetings(Communicator& c) {
  std::string wrong;
  const int64_t asked[] = {3, 3, 0, 0};
  int64_t room = 0;
  for (const int64_t most : asked) {
    if (c.room() != room) wrong += "there is room for " + std::to_string(c.room()) + "; ";
    const int64_t words[] = {c.rank() + 7};
    std::vector<int64_t> load(room > 0 ? 1 + c.rank() % 2 : 0, c.rank() + 1);
    auto meeting =
        c.StartMeeting(words, std::move(load), c.rank() + 1 == c.size() ? most : most / 2);
    if (!meeting.ok()) return wrong + Text(meeting.status());
    const auto all = (*meeting)->Wait(Clock::now() + seconds(60));
    if (!all.ok()) return wrong + Text(all.status());
    for (int r = 0; r < c.size(); ++r) {
      const std::span<const int64_t> given = (*meeting)->load(r);
      std::vector<int64_t> want(room > 0 ? 1 + r % 2 : 0, r + 1);
      want.resize(static_cast<size_t>(room));
      wrong += Compare(std::vector<int64_t>(given.begin(), given.end()), want);
      wrong += Compare(std::vector<int64_t>{(*all)[r]}, {r + 7});
    }
    room = most;
  }
  return wrong;
}

std::string WrongArguments(Communicator& c) {
  float data[2] = {};
  const Collective wrong[] = {Collective::AllReduce(DType::kString, data, 1),
                              Collective::AllReduce(DType::kBool, data, 1),
                              Collective::AllReduce(DType::kFloat32, data, -1),
                              Collective::AllReduce(DType::kFloat32, nullptr, 1),
                              Collective::Broadcast(DType::kFloat32, data, 1, c.size())};
  for (const Collective& collective : wrong) {
    const auto work = c.Start(collective);
    if (work.status().code() != StatusCode::kInvalidArgument)
      return collective.ToString() + ": " + work.status().ToString();
  }
  return "";
}

}  // namespace

const std::vector<RankCheck>& RankChecks() {
  static const std::vector<RankCheck> checks = {
      {"all_reduce", AllReduce},
      {"min_max", MinMax},
      {"not_finite", NotFinite},
      {"reduce_scatter", ReduceScatter},
      {"all_gather", AllGather},
      {"broadcast", Broadcast},
      {"all_to_all", AllToAll},
      {"send_receive", SendReceive},
      {"many_in_flight", ManyInFlight},
      {"same_bits", SameBits},
      {"gather_words", GatherWords},
      {"meetings", Meetings},
      {"wrong_arguments", WrongArguments},
  };
  return checks;
}

}  // namespace caesura::testing
