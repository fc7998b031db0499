// SPDX-License-Identifier: Apache-2.0
#include "training/command/dim_bindings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph.h"

namespace caesura::command {
namespace {

using ::testing::HasSubstr;
using Texts = std::vector<std::string>;

class DimBindingsTest : public ::testing::Test {
 protected:
  DimBindingsTest() {
    Add("x", std::vector<Dim>{{-1, "batch"}, {3, ""}});
    Add("mask", std::vector<Dim>{{-1, "batch"}});
  }
  void Add(const std::string& name, std::optional<std::vector<Dim>> shape) {
    ValueType type = ValueType::Tensor(DType::kFloat32);
    type.shape = std::move(shape);
    graph_.AddInput(name, type);
  }
  Result<std::vector<FeedSpec>> Feeds(const Texts& shapes, const Texts& dims) {
    Result<DimBindings> bindings = DimBindings::Parse(shapes, dims);
    return bindings.ok() ? bindings->Feeds(graph_.inputs()) : bindings.status();
  }

  Graph graph_;
};

TEST_F(DimBindingsTest, FromDimsOrFromAnotherInput) {
  EXPECT_EQ(Feeds({}, {"batch=5"}).value()[0].shape, Shape({5, 3}));
  const auto feeds = Feeds({"x=7,3"}, {}).value();
  EXPECT_EQ(feeds[0].shape, Shape({7, 3}));
  EXPECT_EQ(feeds[1].shape, Shape({7}));
  EXPECT_EQ(feeds[1].dtype, DType::kFloat32);
}

TEST_F(DimBindingsTest, AllThatIsMissingAtOnce) {
  Add("any", std::nullopt);
  Add("unnamed", std::vector<Dim>{{}});
  const std::string message = Feeds({}, {}).status().message();
  EXPECT_THAT(message, HasSubstr("'x' is float32[batch, 3]: give --dim batch=..."));
  EXPECT_THAT(message, HasSubstr("the rank of 'any' is unknown: give --shape any=..."));
  EXPECT_THAT(message, HasSubstr("give --shape unnamed=..."));
  EXPECT_TRUE(Feeds({"any=", "unnamed=0"}, {"batch=1"}).ok());
}

TEST_F(DimBindingsTest, WhatDoesNotFit) {
  EXPECT_THAT(Feeds({"x=7,4"}, {"batch=7"}).status().message(),
              HasSubstr("is not float32[batch, 3]"));
  EXPECT_THAT(Feeds({"y=1"}, {"batch=7"}).status().message(), HasSubstr("there is no input 'y'"));
  EXPECT_FALSE(Feeds({"x=4611686018427387904,3"}, {"batch=1"}).ok());
  for (const char* text :
       {"x", "=1", "x=a", "x=1,", "x=,1", "x=1,,2", "x=-1", "x=1.5", "x=99999999999999999999"}) {
    EXPECT_FALSE(DimBindings::Parse({text}, {}).ok()) << text;
    EXPECT_FALSE(DimBindings::Parse({}, {text}).ok()) << text;
  }
  EXPECT_FALSE(DimBindings::Parse({}, {"batch=1,2"}).ok());
}

}  // namespace
}  // namespace caesura::command
