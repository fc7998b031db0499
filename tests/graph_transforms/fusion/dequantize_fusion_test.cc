// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/dequantize_fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/inference/shape_inference.h"
#include "core/onnx/model_reader.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using Floats = std::vector<float>;

// Whole numbers and scales that are powers of two: sums are exact in any order.
Tensor Numbers(DType dtype, const Shape& shape, int low, int range) {
  Tensor out = Tensor::Zeros(dtype, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const int number = low + static_cast<int>(i * 7 % range);
    if (dtype == DType::kFloat32) out.data<float>()[i] = static_cast<float>(number) / 4;
    else static_cast<uint8_t*>(out.raw())[i] = static_cast<uint8_t>(number);
  }
  return out;
}

struct Stored {
  DType dtype = DType::kInt4;
  std::vector<int64_t> dims = {40, 24};  // of q
  int64_t axis = 0, block = 16;
  bool zero = false;
};

// y from x [6, k] as `body` says, with q, s and z stored as told.
Model ModelOf(const Stored& stored, int64_t k, const std::string& body) {
  const std::string zero = stored.zero ? ", z" : "";
  const std::string dequantize = "w = DequantizeLinear <axis = " + std::to_string(stored.axis) +
                                 ", block_size = " + std::to_string(stored.block) + "> (q, s" +
                                 zero + ") ";
  Shape blocks(stored.dims);
  blocks[static_cast<int>(stored.axis)] =
      (stored.dims[stored.axis] + stored.block - 1) / stored.block;
  const auto dims = [](const Shape& shape) {
    return "[" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "]";
  };
  const std::string type = DTypeName(stored.dtype);
  Model model =
      ParseModelText("<ir_version: 11, opset_import: [\"\": 25]> g (float[6, " + std::to_string(k) +
                     "] x, " + type + dims(Shape(stored.dims)) + " q, float" + dims(blocks) +
                     " s, " + type + dims(blocks) + " z, float[24] row) => (float[M, L] y) { " +
                     dequantize + body + " }")
          .value();
  Graph& graph = *model.graph;
  const bool is_signed =
      stored.dtype == DType::kInt4 || stored.dtype == DType::kInt8 || stored.dtype == DType::kInt2;
  const int range = 1 << DTypeFileBits(stored.dtype), low = is_signed ? -range / 2 : 0;
  const auto set = [&](const char* name, Tensor tensor) {
    Value* value = graph.FindValue(name);
    graph.RemoveInput(value);
    graph.SetInitializer(value, std::move(tensor));
  };
  set("q", Numbers(stored.dtype, Shape(stored.dims), low, range));
  set("s", Numbers(DType::kFloat32, blocks, 1, 5));
  set("z", Numbers(stored.dtype, blocks, low + 1, range - 1));
  set("row", Numbers(DType::kFloat32, Shape{24}, -9, 13));
  const Status status = InferShapes(model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

Floats Outputs(const Model& model, int64_t k) {
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  auto session = Session::Create(model.Clone(), std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  auto y = (*session)->Run({{"x", Numbers(DType::kFloat32, {6, k}, -8, 17)}});
  EXPECT_TRUE(y.ok()) << y.status().ToString();
  return (*y)[0].tensor().ToVector<float>();
}

std::vector<std::string> OpsOf(const Model& model) {
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  return ops;
}

// The ops after the pass. Outputs are those before it.
std::vector<std::string> Fused(const Stored& stored, int64_t k, const std::string& body,
                               const std::unordered_set<std::string>& parameters = {}) {
  const Model plain = ModelOf(stored, k, body);
  Model fused = plain.Clone();
  EXPECT_TRUE(RunPasses({MakeDequantizeFusionPass(parameters)}, fused).ok());
  EXPECT_EQ(Outputs(fused, k), Outputs(plain, k)) << body;
  return OpsOf(fused);
}

TEST(DequantizeFusion, AllTypesAndZeroPoints) {
  for (const DType dtype :
       {DType::kInt2, DType::kUInt2, DType::kInt4, DType::kUInt4, DType::kInt8, DType::kUInt8}) {
    for (const bool zero : {false, true}) {
      SCOPED_TRACE(std::string(DTypeName(dtype)) + (zero ? " with" : " without"));
      EXPECT_THAT(Fused({.dtype = dtype, .zero = zero}, 40, "y = MatMul (x, w)"),
                  ElementsAre("MatMulNBits"));
    }
  }
}

// The blocks lie along the terms, or across; the weights come as they are, or transposed.
TEST(DequantizeFusion, AllWaysRound) {
  for (const bool zero : {false, true}) {
    const Stored terms_first = {.axis = 0, .zero = zero}, terms_across = {.axis = 1, .zero = zero},
                 columns_first = {.dims = {24, 40}, .axis = 1, .zero = zero},
                 columns_across = {.dims = {24, 40}, .axis = 0, .zero = zero};
    const auto along = ElementsAre("MatMulNBits"), across = ElementsAre("TransposedMatMulNBits");
    const std::string matmul = "y = MatMul (x, w)", gemm = "y = Gemm (x, w, row)",
                      turned = "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)",
                      gemm_of = "y = Gemm <transB = 1> (x, w, row)";
    EXPECT_THAT(Fused(terms_first, 40, matmul), along);
    EXPECT_THAT(Fused(terms_first, 40, gemm), along);
    EXPECT_THAT(Fused(terms_across, 40, matmul), across);
    EXPECT_THAT(Fused(terms_across, 40, gemm), across);
    EXPECT_THAT(Fused(columns_first, 40, turned), along);
    EXPECT_THAT(Fused(columns_first, 40, gemm_of), along);
    EXPECT_THAT(Fused(columns_across, 40, turned), across);
    EXPECT_THAT(Fused(columns_across, 40, gemm_of), across);
  }
}

// Weights of several products are packed once, and what nobody reads is gone.
TEST(DequantizeFusion, SharesWhatIsPacked) {
  const std::string body = "a = MatMul (x, w) b = Neg (x) c = MatMul (b, w) y = Sub (a, c)";
  EXPECT_THAT(Fused({}, 40, body), ElementsAre("MatMulNBits", "Neg", "MatMulNBits", "Sub"));
  Model model = ModelOf({}, 40, body);
  ASSERT_TRUE(RunPasses({MakeDequantizeFusionPass({})}, model).ok());
  std::set<std::string> names;
  for (const auto& [value, tensor] : model.graph->initializers()) names.insert(value->name());
  EXPECT_THAT(names, ElementsAre("w.packed", "w.scales"));
}

TEST(DequantizeFusion, LeavesTheRest) {
  const auto whole = ElementsAre("DequantizeLinear", "MatMul");
  const std::string product = "y = MatMul (x, w)";
  EXPECT_THAT(Fused({.block = 8}, 40, product), whole);
  EXPECT_THAT(Fused({.block = 24}, 40, product), whole);
  EXPECT_THAT(Fused({.block = 1 << 29}, 40, product), whole);
  EXPECT_THAT(Fused({}, 40, product, {"s"}), whole);  // which is trained
  EXPECT_THAT(Fused({}, 40, "y = Gemm <alpha = 0.5> (x, w, row)"),
              ElementsAre("DequantizeLinear", "Gemm"));
  // Other readers of the weights still get them.
  EXPECT_THAT(Fused({.dims = {24, 40}, .axis = 1}, 40,
                    "t = Transpose <perm = [1, 0]> (w) a = MatMul (x, t) b = MatMul (a, w) r = "
                    "Relu (t) y = MatMul (x, r)"),
              ElementsAre("DequantizeLinear", "Transpose", "MatMulNBits", "TransposedMatMulNBits",
                          "Relu", "MatMul"));
}

}  // namespace
}  // namespace caesura
