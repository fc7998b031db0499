// SPDX-License-Identifier: Apache-2.0
#include "core/base/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::ThrowsMessage;

TEST(StatusTest, TellsItsCodeAndMessage) {
  const Status good;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.code(), StatusCode::kOk);
  EXPECT_EQ(good.message(), "");
  EXPECT_EQ(good.ToString(), "OK");
  const Status bad = NotFound("no such file");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.ToString(), "NOT_FOUND: no such file");
}

TEST(StatusTest, EveryMakerHasTheCodeOfItsName) {
  const std::pair<Status (*)(std::string), const char*> makers[] = {
      {InvalidArgument, "INVALID_ARGUMENT"},
      {InvalidModel, "INVALID_MODEL"},
      {Unsupported, "UNSUPPORTED"},
      {NotFound, "NOT_FOUND"},
      {OutOfMemory, "OUT_OF_MEMORY"},
      {ProviderFailure, "PROVIDER_FAILURE"},
      {IoError, "IO_ERROR"},
      {Cancelled, "CANCELLED"},
      {Suspended, "SUSPENDED"},
      {Declined, "DECLINED"},
      {RankFailure, "RANK_FAILURE"},
      {Internal, "INTERNAL"}};
  for (const auto& [make, name] : makers) EXPECT_STREQ(StatusCodeName(make("x").code()), name);
}

TEST(StatusTest, APrefixKeepsCodeAndPlace) {
  EXPECT_TRUE(Status().WithPrefix("reading: ").ok());
  const Status failed =
      ProviderFailure("x").At({"Add 'a'", "cpu", "too large"}, "[Add 'a'] too large");
  const Status outer = failed.WithPrefix("body: ");
  EXPECT_EQ(outer.code(), StatusCode::kProviderFailure);
  EXPECT_EQ(outer.message(), "body: [Add 'a'] too large");
  ASSERT_NE(outer.location(), nullptr);
  EXPECT_EQ(outer.location()->what, "too large");
}

TEST(StatusTest, TheInnermostPlaceStays) {
  const Status inner = Internal("x").At({"Add 'inner'", "cpu", "x"}, "first");
  const Status outer = inner.At({"Loop 'outer'", "cpu", "x"}, "second");
  EXPECT_EQ(outer.message(), "second");
  ASSERT_NE(outer.location(), nullptr);
  EXPECT_EQ(outer.location()->node, "Add 'inner'");
  EXPECT_EQ(Status().location(), nullptr);
}

TEST(StatusTest, CopiesAreTheirOwn) {
  Status one = NotFound("a");
  Status two = one;
  one = Cancelled("b");
  EXPECT_EQ(two.ToString(), "NOT_FOUND: a");
  two = Status();
  EXPECT_TRUE(two.ok());
  EXPECT_EQ(one.ToString(), "CANCELLED: b");
}

TEST(ResultTest, ValueThrowsWhatWasWrong) {
  Result<int> missing = NotFound("no such name");
  EXPECT_THAT([&] { (void)missing.value(); },
              ThrowsMessage<std::runtime_error>(HasSubstr("NOT_FOUND: no such name")));
  // As the standard library throws it.
  Result<int> full = OutOfMemory("64 MiB for an arena");
  EXPECT_THAT([&] { (void)full.value(); },
              ::testing::Throws<std::bad_alloc>(
                  Property(&std::bad_alloc::what, HasSubstr("64 MiB for an arena"))));
}

TEST(ResultTest, HoldsWhatCanOnlyBeMoved) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(7);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made.status().ok());
  const std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 7);
}

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

Status Quarter(int value, int* out, int* reached) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ++*reached;
  ASSIGN_OR_RETURN(*out, Half(half));
  ++*reached;
  RETURN_IF_ERROR(Half(*out).status());
  ++*reached;
  return {};
}

TEST(StatusMacrosTest, ReturnAtTheFirstFailure) {
  for (const auto& [value, steps] : {std::pair{3, 0}, {6, 1}, {12, 2}, {16, 3}}) {
    int out = 0, reached = 0;
    EXPECT_EQ(Quarter(value, &out, &reached).ok(), steps == 3) << value;
    EXPECT_EQ(reached, steps) << value;
  }
}

}  // namespace
}  // namespace caesura
