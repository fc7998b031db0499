// SPDX-License-Identifier: Apache-2.0
// The step programs of both examples, small: a convolutional net with BatchNorm and a character
// GPT, with the ops that their exports hold. What tests of the executor run with real kernels.
#ifndef CAESURA_TESTS_TRAINING_REAL_STEP_H_
#define CAESURA_TESTS_TRAINING_REAL_STEP_H_

#include <cstdlib>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "core/providers/cpu_provider.h"
#include "tests/core/execute/graph_fixture.h"
#include "training/session/training_session.h"
#include "training/step/step_program.h"

namespace caesura::testing {

inline constexpr int kUpdates = 2;

// The stride of a sweep: 1 where the long tests were asked for.
inline int Every(int shortened) { return std::getenv("CAESURA_LONG") != nullptr ? 1 : shortened; }

// Copies of the parameters and states of these names.
inline Values Everything(const TrainingSession& session, const std::vector<std::string>& names) {
  Values out;
  for (const std::string& name : names)
    out.push_back(session.parameters().Get(name).value().Clone().value());
  return out;
}

// A model, how it is trained, and a batch for each of two updates.
struct RealModel {
  Model model;
  TrainingOptions options;
  std::vector<NamedValues> batches;

  RealModel Clone() const { return {model.Clone(), options, batches}; }
};

// All that two updates give: losses as handed out, then the whole ParameterSet (optimizer state
// too).
struct Trained {
  Values losses, parameters;
  bool operator==(const Trained& o) const {
    return SameBits(losses, o.losses) && SameBits(parameters, o.parameters);
  }
};

// Inputs of the text from `first` on become initializers: weights from a seed, ones for scales and
// variances.
inline void FillInitializers(Graph& graph, size_t first) {
  std::mt19937 random(first);
  const std::vector<Value*> inputs = graph.inputs();
  for (size_t i = first; i < inputs.size(); ++i) {
    const std::string& name = inputs[i]->name();
    const bool ones = name.find("scale") != name.npos || name.find("var") != name.npos;
    std::vector<int64_t> dims;
    for (const auto& dim : *inputs[i]->type().shape) dims.push_back(dim.value);
    Tensor tensor = Tensor::Zeros(DType::kFloat32, Shape(dims));
    for (int64_t e = 0; e < tensor.elements(); ++e) {
      const float noise = static_cast<float>(random() % 2001) / 1000 - 1;
      tensor.data<float>()[e] = ones ? 1 + noise / 8 : noise / 3;
    }
    graph.RemoveInput(inputs[i]);
    graph.SetInitializer(inputs[i], std::move(tensor));
  }
}

inline NamedValues RandomBatch(uint32_t seed, const std::string& input, const Shape& shape,
                               bool tokens, const std::string& target, const Shape& target_shape,
                               int classes) {
  std::mt19937 random(seed);
  NamedValues batch;
  auto classes_of = [&](const Shape& s) {
    Tensor out = Tensor::Zeros(DType::kInt64, s);
    for (int64_t e = 0; e < out.elements(); ++e) out.data<int64_t>()[e] = random() % classes;
    return out;
  };
  Tensor floats = Tensor::Zeros(DType::kFloat32, shape);
  for (int64_t e = 0; e < floats.elements(); ++e)
    floats.data<float>()[e] = static_cast<float>(random() % 17) / 16;
  batch[input] = tokens ? classes_of(shape) : floats;
  batch[target] = classes_of(target_shape);
  return batch;
}

inline std::shared_ptr<const ExecutionProvider> TrainingCpu() { return MakeCpuProvider(); }

inline RealModel MakeRealModel(const std::string& text, size_t data_inputs) {
  auto parsed =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 20, \"ai.caesura\" : 1]> " + text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  RealModel out{*std::move(parsed), {}, {}};
  FillInitializers(*out.model.graph, data_inputs);
  out.options.providers = {TrainingCpu()};
  out.options.threads = 1;
  out.options.seed = 11;
  return out;
}

inline RealModel DigitsWith(const std::string& before_head) {
  RealModel out = MakeRealModel(R"(net (float[batch,1,8,8] images,
      float[4,1,3,3] w0, float[4] b0, float[4] scale0, float[4] shift0, float[4] mean0, float[4] var0,
      float[8,4,3,3] w1, float[8] b1, float[8] scale1, float[8] shift1, float[8] mean1, float[8] var1,
      float[10,32] head, float[10] head_bias) => (float[batch,10] scores) {
    dims = Shape <start = 0, end = 1> (images)
    c0 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (images, w0, b0)
    n0 = BatchNormalization <momentum = 0.9> (c0, scale0, shift0, mean0, var0)
    r0 = Relu (n0)
    p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
    c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p0, w1, b1)
    n1 = BatchNormalization <momentum = 0.9> (c1, scale1, shift1, mean1, var1)
    r1 = Relu (n1)
    p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
    width = Constant <value_ints = [32]> ()
    flat = Concat <axis = 0> (dims, width)
    u = Reshape <allowzero = 1> (p1, flat)
    )" + before_head + R"(
    scores = Gemm <transB = 1> (v, head, head_bias)
  })",
                                1);
  out.options.step.loss = Loss::CrossEntropy("labels");
  out.options.step.optimizer = AdamW{.learning_rate = 2e-3};
  for (uint32_t i = 0; i < kUpdates; ++i) {
    out.batches.push_back(
        RandomBatch(i, "images", Shape{6, 1, 8, 8}, false, "labels", Shape{6}, 10));
  }
  return out;
}

inline RealModel Digits() { return DigitsWith("v = Identity (u)"); }
// With random numbers in the forward part.
inline RealModel DigitsWithDropout() {
  return DigitsWith(
      "drop = Constant <value_float = 0.25> () train = Constant <value_int = 1> () "
      "on = Cast <to = 9> (train) v, mask = Dropout (u, drop, on)");
}

// Three layers, no normalisation: nearly all is products.
inline RealModel Mlp() {
  RealModel out = MakeRealModel(R"(mlp (float[batch,12] x, float[32,12] w0, float[32] b0,
      float[32,32] w1, float[32] b1, float[10,32] w2, float[10] b2) => (float[batch,10] scores) {
    m0 = Gemm <transB = 1> (x, w0, b0)
    r0 = Relu (m0)
    m1 = Gemm <transB = 1> (r0, w1, b1)
    r1 = Tanh (m1)
    scores = Gemm <transB = 1> (r1, w2, b2)
  })",
                                1);
  out.options.step.loss = Loss::CrossEntropy("labels");
  out.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  for (uint32_t i = 0; i < kUpdates; ++i)
    out.batches.push_back(RandomBatch(i, "x", Shape{6, 12}, false, "labels", Shape{6}, 10));
  return out;
}

// A block of a Llama's: RMS norms, rotary positions, two query heads to one of keys, SwiGLU.
inline RealModel Llama() {
  RealModel out = MakeRealModel(R"(llama (int64[batch,6] tokens, float[11,16] embedding,
      float[16] scale_a, float[16,16] wq, float[16,8] wk, float[16,8] wv, float[16,16] wo,
      float[16] scale_b, float[16,24] gate, float[16,24] up, float[24,16] down,
      float[16] scale_f, float[16,11] head) => (float[batch,6,11] scores)
  <int64[4] heads = {0, 6, 4, 4}, int64[4] few = {0, 6, 2, 4}, int64[3] flat = {0, 6, 16},
   int64[5] spread = {0, 2, 1, 6, 4}, int64[5] twice = {1, 1, 2, 1, 1}, int64[4] many = {0, 4, 6, 4},
   float two = {2}, float root = {2}, float epsilon = {1e-5}, int64[1] last = {-1}, float low = {-1e30},
   int64 upper = {1}, int64[2] square = {6, 6},
   float[6,2] cos = {1, 1, 0.54, 1, -0.42, 1, -0.99, 1, -0.65, 1, 0.28, 1},
   float[6,2] sin = {0, 0, 0.84, 0.01, 0.91, 0.02, 0.14, 0.03, -0.76, 0.04, -0.96, 0.05}> {
    x = Gather <axis = 0> (embedding, tokens)
    s_a = Mul (x, x)
    m_a = ReduceMean (s_a, last)
    e_a = Add (m_a, epsilon)
    r_a = Sqrt (e_a)
    n_a = Div (x, r_a)
    h = Mul (n_a, scale_a)
    q0 = MatMul (h, wq)
    k0 = MatMul (h, wk)
    v0 = MatMul (h, wv)
    q1 = Reshape (q0, heads)
    k1 = Reshape (k0, few)
    v1 = Reshape (v0, few)
    q2 = Transpose <perm = [0, 2, 1, 3]> (q1)
    k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
    v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    qa, qb = Split <axis = 3, num_outputs = 2> (q2)
    ka, kb = Split <axis = 3, num_outputs = 2> (k2)
    qac = Mul (qa, cos)
    qbs = Mul (qb, sin)
    qbc = Mul (qb, cos)
    qas = Mul (qa, sin)
    qx = Sub (qac, qbs)
    qy = Add (qbc, qas)
    q = Concat <axis = 3> (qx, qy)
    kac = Mul (ka, cos)
    kbs = Mul (kb, sin)
    kbc = Mul (kb, cos)
    kas = Mul (ka, sin)
    kx = Sub (kac, kbs)
    ky = Add (kbc, kas)
    k3 = Concat <axis = 3> (kx, ky)
    k4 = Reshape (k3, spread)
    v4 = Reshape (v2, spread)
    k5 = Tile (k4, twice)
    v5 = Tile (v4, twice)
    k6 = Reshape (k5, many)
    v = Reshape (v5, many)
    k = Transpose <perm = [0, 1, 3, 2]> (k6)
    qk = MatMul (q, k)
    scaled = Div (qk, root)
    yes = Constant <value_float = 1.0> ()
    all = Cast <to = 9> (yes)
    ones = Expand (all, square)
    hidden = Trilu <upper = 1> (ones, upper)
    masked = Where (hidden, low, scaled)
    p = Softmax <axis = -1> (masked)
    a4 = MatMul (p, v)
    a3 = Transpose <perm = [0, 2, 1, 3]> (a4)
    a = Reshape (a3, flat)
    o = MatMul (a, wo)
    x1 = Add (x, o)
    s_b = Mul (x1, x1)
    m_b = ReduceMean (s_b, last)
    e_b = Add (m_b, epsilon)
    r_b = Sqrt (e_b)
    n_b = Div (x1, r_b)
    h1 = Mul (n_b, scale_b)
    g0 = MatMul (h1, gate)
    g1 = Sigmoid (g0)
    g = Mul (g0, g1)
    u = MatMul (h1, up)
    gu = Mul (g, u)
    d = MatMul (gu, down)
    x2 = Add (x1, d)
    s_f = Mul (x2, x2)
    m_f = ReduceMean (s_f, last)
    e_f = Add (m_f, epsilon)
    r_f = Sqrt (e_f)
    n_f = Div (x2, r_f)
    h2 = Mul (n_f, scale_f)
    scores = MatMul (h2, head)
  })",
                                1);
  out.options.step.loss = Loss::CrossEntropy("next");
  out.options.step.loss.class_axis = -1;
  out.options.step.optimizer = AdamW{.learning_rate = 2e-3, .weight_decay = 0.1};
  for (uint32_t i = 0; i < kUpdates; ++i)
    out.batches.push_back(RandomBatch(i, "tokens", Shape{3, 6}, true, "next", Shape{3, 6}, 11));
  return out;
}

// One block of the GPT's: attention over two heads, then the feed-forward part. `i`: its number,
// `x`: what goes in.
inline std::string GptBlock(const std::string& i, const std::string& x) {
  std::string text = R"(
    ln_a@ = LayerNormalization <axis = -1> (X, scale_a@, shift_a@)
    qkv_t@ = Transpose <perm = [1, 0]> (qkv@)
    m@ = MatMul (ln_a@, qkv_t@)
    l@ = Add (m@, qkv_bias@)
    parts@ = SplitToSequence <axis = 2> (l@, each)
    q_@ = SequenceAt (parts@, zero)
    k_@ = SequenceAt (parts@, one)
    v_@ = SequenceAt (parts@, two)
    q4_@ = Reshape <allowzero = 1> (q_@, split)
    k4_@ = Reshape <allowzero = 1> (k_@, split)
    v4_@ = Reshape <allowzero = 1> (v_@, split)
    q@ = Transpose <perm = [0, 2, 1, 3]> (q4_@)
    k@ = Transpose <perm = [0, 2, 3, 1]> (k4_@)
    v@ = Transpose <perm = [0, 2, 1, 3]> (v4_@)
    qk@ = MatMul (q@, k@)
    scaled@ = Div (qk@, root)
    masked@ = Where (hidden, low, scaled@)
    p@ = Softmax <axis = -1> (masked@)
    a4@ = MatMul (p@, v@)
    a3@ = Transpose <perm = [0, 2, 1, 3]> (a4@)
    a@ = Reshape <allowzero = 1> (a3@, joined)
    proj_t@ = Transpose <perm = [1, 0]> (proj@)
    pm@ = MatMul (a@, proj_t@)
    pb@ = Add (pm@, proj_bias@)
    x_a@ = Add (X, pb@)
    ln_b@ = LayerNormalization <axis = -1> (x_a@, scale_b@, shift_b@)
    up_t@ = Transpose <perm = [1, 0]> (up@)
    um@ = MatMul (ln_b@, up_t@)
    ub@ = Add (um@, up_bias@)
    g@ = Gelu (ub@)
    down_t@ = Transpose <perm = [1, 0]> (down@)
    dm@ = MatMul (g@, down_t@)
    db@ = Add (dm@, down_bias@)
    x_b@ = Add (x_a@, db@)
)";
  for (size_t at; (at = text.find('@')) != text.npos;) text.replace(at, 1, i);
  for (size_t at; (at = text.find('X')) != text.npos;) text.replace(at, 1, x);
  return text;
}

// Two heads of `size` elements each.
inline RealModel CharGptOf(int64_t size) {
  std::string weights;
  for (const std::string i : {"0", "1"}) {
    weights += ", float[$2] scale_a" + i + ", float[$2] shift_a" + i + ", float[$6,$2] qkv" + i +
               ", float[$6] qkv_bias" + i + ", float[$2,$2] proj" + i + ", float[$2] proj_bias" +
               i + ", float[$2] scale_b" + i + ", float[$2] shift_b" + i + ", float[$8,$2] up" + i +
               ", float[$8] up_bias" + i + ", float[$2,$8] down" + i + ", float[$2] down_bias" + i;
  }
  std::string text =
      R"(gpt (int64[batch,time] tokens, float[11,$2] token, float[6,$2] position,
      float[$2] scale_f, float[$2] shift_f, float[11,$2] head)" +
      weights + R"() => (float[batch,time,11] scores)
  <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 each = {$2}, float root = {2}, float low = {-1e30},
   int64[2] heads = {2, $1}, int64[1] wide = {$2}> {
    b = Shape <start = 0, end = 1> (tokens)
    t = Shape <start = 1, end = 2> (tokens)
    length = Squeeze (t)
    places = Range (zero, length, one)
    e = Gather <axis = 0> (token, tokens)
    at = Gather <axis = 0> (position, places)
    x = Add (e, at)
    split = Concat <axis = 0> (b, t, heads)
    joined = Concat <axis = 0> (b, t, wide)
    square = Concat <axis = 0> (t, t)
    yes = Constant <value_float = 1.0> ()
    all = Cast <to = 9> (yes)
    ones = Expand (all, square)
    seen = Trilu <upper = 0> (ones, zero)
    hidden = Not (seen)
)" + GptBlock("0", "x") +
      GptBlock("1", "x_b0") + R"(
    last = LayerNormalization <axis = -1> (x_b1, scale_f, shift_f)
    head_t = Transpose <perm = [1, 0]> (head)
    scores = MatMul (last, head_t)
  })";
  for (size_t at; (at = text.find('$')) != text.npos;)
    text.replace(at, 2, std::to_string((text[at + 1] - '0') * size));
  RealModel out = MakeRealModel(text, 1);
  out.options.step.loss = Loss::CrossEntropy("next");
  out.options.step.loss.class_axis = -1;
  out.options.step.optimizer = AdamW{.learning_rate = 2e-3, .beta2 = 0.99, .weight_decay = 0.1};
  out.options.step.clip_norm = 0.5;  // the gradient's norm is above it: clipping does something
  for (uint32_t i = 0; i < kUpdates; ++i) {
    out.batches.push_back(RandomBatch(i, "tokens", Shape{3, 6}, true, "next", Shape{3, 6}, 11));
  }
  return out;
}
inline RealModel CharGpt() { return CharGptOf(4); }

// For parameterised tests.
struct MakesReal {
  const char* name;
  RealModel (*make)();
  static std::string Name(const ::testing::TestParamInfo<MakesReal>& info) {
    return info.param.name;
  }
};
inline void PrintTo(const MakesReal& makes, std::ostream* out) { *out << makes.name; }

inline std::unique_ptr<TrainingSession> SessionOf(const RealModel& real) {
  auto session = TrainingSession::Create(real.model.Clone(), real.options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *std::move(session) : nullptr;
}

// The whole step as one graph, with what a run of it needs, apart from any session.
class StepRunner {
 public:
  // Takes the program, its parameters' names and their order from a session on `real`.
  explicit StepRunner(const RealModel& real) : real_(real), session_(SessionOf(real)) {
    graph_ = session_->runs().step_graph().Clone();
    auto plan = session_->runs().Plan(real.batches[0]);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    for (const Value* value : (*plan)->options().parameters) names_.push_back(value->name());
    plan_ = *plan;
  }

  const std::shared_ptr<const ExecutionPlan>& plan() const { return plan_; }
  const std::vector<std::string>& names() const { return names_; }
  // A copy of the program, to be changed; PlanOf makes the plan of it.
  std::shared_ptr<Graph> graph() const { return graph_->Clone(); }
  Result<std::shared_ptr<const ExecutionPlan>> PlanOf(const std::shared_ptr<Graph>& graph,
                                                      int threads) const {
    PlanOptions options;
    options.threads = threads;
    options.cache_values = false;
    for (const std::string& name : names_) options.parameters.push_back(graph->FindValue(name));
    return TryPlan(graph, Feeds(*graph, 0), options, real_.options.providers);
  }

  Values Feeds(const Graph& graph, int update) const {
    const NamedValues own = {
        {kLearningRateInput, Tensor::Scalar<double>(session_->progress().learning_rate())},
        {kStepInput, Tensor::Scalar<int64_t>(update + 1)},
        {kResetInput, Tensor::Scalar<bool>(true)}};
    Values feeds;
    for (const Value* input : graph.inputs()) {
      auto it = own.find(input->name());
      feeds.push_back(it != own.end() ? it->second : real_.batches[update].at(input->name()));
    }
    return feeds;
  }
  // Fresh copies of the initial values.
  ParameterSet Parameters() const {
    ParameterSet out;
    for (const std::string& name : names_) {
      out.Add(name, graph_->Initializer(graph_->FindValue(name))->Clone().value());
    }
    return out;
  }
  Status Start(ExecutionState& state, ParameterSet& parameters, int update) const {
    RunOptions options;
    options.parameters = &parameters;
    options.seed = real_.options.seed;
    options.step = static_cast<uint64_t>(update);
    return state.Start(Feeds(state.plan().graph(), update), std::move(options));
  }
  // Two updates on `state`; `run(state)` stands for a PartialExecutor::Run to the end, and may cut
  // it.
  template <typename Run>
  Result<Trained> Train(ExecutionState& state, const Run& run) const {
    ParameterSet parameters = Parameters();
    Trained out;
    for (int update = 0; update < kUpdates; ++update) {
      Status status = Start(state, parameters, update);
      if (!status.ok()) return status;
      Result<RunOutcome> outcome = run(state);
      if (!outcome.ok()) return outcome.status();
      EXPECT_EQ(*outcome, RunOutcome::kFinished);
      Values found = state.TakeFetches();  // the loss, and the norm where gradients are clipped
      out.losses.push_back(std::move(found[0]));
    }
    out.parameters = ValuesOf(parameters);
    return out;
  }
  static Values ValuesOf(const ParameterSet& parameters) {
    Values out;
    for (int i = 0; i < parameters.size(); ++i) out.push_back(parameters.tensor(i).Clone().value());
    return out;
  }
  // The session's own result, without any cut.
  Trained BySession() const {
    auto session = SessionOf(real_);
    Trained out;
    for (const NamedValues& batch : real_.batches) {
      auto loss = session->Step(batch);
      EXPECT_TRUE(loss.ok()) << loss.status().ToString();
      if (!loss.ok()) return out;
      out.losses.push_back(Tensor::Scalar<float>(static_cast<float>(*loss)));
    }
    for (const std::string& name : names_)
      out.parameters.push_back(session->parameters().Get(name).value());
    return out;
  }

 private:
  const RealModel& real_;
  std::unique_ptr<TrainingSession> session_;
  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<const ExecutionPlan> plan_;
  std::vector<std::string> names_;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_REAL_STEP_H_
