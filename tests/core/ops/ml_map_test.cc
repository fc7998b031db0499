// SPDX-License-Identifier: Apache-2.0
// ZipMap, DictVectorizer and CastMap, as models have them: maps cross the borders of a session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/profile/node_dump.h"
#include "core/profile/step_sizes.h"
#include "core/session/session.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<std::unique_ptr<Session>> TrySession(const std::string& graph) {
  auto model =
      ParseModelText("<ir_version: 8, opset_import: [\"\" : 17, \"ai.onnx.ml\" : 1]> g " + graph);
  if (!model.ok()) return model.status();
  return Session::Create(*std::move(model));
}
Result<RuntimeValue> RunOn(const std::string& graph, RuntimeValue x) {
  auto session = TrySession(graph);
  if (!session.ok()) return session.status();
  auto results = (*session)->Run({{"x", std::move(x)}});
  if (!results.ok()) return results.status();
  return results->front();
}
std::string ZipMap(const std::string& x, const std::string& key, const std::string& attributes) {
  return "(float" + x + " x) => (seq(map(" + key + ", float)) z) { z = ai.onnx.ml.ZipMap <" +
         attributes + "> (x) }";
}
Tensor Scores(Shape shape) {
  Tensor out = Tensor::Zeros(DType::kFloat32, std::move(shape));
  for (int64_t i = 0; i < out.elements(); ++i) out.data<float>()[i] = static_cast<float>(i);
  return out;
}
std::vector<std::string> Texts(const Tensor& tensor) {
  return {tensor.data<std::string>(), tensor.data<std::string>() + tensor.elements()};
}
RuntimeValue Map(const std::vector<std::string>& keys, const std::vector<float>& values) {
  const Shape shape{static_cast<int64_t>(keys.size())};
  return RuntimeValue::Map(Tensor::Of(shape, keys), Tensor::Of(shape, values));
}
template <typename T>
RuntimeValue IntMap(const std::vector<int64_t>& keys, const std::vector<T>& values) {
  const Shape shape{static_cast<int64_t>(keys.size())};
  return RuntimeValue::Map(Tensor::Of(shape, keys), Tensor::Of(shape, values));
}

TEST(ZipMap, GivesAMapARow) {
  const auto z =
      RunOn(ZipMap("[N, 3]", "int64", "classlabels_int64s = [5, 2, 9]"), Scores({2, 3})).value();
  ASSERT_EQ(z.sequence().size(), 2u);
  ASSERT_TRUE(z.sequence()[1].is_map());
  EXPECT_THAT(z.sequence()[1].map().keys.ToVector<int64_t>(), ElementsAre(5, 2, 9));
  EXPECT_THAT(z.sequence()[0].map().values.ToVector<float>(), ElementsAre(0, 1, 2));
  EXPECT_THAT(z.sequence()[1].map().values.ToVector<float>(), ElementsAre(3, 4, 5));
  const auto row =
      RunOn(ZipMap("[2]", "string", "classlabels_strings = [\"no\", \"yes\"]"), Scores({2}))
          .value();
  ASSERT_EQ(row.sequence().size(), 1u);
  EXPECT_THAT(Texts(row.sequence()[0].map().keys), ElementsAre("no", "yes"));
  EXPECT_THAT(row.sequence()[0].map().values.ToVector<float>(), ElementsAre(0, 1));
  EXPECT_TRUE(RunOn(ZipMap("[N, 2]", "int64", "classlabels_int64s = [0, 1]"), Scores({0, 2}))
                  .value()
                  .sequence()
                  .empty());
}

// The scores are the session's own memory, which the next run writes to.
TEST(ZipMap, KeepsItsScores) {
  auto session = TrySession(
                     "(float[N, 2] x) => (seq(map(int64, float)) z) { y = Neg (x)"
                     " z = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (y) }")
                     .value();
  const RuntimeValue first = session->Run({{"x", Scores({2, 2})}}).value()[0];
  ASSERT_TRUE(session->Run({{"x", Tensor::Zeros(DType::kFloat32, {2, 2})}}).ok());
  EXPECT_THAT(first.sequence()[1].map().values.ToVector<float>(), ElementsAre(-2, -3));
}

TEST(ZipMap, ChecksLabelsAndSizes) {
  const auto message = [](const std::string& x, const std::string& attributes, Shape shape) {
    const auto result = RunOn(ZipMap(x, "int64", attributes), Scores(std::move(shape)));
    EXPECT_FALSE(result.ok());
    return result.status().message();
  };
  EXPECT_THAT(message("[N, 2]", "classlabels_int64s = [1, 2, 3]", {4, 2}),
              HasSubstr("expected 3 scores a row, one a class label, got shape [4, 2]"));
  EXPECT_THAT(message("[2]", "classlabels_int64s = [1]", {2}),
              HasSubstr("expected 1 scores a row"));
  EXPECT_THAT(message("[1, 1, 2]", "classlabels_int64s = [1, 2]", {1, 1, 2}),
              HasSubstr("1D or 2D"));
  EXPECT_THAT(message("[]", "classlabels_int64s = [1, 2]", {1, 1, 2}),
              HasSubstr("[N, C] or [C], got [1, 1, 2]"));
  EXPECT_THAT(message("[N, 2]", "classlabels_int64s = [1, 1]", {1, 2}),
              HasSubstr("must be distinct"));
  EXPECT_THAT(message("[N, 2]", "classlabels_int64s = [1, 2], classlabels_strings = [\"a\", \"b\"]",
                      {1, 2}),
              HasSubstr("classlabels_int64s or classlabels_strings"));
}

TEST(Maps, HaveTypesThatAreWrittenAndRead) {
  const std::string text = ZipMap("[N, 2]", "string", "classlabels_strings = [\"a\", \"b\"]");
  auto session = TrySession(text).value();
  EXPECT_EQ(session->outputs()[0]->type().ToString(), "sequence(map(string, float32[]))");
  const Model again = ReadModelBytes(SerializeModel(session->model()).value()).value();
  EXPECT_EQ(again.graph->outputs()[0]->type().ToString(), "sequence(map(string, float32[]))");
  // A declared type that the op does not make.
  EXPECT_THAT(TrySession(ZipMap("[N, 2]", "int64", "classlabels_strings = [\"a\", \"b\"]"))
                  .status()
                  .message(),
              HasSubstr("map(int64"));
}

TEST(Maps, AreBoundAsValuesOnly) {
  auto session = TrySession(ZipMap("[N, 2]", "int64", "classlabels_int64s = [0, 1]")).value();
  IoBinding binding(*session);
  ASSERT_TRUE(binding.BindInput("x", Scores({1, 2})).ok());
  EXPECT_THAT(binding.BindOutput("z", Scores({1, 2})).message(), HasSubstr("sequence(map(int64"));
  ASSERT_TRUE(binding.BindOutput("z", Device{}).ok());
  EXPECT_TRUE(session->Run(binding).value()[0].sequence()[0].is_map());
}

TEST(Maps, AreDumpedAndMeasured) {
  auto session =
      TrySession(ZipMap("[N, 2]", "string", "classlabels_strings = [\"no\", \"yes\"]")).value();
  NodeDumpOptions to;
  to.folder = ::testing::TempDir() + "caesura_dump_maps";
  to.ops = "ZipMap";
  to.inputs = false;
  auto dump = NodeDump::Create(to).value();
  RunOptions options;
  options.observers = {dump.get()};
  const RuntimeValue z = session->Run({{"x", Scores({2, 2})}}, {}, options).value()[0];
  EXPECT_TRUE(dump->status().ok()) << dump->status().ToString();
  EXPECT_EQ(dump->files_written(), 4);  // keys and values of two maps
  EXPECT_EQ(ValueBytes(z), 2 * (2 * sizeof(std::string) + 2 * sizeof(float)));
}

constexpr char kVectorizer[] =
    "(map(string, float) x) => (float[R, C] y) "
    "{ y = ai.onnx.ml.DictVectorizer <string_vocabulary = [\"a\", \"b\", \"c\"]> (x) }";

TEST(DictVectorizer, PutsValuesWhereTheVocabularyHasTheirKeys) {
  const Tensor y = RunOn(kVectorizer, Map({"c", "none", "a"}, {2, 7, 1.5f})).value().tensor();
  EXPECT_EQ(y.shape(), (Shape{1, 3}));
  EXPECT_THAT(y.ToVector<float>(), ElementsAre(1.5f, 0, 2));
  EXPECT_THAT(RunOn(kVectorizer, Map({}, {})).value().tensor().ToVector<float>(),
              ElementsAre(0, 0, 0));
  const Tensor words = RunOn(
                           "(map(int64, string) x) => (string[R, C] y) "
                           "{ y = ai.onnx.ml.DictVectorizer <int64_vocabulary = [4, 2]> (x) }",
                           IntMap<std::string>({2, 3}, {"two", "three"}))
                           .value()
                           .tensor();
  EXPECT_THAT(Texts(words), ElementsAre("", "two"));
}

// Inputs that are fed what they are not.
TEST(Maps, AreCheckedWhereTheyAreFed) {
  EXPECT_THAT(RunOn(kVectorizer, Scores({3})).status().message(),
              HasSubstr("input 'x' is map(string, float32[]), got float32[3]"));
  EXPECT_THAT(RunOn(kVectorizer, IntMap<float>({1}, {1})).status().message(),
              HasSubstr("got map(int64, float32)"));
  EXPECT_THAT(
      RunOn(kVectorizer, RuntimeValue::Map(Tensor::Of<std::string>({1}, {"a"}), Scores({1, 2})))
          .status()
          .message(),
      HasSubstr("got map"));
  EXPECT_THAT(
      RunOn("(float[N] x) => (float[N] y) { y = Neg (x) }", Map({"a"}, {1})).status().message(),
      HasSubstr("input 'x' is float32[N], got map(string, float32)"));
  EXPECT_THAT(RunOn("(float[N] x) => (float[N] y) { y = Neg (x) }", RuntimeValue::Sequence({}))
                  .status()
                  .message(),
              HasSubstr("input 'x' is float32[N], got a sequence"));
  EXPECT_THAT(RunOn("(seq(float[N]) x) => (int64 y) { y = SequenceLength (x) }", Map({"a"}, {1}))
                  .status()
                  .message(),
              HasSubstr("got map(string, float32)"));
}

std::string CastMap(const std::string& value, const std::string& to,
                    const std::string& attributes) {
  return "(map(int64, " + value + ") x) => (" + to + "[R, C] y) { y = ai.onnx.ml.CastMap <" +
         attributes + "> (x) }";
}

TEST(CastMap, OrdersByKey) {
  const RuntimeValue map = IntMap<float>({3, -1, 2}, {1.5f, -2.75f, 7});
  const Tensor dense =
      RunOn(CastMap("float", "float", "cast_to = \"TO_FLOAT\""), map).value().tensor();
  EXPECT_EQ(dense.shape(), (Shape{1, 3}));
  EXPECT_THAT(dense.ToVector<float>(), ElementsAre(-2.75f, 7, 1.5f));
  EXPECT_THAT(RunOn(CastMap("float", "int64", "cast_to = \"TO_INT64\""), map)
                  .value()
                  .tensor()
                  .ToVector<int64_t>(),
              ElementsAre(-2, 7, 1));
  EXPECT_THAT(
      Texts(RunOn(CastMap("float", "string", "cast_to = \"TO_STRING\""), map).value().tensor()),
      ElementsAre("-2.75", "7.0", "1.5"));
  EXPECT_THAT(RunOn(CastMap("string", "int64", "cast_to = \"TO_INT64\""),
                    IntMap<std::string>({2, 1}, {"20", "10"}))
                  .value()
                  .tensor()
                  .ToVector<int64_t>(),
              ElementsAre(10, 20));
  EXPECT_THAT(
      RunOn(CastMap("string", "float", "cast_to = \"TO_FLOAT\""), IntMap<std::string>({2}, {"two"}))
          .status()
          .message(),
      HasSubstr("'two' is no number"));
}

TEST(CastMap, SpreadsSparseMaps) {
  const std::string sparse = CastMap("float", "float", "map_form = \"SPARSE\", max_map = 4");
  EXPECT_THAT(RunOn(sparse, IntMap<float>({3, 0}, {1.5f, -2})).value().tensor().ToVector<float>(),
              ElementsAre(-2, 0, 0, 1.5f));
  for (int64_t wrong : {int64_t{4}, int64_t{-1}}) {
    EXPECT_THAT(RunOn(sparse, IntMap<float>({wrong}, {1})).status().message(),
                HasSubstr("keys from 0 to max_map - 1 = 3"));
  }
  EXPECT_FALSE(
      TrySession(CastMap("float", "float", "map_form = \"LOOSE\"")).ok() &&
      RunOn(CastMap("float", "float", "map_form = \"LOOSE\""), IntMap<float>({1}, {1})).ok());
}

}  // namespace
}  // namespace caesura
