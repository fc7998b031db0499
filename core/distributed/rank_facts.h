// SPDX-License-Identifier: Apache-2.0
// Facts that all ranks of a run must have in common, and how they tell each other what differs.
#ifndef CAESURA_CORE_DISTRIBUTED_RANK_FACTS_H_
#define CAESURA_CORE_DISTRIBUTED_RANK_FACTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/distributed/communicator.h"

namespace caesura {

// Names and values, in an order that says nothing. A name may come more than once.
using RankFacts = std::vector<std::pair<std::string, std::string>>;

// Each rank's text, by rank; all ranks call it. A failure is that of Communicator::Gather.
Result<std::vector<std::string>> GatherTexts(Communicator& communicator, const std::string& own,
                                             Clock::time_point deadline);

// Each rank's facts, by rank; all ranks call it.
Result<std::vector<RankFacts>> GatherFacts(Communicator& communicator, const RankFacts& own,
                                           Clock::time_point deadline);

// The facts of which rank 0 and another rank have different values, the first few of them: "lr is
// 0.1 on rank 0, 0.01 on rank 1; ...". Empty: there are none.
std::string DifferencesOfRanks(const std::vector<RankFacts>& by_rank);

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_RANK_FACTS_H_
