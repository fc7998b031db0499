// SPDX-License-Identifier: Apache-2.0
// Gathers and scatters: bounds, order of updates, and threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

Result<Floats> RunIndexing(KernelCase node, int threads = 1) {
  node.threads = threads;
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> out, node.Run());
  return out[0].tensor().ToVector<float>();
}

TEST(Indexing, GathersSlicesAndElements) {
  const Tensor x = Tensor::Of<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  const Tensor at = Tensor::Of<int32_t>({2}, {-1, 0});
  EXPECT_THAT(*RunIndexing(KernelCase("Gather", {x, at})), ElementsAre(3, 4, 5, 0, 1, 2));
  EXPECT_THAT(*RunIndexing(KernelCase("Gather", {x, at}, {{"axis", int64_t{1}}})),
              ElementsAre(2, 0, 5, 3));
  EXPECT_THAT(
      *RunIndexing(KernelCase("Gather", {x, Tensor::Scalar<int64_t>(1)}, {{"axis", int64_t{-1}}})),
      ElementsAre(1, 4));
  const Tensor each = Tensor::Of<int64_t>({1, 2}, {1, -2});
  EXPECT_THAT(*RunIndexing(KernelCase("GatherElements", {x, each})), ElementsAre(3, 1));
  EXPECT_THAT(*RunIndexing(KernelCase("GatherND", {x, each})), ElementsAre(4));
}

TEST(Indexing, NamesTheIndexThatIsOutside) {
  const Tensor x = Tensor::Of<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  const Tensor one = Tensor::Of<float>({1, 1}, {7}), row = Tensor::Of<float>({1, 3}, {7, 8, 9});
  for (int64_t wrong : {int64_t{2}, int64_t{-3}, std::numeric_limits<int64_t>::min()}) {
    const Tensor at = Tensor::Of<int64_t>({1, 1}, {wrong});
    for (const KernelCase& node :
         {KernelCase("Gather", {x, at}), KernelCase("GatherElements", {x, at}),
          KernelCase("GatherND", {x, at}), KernelCase("ScatterElements", {x, at, one}),
          KernelCase("ScatterND", {x, at, row})}) {
      const Status status = RunIndexing(node).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("got " + std::to_string(wrong))) << node.op_type;
    }
  }
}

TEST(Indexing, ScattersInOrder) {
  const Tensor x = Tensor::Of<float>({4}, {1, 2, 3, 4}),
               updates = Tensor::Of<float>({3}, {10, 20, 30});
  const Tensor flat = Tensor::Of<int64_t>({3}, {1, 3, 1}),
               tuples = Tensor::Of<int64_t>({3, 1}, {1, 3, 1});
  const std::vector<std::pair<const char*, Floats>> cases = {{"none", {1, 30, 3, 20}},
                                                             {"add", {1, 42, 3, 24}},
                                                             {"mul", {1, 600, 3, 80}},
                                                             {"max", {1, 30, 3, 20}},
                                                             {"min", {1, 2, 3, 4}}};
  for (const auto& [reduction, expected] : cases) {
    EXPECT_EQ(*RunIndexing(KernelCase("ScatterElements", {x, flat, updates},
                                      {{"reduction", Text(reduction)}})),
              expected);
    EXPECT_EQ(*RunIndexing(
                  KernelCase("ScatterND", {x, tuples, updates}, {{"reduction", Text(reduction)}})),
              expected);
  }
}

TEST(Indexing, GivesTheSameWithAnyThreads) {
  const int64_t rows = 300, columns = 200;
  Tensor x = Tensor::Zeros(DType::kFloat32, {rows, columns}),
         updates = Tensor::Zeros(DType::kFloat32, {rows, columns});
  Tensor at = Tensor::Zeros(DType::kInt64, {rows, columns}),
         tuples = Tensor::Zeros(DType::kInt64, {rows, 1});
  for (int64_t i = 0; i < rows * columns; ++i) {
    updates.data<float>()[i] = 1.0f / static_cast<float>(1 + i % 97);
    at.data<int64_t>()[i] = i * 7919 % columns / 3;
  }
  for (int64_t i = 0; i < rows; ++i) tuples.data<int64_t>()[i] = i * 31 % 50 - 50;
  const AttributeMap add = {{"reduction", Text("add")}, {"axis", int64_t{1}}};
  for (const KernelCase& node :
       {KernelCase("ScatterElements", {x, at, updates}, add),
        KernelCase("ScatterND", {x, tuples, updates}, {{"reduction", Text("add")}}),
        KernelCase("GatherElements", {updates, at}, {{"axis", int64_t{1}}})}) {
    EXPECT_EQ(*RunIndexing(node, 1), *RunIndexing(node, 4)) << node.op_type;
  }
}

TEST(Indexing, WritesCachesAtEachPlace) {
  const Tensor cache = Tensor::Zeros(DType::kFloat32, {2, 3, 1}),
               update = Tensor::Of<float>({2, 2, 1}, {1, 2, 3, 4});
  const Tensor starts = Tensor::Of<int64_t>({2}, {1, 2});
  EXPECT_THAT(*RunIndexing(KernelCase("TensorScatter", {cache, update})),
              ElementsAre(1, 2, 0, 3, 4, 0));
  EXPECT_THAT(*RunIndexing(KernelCase("TensorScatter", {cache, update, starts},
                                      {{"mode", Text("circular")}})),
              ElementsAre(0, 1, 2, 4, 0, 3));
  EXPECT_EQ(RunIndexing(KernelCase("TensorScatter", {cache, update, starts})).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Indexing, SetsOneHotOfIndicesInside) {
  const Tensor indices = Tensor::Of<float>({4}, {1, -1, 3, -4}),
               values = Tensor::Of<float>({2}, {0, 1});
  EXPECT_THAT(*RunIndexing(KernelCase("OneHot", {indices, Tensor::Scalar<int64_t>(3), values})),
              ElementsAre(0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0));
}

}  // namespace
}  // namespace caesura
