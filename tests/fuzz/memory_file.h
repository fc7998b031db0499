// SPDX-License-Identifier: Apache-2.0
// A file layer (core/files/file_system.h) that holds one file, for readers that take paths.
#ifndef CAESURA_TESTS_FUZZ_MEMORY_FILE_H_
#define CAESURA_TESTS_FUZZ_MEMORY_FILE_H_

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/files/file_system.h"

namespace caesura::fuzz {

class MemoryFile : public FileSystem {
 public:
  explicit MemoryFile(std::string bytes = "") : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }

  Result<std::unique_ptr<WritableFile>> Create(const std::string&) override {
    bytes_.clear();
    return std::unique_ptr<WritableFile>(new Writer(&bytes_));
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string&) override {
    return std::unique_ptr<ReadableFile>(new Reader(bytes_));
  }
  Status Rename(const std::string&, const std::string&) override { return {}; }
  Status Remove(const std::string&) override { return {}; }
  Status SyncFolder(const std::string&) override { return {}; }
  Result<bool> Exists(const std::string&) override { return true; }
  Result<std::vector<std::string>> List(const std::string&) override {
    return std::vector<std::string>{};
  }

 private:
  class Writer : public WritableFile {
   public:
    explicit Writer(std::string* bytes) : bytes_(bytes) {}
    Status Write(std::string_view bytes) override {
      bytes_->append(bytes);
      return {};
    }
    Status Sync() override { return {}; }
    Status Close() override { return {}; }

   private:
    std::string* bytes_;
  };
  class Reader : public ReadableFile {
   public:
    explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {}
    uint64_t size() const override { return bytes_.size(); }
    Status Read(uint64_t offset, size_t length, void* out) const override {
      if (offset > bytes_.size() || length > bytes_.size() - offset)
        return IoError("the file is too short");
      if (length > 0) std::memcpy(out, bytes_.data() + offset, length);
      return {};
    }

   private:
    std::string bytes_;
  };
  std::string bytes_;
};

}  // namespace caesura::fuzz

#endif  // CAESURA_TESTS_FUZZ_MEMORY_FILE_H_
