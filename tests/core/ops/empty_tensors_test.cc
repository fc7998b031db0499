// SPDX-License-Identifier: Apache-2.0
// A dim beside one of size 0 may be of any size: kernels do not count through rows that hold no
// elements. A kernel that does takes an hour here; the program's time limit ends it before that.
#include <gtest/gtest.h>

#include "core/ops/cpu_kernels.h"
#include "core/onnx/model_reader.h"
#include "core/session/session.h"
#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;
constexpr DType kFloat = DType::kFloat32, kInt = DType::kInt64;
const std::string kTraining = kCaesuraDomain;

Tensor Empty(Shape shape, DType dtype = kFloat) { return Tensor::Zeros(dtype, std::move(shape)); }
Tensor Ones(Shape shape) {
  Tensor tensor = Tensor::Zeros(kFloat, std::move(shape));
  std::fill_n(tensor.data<float>(), tensor.elements(), 1.0f);
  return tensor;
}
std::vector<KernelCase> EmptyCases() {
  using List = std::vector<int64_t>;
  const Tensor x = Empty({kHuge, 0}), turned = Empty({0, kHuge}), image = Empty({kHuge, 2, 0}),
               channel = Ones({2}), planes = Empty({kHuge, 2, 0, 3}), none = Empty({0}),
               middle = Empty({kHuge, 0, 3}), row = IntVector({0});
  const AttributeMap first = {{"axis", int64_t{0}}}, last = {{"axis", int64_t{1}}},
                     window = {{"kernel_shape", List{1, 1}}};
  std::vector<KernelCase> cases;
  const auto add = [&](const char* op, std::vector<RuntimeValue> inputs,
                       AttributeMap attributes = {}, int outputs = 1,
                       const std::string& domain = "") {
    cases.emplace_back(op, std::move(inputs), std::move(attributes), domain, outputs);
  };
  for (const char* op : {"Softmax", "LogSoftmax", "Hardmax", "LpNormalization"}) {
    for (const Tensor& in : {x, turned, middle}) {
      for (const AttributeMap& axis : {first, last}) add(op, {in}, axis);
    }
  }
  add("LayerNormalization", {x, none});
  add("LayerNormalization", {x, none, none});
  add("RMSNormalization", {x, none});
  add("LayerNormalization", {x, Ones({1}), Ones({1})});
  add("RMSNormalization", {x, Ones({1})});
  add("GroupNormalization", {image, channel, channel}, {{"num_groups", int64_t{1}}});
  add("InstanceNormalization", {image, channel, channel});
  add("BatchNormalization", {image, channel, channel, channel, channel});
  add("BatchNormalization", {image, channel, channel, channel, channel},
      {{"training_mode", int64_t{1}}}, 3);
  add("BatchNormalization", {x, none, none, none, none}, {{"training_mode", int64_t{1}}}, 3);
  add("LRN", {planes}, {{"size", int64_t{3}}});
  add("MeanVarianceNormalization", {planes});
  for (const char* op :
       {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceL2", "ReduceMax", "ReduceLogSumExp"}) {
    for (const int64_t axis : {0, 2}) add(op, {middle, IntVector({axis})});
    add(op, {turned, IntVector({1})});
    add(op, {x, IntVector({0, 1})});
  }
  for (const char* op : {"CumSum", "CumProd"}) {
    for (const int64_t axis : {0, 1}) {
      for (const Tensor& in : {x, turned, middle}) add(op, {in, IntVector({axis})});
    }
  }
  add("ArgMax", {x}, first);
  add("ArgMax", {Empty({kHuge, 3, 0})}, last);
  add("TopK", {x, IntVector({2})}, first, 2);
  add("TopK", {Empty({kHuge, 3, 0}), IntVector({2})}, last, 2);
  for (const char* op : {"MaxPool", "AveragePool", "LpPool"}) {
    add(op, {Empty({kHuge, 0, 3, 3})}, window);
  }
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"}) {
    add(op, {Empty({kHuge, 0, 3, 3})});
    add(op, {Empty({0, kHuge, 3, 3})});
  }
  add("MatMul", {x, Empty({0, 0})});
  add("MatMul", {Empty({0, kHuge}), Empty({kHuge, 0})});
  add("MatMul", {Empty({kHuge, 2, 0}), Empty({0, 0})});
  add("Gemm", {x, Empty({0, 0})});
  add("Einsum", {x, Empty({0, 0})}, {{"equation", std::string("ij,jk->ik")}});
  add("Einsum", {x}, {{"equation", std::string("ij->")}});
  add("Einsum", {x, Empty({0, kHuge})}, {{"equation", std::string("ij,ji->")}});
  add("Einsum", {x}, {{"equation", std::string("ij->j")}});
  add("Conv", {Empty({kHuge, 0, 3, 3}), Empty({0, 0, 1, 1})}, {{"strides", List{2, 2}}});
  add("Conv", {Empty({kHuge, 0, 3, 3}), Empty({0, 0, 1, 1})});
  add("ConvTranspose", {Empty({kHuge, 2, 0, 3}), Ones({2, 2, 1, 1}), channel});
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    const int64_t width = op[0] == 'R' ? 3 : op[0] == 'G' ? 9 : 12;
    add(op, {Empty({kHuge, 0, 2}), Ones({1, width, 2}), Ones({1, width, 3})},
        {{"hidden_size", int64_t{3}}}, 2);
    add(op, {Empty({kHuge, 1, 0}), Empty({1, 0, 0}), Empty({1, 0, 0})}, {}, 2);
    add(op, {Empty({1, kHuge, 0}), Empty({1, 0, 0}), Empty({1, 0, 0})}, {}, 2);
  }
  for (const char* op : {"Gather", "ScatterElements"}) {
    std::vector<RuntimeValue> inputs = {Empty({kHuge, 3, 0}), Empty({kHuge, 2, 0}, kInt),
                                        Empty({kHuge, 2, 0})};
    if (op[0] == 'G') inputs = {Empty({kHuge, 3, 0}), row};
    add(op, inputs, last);
  }
  add("GatherElements", {middle, Empty({kHuge, 0, 3}, kInt)}, last);
  add("GatherND", {Empty({3, 0}), Empty({kHuge, 0}, kInt)});
  add("GatherND", {none, Empty({kHuge, 0}, kInt)});
  add("ScatterND", {none, Empty({kHuge, 0}, kInt), Empty({kHuge, 0})});
  add("TensorScatter", {Empty({kHuge, 3, 0}), Empty({kHuge, 2, 0})}, last);
  add("OneHot", {Empty({kHuge, 0}, kInt), IntVector({3}), Tensor::Of<float>({2}, {0, 1})});
  add("OneHot", {Empty({kHuge, 0}, kInt), IntVector({3}), Tensor::Of<float>({2}, {0, 1})}, last);
  add("Compress", {Empty({kHuge, 3, 0}), Tensor::Of<bool>({3}, {true, false, true})}, last);
  add("Unique", {Empty({kHuge, 3, 0})}, last, 4);
  add("NonMaxSuppression", {Empty({kHuge, 0, 4}), Empty({kHuge, 1, 0})});
  add("NonMaxSuppression", {Empty({kHuge, 0, 4}), Empty({kHuge, 0, 0})});
  add("ReverseSequence", {Empty({kHuge, 2, 0}), IntVector({1, 2})});
  add("RotaryEmbedding", {Empty({kHuge, 1, 1, 0}), Empty({kHuge, 1, 0}), Empty({kHuge, 1, 0})});
  add("Trilu", {Empty({kHuge, 3, 0}), IntVector({1})});
  add("Transpose", {x});
  add("Concat", {x, x}, last);
  add("Split", {x, IntVector({0, 0})}, last, 2);
  add("Slice", {Empty({kHuge, 3, 0}), IntVector({1}), IntVector({2}), IntVector({1})});
  add("Tile", {x, IntVector({2, 2})});
  add("Expand", {x, IntVector({2, 1, 1})});
  add("DepthToSpace", {Empty({kHuge, 4, 0, 3})}, {{"blocksize", int64_t{2}}});
  add("GridSample", {planes, Empty({kHuge, 0, 3, 2})});
  add("Det", {Empty({0, kHuge, 0, 0})});
  add("DFT", {Empty({kHuge, 0, 3, 1})}, {{"axis", int64_t{2}}});
  add("Dropout", {x});
  add("SwiGLU", {x, x});
  add("Attention", {Empty({kHuge, 2, 0, 3}), Empty({kHuge, 2, 0, 3}), Empty({kHuge, 2, 0, 3})});
  add("DequantizeLinear", {Empty({kHuge, 0}, DType::kInt8), Ones({})});
  add("QuantizeLinear", {x, Ones({})});
  const Tensor bytes = Tensor::Of<uint8_t>({3, 4}, std::vector<uint8_t>(12, 1)),
               byte = Tensor::Of<uint8_t>({}, {1});
  add("MatMulInteger", {Empty({kHuge, 0, 3}, DType::kUInt8), bytes});
  add("MatMulInteger", {Empty({kHuge, 0, 3}, DType::kUInt8), bytes, byte, byte});
  add("QLinearMatMul",
      {Empty({kHuge, 0, 3}, DType::kUInt8), Ones({}), byte, bytes, Ones({}), byte, Ones({}), byte});
  add("ConvInteger", {Empty({kHuge, 0, 3}, DType::kUInt8), Empty({0, 0, 1}, DType::kUInt8), byte});
  add("ArrayFeatureExtractor", {Empty({kHuge, 0}), Empty({0}, kInt)}, {}, 1, "ai.onnx.ml");
  // Gradients.
  add("BatchNormalizationGrad", {image, image, channel, channel, channel}, {}, 3, kTraining);
  add("GatherGrad", {Empty({kHuge, 0, 3}), Empty({0}, kInt), IntVector({kHuge, 0, 3})}, last, 1,
      kTraining);
  add("SumTo", {x, IntVector({1, 1})}, {}, 1, kTraining);
  add("SumTo", {x, IntVector({1, 0})}, {}, 1, kTraining);
  return cases;
}

TEST(EmptyTensors, WithHugeDimsAreDoneAtOnce) {
  for (KernelCase& run : EmptyCases()) {
    std::string inputs;
    for (const RuntimeValue& input : run.inputs)
      inputs += input.is_tensor() ? input.tensor().shape().ToString() : "-";
    SCOPED_TRACE(run.op_type + inputs);
    const auto results = run.Run();
    EXPECT_TRUE(results.ok()) << results.status().ToString();
  }
}

// Indices for more slices than any vector can have: an error, not the end of the process.
TEST(EmptyTensors, WithoutRoomForTheirIndicesAreRefused) {
  auto model = ParseModelText(
      "<ir_version: 10, opset_import: [\"\" : 20]> g (float[n,m] x) => (float[k,m] y) { y = Unique "
      "<axis = 0> (x) }");
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  auto session = Session::Create(*std::move(model), {});
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const auto unique = (*session)->Run({{"x", Empty({int64_t{1} << 61, 0})}});
  EXPECT_EQ(unique.status().code(), StatusCode::kOutOfMemory) << unique.status().ToString();
}

// A sum over nothing is written, whatever else is empty.
TEST(EmptyTensors, GiveTheirSums) {
  auto sum = KernelCase("ReduceSum", {Empty({kHuge, 0}), IntVector({0, 1})}).Run();
  EXPECT_EQ(sum.value()[0].tensor().ToVector<float>(), std::vector<float>{0});
}

}  // namespace
}  // namespace caesura
