// SPDX-License-Identifier: Apache-2.0
// The tensors that change between runs (weights, running statistics, optimizer state) and their
// versions.
#ifndef CAESURA_CORE_EXECUTE_PARAMETER_SET_H_
#define CAESURA_CORE_EXECUTE_PARAMETER_SET_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

// Named tensors, each with a version that a write moves. It shares the tensors' bytes with its
// owner. Thread safety: reading from many threads; changing needs the only hand, and no run in
// flight.
class ParameterSet {
 public:
  // Returns the index.
  int Add(std::string name, Tensor tensor) {
    index_[name] = static_cast<int>(entries_.size());
    entries_.push_back({std::move(name), std::move(tensor), ++clock_});
    return static_cast<int>(entries_.size()) - 1;
  }
  int size() const { return static_cast<int>(entries_.size()); }
  // -1 when there is none.
  int Find(const std::string& name) const {
    auto it = index_.find(name);
    return it == index_.end() ? -1 : it->second;
  }
  const std::string& name(int i) const { return entries_[i].name; }
  const Tensor& tensor(int i) const { return entries_[i].tensor; }
  // Puts another tensor (same dtype and shape) in its place.
  void Replace(int i, Tensor tensor) {
    entries_[i].tensor = std::move(tensor);
    Touch(i);
  }
  // Grows with every change; nothing else tells the value cache that bytes have changed.
  uint64_t version(int i) const { return entries_[i].version; }
  void Touch(int i) { entries_[i].version = ++clock_; }
  void TouchAll() {
    for (Entry& entry : entries_) entry.version = ++clock_;
  }

 private:
  struct Entry {
    std::string name;
    Tensor tensor;
    uint64_t version;
  };
  std::vector<Entry> entries_;
  std::unordered_map<std::string, int> index_;
  uint64_t clock_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_PARAMETER_SET_H_
