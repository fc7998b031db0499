// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLoss, also as it is trained, and its gradient for rows of all sizes: the CPU's
// numbers.
#include <cmath>
#include <random>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "tests/core/providers/cuda/standin_cuda.h"

namespace caesura::testing {
namespace {

struct LossCase {
  Shape scores;
  const char* reduction;
  bool weights, ignore;
  DType dtype = DType::kFloat32;
  std::vector<float> special = {};  // each is a score of a sample of its own
};

class CudaLoss : public StandinCuda {
 protected:
  // Loss, log-probabilities and the scores' gradient; the loss as it is trained, and its lse.
  static Values Run(const LossCase& c, const ProviderList& providers) {
    std::mt19937 random(7);
    Tensor x = Tensor::Zeros(c.dtype, c.scores), weights = Tensor::Zeros(c.dtype, {c.scores[1]});
    const auto fill = [&](Tensor& tensor, float scale, float least) {
      DispatchFloat(c.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int64_t i = 0; i < tensor.elements(); ++i)
          tensor.data<T>()[i] = static_cast<T>(least + scale * static_cast<float>(random() % 1001));
        for (size_t i = 0; i < c.special.size() && &tensor == &x; ++i) {
          const auto row = static_cast<int64_t>(i) * c.scores[1];
          // A row of one value, or a row with one such score in the midst.
          if (c.special[i] == -INFINITY)
            std::fill_n(tensor.data<T>() + row, c.scores[1], T(-INFINITY));
          else tensor.data<T>()[row + c.scores[1] / 2] = static_cast<T>(c.special[i]);
        }
      });
    };
    fill(x, 0.01f, -3);
    fill(weights, 0.001f, 0.5f);
    std::vector<int64_t> dims = c.scores.dims();
    dims.erase(dims.begin() + 1);
    Tensor labels = Tensor::Zeros(DType::kInt64, Shape(dims));
    for (int64_t i = 0; i < labels.elements(); ++i)
      labels.data<int64_t>()[i] = c.ignore && i % 3 == 1 ? -100 : random() % c.scores[1];
    const bool each = std::string(c.reduction) == "none";
    Tensor d_loss = Tensor::Zeros(c.dtype, each ? Shape(dims) : Shape{});
    fill(d_loss, 0.001f, 0.5f);

    auto graph = std::make_shared<Graph>("loss");
    Values feeds = {x, labels, d_loss, weights};
    std::vector<Value*> in;
    for (const RuntimeValue& feed : feeds)
      in.push_back(
          graph->AddInput("in" + std::to_string(in.size()),
                          ValueType::Tensor(feed.tensor().dtype(), feed.tensor().shape())));
    AttributeMap attributes = {{"reduction", std::string(c.reduction)}};
    if (c.ignore) attributes["ignore_index"] = int64_t{-100};
    std::vector<Value*> forward = {in[0], in[1]};
    if (c.weights) forward.push_back(in[3]);
    Node* loss = graph->AddOp("SoftmaxCrossEntropyLoss", forward, attributes, "", 2, "loss");
    Node* trained = graph->AddNode("SoftmaxCrossEntropyLossTraining", forward,
                                   {graph->AddValue("trained"), nullptr, graph->AddValue("lse")},
                                   attributes, kCaesuraDomain);
    Node* gradient =
        graph->AddOp("SoftmaxCrossEntropyLossGrad",
                     {in[2], in[0], in[1], c.weights ? in[3] : nullptr, trained->output(2)},
                     attributes, kCaesuraDomain, 1, "gradient");
    for (Value* output : {loss->output(0), loss->output(1), gradient->output(0), trained->output(0),
                          trained->output(2)})
      graph->AddOutput(output);
    return RunPlan(PlanOf(graph, feeds, {}, providers), feeds);
  }
};

TEST_F(CudaLoss, RowsOfAllSizesGiveTheCpusNumbers) {
  const auto cpu = MakeCpuProvider(), cuda = Provider();
  const LossCase cases[] = {
      {{3, 1}, "mean", false, false},
      {{5, 31}, "sum", true, false},
      {{5, 257}, "mean", false, true, DType::kFloat32, {NAN, INFINITY, -INFINITY, 90}},
      {{4, 1000}, "none", true, true},
      {{3, 20011}, "mean", true, true},  // more than what the threads read at once
      {{2, 300, 2, 3}, "mean", true, true},
      {{4, 700}, "mean", false, false, DType::kFloat64},
      {{4, 700}, "mean", false, false, DType::kFloat16},
      {{4, 701}, "mean", false, true, DType::kBFloat16},
  };
  for (const LossCase& c : cases) {
    SCOPED_TRACE(c.scores.ToString() + " " + c.reduction + " " + DTypeName(c.dtype));
    const double tolerance = c.dtype == DType::kFloat64   ? 1e-10
                             : c.dtype == DType::kFloat32 ? 2e-6
                             : c.dtype == DType::kFloat16 ? 2e-3
                                                          : 1e-2;
    const Values got = Run(c, {cuda, cpu}), wanted = Run(c, {cpu});
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t o = 0; o < got.size(); ++o) {
      const auto a = got[o].tensor().ToVector<double>(), b = wanted[o].tensor().ToVector<double>();
      for (size_t i = 0; i < a.size(); ++i) {
        // The CPU's exponential of a NaN need not be one.
        const bool same = a[i] == b[i] || (std::isnan(b[i]) && std::isnan(a[i])) ||
                          (o == 2 && !std::isfinite(b[i]) && !std::isfinite(a[i]));
        if (!same && !(std::abs(a[i] - b[i]) <= tolerance * std::max(1., std::abs(b[i]))))
          FAIL() << "output " << o << ", element " << i << ": " << a[i] << ", not " << b[i];
      }
    }
    EXPECT_TRUE(SameBits(Run(c, {cuda, cpu}), got));
    EXPECT_TRUE(SameBits(got[3], got[0]));
  }
  if (!OnGpu()) {
    EXPECT_GE(Operations("kernel score_gradients"), std::size(cases));
  }
}

}  // namespace
}  // namespace caesura::testing
