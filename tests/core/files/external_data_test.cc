// SPDX-License-Identifier: Apache-2.0
#include "core/files/external_data.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/temporary_folder.h"

namespace caesura {
namespace {

namespace fs = std::filesystem;

// Both ways of opening beneath a folder.
class ExternalDataTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.path("model/sub"));
    Fill("model/a.bin", "0123456789");
    Fill("model/sub/b.bin", "abc");
    Fill("secret.bin", "do not read");
  }

  void Fill(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_.path(name)) << bytes;
  }

  std::unique_ptr<ExternalFolder> Open() {
    auto folder = ExternalFolder::Open(folder_.path("model")).value();
    if (!GetParam()) folder->DisableOpenat2();
    return folder;
  }

  void ExpectRefused(const std::string& location, StatusCode code = StatusCode::kInvalidModel) {
    Result<const ExternalFile*> file = Open()->OpenForReading(location);
    ASSERT_FALSE(file.ok()) << location;
    EXPECT_EQ(file.status().code(), code) << file.status().ToString();
  }

  testing::TemporaryFolder folder_;
};

TEST_P(ExternalDataTest, ReadsRanges) {
  auto folder = Open();
  const ExternalFile* file = folder->OpenForReading("a.bin").value();
  EXPECT_EQ(file->size(), 10u);
  ASSERT_TRUE(file->CheckRange(3, 4).ok());
  std::string bytes(4, '\0');
  ASSERT_TRUE(file->Read(3, 4, bytes.data()).ok());
  EXPECT_EQ(bytes, "3456");
  EXPECT_TRUE(file->CheckRange(10, 0).ok());
  EXPECT_FALSE(file->CheckRange(10, 1).ok());
  EXPECT_FALSE(file->CheckRange(11, 0).ok());
  EXPECT_FALSE(file->CheckRange(2, ~uint64_t{0}).ok());
  EXPECT_FALSE(file->CheckRange(~uint64_t{0}, 2).ok());
}

TEST_P(ExternalDataTest, OpensBelowTheFolder) {
  auto folder = Open();
  EXPECT_TRUE(folder->OpenForReading("sub/b.bin").ok());
  EXPECT_TRUE(folder->OpenForReading("./a.bin").ok());
}

TEST_P(ExternalDataTest, RefusesToLeaveTheFolder) {
  ExpectRefused("../secret.bin");
  ExpectRefused("sub/../../secret.bin");
  ExpectRefused("sub/../a.bin");
  ExpectRefused(folder_.path("secret.bin"));
  ExpectRefused("");
  ExpectRefused("sub//b.bin");
  ExpectRefused("..");
  ExpectRefused(std::string("a.bin\0x", 7));
}

TEST_P(ExternalDataTest, RefusesLinksThatLeaveTheFolder) {
  fs::create_symlink(folder_.path("secret.bin"), folder_.path("model/link.bin"));
  fs::create_symlink("../secret.bin", folder_.path("model/relative.bin"));
  fs::create_symlink(folder_.path("model/a.bin"), folder_.path("model/absolute.bin"));
  fs::create_symlink("/proc/self/fd/0", folder_.path("model/magic.bin"));
  fs::create_symlink("relative.bin", folder_.path("model/chain.bin"));
  fs::create_symlink("../secret.bin", folder_.path("model/secret.bin"));
  fs::create_directory_symlink(folder_.path(), folder_.path("model/up"));
  fs::create_directory_symlink("..", folder_.path("model/near_up"));
  fs::create_hard_link(folder_.path("secret.bin"), folder_.path("model/hard.bin"));
  for (const char* location : {"link.bin", "relative.bin", "absolute.bin", "magic.bin", "chain.bin",
                               "secret.bin", "up/secret.bin", "near_up/secret.bin", "hard.bin"}) {
    ExpectRefused(location);
  }
}

// The kernel follows them beneath the folder, where it can.
TEST_P(ExternalDataTest, FollowsLinksWithinTheFolderByOpenat2) {
  fs::create_symlink("a.bin", folder_.path("model/near.bin"));
  fs::create_symlink("../a.bin", folder_.path("model/sub/up.bin"));
  fs::create_directory_symlink("sub", folder_.path("model/down"));
  for (const char* location : {"near.bin", "sub/up.bin", "down/b.bin"}) {
    if (GetParam()) EXPECT_TRUE(Open()->OpenForReading(location).ok()) << location;
    else ExpectRefused(location);
  }
}

// snapshots/1/net.onnx -> ../../blobs/net, with its data likewise.
class HubCacheTest : public ExternalDataTest {
 protected:
  void SetUp() override {
    ExternalDataTest::SetUp();
    fs::create_directories(folder_.path("hub/blobs/deep"));
    fs::create_directories(folder_.path("hub/snapshots/1/onnx"));
    fs::create_directories(folder_.path("other"));
    for (const char* name :
         {"hub/blobs/net", "hub/blobs/data", "hub/blobs/deep/data", "hub/secret", "other/data"}) {
      Fill(name, "0123");
    }
    Link("../../blobs/net", "net.onnx");
  }
  void Link(const std::string& target, const std::string& name) {
    fs::create_symlink(target, folder_.path("hub/snapshots/1/" + name));
  }
  Result<const ExternalFile*> Read(const std::string& location,
                                   const std::string& model = "net.onnx") {
    const std::string path = folder_.path("hub/snapshots/1/" + model);
    open_ = ExternalFolder::Open(fs::path(path).parent_path(), path).value();
    if (!GetParam()) open_->DisableOpenat2();
    return open_->OpenForReading(location);
  }
  std::unique_ptr<ExternalFolder> open_;
};

TEST_P(HubCacheTest, OpensWhatLiesBesideTheRealModel) {
  Link("../../blobs/data", "net.onnx.data");
  Link("../../../blobs/net", "onnx/net.onnx");
  Link("../../../blobs/data", "onnx/net.onnx.data");
  auto file = Read("net.onnx.data");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ((*file)->size(), 4u);
  EXPECT_TRUE(Read("onnx/net.onnx.data").ok());
  EXPECT_TRUE(Read("net.onnx.data", "onnx/net.onnx").ok());
}

TEST_P(HubCacheTest, OpensNothingElse) {
  fs::create_hard_link(folder_.path("hub/secret"), folder_.path("hub/blobs/hard"));
  fs::create_symlink("../secret", folder_.path("hub/blobs/link"));
  Link("../../blobs/hard", "hard.bin");
  Link("../../blobs/link", "link.bin");
  Link("../../blobs/deep/data", "deep.bin");
  Link("../../secret", "secret.bin");
  Link("../../../other/data", "other.bin");  // another file of a name that is among the blobs
  Link(folder_.path("hub/blobs/data"), "absolute.bin");
  Link("../../blobs", "folder.bin");
  Link("../../blobs/..", "dots.bin");
  Link("../../blobs/missing", "missing.bin");
  for (const char* location :
       {"hard.bin", "link.bin", "deep.bin", "secret.bin", "other.bin", "absolute.bin", "folder.bin",
        "dots.bin", "missing.bin", "folder.bin/data", "../../blobs/data"}) {
    EXPECT_FALSE(Read(location).ok()) << location;
  }
  Fill("hub/snapshots/1/plain.onnx", "a model that is no link");
  Link("../../blobs/data", "data.bin");
  EXPECT_TRUE(Read("data.bin").ok());
  EXPECT_FALSE(Read("data.bin", "plain.onnx").ok());
}

TEST_P(ExternalDataTest, RefusesWhatIsNoRegularFile) {
  ASSERT_EQ(::mkfifo(folder_.path("model/pipe").c_str(), 0600), 0);
  ExpectRefused("pipe");
  ExpectRefused("sub");
  ExpectRefused("a.bin/x");
  ExpectRefused("missing.bin", StatusCode::kNotFound);
}

TEST_P(ExternalDataTest, NoticesThatAFileShrinks) {
  auto folder = Open();
  const ExternalFile* file = folder->OpenForReading("a.bin").value();
  ASSERT_TRUE(file->CheckRange(0, 10).ok());
  fs::resize_file(folder_.path("model/a.bin"), 5);
  std::string bytes(10, '\0');
  EXPECT_EQ(file->Read(0, 10, bytes.data()).code(), StatusCode::kIoError);
}

TEST_P(ExternalDataTest, FolderMustExist) {
  EXPECT_EQ(ExternalFolder::Open(folder_.path("nowhere")).status().code(), StatusCode::kIoError);
}

INSTANTIATE_TEST_SUITE_P(Ways, HubCacheTest, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "Openat2" : "Components"; });
INSTANTIATE_TEST_SUITE_P(Ways, ExternalDataTest, ::testing::Values(true, false),
                         [](const auto& way) { return way.param ? "Openat2" : "Components"; });

}  // namespace
}  // namespace caesura
