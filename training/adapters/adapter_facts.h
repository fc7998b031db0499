// SPDX-License-Identifier: Apache-2.0
// Private to training/adapters: the adapter that a model says it has, in its metadata, and the
// names of its matrices.
#ifndef CAESURA_TRAINING_ADAPTERS_ADAPTER_FACTS_H_
#define CAESURA_TRAINING_ADAPTERS_ADAPTER_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "training/adapters/linear_layers.h"

namespace caesura {

struct AdapterFacts {
  int64_t rank = 0;
  double alpha = 0;
  // Names of the layers, and of the initializers that were marked as buffers for the adapter's
  // sake.
  std::vector<std::string> layers, frozen;
};

bool HasAdapter(const Model& model);
// kInvalidArgument where there is no adapter, kInvalidModel where the entry is damaged.
Result<AdapterFacts> ReadAdapterFacts(const Model& model);
void WriteAdapterFacts(const AdapterFacts& facts, Model* model);
void RemoveAdapterFacts(Model* model);

// kInvalidArgument for a rank below 1 and for an alpha that is not finite.
Status CheckRank(int64_t rank, double alpha);

inline std::string NameOfA(const std::string& layer) { return layer + kLoraA; }
inline std::string NameOfB(const std::string& layer) { return layer + kLoraB; }

// The dtype of the layer's input.
inline DType InputDType(const LinearLayer& layer) { return layer.products[0]->input(0)->dtype(); }
inline bool IsHalf(DType dtype) { return DTypeSize(dtype) == 2; }

}  // namespace caesura

#endif  // CAESURA_TRAINING_ADAPTERS_ADAPTER_FACTS_H_
