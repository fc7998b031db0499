// SPDX-License-Identifier: Apache-2.0
// Plans that update parameters w and v, for tests of the undo log.
#ifndef CAESURA_TESTS_CORE_EXECUTE_PARAMETER_UPDATES_H_
#define CAESURA_TESTS_CORE_EXECUTE_PARAMETER_UPDATES_H_

#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {

// Updates come last, as in a training step.
inline constexpr char kUpdatesAtTheEnd[] = R"((float[2] x) => (float[2] y)
    <float[2] w = {10, 20}, float[2] v = {1, 1}> {
  y = Neg (x)
  w_now = test.Accumulate (w, y)
  v_now = test.Accumulate (v, y)
})";

// A graph with its parameters, on the host or on the first provider's device.
struct Updates {
  Updates(const std::string& body, ProviderList providers)
      : first(providers[0]), graph(GraphOf(body)) {
    PlanOptions options;
    for (const char* name : {"w", "v", "u"}) {
      Value* value = graph->FindValue(name);
      if (value == nullptr) continue;
      const Tensor here = graph->Initializer(value)->Clone().value();
      const bool on_host = providers[0]->device().is_host();
      parameters.Add(name, on_host ? here : CopyToDevice(here, *providers[0]).value());
      graph->SetInitializer(value, parameters.tensor(parameters.size() - 1));
      options.parameters.push_back(value);
    }
    plan = PlanOf(graph, feeds, options, std::move(providers));
  }
  std::vector<float> operator[](int parameter) const {
    const Tensor& there = parameters.tensor(parameter);
    const Tensor here = Tensor::Zeros(there.dtype(), there.shape());
    EXPECT_TRUE(first->Copy(CopyKind::kToHost, here.raw(), there.raw(), there.bytes()).ok());
    return here.ToVector<float>();
  }

  const std::shared_ptr<const ExecutionProvider> first;
  std::shared_ptr<Graph> graph;
  const Values feeds = {Floats(Shape{2}, {1, 2})};
  ParameterSet parameters;
  std::shared_ptr<const ExecutionPlan> plan;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_EXECUTE_PARAMETER_UPDATES_H_
