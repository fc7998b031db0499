// SPDX-License-Identifier: Apache-2.0
// The linear layers of a model: products with a constant matrix, by the names of the modules that
// they were exported from.
#ifndef CAESURA_TRAINING_ADAPTERS_LINEAR_LAYERS_H_
#define CAESURA_TRAINING_ADAPTERS_LINEAR_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// The ends of the names of an adapter's matrices; before them stands the layer's name.
inline constexpr char kLoraA[] = ".lora_A.weight";
inline constexpr char kLoraB[] = ".lora_B.weight";

// One constant matrix and the products that read it.
struct LinearLayer {
  // "layers.0.q_proj", PyTorch's path of the module, where the exporter left it; otherwise the name
  // of the weight without ".weight".
  std::string name;
  Value* weight = nullptr;  // the initializer
  // MatMul, Gemm or MatMulNBits (com.microsoft), in the graph's order.
  std::vector<Node*> products;
  int64_t in = 0, out = 0;  // features
};

// The layers of the graph, bodies aside: MatMul(x, W), Gemm(x, W) without transA and with alpha 1,
// and MatMulNBits, with floating x. W is an initializer of rank 2, perhaps read through
// Transpose, DequantizeLinear, Cast or Identity. Matrices of adapters make no layers. Types must
// have been inferred.
std::vector<LinearLayer> LinearLayers(const Graph& graph);

// True if a target names the layer: its name, the last parts of it ("q_proj", "0.q_proj"), the name
// of its weight or of one of its nodes; '*' matches anything.
bool IsTarget(const std::string& target, const LinearLayer& layer);

}  // namespace caesura

#endif  // CAESURA_TRAINING_ADAPTERS_LINEAR_LAYERS_H_
