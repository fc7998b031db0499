// SPDX-License-Identifier: Apache-2.0
// Options as strings, and which of several places counts. Ops that read them are in
// custom_op_test.cc.
#include "core/custom_ops/custom_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph.h"
#include "core/graph/op_attributes.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(OptionSets, AppendUpdateAndSerialise) {
  OptionSet options;
  EXPECT_TRUE(options.Append("a", "1").ok());
  EXPECT_THAT(options.Append("a", "2").message(), HasSubstr("option 'a' is there already, as '1'"));
  options.Update(OptionSet{{"a", "x=y;z\\\n"}, {"b", ""}});
  EXPECT_TRUE(options.Has("b"));
  EXPECT_THAT(options.Get("c").status().message(), HasSubstr("there are: a, b"));
  EXPECT_EQ(OptionSet::Parse(options.Serialise()).value(), options);
  EXPECT_EQ(OptionSet({{"device", "CPU"}, {"threads", "2"}}).Serialise(), "device=CPU;threads=2");
  EXPECT_EQ(OptionSet::Parse("").value(), OptionSet());
  for (const char* wrong : {"a", "=1", "a=1;b", "a=1;a=2", ";"})
    EXPECT_FALSE(OptionSet::Parse(wrong).ok()) << wrong;
}

TEST(OptionSets, ChangeByName) {
  OptionSet options{{"a", "1"}, {"b", "2"}};
  OptionSet copy = options;
  options.Update("a", "3");
  options.Remove("b");
  options.Remove("c");  // there is none
  EXPECT_EQ(options, (OptionSet{{"a", "3"}}));
  EXPECT_EQ(options.Get("a").value(), "3");
  EXPECT_EQ(copy, (OptionSet{{"a", "1"}, {"b", "2"}}));  // shares nothing
  options.Remove("a");
  EXPECT_TRUE(options.empty());
  EXPECT_EQ(options.Get("a").status().ToString(),
            "NOT_FOUND: there is no option 'a'; there are: none");
}

// In the order of the names, whatever is in them.
TEST(OptionSets, AreReadAsTheyAreWritten) {
  const OptionSet odd{{"b=c", ";"}, {"a;", "\\"}, {"line\nend", "n\n\\n"}, {"z", "="}};
  EXPECT_EQ(odd.Serialise(), R"(a\;=\\;b\=c=\;;line\nend=n\n\\n;z=\=)");
  EXPECT_EQ(OptionSet::Parse(odd.Serialise()).value(), odd);
  EXPECT_EQ(OptionSet::Parse("b=2;a=1=1;").value(), (OptionSet{{"a", "1=1"}, {"b", "2"}}));
  EXPECT_EQ(OptionSet::Parse("a=1;b").status().ToString(),
            "INVALID_ARGUMENT: options: expected name=value at character 4 of 'a=1;b'");
  EXPECT_EQ(OptionSet::Parse("a=1;a=2").status().message(), "option 'a' is there already, as '1'");
}

// An escaped "=" is part of a name, and begins no value.
TEST(OptionSets, AnEscapedSignDividesNothing) {
  EXPECT_THAT(OptionSet::Parse(R"(a\=)").status().message(), HasSubstr("expected name=value"));
  EXPECT_EQ(OptionSet::Parse(R"(a\==)").value(), (OptionSet{{"a=", ""}}));
}

class ResolvesOptions : public ::testing::Test {
 protected:
  Node* AddNode(const std::string& name, AttributeMap attributes = {}) {
    return graph_.AddNode("Op", {}, {}, std::move(attributes), "mine", name);
  }
  // The options that a model brings along.
  static AttributeMap Brought(std::vector<std::string> names, std::vector<std::string> values) {
    return {{kOptionNamesAttribute, std::move(names)}, {kOptionValuesAttribute, std::move(values)}};
  }

  Graph graph_;
  OpOptions options_;
};

// Each option is named in all places from one on, and has the first one's value.
TEST_F(ResolvesOptions, TheFirstOfFourPlacesCounts) {
  const Node* node = AddNode("n", Brought({"b", "a"}, {"model", "model"}));
  options_.ForNode("n").Update("a", "node");
  for (const char* name : {"a", "b", "c"}) options_.ForOp("Op", "mine").Update(name, "op");
  const OptionSet defaults{{"a", "own"}, {"b", "own"}, {"c", "own"}, {"d", "own"}};
  EXPECT_EQ(options_.Resolve(*node, defaults).value(),
            (OptionSet{{"a", "node"}, {"b", "model"}, {"c", "op"}, {"d", "own"}}));
}

TEST_F(ResolvesOptions, OthersOptionsDoNotCount) {
  options_.ForNode("other").Update("a", "1");
  options_.ForOp("Op", "").Update("a", "2");
  options_.ForOp("Pop", "mine").Update("a", "3");
  EXPECT_TRUE(options_.Resolve(*AddNode("n")).value().empty());
}

TEST_F(ResolvesOptions, NodesOfAGradientHookHaveTheirForwardNodesOptions) {
  options_.ForNode("n").Update("a", "forward");
  options_.ForNode("n_grad").Update("a", "its own");
  const auto of = [&](const std::string& forward) {
    const Node* node = AddNode("n_grad", {{kForwardNodeAttribute, forward}});
    return options_.Resolve(*node).value();
  };
  EXPECT_EQ(of("n"), (OptionSet{{"a", "forward"}}));
  EXPECT_TRUE(of("").empty());  // belongs to none
}

TEST_F(ResolvesOptions, NamesWithoutValuesAreNoOptions) {
  const Status status = options_.Resolve(*AddNode("n", Brought({"a", "b"}, {"1"}))).status();
  EXPECT_EQ(status.ToString(),
            "INVALID_MODEL: [mine::Op 'n'] has 2 option_names and 1 option_values");
}

TEST_F(ResolvesOptions, CopiesShareNothing) {
  options_.ForNode("n").Update("a", "1");
  const OpOptions copy = options_;
  options_.ForNode("n").Update("a", "2");
  options_.ForOp("Op", "mine").Update("b", "3");
  const Node* node = AddNode("n");
  EXPECT_EQ(copy.Resolve(*node).value(), (OptionSet{{"a", "1"}}));
  EXPECT_EQ(options_.Resolve(*node).value(), (OptionSet{{"a", "2"}, {"b", "3"}}));
  EXPECT_EQ(copy.nodes().size(), 1u);
  EXPECT_TRUE(copy.ops().empty());
}

}  // namespace
}  // namespace caesura
