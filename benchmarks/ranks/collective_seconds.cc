// SPDX-License-Identifier: Apache-2.0
// The simulated communicator's time of exchanges: rank_model.py's formulas are tested against it.
//
//   echo all_reduce 4 4000000 1e-5 1e9 | build/bin/collective_seconds      prints 0.00606
//
// A line of the input has the kind, the number of ranks, the bytes of the whole block, the link's
// latency in seconds and its bytes a second. Each line gives a line of output.
#include <cstdint>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>

#include "core/distributed/simulated_communicator.h"

int main() {
  using caesura::Collective;
  const std::map<std::string, Collective::Kind> kinds = {
      {"all_reduce", Collective::Kind::kAllReduce},
      {"reduce_scatter", Collective::Kind::kReduceScatter},
      {"all_gather", Collective::Kind::kAllGather},
      {"all_to_all", Collective::Kind::kAllToAll}};
  std::string kind;
  int ranks = 0;
  int64_t bytes = 0;
  caesura::Link link;
  while (std::cin >> kind >> ranks >> bytes >> link.latency_seconds >> link.bytes_per_second) {
    const auto found = kinds.find(kind);
    if (found == kinds.end() || ranks < 1 || link.bytes_per_second <= 0) {
      std::cerr << "expected a kind of exchange, ranks above 0 and a rate above 0; got '" << kind
                << "', " << ranks << " and " << link.bytes_per_second << '\n';
      return 2;
    }
    Collective collective{.kind = found->second, .dtype = caesura::DType::kUInt8};
    collective.count = collective.kind == Collective::Kind::kAllReduce ? bytes : bytes / ranks;
    std::cout << std::setprecision(17) << CollectiveSeconds(collective, ranks, link) << '\n';
  }
}
