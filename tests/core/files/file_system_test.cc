// SPDX-License-Identifier: Apache-2.0
#include "core/files/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/core/files/faulty_file_system.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

Status WriteText(FileSystem& files, const std::string& path, const std::string& text) {
  return WriteFileAtomically(files, path, [&](WritableFile& file) { return file.Write(text); });
}

std::string Text(FileSystem& files, const std::string& path) {
  return ReadWholeFile(files, path, 1000).value();
}

TEST(FileSystemTest, WritesReadsListsRenamesRemoves) {
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  ASSERT_TRUE(WriteText(files, folder.path("a"), "first").ok());
  ASSERT_TRUE(WriteText(files, folder.path("a"), "second").ok());
  EXPECT_EQ(Text(files, folder.path("a")), "second");
  ASSERT_TRUE(files.Rename(folder.path("a"), folder.path("b")).ok());
  EXPECT_EQ(files.List(folder.path()).value(), std::vector<std::string>{"b"});
  EXPECT_FALSE(files.Exists(folder.path("a")).value());
  EXPECT_TRUE(files.Exists(folder.path("b")).value());
  ASSERT_TRUE(files.Remove(folder.path("b")).ok());
  EXPECT_TRUE(files.List(folder.path()).value().empty());
}

TEST(FileSystemTest, FailuresNameThePath) {
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  EXPECT_EQ(files.Open(folder.path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files.Rename(folder.path("none"), folder.path("b")).code(), StatusCode::kNotFound);
  EXPECT_EQ(files.Remove(folder.path("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(files.SyncFolder(folder.path("none")).code(), StatusCode::kNotFound);
  EXPECT_EQ(files.List(folder.path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(WriteText(files, folder.path("none/a"), "text").code(), StatusCode::kNotFound);
  EXPECT_THAT(files.Open(folder.path()).status().message(), HasSubstr("no regular file"));
  EXPECT_THAT(files.Open(folder.path("none")).status().message(), HasSubstr(folder.path("none")));
}

TEST(FileSystemTest, RefusesAPipe) {
  TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(PosixFileSystem().Open(folder.path("pipe")).status().message(),
              HasSubstr("no regular file"));
}

TEST(FileSystemTest, ReadsOnlyWhatIsThere) {
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  ASSERT_TRUE(WriteText(files, folder.path("a"), "12345").ok());
  auto file = files.Open(folder.path("a")).value();
  char out[8];
  EXPECT_EQ(file->size(), 5u);
  EXPECT_TRUE(file->Read(2, 3, out).ok());
  EXPECT_EQ(std::string(out, 3), "345");
  EXPECT_EQ(file->Read(3, 3, out).code(), StatusCode::kIoError);
  EXPECT_EQ(file->Read(UINT64_MAX, 2, out).code(), StatusCode::kIoError);
  ASSERT_EQ(::truncate(folder.path("a").c_str(), 1), 0);
  EXPECT_THAT(file->Read(0, 5, out).message(), HasSubstr("shorter"));
  EXPECT_THAT(ReadWholeFile(files, folder.path("a"), 0).status().message(),
              HasSubstr("more than the 0 allowed"));
}

TEST(FileSystemTest, TwoWritersOfOneFileDoNotMix) {
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  auto first = files.Create(folder.path("a")).value();
  EXPECT_THAT(files.Create(folder.path("a")).status().message(), HasSubstr("by someone else"));
  ASSERT_TRUE(first->Write("text").ok());
  ASSERT_TRUE(first->Close().ok());
  EXPECT_TRUE(files.Create(folder.path("a")).ok());
}

TEST(FileSystemTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  ASSERT_TRUE(WriteText(files, folder.path("a"), "old").ok());
  const Status status = WriteFileAtomically(files, folder.path("a"), [](WritableFile& file) {
    static_cast<void>(file.Write("ne"));
    return Cancelled("enough");
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(Text(files, folder.path("a")), "old");
  EXPECT_EQ(files.List(folder.path()).value(), std::vector<std::string>{"a"});
}

// Files that are managed by links (a cache, a folder of releases) stay so.
TEST(FileSystemTest, ALinkStaysAndWhatItLeadsToIsReplaced) {
  namespace fs = std::filesystem;
  TemporaryFolder folder;
  FileSystem& files = PosixFileSystem();
  fs::create_directories(folder.path("blobs"));
  fs::create_directories(folder.path("links"));
  ASSERT_TRUE(WriteText(files, folder.path("blobs/old"), "old").ok());
  fs::create_symlink("../blobs/old", folder.path("links/near"));
  fs::create_symlink(folder.path("links/near"), folder.path("links/chain"));
  fs::create_symlink("../blobs/not_yet", folder.path("links/dangling"));
  ASSERT_TRUE(WriteText(files, folder.path("links/near"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(folder.path("links/near")));
  EXPECT_EQ(Text(files, folder.path("blobs/old")), "new");
  ASSERT_TRUE(WriteText(files, folder.path("links/chain"), "newer").ok());
  EXPECT_TRUE(fs::is_symlink(folder.path("links/chain")));
  EXPECT_EQ(Text(files, folder.path("blobs/old")), "newer");
  ASSERT_TRUE(WriteText(files, folder.path("links/dangling"), "fresh").ok());
  EXPECT_EQ(Text(files, folder.path("blobs/not_yet")), "fresh");
  EXPECT_EQ(files.List(folder.path("links")).value(),
            (std::vector<std::string>{"chain", "dangling", "near"}));
  EXPECT_EQ(files.List(folder.path("blobs")).value(), (std::vector<std::string>{"not_yet", "old"}));

  const Status failed = WriteFileAtomically(files, folder.path("links/near"),
                                            [](WritableFile&) { return Cancelled("no"); });
  EXPECT_EQ(failed.code(), StatusCode::kCancelled);
  EXPECT_EQ(Text(files, folder.path("blobs/old")), "newer");
  fs::create_symlink("b", folder.path("a"));
  fs::create_symlink("a", folder.path("b"));
  EXPECT_THAT(WriteText(files, folder.path("a"), "x").message(),
              HasSubstr("too many symbolic links"));
}

TEST(FileSystemTest, FoldersOfPaths) {
  EXPECT_EQ(FolderOf("a/b/c"), "a/b");
  EXPECT_EQ(FolderOf("c"), ".");
  EXPECT_EQ(FolderOf("/c"), "/");
}

// The layer that the tests below and elsewhere rely on does lose what it should.
TEST(FaultyFileSystemTest, LosesWhatWasNotSynced) {
  for (const bool sync_file : {false, true}) {
    for (const bool sync_folder : {false, true}) {
      FaultyFileSystem files;
      auto file = files.Create("a").value();
      ASSERT_TRUE(file->Write("text").ok());
      ASSERT_TRUE(!sync_file || file->Sync().ok());
      ASSERT_TRUE(!sync_folder || files.SyncFolder(".").ok());
      EXPECT_EQ(Text(files, "a"), "text");
      files.Crash(FaultyFileSystem::Loss::kAll);
      ASSERT_EQ(files.Exists("a").value(), sync_folder);
      EXPECT_TRUE(!sync_folder || Text(files, "a") == (sync_file ? "text" : ""));
    }
  }
}

TEST(FaultyFileSystemTest, AWriterWithoutSyncIsCaught) {
  int torn = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    FaultyFileSystem files;
    ASSERT_TRUE(WriteText(files, "a", "old").ok());
    auto file = files.Create("a.tmp").value();
    ASSERT_TRUE(file->Write("new").ok());
    ASSERT_TRUE(files.Rename("a.tmp", "a").ok());  // no Sync
    files.Crash(FaultyFileSystem::Loss::kRandom, seed);
    const std::string text = Text(files, "a");
    torn += text != "old" && text != "new";
  }
  EXPECT_GT(torn, 0);
}

TEST(WriteFileAtomicallyTest, OldOrNewAfterAnyFailureAndAnyCrash) {
  using Loss = FaultyFileSystem::Loss;
  for (int n = 0; n < 12; ++n) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
      FaultyFileSystem files;
      ASSERT_TRUE(WriteText(files, "a", "old").ok());
      const int before = files.calls();
      if (seed % 2 == 0) files.FailCall(before + n);
      else files.StopAfter(before + n);
      const bool ok = WriteText(files, "a", "new contents").ok();
      if (seed >= 4)
        files.Crash(seed < 6 ? Loss::kAll : seed < 8 ? Loss::kNothing : Loss::kRandom, seed);
      const std::string text = Text(files, "a");
      EXPECT_TRUE(text == "new contents" || (text == "old" && !ok))
          << "call " << n << ", seed " << seed << ": " << text;
    }
  }
}

}  // namespace
}  // namespace caesura
