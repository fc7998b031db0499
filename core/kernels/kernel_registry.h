// SPDX-License-Identifier: Apache-2.0
// The kernels of one provider: an ordered table per op, best first. Filled by explicit lists
// (core/ops/families.inc), never by static initialisers.
//
// Thread safety: const access from many threads, once filled.
#ifndef CAESURA_CORE_KERNELS_KERNEL_REGISTRY_H_
#define CAESURA_CORE_KERNELS_KERNEL_REGISTRY_H_

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

// The kernels of one provider, by op. It owns their definitions; pointers to them live as long as
// it does.
class KernelRegistry {
 public:
  // Candidates of one op are asked in the order in which they were added.
  void Add(KernelDef def);

  // The candidates whose domain, version and dtype fit `node`, given the dtype of each input
  // (kUndefined where unknown or absent: accepted). Empty when there is none; then `why`, if given,
  // says why each candidate lost.
  std::vector<const KernelDef*> Find(const Node& node, const std::vector<DType>& input_dtypes,
                                     std::string* why = nullptr) const;
  // By the graph's own types.
  std::vector<const KernelDef*> Find(const Node& node, std::string* why = nullptr) const;

  // Asks the candidates in order; the first factory that accepts wins. A kDeclined answer passes
  // on to the next candidate, any other failure is returned. The error of a missing kernel names
  // the op, the node, `provider`, and the reason of every candidate.
  Result<const KernelDef*> Create(KernelInfo& info, const std::string& provider) const;

  // Every definition, in order of registration: for tables, tests and reports.
  const std::deque<KernelDef>& defs() const { return defs_; }

 private:
  std::deque<KernelDef> defs_;
  std::unordered_map<std::string, std::vector<const KernelDef*>> by_op_;  // "domain::op_type"
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_KERNEL_REGISTRY_H_
