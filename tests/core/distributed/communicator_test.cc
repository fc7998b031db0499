// SPDX-License-Identifier: Apache-2.0
// The words of the control plane, carried by an engine that loses, damages and swaps them.
#include "core/distributed/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "core/base/status_macros.h"
#include "tests/core/distributed/faulty_communicator.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<int64_t>;

// One of two ranks that send the same words. `edit` changes what arrives, checksums included.
class Carrier : public Communicator {
 public:
  explicit Carrier(int rank, std::function<void(Words*)> edit = {})
      : rank_(rank), edit_(std::move(edit)) {}
  std::string name() const override { return "carrier"; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  Result<std::unique_ptr<Work>> Start(const Collective&) override { return Unsupported("none"); }
  void Abort(const std::string& why) override { aborted_ = why; }
  const std::string& aborted() const { return aborted_; }
  void LetThrough(Words sent) { other_ = std::move(sent); }
  const Words& sent() const { return sent_; }

 protected:
  Result<Words> GatherWords(std::span<const int64_t> words, Clock::time_point) override {
    sent_.assign(words.begin(), words.end());
    Words all = rank_ == 0 ? sent_ : other_;
    const Words& second = rank_ == 0 ? other_ : sent_;
    all.insert(all.end(), second.begin(), second.end());
    if (edit_) edit_(&all);
    return all;
  }

 private:
  const int rank_;
  const std::function<void(Words*)> edit_;
  std::string aborted_;
  Words sent_, other_;
};

// The words that rank 1 sends for `words`: with its checksum.
Words SentByRank1(const Words& words) {
  Carrier rank1(1);
  static_cast<void>(rank1.Gather(words, Clock::now()));
  return rank1.sent();
}

// Rank 0's result where both send `words`, and `edit` changes what arrives.
Result<Words> Arrived(const Words& words, const std::function<void(Words*)>& edit) {
  Carrier rank0(0, edit);
  rank0.LetThrough(SentByRank1(words));
  Result<Words> all = rank0.Gather(words, Clock::now());
  EXPECT_EQ(all.ok(), rank0.aborted().empty());
  return all;
}

constexpr int64_t kA = 7, kB = -1, kC = int64_t{1} << 40;

TEST(Communicator, WordsComeInTheOrderOfRanks) {
  const auto all = Arrived({kA, kB, kC}, {});
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_THAT(*all, ElementsAre(kA, kB, kC, kA, kB, kC));
  EXPECT_TRUE(Arrived({}, {}).ok());
}

TEST(Communicator, EachDamagedBitIsNoticed) {
  for (size_t word = 0; word < 8; ++word) {  // checksums, too
    for (int bit = 0; bit < 64; ++bit) {
      const auto all = Arrived({kA, kB, kC}, [&](Words* sent) {
        (*sent)[word] = static_cast<int64_t>(static_cast<uint64_t>((*sent)[word]) ^ 1ULL << bit);
      });
      ASSERT_EQ(all.status().code(), StatusCode::kRankFailure) << word << ", " << bit;
      EXPECT_THAT(all.status().message(),
                  HasSubstr("the words of rank " + std::to_string(word / 4) + " have not arrived"));
    }
  }
}

TEST(Communicator, TornWordsAreNoticed) {
  for (size_t count = 0; count < 12; ++count) {
    const auto all = Arrived({kA, kB, kC}, [&](Words* sent) { sent->resize(count); });
    EXPECT_EQ(all.ok(), count == 8);
    if (!all.ok()) {
      EXPECT_EQ(all.status().code(), StatusCode::kRankFailure);
    }
  }
}

TEST(Communicator, WordsOfAnotherRankAreNoticed) {
  const auto swapped = Arrived(
      {kA}, [](Words* sent) { std::rotate(sent->begin(), sent->begin() + 2, sent->end()); });
  EXPECT_THAT(swapped.status().message(), HasSubstr("the words of rank 0, 1 have not arrived"));
}

// The other ranks would wait for it until their time is over.
TEST(Communicator, ARankThatCannotSendItsWordsTellsTheOthers) {
  const auto ranks = LocalCommunicators(2);
  FaultyCommunicator faulty(*ranks[0]);
  faulty.At(0, [](const Collective&) { return RankFailure("planted: the link is down"); });
  const int64_t words[] = {1};
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  EXPECT_FALSE(faulty.Gather(words, deadline).ok());
  EXPECT_THAT(ranks[1]->Gather(words, deadline).status().message(), HasSubstr("planted"));
}

}  // namespace
}  // namespace caesura::testing
