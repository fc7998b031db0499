// SPDX-License-Identifier: Apache-2.0
// LoRA (Hu et al. 2021) for ONNX models: beside a frozen matrix a product of two small ones, which
// alone train.
//
//   ASSIGN_OR_RETURN(const Model base, ReadModel("net.onnx"));
//   ASSIGN_OR_RETURN(Model model, AddLora(base, {.targets = {"q_proj", "v_proj"}, .rank = 8}));
//   auto session = TrainingSession::Create(std::move(model), options);   // trains the adapter
//   ASSIGN_OR_RETURN(const Adapter adapter, AdapterOf(session->parameters()));
//   RETURN_IF_ERROR(SaveAdapter(adapter, "adapter"));   // a folder that PEFT loads
//
// A layer y = x W (+ b) becomes y + x A^T B^T alpha / rank, computed in this order, in float32
// where the layer is float16 or bfloat16. A [rank, in] and B [out, rank] are the initializers
// NAME.lora_A.weight and NAME.lora_B.weight; they are inputs of the model, too, so that a runtime
// may be given others.
#ifndef CAESURA_TRAINING_ADAPTERS_LORA_H_
#define CAESURA_TRAINING_ADAPTERS_LORA_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

class SessionParameters;  // training/session/session_parameters.h

// The options of AddLora. Rank and alpha are PEFT's r and lora_alpha.
struct LoraOptions {
  // Layers by name: "layers.0.q_proj", the last parts of it ("q_proj"), the name of a weight or a
  // node; '*' matches anything.
  std::vector<std::string> targets;
  int64_t rank = 8;
  double alpha = 8;
  uint64_t seed = 0;  // of A
};

// The matrices of an adapter, by the names of the layers.
struct Adapter {
  // A [rank, in] and B [out, rank].
  struct Layer {
    Tensor a, b;
  };
  int64_t rank = 0;
  double alpha = 0;
  std::map<std::string, Layer> layers;
};

// The model with an adapter that changes nothing yet: A uniform in +-1/sqrt(in) from the seed, B
// zero. All other initializers are marked as buffers (MarkedBuffers), so that training leaves them,
// unless it is told to train them.
//
// kInvalidArgument for a target without a layer, listing the layers that there are, for a rank
// below 1, and for a model that has an adapter.
Result<Model> AddLora(const Model& model, const LoraOptions& options);

// The adapter of a model. kInvalidArgument where there is none; kInvalidModel, naming the layer,
// where the model does not have what it says.
Result<Adapter> AdapterOf(const Model& model);

// The model with this adapter: in place of its own, which must be of the same rank, alpha and
// layers, or as AddLora adds one. kInvalidArgument lists what does not fit.
Result<Model> AddAdapter(const Model& model, const Adapter& adapter);

// The model without adapter, whose weights are W + B A alpha / rank, added in float32 (float64 in
// float64) and rounded once, as PEFT merges. What AddLora has frozen is trained again.
//
// kUnsupported for layers whose matrix is no floating initializer (4-bit weights) or is read by
// other nodes, too; all are listed. kInvalidModel where another program has changed the adapter's
// nodes.
Result<Model> MergeAdapter(const Model& model);

// The adapter of a session's model, as it is trained now: views, as SessionParameters::Get gives
// them.
Result<Adapter> AdapterOf(const SessionParameters& parameters);
// Copies an adapter into a session whose model has one of the same rank, alpha and layers. Fails as
// AddAdapter, before anything was written.
Status SetAdapter(const Adapter& adapter, SessionParameters* parameters);

}  // namespace caesura

#endif  // CAESURA_TRAINING_ADAPTERS_LORA_H_
