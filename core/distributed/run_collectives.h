// SPDX-License-Identifier: Apache-2.0
// The collectives of one run: kernels start them and wait for them by their numbers.
#ifndef CAESURA_CORE_DISTRIBUTED_RUN_COLLECTIVES_H_
#define CAESURA_CORE_DISTRIBUTED_RUN_COLLECTIVES_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/distributed/communicator.h"

namespace caesura {

// Owns the collectives in flight of one run. Thread safety: one thread at a time.
class RunCollectives {
 public:
  // The words of a meeting besides those that are compared.
  static constexpr size_t kAgreedWords = 2;

  // Each wait takes `timeout` at most. The communicator outlives this. `flag`: where it is true on
  // any rank at Agree, or RaiseFlag was called there, all ranks learn it.
  RunCollectives(Communicator& communicator, std::chrono::milliseconds timeout,
                 std::shared_ptr<const std::atomic<bool>> flag = nullptr)
      : communicator_(communicator), timeout_(timeout), flag_(std::move(flag)) {}
  // Aborts the communicator where a collective is in flight: its memory ends here.
  ~RunCollectives();
  RunCollectives(const RunCollectives&) = delete;
  RunCollectives& operator=(const RunCollectives&) = delete;

  // Has all ranks compare these words before the run starts its first collective. `at_once`: their
  // exchange begins with the run, and goes on beside it. Where words differ, all ranks' runs fail
  // with kInvalidArgument and have exchanged nothing else. `uses`: a bit for each row of
  // parameters that this rank uses; ranks may have others. `load`: so many words of collectives
  // that are started before the first wait are exchanged at that wait, all in one meeting, which is
  // the agreement, too, if no collective comes after it. The words that are compared go with them
  // if the ranks have met with such a load before. REQUIRES: load <= Communicator::kMostRoom; the
  // collectives' memory is the host's; ranks with equal words have equal loads.
  void Compare(std::span<const int64_t> words, std::span<const int64_t> uses, bool at_once,
               int64_t load = 0);
  // The run begins.
  Status Begin();
  // True if the run has ended as words differ.
  bool differs() const { return differs_; }
  // After the comparison: true if any rank uses the row, or if the run has told of no such row
  // (models come from files: they may name any number).
  bool used(int64_t row) const {
    constexpr int64_t kBits = 64;
    const bool told = row >= 0 && row / kBits < static_cast<int64_t>(uses_.size());
    return !told || ((uses_[row / kBits] >> (row % kBits)) & 1) != 0;
  }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  // Starts nothing where no rank uses the row; its Wait then comes back at once.
  Status Start(int64_t number, const Collective& collective, int64_t row = -1);
  Status Wait(int64_t number);
  // Starts a collective and waits for it.
  Status Run(const Collective& collective);
  // A number that Agree sums over all ranks.
  void Share(double number) { number_ = number; }
  // Raises the flag for this run only: other runs may share the flag itself.
  void RaiseFlag() { raises_flag_ = true; }
  // Comes back once all ranks have come to it: every rank has the results of all collectives
  // before it, or all that it needs to make them.
  Status Agree();
  bool agreed() const { return agreed_; }
  // After Agree:
  bool flag_raised() const { return flag_raised_; }
  double shared_sum() const { return sum_; }

 private:
  // A collective of the load, which has not begun.
  struct Waiting {
    int64_t number;
    Collective collective;
    int64_t row;
    int64_t at;  // its first word in the load
  };

  // Keeps the collective for the load. False if it does not go there.
  bool TakesAlong(int64_t number, const Collective& collective, int64_t row);
  // This rank's part of the agreement.
  std::vector<int64_t> OwnWords() const;
  // A meeting with words_, OwnWords and a load.
  Result<std::unique_ptr<Gathering>> StartMeeting(std::vector<int64_t> load);
  Status StartComparison();
  // Waits until all words are known to be the same.
  Status Compared();
  // Takes words_ and OwnWords of all ranks.
  Status Take(const std::vector<int64_t>& all);
  // Does all collectives that wait.
  Status Meet();
  // Aborts the communicator after a failure, so that nothing touches the run's memory any more.
  Status Checked(Status status);

  Communicator& communicator_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const std::atomic<bool>> flag_;
  std::map<int64_t, std::unique_ptr<Work>> works_;  // in flight; null: of a row of no use
  double number_ = 0, sum_ = 0;
  std::vector<int64_t> words_;             // to be exchanged; empty: none
  std::vector<int64_t> uses_;              // the last of them; after the comparison all ranks'
  std::unique_ptr<Gathering> comparison_;  // under way
  std::vector<Waiting> waiting_;
  int64_t load_ = 0, loaded_ = 0;  // room for the load; words of it that are taken
  bool has_met_ = false;           // for the load, and nothing was exchanged since
  bool at_once_ = false, differs_ = false;
  bool raises_flag_ = false, agreed_ = false, flag_raised_ = false;
};

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_RUN_COLLECTIVES_H_
