// SPDX-License-Identifier: Apache-2.0
#include "core/ops/attention/cuda_attention_graph.h"

#include <cassert>

namespace caesura {
namespace {

using Id = DnnGraph::Id;
using Dims = DnnGraph::Dims;

// A graph while it is made: its tensors [batch, heads, rows, columns].
struct Scribe {
  const AttentionSpec& s;
  cudnn::DataType half;
  DnnGraph graph;

  Scribe(const cudnn::Functions& calls, const AttentionSpec& spec, DType dtype)
      : s(spec), half(dtype == DType::kBFloat16 ? cudnn::kBFloat16 : cudnn::kHalf), graph(calls) {}

  int64_t heads() const { return s.q.heads; }
  Id Heads(const HeadLayout& x) {
    return graph.Tensor(half, {s.batch, x.heads, x.positions, x.size},
                        {x.batch_stride, x.head_stride, x.row_stride, x.col_stride});
  }
  // The same matrices transposed, as the right sides of products.
  Id Transposed(const HeadLayout& x) {
    return graph.Tensor(half, {s.batch, x.heads, x.size, x.positions},
                        {x.batch_stride, x.head_stride, x.col_stride, x.row_stride});
  }
  // A float a query.
  Id PerQuery() {
    return graph.Tensor(cudnn::kFloat, {s.batch, heads(), s.queries(), 1},
                        {heads() * s.queries(), s.queries(), 1, 1});
  }
  Id Rows(int64_t columns, cudnn::DataType type = cudnn::kFloat) {
    return graph.Virtual(type, {s.batch, heads(), s.queries(), columns});
  }
  Id Scores(cudnn::DataType type = cudnn::kFloat) { return Rows(s.total, type); }
  // The same memory as rows of queries, one a key, in halves.
  Id Flipped(Id scores) {
    const int64_t queries = s.queries(), keys = s.total, size = queries * keys;
    const Id out =
        graph.Virtual(half, {s.batch, heads(), keys, queries}, {heads() * size, size, 1, keys});
    graph.Reshape(scores, out);
    return out;
  }
  // y = a b for each query head; those of a group are added up into their key head.
  void AddGroups(Id a, Id b, const HeadLayout& to, Id y) {
    if (s.group() == 1) return graph.Matmul(a, b, y);
    const Id each = graph.Virtual(half, {s.batch, heads(), to.positions, to.size});
    graph.Matmul(a, b, each);
    graph.Reduce(cudnn::kReduceAdd, each, y);
  }
  Id Apply(cudnn::PointwiseMode mode, const std::vector<Id>& inputs, Id y) {
    graph.Pointwise(mode, inputs, y);
    return y;
  }
  Id Scaled(Id scores) {
    return Apply(cudnn::kMul, {scores, graph.Number(static_cast<float>(s.scale), 4)}, Scores());
  }
  // -inf at the keys after the query.
  Id Causal(Id scores) {
    if (!s.causal) return scores;
    const Id row = Scores(cudnn::kInt32), column = Scores(cudnn::kInt32);
    graph.Index(scores, 2, row);
    graph.Index(scores, 3, column);
    const Id sees = Scores(cudnn::kBoolean);
    graph.Pointwise(cudnn::kCompareGe, {row, column}, sees, cudnn::kBoolean);
    const Id hidden = graph.Number(-std::numeric_limits<float>::infinity(), 4);
    return Apply(cudnn::kBinarySelect, {scores, hidden, sees}, Scores());
  }
};

bool IsAligned(const HeadLayout& x) {
  constexpr int64_t kHalves = DnnGraph::kAlignment / 2;
  for (const int64_t distance : {x.batch_stride, x.head_stride, x.row_stride, x.offset}) {
    if (distance % kHalves != 0) return false;
  }
  return x.col_stride == 1 && x.size % kHalves == 0;
}

}  // namespace

std::string WhyNoAttentionGraph(const AttentionSpec& s, DType dtype) {
  if (dtype != DType::kFloat16 && dtype != DType::kBFloat16) return "is of halves only";
  if (s.mask != MaskKind::kNone || s.left >= 0 || s.right >= 0) return "has no mask but causality";
  if (s.softcap > 0 || s.has_past || s.has_lengths) return "has no cap and no cache";
  if (s.queries() == 1 && s.total == 1) return "is of more than one query and key";
  for (const HeadLayout* x : {&s.q, &s.k, &s.v, &s.y}) {
    if (!IsAligned(*x)) return "has heads of a multiple of 8 elements, dense and aligned";
  }
  return {};
}

DnnGraph AttentionGraph(const cudnn::Functions& calls, const AttentionSpec& s, DType dtype,
                        bool lse) {
  assert(WhyNoAttentionGraph(s, dtype).empty());
  Scribe w(calls, s, dtype);
  const Id q = w.Heads(s.q), k = w.Transposed(s.k), v = w.Heads(s.v), y = w.Heads(s.y);
  const Id product = w.Scores();
  w.graph.Matmul(q, k, product);
  const Id scores = w.Causal(w.Scaled(product));
  const Id most = w.Rows(1), sum = w.Rows(1);
  w.graph.Reduce(cudnn::kReduceMax, scores, most);
  const Id below = w.Apply(cudnn::kSub, {scores, most}, w.Scores());
  const Id power = w.Apply(cudnn::kExp, {below}, w.Scores());
  w.graph.Reduce(cudnn::kReduceAdd, power, sum);
  // cuDNN knows the graph by this part too: where it is not asked for, it is not in memory.
  const Id logarithm = w.Apply(cudnn::kLog, {sum}, w.Rows(1));
  w.Apply(cudnn::kAdd, {most, logarithm}, lse ? w.PerQuery() : w.Rows(1));
  const Id p = w.Apply(cudnn::kDiv, {power, sum}, w.Scores(w.half));
  w.graph.Matmul(p, v, y);
  return std::move(w.graph);
}

// With D = sum of dY * Y along a row: dS = P * (dY V^T - D), dV = P^T dY, dQ = scale * dS K,
// dK = scale * dS^T Q. That dQ is a product by itself, not a sum of what blocks of keys add in
// memory, is the form that always gives the same bits.
DnnGraph AttentionGradientGraph(const cudnn::Functions& calls, const AttentionSpec& s, DType dtype,
                                const AttentionGradientLayouts& layouts) {
  Scribe w(calls, s, dtype);
  const Id dy = w.Heads(s.y), q = w.Heads(s.q), k = w.Transposed(s.k), v = w.Transposed(s.v);
  const Id y = w.Heads(s.y), lse = w.PerQuery(), sums = w.PerQuery();
  const Id dq = w.Heads(layouts.dq), dk = w.Heads(layouts.dk), dv = w.Heads(layouts.dv);
  const Id products = w.Apply(cudnn::kMul, {dy, y}, w.Rows(s.v.size)), dots = w.Rows(1);
  w.graph.Reduce(cudnn::kReduceAdd, products, dots);
  w.Apply(cudnn::kMul, {dots, w.graph.Number(1, 4)}, sums);

  const Id product = w.Scores();
  w.graph.Matmul(q, k, product);
  const Id below = w.Apply(cudnn::kSub, {w.Scaled(product), lse}, w.Scores());
  const Id p = w.Apply(cudnn::kExp, {w.Causal(below)}, w.Scores());
  w.AddGroups(w.Flipped(p), dy, s.v, dv);

  const Id dp = w.Scores();
  w.graph.Matmul(dy, v, dp);
  const Id centred = w.Apply(cudnn::kSub, {dp, sums}, w.Scores());
  const Id ds = w.Scaled(w.Apply(cudnn::kMul, {centred, p}, w.Scores()));
  w.AddGroups(w.Flipped(ds), q, s.k, dk);
  const Id rows_of_k =
      w.graph.Virtual(w.half, {s.batch, s.k.heads, s.total, s.k.size},
                      {s.k.batch_stride, s.k.head_stride, s.k.row_stride, s.k.col_stride});
  w.graph.Reshape(k, rows_of_k);
  w.graph.Matmul(ds, rows_of_k, dq);
  return std::move(w.graph);
}

}  // namespace caesura
