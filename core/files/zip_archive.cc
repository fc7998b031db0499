// SPDX-License-Identifier: Apache-2.0
// Layout after PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5.
#include "core/files/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <limits>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50, kDirectorySignature = 0x02014b50,
                   kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30, kDirectoryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                 kLocator64Bytes = 20;
constexpr uint32_t kIn64 = 0xffffffff;  // the number is in the 64-bit record instead
constexpr uint16_t kStored = 0, kDeflated = 8, kExtra64 = 1;
constexpr uint16_t kVersion = 20, kVersion64 = 45;
constexpr uint16_t kJanuary1980 =
    1 << 5 | 1;  // the earliest date that there is: equal contents, equal bytes
constexpr uint64_t kMaxDirectoryBytes = 1 << 28;
constexpr uint64_t kMaxDeflateRatio = 1032;  // zlib's own bound

// Little-endian numbers out of bytes. REQUIRES: they are there.
uint64_t Number(std::string_view bytes, size_t at, int size) {
  assert(at + static_cast<size_t>(size) <= bytes.size());
  uint64_t out = 0;
  for (int i = size; i-- > 0;) out = out << 8 | static_cast<uint8_t>(bytes[at + i]);
  return out;
}
uint16_t U16(std::string_view bytes, size_t at) {
  return static_cast<uint16_t>(Number(bytes, at, 2));
}
uint32_t U32(std::string_view bytes, size_t at) {
  return static_cast<uint32_t>(Number(bytes, at, 4));
}
uint64_t U64(std::string_view bytes, size_t at) { return Number(bytes, at, 8); }

void Append(std::string* out, uint64_t number, int size) {
  for (int i = 0; i < size; ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

// Numbers with their sizes in bytes, one after the other.
struct SizedNumber {
  uint64_t number;
  int size;
};
std::string Record(std::initializer_list<SizedNumber> fields) {
  std::string out;
  for (const SizedNumber& field : fields) Append(&out, field.number, field.size);
  return out;
}

Status NoZip(const std::string& why) {
  return InvalidModel("is no zip archive that can be read: " + why);
}

Result<std::string> ReadBytes(const ReadableFile& file, uint64_t offset, uint64_t size) {
  if (offset > file.size() || size > file.size() - offset) return NoZip("it ends too early");
  std::string out(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(file.Read(offset, out.size(), out.data()));
  return out;
}

struct Directory {
  uint64_t members, bytes, offset;
};

// The 64-bit end record, where the locator in front of the plain one leads to it.
Result<Directory> FindDirectory64(const ReadableFile& file, uint64_t end_offset) {
  if (end_offset < kLocator64Bytes) return NoZip("its end record is incomplete");
  ASSIGN_OR_RETURN(const std::string locator,
                   ReadBytes(file, end_offset - kLocator64Bytes, kLocator64Bytes));
  if (U32(locator, 0) != kLocator64Signature) return NoZip("its 64-bit end record is missing");
  ASSIGN_OR_RETURN(const std::string end, ReadBytes(file, U64(locator, 8), kEnd64Bytes));
  if (U32(end, 0) != kEnd64Signature) return NoZip("its 64-bit end record is missing");
  return Directory{U64(end, 32), U64(end, 40), U64(end, 48)};
}

// The place of the directory, from the record at the end, which a comment of up to 64 KiB may
// follow.
Result<Directory> FindDirectory(const ReadableFile& file) {
  const uint64_t tail_bytes =
      std::min<uint64_t>(file.size(), kEndBytes + std::numeric_limits<uint16_t>::max());
  ASSIGN_OR_RETURN(const std::string tail, ReadBytes(file, file.size() - tail_bytes, tail_bytes));
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; at-- > 0;) {
    if (U32(tail, at) != kEndSignature || U16(tail, at + 20) != tail.size() - at - kEndBytes)
      continue;
    const Directory found{U16(tail, at + 10), U32(tail, at + 12), U32(tail, at + 16)};
    const bool is_64 = found.members == 0xffff || found.bytes == kIn64 || found.offset == kIn64;
    return is_64 ? FindDirectory64(file, file.size() - tail_bytes + at) : found;
  }
  return NoZip("it has no end record");
}

// Fills in what the 64-bit extra field holds of size, stored size and offset, in this order.
Status ReadExtra64(std::string_view extra, ZipReader::Member* member) {
  uint64_t* wanted[] = {&member->size, &member->stored_size, &member->header_offset};
  while (extra.size() >= 4) {
    const uint16_t id = U16(extra, 0);
    const size_t size = U16(extra, 2);
    if (size > extra.size() - 4) break;
    std::string_view body = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != kExtra64) continue;
    for (uint64_t* number : wanted) {
      if (*number != kIn64) continue;
      if (body.size() < 8) return NoZip("a 64-bit size of '" + member->name + "' is missing");
      *number = U64(body, 0);
      body.remove_prefix(8);
    }
    return {};
  }
  const bool needed = std::any_of(std::begin(wanted), std::end(wanted),
                                  [](const uint64_t* n) { return *n == kIn64; });
  return needed ? NoZip("the 64-bit sizes of '" + member->name + "' are missing") : Status();
}

Status Inflate(const std::string& stored, std::string* out) {
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return OutOfMemory("zlib could not start");
  size_t in_at = 0, out_at = 0;
  int result = Z_OK;
  char beyond = 0;  // one byte more than declared is already too many
  while (result == Z_OK) {
    constexpr size_t kMost = 1 << 30;  // zlib counts in 32 bits
    const size_t in = std::min(kMost, stored.size() - in_at),
                 room = std::min(kMost, out->size() - out_at);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data() + in_at));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(room > 0 ? out->data() + out_at : &beyond);
    stream.avail_out = static_cast<uInt>(room > 0 ? room : 1);
    result = inflate(&stream, Z_NO_FLUSH);
    in_at += in - stream.avail_in;
    if (room > 0) out_at += room - stream.avail_out;
    else if (stream.avail_out == 0) result = Z_DATA_ERROR;
  }
  inflateEnd(&stream);
  const bool complete = result == Z_STREAM_END && in_at == stored.size() && out_at == out->size();
  return complete ? Status() : InvalidModel("its compressed bytes are damaged");
}

Result<std::string> Deflate(std::string_view bytes) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    return OutOfMemory("zlib could not start");
  }
  std::string out;
  char block[1 << 16];
  size_t at = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    const size_t in = std::min<size_t>(1 << 30, bytes.size() - at);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + at));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(block);
    stream.avail_out = sizeof(block);
    result = deflate(&stream, at + in == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    at += in - stream.avail_in;
    out.append(block, sizeof(block) - stream.avail_out);
  }
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return Internal("zlib could not compress");
  return out;
}

uint32_t Crc(std::string_view bytes) {
  if (bytes.empty()) return 0;
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// The number as the 32-bit field says it.
uint64_t Narrow(uint64_t number) { return std::min<uint64_t>(number, kIn64); }

// The extra field for those of `numbers` that do not fit into 32 bits.
std::string Extra64(std::initializer_list<uint64_t> numbers) {
  std::string body;
  for (uint64_t number : numbers) {
    if (number >= kIn64) Append(&body, number, 8);
  }
  return body.empty() ? body : Record({{kExtra64, 2}, {body.size(), 2}}) + body;
}

// Fields that the local header and the directory share, from "version needed" to the lengths of
// name and extra field.
std::string Facts(const ZipReader::Member& member, size_t extra_bytes) {
  constexpr uint16_t kNameIsUtf8 = 1 << 11;
  return Record({{extra_bytes > 0 ? kVersion64 : kVersion, 2},
                 {kNameIsUtf8, 2},
                 {member.method, 2},
                 {0, 2},
                 {kJanuary1980, 2},
                 {member.crc, 4},
                 {Narrow(member.stored_size), 4},
                 {Narrow(member.size), 4},
                 {member.name.size(), 2},
                 {extra_bytes, 2}});
}

}  // namespace

Result<ZipReader> ZipReader::Open(const ReadableFile& file) {
  ZipReader reader(file);
  RETURN_IF_ERROR(reader.ReadDirectory());
  return reader;
}

Status ZipReader::ReadDirectory() {
  ASSIGN_OR_RETURN(const Directory where, FindDirectory(*file_));
  if (where.bytes > kMaxDirectoryBytes || where.members > where.bytes / kDirectoryBytes) {
    return NoZip(std::to_string(where.members) + " members are declared in " +
                 std::to_string(where.bytes) + " bytes");
  }
  ASSIGN_OR_RETURN(const std::string directory, ReadBytes(*file_, where.offset, where.bytes));
  size_t at = 0;
  for (uint64_t i = 0; i < where.members; ++i) {
    ASSIGN_OR_RETURN(Member member, ParseMember(directory, &at));
    members_.push_back(std::move(member));
  }
  return {};
}

Result<ZipReader::Member> ZipReader::ParseMember(std::string_view directory, size_t* at) const {
  std::string_view bytes = directory.substr(*at);
  if (bytes.size() < kDirectoryBytes || U32(bytes, 0) != kDirectorySignature)
    return NoZip("its directory is damaged");
  const size_t name = U16(bytes, 28), extra = U16(bytes, 30), comment = U16(bytes, 32);
  if (name + extra + comment > bytes.size() - kDirectoryBytes)
    return NoZip("its directory is damaged");
  Member out;
  out.name = bytes.substr(kDirectoryBytes, name);
  out.method = U16(bytes, 10);
  out.crc = U32(bytes, 16);
  out.stored_size = U32(bytes, 20);
  out.size = U32(bytes, 24);
  out.header_offset = U32(bytes, 42);
  if ((U16(bytes, 8) & 1) != 0) return Unsupported("'" + out.name + "' is encrypted");
  if (out.method != kStored && out.method != kDeflated) {
    return Unsupported("'" + out.name + "' is compressed by method " + std::to_string(out.method));
  }
  RETURN_IF_ERROR(ReadExtra64(bytes.substr(kDirectoryBytes + name, extra), &out));
  const bool fits = out.stored_size <= file_->size() &&
                    (out.method == kStored ? out.size == out.stored_size
                                           : out.size / kMaxDeflateRatio <= out.stored_size);
  if (!fits) {
    return NoZip("'" + out.name + "' declares " + std::to_string(out.size) + " bytes from " +
                 std::to_string(out.stored_size));
  }
  *at += kDirectoryBytes + name + extra + comment;
  return out;
}

Result<std::string> ZipReader::Read(const Member& member) const {
  ASSIGN_OR_RETURN(const std::string local, ReadBytes(*file_, member.header_offset, kLocalBytes));
  if (U32(local, 0) != kLocalSignature)
    return NoZip("'" + member.name + "' is not where the directory says");
  const uint64_t data = member.header_offset + kLocalBytes + U16(local, 26) + U16(local, 28);
  ASSIGN_OR_RETURN(std::string bytes, ReadBytes(*file_, data, member.stored_size));
  if (member.method == kDeflated) {
    std::string inflated(static_cast<size_t>(member.size), '\0');
    RETURN_IF_ERROR(Inflate(bytes, &inflated).WithPrefix("'" + member.name + "': "));
    bytes = std::move(inflated);
  }
  if (Crc(bytes) != member.crc)
    return InvalidModel("'" + member.name + "' is damaged: its checksum does not fit");
  return bytes;
}

Status ZipWriter::Write(const std::string& bytes) {
  at_ += bytes.size();
  return file_->Write(bytes);
}

Status ZipWriter::Add(const std::string& name, std::string_view bytes, bool compress) {
  if (name.size() > std::numeric_limits<uint16_t>::max())
    return InvalidArgument("a name has more than 65535 bytes");
  std::string deflated;
  if (compress) {
    ASSIGN_OR_RETURN(deflated, Deflate(bytes));
  }
  const std::string_view stored = compress ? deflated : bytes;
  const ZipReader::Member member{name, bytes.size(), stored.size(),
                                 at_,  Crc(bytes),   compress ? kDeflated : kStored};
  // The local header has both sizes in 64 bits or none.
  const bool is_64 = std::max(member.size, member.stored_size) >= kIn64;
  const std::string extra =
      is_64 ? Record({{kExtra64, 2}, {16, 2}, {member.size, 8}, {member.stored_size, 8}}) : "";
  ZipReader::Member said = member;
  if (is_64) said.size = said.stored_size = kIn64;
  RETURN_IF_ERROR(Write(Record({{kLocalSignature, 4}}) + Facts(said, extra.size()) + name + extra));
  at_ += stored.size();
  RETURN_IF_ERROR(file_->Write(stored));
  members_.push_back(member);
  return {};
}

Status ZipWriter::Finish() {
  const uint64_t begin = at_;
  for (const ZipReader::Member& member : members_) {
    const std::string extra = Extra64({member.size, member.stored_size, member.header_offset});
    RETURN_IF_ERROR(
        Write(Record({{kDirectorySignature, 4}, {kVersion64, 2}}) + Facts(member, extra.size()) +
              Record({{0, 2}, {0, 2}, {0, 2}, {0, 4}, {Narrow(member.header_offset), 4}}) +
              member.name + extra));
  }
  const uint64_t bytes = at_ - begin, count = members_.size();
  if (count >= 0xffff || bytes >= kIn64 || begin >= kIn64) {
    const uint64_t end64 = at_;
    RETURN_IF_ERROR(Write(Record({{kEnd64Signature, 4},
                                  {kEnd64Bytes - 12, 8},
                                  {kVersion64, 2},
                                  {kVersion64, 2},
                                  {0, 4},
                                  {0, 4},
                                  {count, 8},
                                  {count, 8},
                                  {bytes, 8},
                                  {begin, 8},
                                  {kLocator64Signature, 4},
                                  {0, 4},
                                  {end64, 8},
                                  {1, 4}})));
  }
  const uint64_t narrow_count = std::min<uint64_t>(count, 0xffff);
  return Write(Record({{kEndSignature, 4},
                       {0, 2},
                       {0, 2},
                       {narrow_count, 2},
                       {narrow_count, 2},
                       {Narrow(bytes), 4},
                       {Narrow(begin), 4},
                       {0, 2}}));
}

}  // namespace caesura
