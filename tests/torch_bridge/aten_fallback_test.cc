// SPDX-License-Identifier: Apache-2.0
// Sizes that PyTorch's operators take as inputs (SymInts of a captured graph) are read on the host:
// their chains run there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "tests/graph_transforms/device_run.h"
#include "torch_bridge/aten_op.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CountingDevice DeviceWithAten() {
  return CountingDevice(
      {.more = [](KernelRegistry& registry) { torch::RegisterAtenKernels(registry); },
       .close_pages = true});
}

// x as [s + 1, s], times w: sizes as a capture has them, the rest by operators of PyTorch.
constexpr char kViewOfSizes[] = R"((float[6] x, int64[1] s) => (float[A, 2] y)
    <int64[1] one = {1}, float[2, 2] w = {1, 2, 3, 4}> {
  [more] more = Add (s, one)
  [same] same = Sub (more, one)
  [join] shape = Concat <axis = 0> (more, same)
  [view] seen = org.pytorch.aten.ATen <operator = "aten::view", arguments = ["self", "size"]> (x, shape)
  [product] y = org.pytorch.aten.ATen <operator = "aten::mm"> (seen, w)
})";

struct Outcome {
  DeviceCounts counts;
  std::set<std::string> on_host;
  std::vector<float> y;
};

Outcome RunWith(CpuFallbackMode mode) {
  CountingDevice device = DeviceWithAten();
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"org.pytorch.aten\" : 1]> g " +
                     std::string(kViewOfSizes))
          .value();
  for (const char* name : {"more", "same"}) {
    model.graph->FindValue(name)->set_type(ValueType::Tensor(DType::kInt64, Shape{1}));
  }
  model.graph->FindValue("shape")->set_type(ValueType::Tensor(DType::kInt64, Shape{2}));
  EXPECT_TRUE(RunPasses({MakeCpuFallbackPass(device.providers(), {.mode = mode})}, model).ok());
  Outcome out;
  CollectPinned(*model.graph, &out.on_host);
  const Tensor x = Moved(Tensor::Of<float>(Shape{6}, {1, 2, 3, 4, 5, 6}), *device.providers()[0],
                         CopyKind::kToDevice);
  const Tensor s = Tensor::Of<int64_t>(Shape{1}, {2});
  // Without folding: a plan for all sizes.
  auto plan =
      PlanOf(model.graph, {x, s}, {.fold_constants = false, .fetch_devices = {std::nullopt}},
             device.providers());
  RunPlan(plan, {x, s});
  device.Reset();
  const Values results = RunPlan(plan, {x, s});
  out.counts = device.counts();
  out.y = Moved(results[0].tensor(), *device.providers()[0], CopyKind::kToHost).ToVector<float>();
  return out;
}

TEST(AtenFallback, SizesOfOperatorsStayOnTheHost) {
  const Outcome on = RunWith(CpuFallbackMode::kOn);
  EXPECT_THAT(on.on_host, ElementsAre("join", "more", "same"));
  EXPECT_EQ(on.counts.copies_to_host, 0u);
  EXPECT_EQ(on.counts.synchronisations, 0u);
  const Outcome off = RunWith(CpuFallbackMode::kOff);
  EXPECT_THAT(off.on_host, IsEmpty());
  EXPECT_EQ(off.counts.copies_to_host, 1u);
  EXPECT_EQ(off.counts.synchronisations, 1u);
  EXPECT_LE(on.counts.copies_to_device, off.counts.copies_to_device);
  EXPECT_THAT(on.y, ElementsAre(7, 10, 15, 22, 23, 34));  // [1 2; 3 4; 5 6] [1 2; 3 4]
  EXPECT_EQ(on.y, off.y);
}

}  // namespace
}  // namespace caesura::testing
