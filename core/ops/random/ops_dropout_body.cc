// SPDX-License-Identifier: Apache-2.0
// Dropout in ONNX's operators: the masks that our kernels draw, of Philox (philox.h) in int64.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

constexpr int64_t kLowWord = 0xffffffff;
constexpr int kRounds = 10;

Expr LowWord(Expr x) { return Op("BitwiseAnd", {x, Int(kLowWord, x)}); }
Expr HighWord(Expr x) {
  const Expr bits = Cast(x, DType::kUInt64);
  return Cast(Op("BitShift", {bits, Number(32, bits)}, {{"direction", std::string("RIGHT")}}),
              DType::kInt64);
}
Expr Xor(Expr a, Expr b) { return Op("BitwiseXor", {a, b}); }

// One round: counters c and keys k, as Philox::Rounds has them.
struct Words {
  Expr c[4], k[2];
};

Words Round(const Words& w) {
  const Expr product0 = w.c[0] * Int(0xD2511F53, w.c[0]);
  const Expr product1 = w.c[2] * Int(0xCD9E8D57, w.c[2]);
  return {{Xor(Xor(HighWord(product1), w.c[1]), w.k[0]), LowWord(product1),
           Xor(Xor(HighWord(product0), w.c[3]), w.k[1]), LowWord(product0)},
          {LowWord(w.k[0] + Int(0x9E3779B9, w.k[0])), LowWord(w.k[1] + Int(0xBB67AE85, w.k[1]))}};
}

// All rounds, as a Loop: ten copies would be most of a small step's nodes.
Words AllRounds(const Words& w) {
  InnerGraph body("philox", *w.c[0].writer());
  body.Input("round", DType::kInt64, {});
  const Expr goes_on = body.Input("goes_on", DType::kBool, {});
  Words in;
  for (Expr& c : in.c) c = body.Input("counter", DType::kInt64, {-1});
  for (Expr& k : in.k) k = body.Input("key", DType::kInt64, {});
  const Words out = Round(in);
  body.Output(Op("Identity", {goes_on}));
  NodeWriter* const writer = w.c[0].writer();
  // ONNX's reference evaluator takes a condition that is left out for false.
  Exprs inputs = {Int(kRounds, w.c[0]), {writer->Scalar(1, DType::kBool), writer}};
  for (const Expr& c : out.c) body.Output(c);
  for (const Expr& k : out.k) body.Output(k);
  for (const Expr& c : w.c) inputs.push_back(c);
  for (const Expr& k : w.k) inputs.push_back(k);
  const Exprs last = Ops("Loop", inputs, 6, {{"body", body.graph()}});
  for (const Expr& one : last) one.value()->set_type(ValueType::Tensor(DType::kInt64));
  return {{last[0], last[1], last[2], last[3]}, {last[4], last[5]}};
}

// The random word of each element, in a row (core/kernels/kernel.h: RandomKey).
Expr RandomWords(OpBody& b, Expr count) {
  Expr seed;
  if (const int64_t* given = b.node().FindAttr<int64_t>("seed")) seed = Int(*given, count);
  else seed = b.GraphInput(kSeedInput);
  const Expr step = b.GraphInput(kDrawInput), four = Int(4, count);
  const Expr blocks = (count + Int(3, count)) / four;
  const Expr index = Op("Range", {Int(0, count), blocks, Int(1, count)});
  const Expr none = index * Int(0, index);
  uint32_t subsequence = 2166136261u;  // of the node's name, as the plan has it: FNV-1a
  for (unsigned char c : b.node().name()) subsequence = (subsequence ^ c) * 16777619u;
  Words w;
  w.c[0] = LowWord(index);
  w.c[1] = HighWord(index);
  w.c[2] = none + LowWord(step);
  w.c[3] = none + Int(subsequence, none);
  w.k[0] = Xor(LowWord(seed), HighWord(step));
  w.k[1] = HighWord(seed);
  const Words all = AllRounds(w);
  Exprs columns;
  for (const Expr& c : all.c) columns.push_back(Unsqueeze(c, {1}));
  const Expr row = Reshape(Concat(columns, 1), Ints({-1}, count));
  return Slice(row, Ints({0}, row), Unsqueeze(count, {0}), 0);
}

// The value of a scalar of a floating dtype.
double NumberOf(const Tensor& tensor) {
  double value = 0;
  DispatchFloat(tensor.dtype(), [&](auto tag) {
    value = static_cast<double>(*tensor.data<typename decltype(tag)::type>());
  });
  return value;
}

}  // namespace

void DropoutBody(OpBody& b) {
  const Expr x = b.input(0);
  const Tensor *ratio = b.Constant(1), *mode = b.Constant(2);
  if ((b.HasInput(1) && ratio == nullptr) || (b.HasInput(2) && mode == nullptr))
    return b.Refuse("has a ratio or a training_mode that may change from run to run");
  const double dropped = ratio == nullptr ? 0.5 : NumberOf(*ratio);
  if (mode == nullptr || !*mode->data<bool>() || dropped == 0) {
    b.SetOutput(0, x);
    if (b.Wants(1)) b.SetOutput(1, Cast(OnesLike(x), DType::kBool));
    return;
  }
  const auto threshold = std::min<int64_t>(std::llround(dropped * 0x1p32), kLowWord);
  const Expr words = RandomWords(b, Op("Size", {x}));
  Expr mask = Reshape(GreaterOrEqual(words, Int(threshold, words)), ShapeOf(x));
  if (dropped >= 1) mask = And(mask, Less(words, Int(0, words)));
  b.SetOutput(0, Where(mask, x * (dropped < 1 ? 1 / (1 - dropped) : 0.0), Number(0, x)));
  b.SetOutput(1, mask);
}

void DropoutGradBody(OpBody& b) {
  const Expr dy = b.input(0);
  const Tensor* ratio = b.Constant(2);
  if (b.HasInput(2) && ratio == nullptr)
    return b.Refuse("has a ratio that may change from run to run");
  const double dropped = ratio == nullptr ? 0.5 : NumberOf(*ratio);
  b.SetOutput(0, Where(b.input(1), dy * (dropped < 1 ? 1 / (1 - dropped) : 0.0), Number(0, dy)));
}

}  // namespace caesura::gradient
