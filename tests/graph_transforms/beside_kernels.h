// SPDX-License-Identifier: Apache-2.0
// Bodies in ONNX's operators beside the kernels of their ops.
#ifndef CAESURA_TESTS_GRAPH_TRANSFORMS_BESIDE_KERNELS_H_
#define CAESURA_TESTS_GRAPH_TRANSFORMS_BESIDE_KERNELS_H_

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "core/onnx/model_writer.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/standard_ops.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {

// Feeds of a graph: numbers between -2 and 2, above 0 where the name begins with "pos"; true, false
// in turn; symbols are 2.
inline Values FeedsOf(const Graph& graph) {
  Values feeds;
  uint32_t state = 1;
  for (const Value* input : graph.inputs()) {
    std::vector<int64_t> dims;
    for (const Dim& dim : *input->type().shape) dims.push_back(dim.known() ? dim.value : 2);
    Tensor tensor = Tensor::Zeros(input->dtype(), Shape(dims));
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      state = state * 1664525u + 1013904223u;
      const double number = static_cast<double>(state >> 8) / (1 << 22) - 2;
      if (input->dtype() == DType::kBool) tensor.data<bool>()[i] = i % 3 != 1;
      DispatchFloat(input->dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        const bool is_above = input->name().rfind("pos", 0) == 0;
        tensor.data<T>()[i] =
            static_cast<T>(static_cast<float>(is_above ? std::abs(number) : number));
      });
    }
    feeds.push_back(tensor);
  }
  return feeds;
}

inline void CollectOps(const Graph& graph, std::set<std::string>* ops) {
  for (const auto& node : graph.nodes()) {
    if (node->domain() == kCaesuraDomain) ops->insert(node->op_type());
    for (const Graph* body : node->Subgraphs()) CollectOps(*body, ops);
  }
}

// Writes the model into the folder that CAESURA_BODIES names, if it is set, with the feeds as
// defaults and what the kernels gave as further outputs: benchmarks/bodies.py runs it elsewhere.
inline void KeepForOthers(const Model& model, const Values& feeds, const Values& expected) {
  const char* const folder = std::getenv("CAESURA_BODIES");
  if (folder == nullptr) return;
  static int count = 0;
  Graph& graph = *model.graph;
  const std::vector<Value*> inputs = graph.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) graph.SetInitializer(inputs[i], feeds[i].tensor());
  for (const RuntimeValue& value : expected)
    graph.AddOutput(graph.AddInitializer(graph.UniqueName("expected"), value.tensor()));
  const Status written =
      WriteModel(model, std::string(folder) + "/" + std::to_string(count++) + ".onnx");
  EXPECT_TRUE(written.ok()) << written.ToString();
}

// Compares each output with that of the kernels, to 1e-4 of its largest element.
inline void ExpectSameAsKernels(const std::string& text) {
  SCOPED_TRACE(text);
  const std::shared_ptr<Graph> own = GraphOf(text);
  ASSERT_NE(own, nullptr);
  const Values expected = RunWithTrainingKernels(own, FeedsOf(*own));
  Model model;
  model.graph = GraphOf(text);
  ASSERT_TRUE(RunPasses({MakeShapeInferencePass()}, model).ok());
  const Status written = WriteInStandardOps(*model.graph);
  ASSERT_TRUE(written.ok()) << written.ToString();
  std::set<std::string> left;
  CollectOps(*model.graph, &left);
  EXPECT_TRUE(left.empty());
  const auto types = RunPasses({MakeShapeInferencePass()}, model);
  ASSERT_TRUE(types.ok()) << types.status().ToString();
  const Values found = RunWithTrainingKernels(model.graph, FeedsOf(*model.graph));
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const Tensor &a = found[i].tensor(), &b = expected[i].tensor();
    ASSERT_EQ(a.dtype(), b.dtype()) << "output " << i;
    ASSERT_EQ(a.shape(), b.shape()) << "output " << i;
    if (!kFloatTypes.Contains(a.dtype())) {
      EXPECT_TRUE(SameBits(found[i], expected[i])) << "output " << i;
    }
    DispatchFloat(a.dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      const double step = sizeof(T) == 2 ? 2e-2 : 1e-4;
      double most = 0;
      for (int64_t k = 0; k < b.elements(); ++k)
        if (std::isfinite(static_cast<double>(b.data<T>()[k])))
          most = std::max(most, std::abs(static_cast<double>(b.data<T>()[k])));
      for (int64_t k = 0; k < b.elements(); ++k) {
        const double is = static_cast<double>(a.data<T>()[k]),
                     was = static_cast<double>(b.data<T>()[k]);
        if (!std::isfinite(was)) EXPECT_EQ(std::isnan(is) ? 0 : is, std::isnan(was) ? 0 : was);
        else
          EXPECT_NEAR(is, was, step * std::max(most, 1e-3)) << "output " << i << ", element " << k;
      }
    });
  }
  KeepForOthers(model, FeedsOf(*model.graph), expected);
}

inline void ExpectAllSame(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) ExpectSameAsKernels(text);
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_GRAPH_TRANSFORMS_BESIDE_KERNELS_H_
