// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/ops/text/unicode.h"
#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Strings = std::vector<std::string>;

Tensor StringTensor(Shape shape, const Strings& values) {
  return Tensor::Of<std::string>(std::move(shape), values);
}
Strings ToStrings(const RuntimeValue& value) {
  const Tensor& tensor = value.tensor();
  return Strings(tensor.data<std::string>(), tensor.data<std::string>() + tensor.elements());
}

TEST(Unicode, MapsCaseAndKeepsWhatIsNotUtf8) {
  EXPECT_EQ(ToLower(std::string_view("ÀÉ ΣΩ ЖЁ ŁŽ 1")), "àé σω жё łž 1");
  EXPECT_EQ(ToUpper(std::string_view("àé σω жё łž ß")), "ÀÉ ΣΩ ЖЁ ŁŽ ß");
  EXPECT_EQ(ToLower(std::string_view("ႠꭰꙀ 𐐀Ɓ")), "ⴀꭰꙁ 𐐨ɓ");
  EXPECT_EQ(ToUpper(std::string_view("ა ꭰ 𐐨 ɓ ς")), "Ა Ꭰ 𐐀 Ɓ Σ");
  EXPECT_EQ(ToUpper(std::string_view("a\xff"
                                     "b\xc3")),
            "A\xff"
            "B\xc3");
}

TEST(StringConcat, Broadcasts) {
  KernelCase node("StringConcat",
                  {StringTensor({2, 1}, {"a", "b"}), StringTensor({3}, {"x", "", "é"})});
  const auto out = node.Run().value();
  EXPECT_EQ(out[0].tensor().shape(), (Shape{2, 3}));
  EXPECT_EQ(ToStrings(out[0]), (Strings{"ax", "a", "aé", "bx", "b", "bé"}));
  KernelCase empty("StringConcat", {StringTensor({0}, {}), StringTensor({1}, {"x"})});
  EXPECT_EQ(empty.Run().value()[0].tensor().shape(), (Shape{0}));
}

TEST(StringSplit, OnSpacesAndDelimiters) {
  auto split = [](const Strings& texts, AttributeMap attributes) {
    KernelCase node("StringSplit", {StringTensor({static_cast<int64_t>(texts.size())}, texts)},
                    attributes, "", 2);
    return node.Run().value();
  };
  auto out = split({" a  b\tc ", "", "x"}, {});
  EXPECT_EQ(out[0].tensor().shape(), (Shape{3, 3}));
  EXPECT_EQ(ToStrings(out[0]), (Strings{"a", "b", "c", "", "", "", "x", "", ""}));
  EXPECT_EQ(out[1].tensor().ToVector<int64_t>(), (std::vector<int64_t>{3, 0, 1}));
  out = split({" a  b c "}, {{"maxsplit", int64_t{1}}});
  EXPECT_EQ(ToStrings(out[0]), (Strings{"a", "b c "}));
  out = split({",a,,b", ""}, {{"delimiter", std::string(",")}});
  EXPECT_EQ(ToStrings(out[0]), (Strings{"", "a", "", "b", "", "", "", ""}));
  EXPECT_EQ(out[1].tensor().ToVector<int64_t>(), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(split({}, {})[0].tensor().shape(), (Shape{0, 0}));
}

TEST(StringNormalizer, DropsStopwordsAndChangesCase) {
  auto normalize = [](Shape shape, const Strings& words, AttributeMap attributes) {
    KernelCase node("StringNormalizer", {StringTensor(std::move(shape), words)}, attributes);
    return node.Run().value()[0];
  };
  const Attribute stop = Strings{"MONDAY", "été"};
  EXPECT_EQ(ToStrings(normalize({3}, {"monday", "Été", "Tag"}, {{"stopwords", stop}})),
            (Strings{"Tag"}));
  EXPECT_EQ(ToStrings(normalize({2}, {"monday", "Tag"},
                                {{"stopwords", stop},
                                 {"is_case_sensitive", int64_t{1}},
                                 {"case_change_action", std::string("UPPER")}})),
            (Strings{"MONDAY", "TAG"}));
  const RuntimeValue none = normalize({1, 1}, {"Monday"}, {{"stopwords", stop}});
  EXPECT_EQ(none.tensor().shape(), (Shape{1, 1}));
  EXPECT_EQ(ToStrings(none), (Strings{""}));
}

AttributeMap Ngrams(std::vector<int64_t> pool, std::vector<int64_t> counts,
                    std::vector<int64_t> indexes, int64_t max_skip) {
  return {{"pool_int64s", pool},           {"ngram_counts", counts},
          {"ngram_indexes", indexes},      {"min_gram_length", int64_t{1}},
          {"max_gram_length", int64_t{2}}, {"max_skip_count", max_skip},
          {"mode", std::string("TFIDF")}};
}

TEST(TfIdfVectorizer, WeighsTheNgramsOfThePool) {
  AttributeMap attributes = Ngrams({2, 3, 2, 3}, {0, 2}, {1, 0, 2}, 1);
  attributes["weights"] = std::vector<float>{10, 100, 0.5f};
  KernelCase node("TfIdfVectorizer", {Tensor::Of<int64_t>({2, 4}, {2, 3, 3, 2, 1, 1, 1, 1})},
                  attributes);
  const auto out = node.Run().value();
  // Row 0: 2 and 3 twice each; (2, 3) once next to each other and once with one item between.
  EXPECT_EQ(out[0].tensor().ToVector<float>(), (std::vector<float>{200, 20, 1, 0, 0, 0}));
}

TEST(TfIdfVectorizer, RefusesHostileAttributes) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const AttributeMap cases[] = {
      Ngrams({1, 2}, {0, 3}, {0, 1}, 0),       Ngrams({1, 2}, {-1, 1}, {0, 1}, 0),
      Ngrams({1, 2, 3}, {0, 2}, {0, 1, 2}, 0), Ngrams({1, 2}, {0, 2}, {0}, 0),
      Ngrams({1, 2}, {0, 2}, {0, -1}, 0),      Ngrams({1, 2}, {2, 0}, {0, 1}, 0),
      Ngrams({1, 2}, {0, 2}, {0, huge - 1}, 0)};
  for (const AttributeMap& attributes : cases) {
    KernelCase node("TfIdfVectorizer", {Tensor::Of<int64_t>({2}, {1, 2})}, attributes);
    EXPECT_EQ(node.Run().status().code(), StatusCode::kInvalidArgument);
  }
  KernelCase skips("TfIdfVectorizer", {Tensor::Of<int64_t>({2}, {1, 2})},
                   Ngrams({1, 2}, {0, 2}, {0, 1}, huge));
  EXPECT_EQ(skips.Run().value()[0].tensor().ToVector<float>(), (std::vector<float>{1, 1}));
}

}  // namespace
}  // namespace caesura
