// SPDX-License-Identifier: Apache-2.0
// Frames and fields are read in tests/python/integrations/event_writer_test.py.
#include "training/files/event_file.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

TEST(Crc32cTest, GivesTheValuesOfRfc3720) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventWriterTest, TellsWhichFolderCannotBeMade) {
  const auto writer = EventWriter::Create("/dev/null/runs");
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().code(), StatusCode::kIoError);
  EXPECT_NE(writer.status().message().find("/dev/null/runs"), std::string::npos);
}

}  // namespace
}  // namespace caesura
