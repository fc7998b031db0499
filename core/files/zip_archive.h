// SPDX-License-Identifier: Apache-2.0
// Private to core/files. Zip archives as .npz files are: members stored or deflated, 64-bit sizes
// allowed, one disk, no encryption. Names are only keys here, never paths.
#ifndef CAESURA_CORE_FILES_ZIP_ARCHIVE_H_
#define CAESURA_CORE_FILES_ZIP_ARCHIVE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/files/file_system.h"

namespace caesura {

class ZipReader {
 public:
  struct Member {
    std::string name;
    uint64_t size = 0;         // when decompressed
    uint64_t stored_size = 0;  // in the file
    uint64_t header_offset = 0;
    uint32_t crc = 0;
    uint16_t method = 0;
  };

  // Reads and checks the directory at the archive's end. `file` outlives the reader.
  static Result<ZipReader> Open(const ReadableFile& file);
  const std::vector<Member>& members() const { return members_; }
  // The member's bytes; fails unless they have the declared size and checksum.
  Result<std::string> Read(const Member& member) const;

 private:
  explicit ZipReader(const ReadableFile& file) : file_(&file) {}
  Status ReadDirectory();
  Result<Member> ParseMember(std::string_view directory, size_t* at) const;

  const ReadableFile* file_;
  std::vector<Member> members_;
};

class ZipWriter {
 public:
  explicit ZipWriter(WritableFile& file) : file_(&file) {}
  Status Add(const std::string& name, std::string_view bytes, bool compress);
  // Writes the directory. Once, after the last Add.
  Status Finish();

 private:
  Status Write(const std::string& bytes);

  WritableFile* file_;
  uint64_t at_ = 0;
  std::vector<ZipReader::Member> members_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_FILES_ZIP_ARCHIVE_H_
