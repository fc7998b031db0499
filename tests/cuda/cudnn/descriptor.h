// SPDX-License-Identifier: Apache-2.0
// cuDNN's descriptors: attributes by number, each of one type.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <vector>
#include "cudnn/graph.h"

namespace standin_cudnn {

struct Descriptor;
using DescriptorPtr = std::shared_ptr<Descriptor>;

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::int64_t count = 0;
  std::vector<char> bytes;
  std::vector<DescriptorPtr> descriptors;
};

struct Descriptor {
  cudnnBackendDescriptorType_t kind;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  // The meaning of the attributes, once final.
  TensorPtr tensor;
  std::shared_ptr<const Operation> operation;
  std::vector<Operation> graph;

  bool Has(int attribute) const { return attributes.count(attribute) != 0; }
  template <typename T>
  T Get(int attribute, T fallback = {}) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return fallback;
    T value;
    std::memcpy(&value, found->second.bytes.data(), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> All(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(static_cast<std::size_t>(found->second.count));
    std::memcpy(values.data(), found->second.bytes.data(), found->second.bytes.size());
    return values;
  }
  DescriptorPtr Part(int attribute) const {
    const auto found = attributes.find(attribute);
    return found == attributes.end() ? nullptr : found->second.descriptors.front();
  }

  cudnnStatus_t Set(int attribute, cudnnBackendAttributeType_t type, std::int64_t count,
                    const void* from);
  cudnnStatus_t Finalize();
};

}  // namespace standin_cudnn
