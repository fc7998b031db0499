// SPDX-License-Identifier: Apache-2.0
// Domain ai.onnx.ml. Expected numbers are those of ONNX's reference implementation unless worked
// out here.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;
using Strings = std::vector<std::string>;

Result<Values> RunMlOp(const char* op, Values inputs, AttributeMap attributes, int outputs = 1,
                       int version = 0) {
  KernelCase node(op, std::move(inputs), std::move(attributes), "ai.onnx.ml", outputs);
  node.since_version = version;
  return node.Run();
}
Tensor Points() { return Tensor::Of<float>({3, 2}, {0.3f, -0.2f, -1, 0.5f, 1.5f, 1}); }
Floats ToFloats(const RuntimeValue& value) { return value.tensor().ToVector<float>(); }
Ints IntsOf(const RuntimeValue& value) { return value.tensor().ToVector<int64_t>(); }
void ExpectNear(const RuntimeValue& value, const Floats& expected, float tolerance = 1e-5f) {
  const Floats actual = ToFloats(value);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
}
// --- features ---

TEST(Ml, PreparesFeatures) {
  const Tensor x = Tensor::Of<float>({2, 3}, {1, -2, 0, NAN, 4, 4});
  EXPECT_EQ(
      ToFloats(RunMlOp("Scaler", {Points()}, {{"offset", Floats{1}}, {"scale", Floats{2, 10}}})
                   .value()[0]),
      (Floats{-1.4f, -12, -4, -5, 1, 0}));
  EXPECT_EQ(ToFloats(RunMlOp("Imputer", {x},
                             {{"imputed_value_floats", Floats{7}}, {"replaced_value_float", NAN}})
                         .value()[0]),
            (Floats{1, -2, 0, 7, 4, 4}));
  EXPECT_EQ(ToFloats(RunMlOp("Binarizer", {Points()}, {{"threshold", 0.3f}}).value()[0]),
            (Floats{0, 0, 0, 1, 1, 1}));
  const Tensor ints = Tensor::Of<int64_t>({2, 2}, {3, -4, 0, 0});
  EXPECT_EQ(ToFloats(RunMlOp("Normalizer", {ints}, {{"norm", Text("L2")}}).value()[0]),
            (Floats{0.6f, -0.8f, 0, 0}));
  const Tensor rows = Tensor::Of<double>({4, 2}, {2, -8, -2, -8, 0, -8, 3, 4});
  EXPECT_EQ(ToFloats(RunMlOp("Normalizer", {rows}, {{"norm", Text("MAX")}}).value()[0]),
            (Floats{1, -4, 1, 4, 0, -8, 0.75f, 1}));
  EXPECT_EQ(
      ToFloats(RunMlOp("FeatureVectorizer", {Points(), Tensor::Of<int32_t>({3, 1}, {7, 8, 9})},
                       {{"inputdimensions", Ints{1, 2}}})
                   .value()[0]),
      (Floats{0.3f, 7, 0, -1, 8, 0, 1.5f, 9, 0}));
}

TEST(Ml, ExtractsColumns) {
  const Values out =
      RunMlOp("ArrayFeatureExtractor", {Points(), Tensor::Of<int64_t>({3}, {1, 0, 1})}, {}).value();
  EXPECT_EQ(out[0].tensor().shape(), (Shape{3, 3}));
  EXPECT_EQ(ToFloats(out[0]), (Floats{-0.2f, 0.3f, -0.2f, 0.5f, -1, 0.5f, 1, 1.5f, 1}));
  for (int64_t wrong : {int64_t{2}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_EQ(RunMlOp("ArrayFeatureExtractor", {Points(), Tensor::Of<int64_t>({1}, {wrong})}, {})
                  .status()
                  .code(),
              StatusCode::kInvalidArgument);
  }
}

// --- labels ---

TEST(Ml, EncodesLabels) {
  const Tensor words = Tensor::Of<std::string>({3}, {"b", "a", "?"});
  EXPECT_EQ(
      IntsOf(RunMlOp("LabelEncoder", {words},
                     {{"keys_strings", Strings{"a", "b", "b"}}, {"values_int64s", Ints{1, 2, 3}}})
                 .value()[0]),
      (Ints{3, 1, -1}));
  const AttributeMap floats = {
      {"keys_floats", Floats{NAN, 0}}, {"values_floats", Floats{5, 6}}, {"default_float", 9.0f}};
  EXPECT_EQ(
      ToFloats(
          RunMlOp("LabelEncoder", {Tensor::Of<float>({3}, {NAN, -0.0f, 2})}, floats).value()[0]),
      (Floats{5, 6, 9}));
  EXPECT_EQ(IntsOf(RunMlOp("LabelEncoder", {words}, {{"classes_strings", Strings{"a", "b"}}}, 1, 1)
                       .value()[0]),
            (Ints{1, 0, -1}));
  const Values names =
      RunMlOp("CategoryMapper", {Tensor::Of<int64_t>({2}, {5, 9})},
              {{"cats_int64s", Ints{5, 6}}, {"cats_strings", Strings{"five", "six"}}})
          .value();
  EXPECT_EQ(names[0].tensor().data<std::string>()[0], "five");
  EXPECT_EQ(names[0].tensor().data<std::string>()[1], "_Unused");
}

TEST(Ml, EncodesOneHot) {
  const Tensor x = Tensor::Of<float>({4}, {2.7f, 1, INFINITY, NAN});
  const AttributeMap lenient = {{"cats_int64s", Ints{1, 2}}};
  const AttributeMap strict = {{"cats_int64s", Ints{1, 2}}, {"zeros", int64_t{0}}};
  EXPECT_EQ(ToFloats(RunMlOp("OneHotEncoder", {x}, lenient).value()[0]),
            (Floats{0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(RunMlOp("OneHotEncoder", {x}, strict).status().code(), StatusCode::kInvalidArgument);
}

// --- linear models and support vectors ---

TEST(Ml, ClassifiesLinearly) {
  AttributeMap model = {{"classlabels_ints", Ints{1, 2, 3}},
                        {"coefficients", Floats{0.1f, 0.2f, 0.3f, -0.1f, 0.05f, 0.4f}},
                        {"intercepts", Floats{0.3f, 0.2f, 0.1f}}};
  Values out = RunMlOp("LinearClassifier", {Points()}, model, 2).value();
  EXPECT_EQ(IntsOf(out[0]), (Ints{2, 1, 1}));
  ExpectNear(out[1], {0.29f, 0.31f, 0.035f, 0.3f, -0.15f, 0.25f, 0.65f, 0.55f, 0.575f});
  model["post_transform"] = std::string("SOFTMAX");
  out = RunMlOp("LinearClassifier", {Points()}, model, 2).value();
  ExpectNear(out[1], {0.3577667f, 0.36499402f, 0.2772393f, 0.3862708f, 0.24629712f, 0.36743212f,
                      0.35303494f, 0.31943923f, 0.32752588f});
  const Values binary = RunMlOp("LinearClassifier", {Points()},
                                {{"classlabels_strings", Strings{"no", "yes"}},
                                 {"coefficients", Floats{0.1f, 0.2f}},
                                 {"intercepts", Floats{0.3f}},
                                 {"post_transform", Text("LOGISTIC")}},
                                2)
                            .value();
  EXPECT_EQ(binary[0].tensor().data<std::string>()[0], "yes");
  ExpectNear(binary[1],
             {0.42800388f, 0.57199615f, 0.4255575f, 0.5744425f, 0.34298956f, 0.65701044f});
}

TEST(Ml, ClassifiesBySupportVectors) {
  AttributeMap model = {
      {"classlabels_ints", Ints{10, 20, 30}},
      {"vectors_per_class", Ints{4, 4, 4}},
      {"support_vectors",
       Floats{1.8f, 0.4f, 1.0f,  -0.2f, 0.8f, 0.1f,  0.3f, -0.9f, 1.0f, 2.2f,  -0.1f, 0.4f,
              0.4f, 0.3f, -2.6f, 0.7f,  1.9f, -1.0f, 0.1f, 1.5f,  1.5f, -0.2f, 0.9f,  -0.7f}},
      {"coefficients", Floats{0.8977126609909519f,
                              0.0f,
                              2.0f,
                              1.3737340348035945f,
                              -0.7295676433613988f,
                              -0.8454461716420439f,
                              -2.0f,
                              -0.6964328807911034f,
                              -0.9304634385624649f,
                              -1.5659137860543133f,
                              -2.0f,
                              -2.0f,
                              2.0f,
                              2.0f,
                              0.6095368128309819f,
                              1.8868404117857962f,
                              1.4652011124491622f,
                              0.6228394853152873f,
                              2.0f,
                              0.6770842498900658f,
                              0.0f,
                              -2.0f,
                              -1.0656611919987513f,
                              -1.699463655655764f}},
      {"rho", Floats{-0.25800947137498303f, 0.025466781426475963f, 0.3147553929021984f}},
      {"kernel_type", Text("RBF")},
      {"kernel_params", Floats{0.5f, 0, 0}}};
  Values out = RunMlOp("SVMClassifier", {Points()}, model, 2).value();
  EXPECT_EQ(IntsOf(out[0]), (Ints{10, 20, 10}));
  ExpectNear(out[1], {0.30092382f, 1.1268475f, 0.38871884f, -1.1633657f, -0.05970025f, 0.86001015f,
                      0.24818599f, 0.94865894f, 0.42798495f});
  model["prob_a"] = Floats{-1.5f, -0.7f, -2.0f};
  model["prob_b"] = Floats{0.1f, -0.2f, 0.05f};
  out = RunMlOp("SVMClassifier", {Points()}, model, 2).value();
  // By libsvm's iteration; ONNX's reference multiplies where libsvm takes elements.
  ExpectNear(out[1], {0.48466468f, 0.34188858f, 0.17344674f, 0.12509899f, 0.74423176f, 0.13066924f,
                      0.45940602f, 0.36229253f, 0.17830145f});
  const int64_t huge = std::numeric_limits<int64_t>::max();
  for (const Ints& wrong : {Ints{4, 4}, Ints{4, 4, 5}, Ints{-4, 8, 8}, Ints{4, 4, huge}}) {
    model["vectors_per_class"] = wrong;
    EXPECT_EQ(RunMlOp("SVMClassifier", {Points()}, model, 2).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Ml, RegressesBySupportVectors) {
  AttributeMap model = {{"coefficients", Floats{1, -2, 0.5f}},
                        {"support_vectors", Floats{0, 1, 1, 0, -1, 2}},
                        {"rho", Floats{0.25f}},
                        {"n_supports", int64_t{3}},
                        {"kernel_type", Text("POLY")},
                        {"kernel_params", Floats{0.5f, 1, 2}}};
  ExpectNear(RunMlOp("SVMRegressor", {Points()}, model).value()[0],
             {-1.3737501f, 3.3125f, -2.84375f});
  for (int64_t wrong : {int64_t{-1}, int64_t{2}, int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    model["n_supports"] = wrong;
    EXPECT_EQ(RunMlOp("SVMRegressor", {Points()}, model).status().code(),
              StatusCode::kInvalidArgument);
  }
}

// --- trees ---

// Tree 0: x0 <= 0 ? leaf 1 : (x1 > 0.5 ? leaf 3 : leaf 4). Tree 1: x1 < 0 ? leaf 1 : leaf 2.
AttributeMap TwoTrees() {
  return {{"nodes_treeids", Ints{0, 0, 0, 0, 0, 1, 1, 1}},
          {"nodes_nodeids", Ints{0, 1, 2, 3, 4, 0, 1, 2}},
          {"nodes_featureids", Ints{0, 0, 1, 0, 0, 1, 0, 0}},
          {"nodes_modes",
           Strings{"BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"}},
          {"nodes_values", Floats{0, 0, 0.5f, 0, 0, 0, 0, 0}},
          {"nodes_truenodeids", Ints{1, 0, 3, 0, 0, 1, 0, 0}},
          {"nodes_falsenodeids", Ints{2, 0, 4, 0, 0, 2, 0, 0}}};
}
AttributeMap TreeRegressor() {
  AttributeMap out = TwoTrees();
  out["n_targets"] = int64_t{1};
  out["target_treeids"] = Ints{0, 0, 0, 1, 1};
  out["target_nodeids"] = Ints{1, 3, 4, 1, 2};
  out["target_ids"] = Ints{0, 0, 0, 0, 0};
  out["target_weights"] = Floats{1, 2, 3, 10, 20};
  out["base_values"] = Floats{0.5f};
  return out;
}

TEST(Ml, RegressesByTrees) {
  AttributeMap model = TreeRegressor();
  ExpectNear(RunMlOp("TreeEnsembleRegressor", {Points()}, model).value()[0], {13.5f, 21.5f, 22.5f});
  model["aggregate_function"] = std::string("AVERAGE");
  ExpectNear(RunMlOp("TreeEnsembleRegressor", {Points()}, model).value()[0], {7, 11, 11.5f});
  model["aggregate_function"] = std::string("MIN");
  ExpectNear(RunMlOp("TreeEnsembleRegressor", {Points()}, model).value()[0], {3.5f, 1.5f, 2.5f});
}

TEST(Ml, ClassifiesByTrees) {
  AttributeMap model = TwoTrees();
  model["classlabels_int64s"] = Ints{5, 6};
  model["class_treeids"] = Ints{0, 0, 0, 1, 1};
  model["class_nodeids"] = Ints{1, 3, 4, 1, 2};
  model["class_ids"] = Ints{1, 1, 1, 1, 1};
  model["class_weights"] = Floats{0.1f, 0.2f, 0.3f, 0.4f, 0.05f};
  Values out = RunMlOp("TreeEnsembleClassifier", {Points()}, model, 2).value();
  EXPECT_EQ(IntsOf(out[0]), (Ints{6, 5, 5}));
  ExpectNear(out[1], {0.3f, 0.7f, 0.85f, 0.15f, 0.75f, 0.25f});
  model["base_values"] = Floats{0.1f};  // of the only class that is voted for, as xgboost has it
  out = RunMlOp("TreeEnsembleClassifier", {Points()}, model, 2).value();
  ExpectNear(out[1], {0.2f, 0.8f, 0.75f, 0.25f, 0.65f, 0.35f});
  model["class_ids"] = Ints{0, 1, 0, 1, 0};
  EXPECT_EQ(RunMlOp("TreeEnsembleClassifier", {Points()}, model, 2).status().code(),
            StatusCode::kInvalidArgument);
  model.erase("base_values");
  out = RunMlOp("TreeEnsembleClassifier", {Points()}, model, 2).value();
  EXPECT_EQ(IntsOf(out[0]), (Ints{6, 5, 6}));
  ExpectNear(out[1], {0.3f, 0.4f, 0.15f, 0, 0.05f, 0.2f});
}

TEST(Ml, RefusesBrokenTrees) {
  const struct {
    const char* name;
    Attribute value;
  } changes[] = {
      {"nodes_falsenodeids", Ints{0, 0, 4, 0, 0, 2, 0, 0}},   // a cycle
      {"nodes_falsenodeids", Ints{99, 0, 4, 0, 0, 2, 0, 0}},  // nobody
      {"nodes_featureids", Ints{2, 0, 1, 0, 0, 1, 0, 0}},
      {"nodes_featureids", Ints{-1, 0, 1, 0, 0, 1, 0, 0}},
      {"nodes_featureids", Ints{0}},
      {"nodes_nodeids", Ints{0, 1, 1, 3, 4, 0, 1, 2}},  // twice
      {"nodes_values", Floats{0}},
      {"nodes_modes", Strings(8, "BRANCH")},
      {"target_ids", Ints{0, 0, 0, 0, 1}},
      {"target_ids", Ints{0, 0, 0, 0, -1}},
      {"target_nodeids", Ints{9, 3, 4, 1, 2}},
      {"target_weights", Floats{1}},
      {"base_values", Floats{1, 2}},
      {"n_targets", int64_t{0}},
      {"n_targets", int64_t{1} << 61},
      {"aggregate_function", Text("MEDIAN")},
  };
  for (const auto& change : changes) {
    AttributeMap model = TreeRegressor();
    model[change.name] = change.value;
    EXPECT_EQ(RunMlOp("TreeEnsembleRegressor", {Points()}, model).status().code(),
              StatusCode::kInvalidArgument)
        << change.name;
  }
}

// One tree: x0 in {1, 3} ? leaf 0 : leaf 1; and a tree that is one leaf.
AttributeMap MemberTree() {
  return {{"tree_roots", Ints{0, 1}},
          {"nodes_modes", Tensor::Of<uint8_t>({2}, {6, 0})},
          {"nodes_splits", Tensor::Of<float>({2}, {0, 0})},
          {"nodes_featureids", Ints{0, 77}},
          {"nodes_truenodeids", Ints{0, 2}},
          {"nodes_trueleafs", Ints{1, 1}},
          {"nodes_falsenodeids", Ints{1, 2}},
          {"nodes_falseleafs", Ints{1, 1}},
          {"leaf_targetids", Ints{0, 1, 1}},
          {"leaf_weights", Tensor::Of<float>({3}, {10, 20, 0.5f})},
          {"membership_values", Tensor::Of<float>({3}, {1, 3, NAN})},
          {"n_targets", int64_t{2}}};
}

TEST(Ml, WalksTreesOfVersion5) {
  const Tensor x = Tensor::Of<float>({3, 1}, {3, 2, NAN});
  EXPECT_EQ(ToFloats(RunMlOp("TreeEnsemble", {x}, MemberTree()).value()[0]),
            (Floats{10, 0.5f, 0, 20.5f, 0, 20.5f}));
  const struct {
    const char* name;
    Attribute value;
  } changes[] = {
      {"tree_roots", Ints{0, 5}},
      {"nodes_trueleafs", Ints{0, 1}},  // node 0 becomes its own child
      {"nodes_truenodeids", Ints{3, 2}},
      {"nodes_truenodeids", Ints{-1, 2}},
      {"leaf_targetids", Ints{0, 1, 2}},
      {"leaf_targetids", Ints{0, 1}},
      {"nodes_modes", Tensor::Of<uint8_t>({2}, {7, 0})},
      {"nodes_modes", Tensor::Of<uint8_t>({1}, {6})},
      {"nodes_modes", Tensor::Of<uint8_t>({2}, {6, 6})},
      {"nodes_featureids", Ints{1, 77}},
      {"aggregate_function", int64_t{4}},
      {"post_transform", int64_t{-1}},
  };
  for (const auto& change : changes) {
    AttributeMap model = MemberTree();
    model[change.name] = change.value;
    EXPECT_EQ(RunMlOp("TreeEnsemble", {x}, model).status().code(), StatusCode::kInvalidArgument)
        << change.name;
  }
}

}  // namespace
}  // namespace caesura
