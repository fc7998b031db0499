// SPDX-License-Identifier: Apache-2.0
// A plug-in in C++17 through caesura_op.hpp.
#include "core/plugin/caesura_op.hpp"

namespace {

using caesura::plugin::Context;
using caesura::plugin::GradientScope;
using caesura::plugin::Node;
using caesura::plugin::OutputTypes;

// Blend (x, more...) -> the sum of all, each times `weights`' entry; by way of a buffer in a run
// state.
struct Blend {
  static constexpr const char* kOpType = "Blend";
  static constexpr const char* kDomain = "test.cpp";
  explicit Blend(const Node& node) : weights(node.Floats("weights")) {
    if (weights.size() != node.input_count()) {
      throw caesura::plugin::Error(CAESURA_INVALID_MODEL,
                                   "has " + std::to_string(weights.size()) + " weights for " +
                                       std::to_string(node.input_count()) + " inputs");
    }
    if (node.Option("mood") == "bad") throw std::runtime_error("not today");
  }
  struct Run {
    explicit Run(const Blend& op) : terms(op.weights.size()) {}
    std::vector<float> terms;
  };
  static void Describe(CaesuraOp& op) {
    static const char* const kKeys[] = {"mood"};
    static const char* const kValues[] = {"good"};
    op.max_inputs = CAESURA_ANY_NUMBER;
    op.min_inputs = 1;
    op.min_outputs = op.max_outputs = 1;
    op.options = {kKeys, kValues, 1};
  }
  static void Infer(OutputTypes& outputs) {
    outputs.Set(0, outputs.input(0).dtype, outputs.input(0).dims);
  }
  void Compute(Context& context, Run& run) const {
    const auto y = context.Output<float>(0);
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t k = 0; k < weights.size(); ++k) {
        const auto x = context.Input<float>(k);
        run.terms[k] = x.data() == nullptr ? 0 : weights[k] * x[i];
      }
      y[i] = 0;
      for (const float term : run.terms) y[i] += term;
    }
  }
  static void Gradient(GradientScope& g) {
    const std::vector<float> weights = g.node().Floats("weights");
    for (size_t k = 0; k < weights.size(); ++k) {
      if (!g.Needs(k)) continue;
      CaesuraAttribute weight = GradientScope::FloatAttribute("weights", weights[k]);
      weight.kind = CAESURA_ATTRIBUTE_FLOATS;
      g.SetInputGradient(k, g.AddNode("Blend", "test.cpp", {g.OutputGradient(0)}, {weight})[0]);
    }
  }
  std::vector<float> weights;
};

}  // namespace

extern "C" CaesuraStatus* CaesuraPluginMain(const CaesuraApi* api, CaesuraPlugin* plugin) {
  caesura::plugin::Use(api);
  return caesura::plugin::Add<Blend>(plugin);
}
