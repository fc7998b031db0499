// SPDX-License-Identifier: Apache-2.0
// The rows of products with frozen weights in blocks of 2, 4 or 8 bits (core/graph/op_def.h), and
// their gradient rules. W [N, K] stays as it is: only A and the bias have a gradient.
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

enum Input { kB = 1, kScales, kZeroPoints, kGroupIndex, kBias };

// The other one of the two ops has dA, of the same W.
void ProductRule(GradientContext& g, const char* op_type, const char* domain) {
  if (g.Needs(0)) {
    Exprs inputs = {g.dY(), g.input(kB), g.input(kScales)};
    if (g.HasInput(kZeroPoints)) inputs.push_back(g.input(kZeroPoints));
    g.SetInputGradient(0,
                       Op(op_type, inputs, g.Attributes({"K", "N", "bits", "block_size"}), domain));
  }
  if (g.Needs(kBias)) g.SetInputGradient(kBias, SumTo(g.dY(), g.input(kBias)));
}

// Y = A W^T + bias;  dA = dY W, dbias = dY
void MatMulNBitsRule(GradientContext& g) {
  ProductRule(g, "TransposedMatMulNBits", kCaesuraDomain);
}

// Y = A W + bias;  dA = dY W^T, dbias = dY
void TransposedMatMulNBitsRule(GradientContext& g) {
  ProductRule(g, "MatMulNBits", kContribDomain);
}

// --- bodies ---

// The unsigned numbers of `bits` each that the bytes of x hold, lowest bits first: the last dim
// grows.
Expr Unpacked(Expr x, int64_t bits) {
  if (bits == 8) return x;
  const auto byte = [&](int64_t value) { return Cast(Int(value, x), DType::kUInt8); };
  Exprs parts;
  for (int64_t shift = 0; shift < 8; shift += bits) {
    const Expr low =
        shift == 0 ? x : Op("BitShift", {x, byte(shift)}, {{"direction", std::string("RIGHT")}});
    parts.push_back(Unsqueeze(Op("BitwiseAnd", {low, byte((1 << bits) - 1)}), {-1}));
  }
  const Expr last = Ints({-1}, x);
  return Reshape(Concat(parts, -1), Concat({ShapeOf(x, 0, -1), last}, 0));
}

// W [N, K], in the dtype of A.
Expr Weights(OpBody& b) {
  const int64_t n = b.IntAttr("N", 0), k = b.IntAttr("K", 0), bits = b.IntAttr("bits", 4),
                block = b.IntAttr("block_size", 0), blocks = (k + block - 1) / block;
  const Expr a = b.input(0);
  const auto of_blocks = [&](Expr x) { return Reshape(x, Ints({n, blocks, 1}, a)); };
  Expr w = Cast(Unpacked(b.input(kB), bits), a.dtype());
  if (!b.HasInput(kZeroPoints)) {
    w = w - static_cast<double>(int64_t{1} << (bits - 1));
  } else if (b.input(kZeroPoints).dtype() == DType::kUInt8) {
    const Expr rows = Reshape(b.input(kZeroPoints), Ints({n, -1}, a));
    const Expr zeros = Slice(Unpacked(rows, bits), Ints({0}, a), Ints({blocks}, a), 1);
    w = w - of_blocks(Cast(zeros, a.dtype()));
  } else {
    w = w - of_blocks(b.input(kZeroPoints));
  }
  w = Reshape(w * of_blocks(b.input(kScales)), Ints({n, blocks * block}, a));
  return Slice(w, Ints({0}, a), Ints({k}, a), 1);
}

void ProductBody(OpBody& b, Expr w) {
  if (b.HasInput(kGroupIndex)) return b.Refuse("g_idx: blocks in another order are not supported");
  const Expr y = Op("MatMul", {b.input(0), w});
  b.SetOutput(0, b.HasInput(kBias) ? y + b.input(kBias) : y);
}
void MatMulNBitsBody(OpBody& b) { ProductBody(b, Transpose(Weights(b), {1, 0})); }
void TransposedMatMulNBitsBody(OpBody& b) { ProductBody(b, Weights(b)); }

}  // namespace
}  // namespace gradient

namespace {

// A's dims, but for the last one, which the attribute has.
Status InferProduct(const Node& node, const char* columns) {
  const Value* a = node.input(0);
  if (a == nullptr || !a->type().is_tensor()) return {};
  std::optional<std::vector<Dim>> dims = a->type().shape;
  if (dims && !dims->empty()) dims->back() = {node.Attr<int64_t>(columns, 0), ""};
  SetOutputType(node, 0, a->dtype(), std::move(dims));
  return {};
}
Status InferMatMulNBits(Graph&, Node* node) { return InferProduct(*node, "N"); }
Status InferTransposedMatMulNBits(Graph&, Node* node) { return InferProduct(*node, "K"); }

}  // namespace

// clang-format off
std::vector<OpDef> MatMulNBitsOps() {
  using Work = OpDef::Work;
  return {
    {.op_type = "MatMulNBits", .domain = kContribDomain, .min_inputs = 3, .max_inputs = 6,
     .infer = InferMatMulNBits, .work = Work::kProduct,
     .rule = {.function = gradient::MatMulNBitsRule, .stops = {1, 4}, .refuses = {2, 3}},
     .body = gradient::MatMulNBitsBody},
    // TransposedMatMulNBits, with the same inputs and attributes: Y = A W + bias, where MatMulNBits has A W^T + bias
    {.op_type = "TransposedMatMulNBits", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 6,
     .infer = InferTransposedMatMulNBits, .work = Work::kProduct,
     .rule = {.function = gradient::TransposedMatMulNBitsRule, .stops = {1, 4}, .refuses = {2, 3}},
     .body = gradient::TransposedMatMulNBitsBody},
  };
}
// clang-format on

}  // namespace caesura
