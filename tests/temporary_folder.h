// SPDX-License-Identifier: Apache-2.0
// A folder that a test may fill, removed with all that is in it.
#ifndef CAESURA_TESTS_TEMPORARY_FOLDER_H_
#define CAESURA_TESTS_TEMPORARY_FOLDER_H_

#include <filesystem>
#include <string>
#include <system_error>

#include <stdlib.h>

namespace caesura::testing {

class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_((std::filesystem::temp_directory_path() / "caesura-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TEMPORARY_FOLDER_H_
