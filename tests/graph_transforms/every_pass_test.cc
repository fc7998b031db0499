// SPDX-License-Identifier: Apache-2.0
// What all passes promise, on graphs that make each of them fire: values that are NaN or infinite
// stay so and no others become so, outputs keep their names, and a node that is pinned to a
// provider stays there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/kernels/simd/best_isa.h"
#include "core/providers/counting_provider.h"
#include "core/providers/cpu_provider.h"
#include "core/session/session.h"
#include "graph_transforms/fusion/attention_fusion.h"
#include "graph_transforms/fusion/dequantize_fusion.h"
#include "graph_transforms/fusion/gemm_fusion.h"
#include "graph_transforms/fusion/matmul_epilogue.h"
#include "graph_transforms/fusion/norm_fusion.h"
#include "graph_transforms/fusion/row_fusion.h"
#include "graph_transforms/fusion/weight_packing.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/precision/cast_grouping.h"
#include "graph_transforms/precision/cast_propagation.h"
#include "graph_transforms/precision/loss_cast.h"
#include "graph_transforms/precision/mixed_precision.h"
#include "graph_transforms/recompute.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/shapes/shape_simplification.h"
#include "graph_transforms/simplify/common_subexpression.h"
#include "graph_transforms/simplify/constant_nodes.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "graph_transforms/simplify/expand_sinking.h"
#include "graph_transforms/simplify/function_inlining.h"
#include "graph_transforms/simplify/movement_elimination.h"
#include "graph_transforms/simplify/redundant_nodes.h"
#include "graph_transforms/simplify/split_sequences.h"
#include "graph_transforms/simplify/split_slices.h"
#include "training/session/split_module.h"
#include "graph_transforms/order/update_order.h"

namespace caesura {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct PassCase {
  std::string name;
  std::shared_ptr<Pass> pass;
  std::string graph;        // its inputs, outputs, initializers and nodes
  float tolerance = 1e-5f;  // relative: sums in another order, unless said
  std::string weight = {};  // an input that is a constant with such values
};
void PrintTo(const PassCase& c, std::ostream* out) { *out << c.name; }

std::vector<PassCase> AttentionCases() {
  const std::string inputs = "(float[2,2,5,8] q, float[2,2,5,8] k, float[2,2,5,4] v";
  const std::string end = ") => (float[2,2,5,4] y) ";
  const std::string scores =
      "{ t = Transpose <perm = [0, 1, 3, 2]> (k) r = MatMul (q, t) s = Mul (r, scale) ";
  const std::string last = " y = MatMul (p, v) }";
  // Keys after the query are hidden; the first query sees nothing in `none`.
  const auto mask = [](const char* name, const std::string& low, int shift) {
    std::string out = std::string(", float[5,5] ") + name + " = {";
    for (int i = 0; i < 25; ++i)
      out += (i == 0 ? "" : ", ") + (i % 5 < i / 5 + shift ? std::string("0") : low);
    return out + "}";
  };
  const std::string fixed =
      "<float scale = {0.4}, float zero = {0}, float low = {-1e9}, float lowest = {-inf}" +
      mask("causal", "-inf", 1) + mask("far", "-3e38", 1) + mask("none", "-inf", 0) + "> ";
  const auto make = [&](const std::string& name, const std::string& more,
                        const std::string& middle) {
    return PassCase{"Attention" + name, MakeAttentionFusionPass({}),
                    inputs + more + end + fixed + scores + middle + last};
  };
  const std::string bias = ", float[2,1,5,5] b", hides = ", bool[2,1,5,5] h";
  const std::string guard = " bad = IsNaN (w) p = Where (bad, zero, w)";
  return {
      make("", "", "p = Softmax (s)"),
      make("Biased", bias, "m = Add (s, b) p = Softmax (m)"),
      make("Causal", "", "m = Add (s, causal) p = Softmax (m)"),
      make("CausalFar", "", "m = Add (s, far) p = Softmax (m)"),
      make("SeesNothing", "", "m = Add (none, s) p = Softmax (m)"),
      make("Hidden", hides, "m = Where (h, lowest, s) p = Softmax (m)"),
      make("HiddenFar", hides, "m = Where (h, low, s) p = Softmax (m)"),
      make("Seen", hides, "m = Where (h, s, lowest) p = Softmax (m)"),
      make("Guarded", bias, "m = Add (s, b) w = Softmax (m)" + guard),
      make("GuardedSeesNothing", "", "m = Add (s, none) w = Softmax (m)" + guard),
      make("GuardedCausal", "", "m = Add (s, causal) w = Softmax (m)" + guard),
  };
}

// Each op that row_fusion knows, in front of another.
std::vector<PassCase> RowCases() {
  std::vector<PassCase> out;
  const auto add = [&](const std::string& name, const std::string& body, float tolerance = 1e-5f) {
    out.push_back({"Row" + name, MakeRowFusionPass(),
                   "(float[9,17] x, float[9,17] z, float[17] g, float[17] b) => (float[9,17] y) "
                   "<int64[1] last = {-1}, "
                   "float lo = {-1.5}, float hi = {2}, float two = {2}> { " +
                       body + " }",
                   tolerance});
  };
  for (const char* op : {"Abs",     "Ceil",        "Celu",      "Cos",
                         "Elu",     "Erf",         "Exp",       "Floor",
                         "Gelu",    "HardSigmoid", "HardSwish", "LeakyRelu",
                         "Log",     "Mish",        "Neg",       "Reciprocal",
                         "Relu",    "Round",       "Selu",      "Sigmoid",
                         "Sign",    "Sin",         "Softplus",  "Softsign",
                         "Sqrt",    "Swish",       "Tanh",      "ThresholdedRelu",
                         "Softmax", "LogSoftmax"}) {
    add(op, std::string("a = ") + op + " (x) n = Neg (a) y = Add (n, z)");
  }
  for (const char* op : {"Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum"}) {
    add(op, std::string("a = ") + op + " (x, z) y = Neg (a)");
  }
  for (const char* op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}) {
    add(op, std::string("a = ") + op + " (x, z) c = Not (a) y = Where (c, x, z)");
  }
  for (const char* op : {"IsNaN", "IsInf"})
    add(op, std::string("a = ") + op + " (x) y = Where (a, z, x)");
  for (const char* op :
       {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2"}) {
    add(op, std::string("a = ") + op + " (x, last) y = Add (z, a)");
  }
  for (const char* op :
       {"ReluGrad", "GeluGrad", "SigmoidGrad", "TanhGrad", "SoftmaxGrad", "LogSoftmaxGrad"}) {
    add(op, std::string("a = ai.caesura.") + op + " (x, z) y = Neg (a)");
  }
  add("Clip", "a = Clip (x, lo, hi) y = Neg (a)");
  add("Square", "a = Pow (x, two) y = Neg (a)");
  add("LayerNorm", "a = LayerNormalization (x, g, b) y = Add (a, z)");
  add("RmsNorm", "a = RMSNormalization (x, g) y = Add (a, z)");
  out.push_back({"RowParts", MakeRowFusionPass(),
                 "(float[9,16] x) => (float[9,16] y) { a, c = Split <axis = 1, num_outputs = 2> "
                 "(x) e = Exp (a) "
                 "y = Concat <axis = 1> (c, e) }"});
  return out;
}

std::vector<PassCase> PassCases() {
  std::vector<PassCase> out = {
      {"Constants", MakeConstantNodesPass(),
       "(float[4] x) => (float[4] y, float[4] c) { c = Constant <value_floats = "
       "[1.0, -inf, 0.0, inf]> () y = Add (x, c) }"},
      {"Redundant", MakeRedundantNodesPass(),
       "(float[4] x) => (float[4] y) { i = Identity (x) y = Neg (i) }"},
      {"Sequences", MakeSplitSequencesPass(),
       "(float[4,6] x) => (float[2,6] y) <int64 two = {2}, int64 none = {0}, "
       "int64 one = {1}> { s = SplitToSequence <axis = 0> (x, two) a = SequenceAt (s, none) b = "
       "SequenceAt (s, one) "
       "y = Mul (a, b) }"},
      {"Twice", MakeCommonSubexpressionPass({}),
       "(float[4] x) => (float[4] y) { a = Exp (x) b = Exp (x) y = Mul (a, b) }"},
      {"Slices", MakeSplitSlicesPass(),
       "(float[3,8] x) => (float[3,4] y) <int64[1] none = {0}, int64[1] four = {4}, "
       "int64[1] eight = {8}, int64[1] one = {1}> { a = Slice (x, none, four, one) b = Slice (x, "
       "four, eight, one) "
       "y = Mul (b, a) }"},
      {"SliceGradients", MakeSplitSlicesPass(),
       "(float[3,4] a, float[3,4] b) => (float[3,8] y) <int64[1] none = {0}, "
       "int64[1] four = {4}, int64[1] eight = {8}, int64[1] one = {1}, int64[2] s = {3, 8}> { "
       "c = ai.caesura.SliceGrad (a, s, none, four, one) d = ai.caesura.SliceGrad (b, s, four, "
       "eight, one) y = Add (c, d) }"},
      {"Norm", MakeNormFusionPass({}),
       "(float[5,16] x, float[16] g) => (float[5,16] y) <int64[1] last = {-1}, "
       "float e = {1e-6}> { q = Mul (x, x) m = ReduceMean (q, last) v = Add (m, e) r = Sqrt (v) n "
       "= Div (x, r) "
       "y = Mul (n, g) }"},
      {"NormByReciprocal", MakeNormFusionPass({}),
       "(float[5,16] x, float[16] g) => (float[5,16] y) <int64[1] last = {-1}, "
       "float e = {0}, float two = {2}> { q = Pow (x, two) m = ReduceMean (q, last) v = Add (m, e) "
       "r = Sqrt (v) "
       "i = Reciprocal (r) n = Mul (x, i) y = Mul (g, n) }"},
      {"Transposes", MakeMovementEliminationPass(),
       "(float[3,4] x) => (float[3,4] y) { a = Transpose (x) b = Transpose (a) "
       "y = Neg (b) }"},
      {"Casts", MakeMovementEliminationPass(),
       "(float[3,4] x) => (float[3,4] y) { a = Cast <to = 11> (x) "
       "b = Cast <to = 1> (a) y = Neg (b) }"},
      {"Reshapes", MakeMovementEliminationPass(),
       "(float[3,4] x) => (float[12] y) <int64[2] s = {2, 6}, int64[1] t = {12}> "
       "{ a = Reshape (x, s) y = Reshape (a, t) }"},
      {"Dead", MakeDeadNodeEliminationPass(),
       "(float[4] x) => (float[4] y) { a = Neg (x) y = Exp (x) }"},
      {"Shapes", MakeShapeSimplificationPass(),
       "(float[3,4] x, float[12] z) => (float[3,4] y) { s = Shape (x) "
       "y = Reshape (z, s) }"},
      {"Epilogue", MakeMatMulEpiloguePass(),
       "(float[9,16] x, float[16,24] w, float[24] b, float[9,24] r) => (float[9,24] y) "
       "{ p = MatMul (x, w) q = Add (p, b) y = Add (r, q) }"},
      {"LargeEpilogue", MakeMatMulEpiloguePass(),
       "(float[64,80] x, float[80,96] w, float[96] b) => (float[64,96] y) "
       "{ p = MatMul (x, w) y = Add (p, b) }"},
      {"EpilogueOfHalves", MakeMatMulEpiloguePass(),
       "(float16[9,16] x, float16[16,24] w) => (float[9,24] y) "
       "{ p = MatMul (x, w) y = Cast <to = 1> (p) }",
       2e-2f},
      {"Gemm", MakeGemmFusionPass(),
       "(float[9,16] x, float[24,16] w, float[24] b) => (float[9,24] y) <float half = {0.5}> "
       "{ t = Transpose (w) p = MatMul (x, t) q = Mul (half, p) y = Add (b, q) }"},
      {"TransposedGemm", MakeGemmFusionPass(),
       "(float[9,16] x, float[9,24] d) => (float[24,16] y) "
       "{ p = Gemm <transA = 1> (x, d) y = Transpose (p) }"},
      {"StoredWeights", MakeDequantizeFusionPass({}),
       "(float[5,2] x) => (float[5,16] y) <int8[2,16] q = {1, -2, 3, -4, 5, -6, 7, -8, 1, 2, 3, 4, "
       "5, 6, 7, 8, -1, -2, -3, -4, -5, -6, -7, -8, 9, -9, 8, -8, 7, -7, 6, 0}, "
       "float[2,1] s = {0.5, 0.25}> "
       "{ w = DequantizeLinear <axis = 1, block_size = 16> (q, s) y = MatMul (x, w) }"},
      {"Packing", MakeWeightPackingPass(),
       "(float[8,512] x, float[512,320] w) => (float[8,320] y) "
       "{ y = MatMul (x, w) }",
       1e-4f, "w"},
      {"PackingOfGemm", MakeWeightPackingPass(),
       "(float[8,512] x, float[320,512] w, float[320] b) => (float[8,320] y) "
       "{ y = Gemm <transB = 1> (x, w, b) }",
       1e-4f, "w"},
      {"Expands", MakeExpandSinkingPass(),
       "(float[3,1] x, float[3,4] z) => (float[3,4] y) <int64[2] s = {3, 4}> "
       "{ e = Expand (x, s) y = Div (z, e) }"},
      {"ExpandsBehind", MakeExpandSinkingPass(),
       "(float[3,1] x, float z) => (float[3,4] y) <int64[2] s = {3, 4}> "
       "{ e = Expand (x, s) y = Mul (e, z) }"},
      {"WideViews", MakeCastPropagationPass(),
       "(float16[3,4] x) => (float[12] y) <int64[1] s = {12}> "
       "{ v = Reshape (x, s) y = Cast <to = 1> (v) }"},
      {"WideSums", MakeCastPropagationPass(),
       "(float16[7,4] x) => (float[4] y) <int64[1] s = {4}> "
       "{ v = ai.caesura.SumTo (x, s) y = Cast <to = 1> (v) }",
       1e-2f},
      {"GradientsOfHalves", MakeLossCastPass(),
       "(float[3,4] scores, float[3] lse, float d) => (bfloat16[3,4] y) "
       "<int64[3] labels = {2, 0, 1}> "
       "{ g = ai.caesura.SoftmaxCrossEntropyLossGrad (d, scores, labels, , lse) "
       "y = Cast <to = 16> (g) }"},
      {"CastsOfMany", MakeCastGroupingPass({"w", "v"}),
       "(float[4,3] w, float[3] v) => (float16[4,3] y, float16[3] z) "
       "{ y = Cast <to = 10> (w) z = Cast <to = 10> (v) }"},
      {"Mixed", MakeMixedPrecisionPass(DType::kBFloat16),
       "(float[9,16] x, float[16,24] w) => (float[9,24] y) "
       "<float one = {1}> { p = MatMul (x, w) q = Add (p, one) "
       "y = Relu (q) }",
       0.2f},
      {"Inlined", MakeFunctionInliningPass({}),
       "(float[9,5] x) => (float[9,5] y) { y = Softplus (x) }"},
  };
  for (const auto& more : {AttentionCases(), RowCases()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

// Plain numbers, and in most rounds some of the others among them.
Tensor Drawn(DType dtype, const Shape& shape, int round, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> share(0, 1);
  const float special[] = {NAN, kInfinity, -kInfinity, 0.0f, -0.0f};
  const float rare = round % 4 == 0 ? 0 : round % 4 == 1 ? 0.01f : round % 4 == 2 ? 0.1f : 1;
  const bool only_one = round % 8 >= 4;  // kind of them
  Tensor out = Tensor::Zeros(dtype, shape);
  const auto kind = random() % 5;
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const float x = share(random) < rare ? special[only_one ? kind : random() % 5] : normal(random);
    if (dtype == DType::kBool) {
      out.data<bool>()[i] = x > 0;
    } else {
      DispatchFloat(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        out.data<T>()[i] = static_cast<T>(x);
      });
    }
  }
  return out;
}

// The case's graph, with weights that are drawn in the place of the input that is to be constant.
Model Parse(const PassCase& c, int round, std::mt19937& random) {
  auto parsed =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 28, \"ai.caesura\": 1]>\ng " + c.graph);
  EXPECT_TRUE(parsed.ok()) << c.graph << "\n" << parsed.status().ToString();
  Model model = *std::move(parsed);
  if (Value* weight = c.weight.empty() ? nullptr : model.graph->FindValue(c.weight)) {
    model.graph->RemoveInput(weight);
    model.graph->SetInitializer(
        weight, Drawn(DType::kFloat32, *weight->type().ConcreteShape(), round, random));
  }
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

std::vector<RuntimeValue> RunModel(const Model& model, const PassMaker& passes,
                                   const NamedValues& feeds) {
  SessionOptions options;
  options.providers = {MakeCpuProvider()};
  options.passes = passes;
  auto session = Session::Create(model.Clone(), std::move(options));
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  auto values = (*session)->Run(feeds);
  EXPECT_TRUE(values.ok()) << values.status().ToString();
  return *std::move(values);
}

std::vector<double> Numbers(const Tensor& tensor) {
  std::vector<double> out;
  DispatchNumeric(tensor.dtype(), [&](auto tag) {
    const auto* x = tensor.data<typename decltype(tag)::type>();
    for (int64_t i = 0; i < tensor.elements(); ++i) out.push_back(static_cast<double>(x[i]));
  });
  return out;
}

void ExpectAlike(const std::vector<RuntimeValue>& found, const std::vector<RuntimeValue>& expected,
                 float tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t k = 0; k < found.size(); ++k) {
    const std::vector<double> a = Numbers(found[k].tensor()), b = Numbers(expected[k].tensor());
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::isfinite(b[i])) {
        ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i])))
            << "output " << k << " at " << i;
      } else {
        ASSERT_TRUE(std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i])
            << "output " << k << " at " << i << ": " << a[i] << " in the place of " << b[i];
      }
    }
  }
}

class EveryPass : public ::testing::TestWithParam<PassCase> {};

TEST_P(EveryPass, LeavesWhatIsNanOrInfinite) {
  const PassCase& c = GetParam();
  std::mt19937 random(7);
  for (int round = 0; round < 48; ++round) {
    const Model plain = Parse(c, round, random);
    Model passed = plain.Clone();
    const auto records = RunPasses({c.pass}, passed);
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    if (!records->front().changed && std::string(c.pass->name()) == "weight_packing" &&
        BestIsa() != Isa::kX86V4) {
      GTEST_SKIP() << "oneDNN may want no other layout for narrower instructions";
    }
    ASSERT_TRUE(records->front().changed) << "the graph is none for this pass";
    for (size_t i = 0; i < plain.graph->outputs().size(); ++i) {
      EXPECT_EQ(passed.graph->outputs()[i]->name(), plain.graph->outputs()[i]->name());
    }
    NamedValues feeds;
    for (const Value* input : plain.graph->inputs()) {
      feeds[input->name()] = Drawn(input->dtype(), *input->type().ConcreteShape(), round, random);
    }
    SCOPED_TRACE("round " + std::to_string(round));
    const auto expected = RunModel(plain, nullptr, feeds);
    ExpectAlike(RunModel(passed, nullptr, feeds), expected, c.tolerance);
    ExpectAlike(RunModel(plain, InferencePasses, feeds), expected, c.tolerance);
    const auto as_step = [](const ProviderList& providers) { return StepPasses(providers); };
    ExpectAlike(RunModel(plain, as_step, feeds), expected, c.tolerance);
    if (HasFatalFailure()) return;
  }
}

// Attention and norms have gradients of their own, in the place of those of the nodes that they
// stand for.
TEST_P(EveryPass, LeavesGradientsThatAreNanOrInfinite) {
  const PassCase& c = GetParam();
  const std::string pass = c.pass->name();
  if (pass != "attention_fusion" && pass != "norm_fusion") return;
  std::mt19937 random(11);
  for (int round = 0; round < 48; ++round) {
    const Model plain = Parse(c, round, random);
    NamedValues feeds;
    SplitModuleOptions options;
    options.providers = {MakeCpuProvider()};
    for (const auto& [value, tensor] : plain.graph->initializers())
      options.frozen.push_back(value->name());
    for (const Value* input : plain.graph->inputs()) {
      feeds[input->name()] = Drawn(input->dtype(), *input->type().ConcreteShape(), round, random);
      if (input->dtype() == DType::kFloat32) options.inputs.push_back(input->name());
    }
    const Tensor dy =
        Drawn(DType::kFloat32, *plain.graph->outputs()[0]->type().ConcreteShape(), 0, random);
    const auto gradients = [&](std::vector<std::string> disabled) {
      options.disabled_passes = std::move(disabled);
      auto module = SplitModule::Create(plain.Clone(), options);
      EXPECT_TRUE(module.ok()) << module.status().ToString();
      return (*module)->Forward(feeds).value().Backward({dy}).value();
    };
    SCOPED_TRACE("round " + std::to_string(round));
    ExpectAlike(gradients({}), gradients({pass}), 1e-4f);
    if (HasFatalFailure()) return;
  }
}

void Pin(Model& model, const std::string& provider) {
  for (const auto& node : model.graph->nodes()) node->set_provider(provider);
}

TEST_P(EveryPass, KeepsPins) {
  const PassCase& c = GetParam();
  std::mt19937 random(7);
  const Model plain = Parse(c, 0, random);
  for (const char* provider : {kCpuProviderName, "Another"}) {
    Model all = plain.Clone();
    Pin(all, provider);
    ASSERT_TRUE(RunPasses({c.pass}, all).ok());
    for (const auto& node : all.graph->nodes())
      EXPECT_EQ(node->provider(), provider) << node->Label();
    // One node among others that are pinned elsewhere, or nowhere.
    for (const char* others : {"", "Elsewhere"}) {
      for (size_t i = 0; i < plain.graph->nodes().size(); ++i) {
        Model one = plain.Clone();
        Pin(one, others);
        one.graph->nodes()[i]->set_provider(provider);
        std::vector<std::string> made;
        for (const Value* output : one.graph->nodes()[i]->outputs()) made.push_back(output->name());
        ASSERT_TRUE(RunPasses({c.pass}, one).ok());
        for (const std::string& name : made) {
          const Value* value = one.graph->FindValue(name);
          if (value == nullptr || value->producer() == nullptr)
            continue;  // nothing computes it any more
          EXPECT_EQ(value->producer()->provider(), provider) << value->producer()->Label();
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EveryPass, ::testing::ValuesIn(PassCases()),
                         [](const auto& info) { return info.param.name; });

// The passes that need a backward part or two devices, which text cannot say: what each node makes
// stays with the provider that the node is pinned to, and so does what is computed again or twice.
TEST(EveryPassTable, PassesOfStepsAndDevicesKeepPins) {
  const CountingDevice device({});
  CpuFallbackOptions fallback;
  fallback.mode = CpuFallbackMode::kOn;
  for (const auto& pass : {MakeRecomputePass({"p", "a"}, {"t"}), MakeUpdateOrderPass({"w"}),
                           MakeCpuFallbackPass(device.providers(), fallback)}) {
    Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["": 23, "ai.caesura": 1]>
      g (float[4,8] x, float[8,8] w) => (float[8,4] g, float[8,8] u, float[8,8] dw) {
        [p] p = MatMul (x, w) [a] a = Exp (p) [t] t = Transpose <perm = [1, 0]> (a)
        [n] n = Neg (t) [g] g = Mul (n, t) [d] dw = MatMul (t, x) [u] u = ai.caesura.Assign (w, dw) })")
                      .value();
    std::map<std::string, std::string> pins;  // by the output
    int number = 0;
    for (const auto& node : model.graph->nodes()) {
      const bool backward = ++number > 4;
      node->set_phase(node->name() == "u" ? Phase::kOptimizer
                      : backward          ? Phase::kBackward
                                          : Phase::kForward);
      node->set_provider(pins[node->output(0)->name()] = "P" + std::to_string(number));
    }
    ASSERT_TRUE(InferShapes(model).ok());
    const auto records = RunPasses({pass}, model);
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    for (const auto& node : model.graph->nodes()) {
      const std::string made = node->output(0)->name();
      EXPECT_EQ(node->provider(), pins[made.substr(0, made.find('/'))])
          << node->Label() << " after " << pass->name();
    }
  }
}

// All of the narrated pipeline is in the table above; the types that shape_inference finds change
// no numbers, and passes that place nodes run the same kernels.
TEST(EveryPassTable, HoldsThePipeline) {
  std::set<std::string> known = {"shape_inference"};
  for (const PassCase& c : PassCases()) known.insert(c.pass->name());
  // The passes above; subgraph_partition pins what it makes (tests/core/plugin).
  std::set<std::string> all = known;
  all.insert({"recompute", "update_order", "yield_order", "collective_order", "update_placement",
              "cpu_fallback", "subgraph_partition"});
  EXPECT_EQ(all, std::set<std::string>(PassNames().begin(), PassNames().end()));
  const ProviderList cpu = {MakeCpuProvider()};
  for (const PassList& list :
       {InferencePasses(cpu), StepPasses(cpu), PrecisionPasses(DType::kBFloat16)}) {
    for (const auto& pass : list) EXPECT_EQ(known.count(pass->name()), 1u) << pass->name();
  }
}

}  // namespace
}  // namespace caesura
