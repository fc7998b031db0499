// SPDX-License-Identifier: Apache-2.0
#include "training/files/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace caesura {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// The text of a bar over 1000 steps of an eighth of a second.
std::string Written(bool is_terminal, int64_t begin, int64_t end) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&text, &size);
  double now = 100;
  ProgressBar bar(
      {.total = 1000, .begin = begin, .out = out, .is_terminal = is_terminal, .seconds = [&] {
         return now;
       }});
  for (int64_t step = begin + 1; step <= end; ++step) {
    now += 0.125;
    bar.Update(step, step < 500 ? "loss 10.5" : "loss 2.1");
  }
  bar.Finish();
  std::fclose(out);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressBarTest, RedrawsOnATerminal) {
  const std::string text = Written(true, 0, 1000);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(
      text,
      HasSubstr("\rtrain [#########---------------]  38% 380/1000  loss 10.5  8.0/s  1:18 left"));
  EXPECT_THAT(
      text, HasSubstr("\rtrain [########################] 100% 1000/1000  loss 2.1  8.0/s  2:05"));
}

TEST(ProgressBarTest, FewPlainLinesElsewhere) {
  const std::string text = Written(false, 0, 1000);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("train  50% 500/1000  loss 2.1  8.0/s  1:03 left\n"));
}

TEST(ProgressBarTest, TheRateIsThatOfThisRun) {
  EXPECT_THAT(Written(false, 900, 1000),
              HasSubstr("train  95% 950/1000  loss 2.1  8.0/s  0:06 left\n"));
}

TEST(ProgressBarTest, SaysWhereItStopped) {
  EXPECT_THAT(Written(false, 0, 512), EndsWith("512/1000  loss 2.1  8.0/s  1:01 left\n"));
}

TEST(ProgressBarTest, ClockTexts) {
  EXPECT_EQ(ClockText(0), "0:00");
  EXPECT_EQ(ClockText(7.4), "0:07");
  EXPECT_EQ(ClockText(59.6), "1:00");
  EXPECT_EQ(ClockText(3723), "1:02:03");
  EXPECT_EQ(ClockText(1e300), "99:59:59");
}

}  // namespace
}  // namespace caesura
