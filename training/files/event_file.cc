// SPDX-License-Identifier: Apache-2.0
#include "training/files/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/base/status_macros.h"
#include "core/files/file_system.h"

namespace caesura {
namespace {

constexpr size_t kBuckets = 64;

std::string LittleEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// --- Fields of protobuf's wire format ---

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string Key(int field, int wire_type) {
  return Varint(static_cast<uint64_t>(field) << 3 | wire_type);
}
std::string Integer(int field, uint64_t value) { return Key(field, 0) + Varint(value); }
std::string Double(int field, double value) {
  return Key(field, 1) + LittleEndian(std::bit_cast<uint64_t>(value), 8);
}
std::string Float(int field, float value) {
  return Key(field, 5) + LittleEndian(std::bit_cast<uint32_t>(value), 4);
}
// A string, or a message that is encoded.
std::string Bytes(int field, const std::string& bytes) {
  return Key(field, 2) + Varint(bytes.size()) + bytes;
}
std::string Doubles(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) packed += LittleEndian(std::bit_cast<uint64_t>(value), 8);
  return Bytes(field, packed);
}

double WallTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A CRC in the form of TFRecords: rotated and shifted, so that a CRC of data that holds CRCs is of
// use.
uint32_t Masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> out = {};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
      out[i] = crc;
    }
    return out;
  }();
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

EventWriter::EventWriter(std::string path, std::unique_ptr<WritableFile> file)
    : path_(std::move(path)), file_(std::move(file)) {}

EventWriter::~EventWriter() = default;

Result<std::unique_ptr<EventWriter>> EventWriter::Create(const std::string& folder,
                                                         FileSystem& files) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return IoError("folder '" + folder + "' cannot be made: " + error.message());
  static std::atomic<int> writers = 0;  // of this process: several may be made within a second
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  const std::string second = std::to_string(static_cast<int64_t>(WallTime()));
  const std::string path = folder + "/events.out.tfevents." + second + "." + host + "." +
                           std::to_string(getpid()) + "." + std::to_string(writers++);
  ASSIGN_OR_RETURN(auto file, files.Create(path));
  std::unique_ptr<EventWriter> out(new EventWriter(path, std::move(file)));
  // Event.wall_time, file_version
  RETURN_IF_ERROR(out->WriteRecord(Double(1, WallTime()) + Bytes(3, "brain.Event:2")));
  return out;
}

Status EventWriter::WriteRecord(const std::string& event) {
  const std::string length = LittleEndian(event.size(), 8);
  const std::string record = length + LittleEndian(Masked(Crc32c(length)), 4) + event +
                             LittleEndian(Masked(Crc32c(event)), 4);
  std::lock_guard<std::mutex> lock(mutex_);
  return file_->Write(record);
}

Status EventWriter::AddSummary(const std::string& tag, const std::string& summary_value,
                               int64_t step) {
  const std::string summary = Bytes(1, Bytes(1, tag) + summary_value);  // Summary.value; Value.tag
  // Event.wall_time, step, summary
  return WriteRecord(Double(1, WallTime()) + Integer(2, static_cast<uint64_t>(step)) +
                     Bytes(5, summary));
}

Status EventWriter::AddScalar(const std::string& tag, double value, int64_t step) {
  return AddSummary(tag, Float(2, static_cast<float>(value)), step);  // Value.simple_value
}

Status EventWriter::AddText(const std::string& tag, const std::string& text, int64_t step) {
  constexpr uint64_t kString = 7;                     // DataType.DT_STRING
  const std::string shape = Bytes(2, Integer(1, 1));  // TensorShapeProto.dim, of size 1
  const std::string tensor =
      Integer(1, kString) + Bytes(2, shape) + Bytes(8, text);  // dtype, tensor_shape, string_val
  const std::string metadata =
      Bytes(1, Bytes(1, "text"));  // SummaryMetadata.plugin_data, its plugin_name
  return AddSummary(tag, Bytes(8, tensor) + Bytes(9, metadata), step);  // Value.tensor, metadata
}

Status EventWriter::AddHistogram(const std::string& tag, std::span<const float> values,
                                 int64_t step) {
  double least = INFINITY, most = -INFINITY, sum = 0, squares = 0, count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
    sum += value;
    squares += value * value;
    ++count;
  }
  if (count == 0) return {};
  const double width = most > least ? (most - least) / kBuckets : 1;
  std::vector<double> limits(kBuckets), counts(kBuckets, 0);
  for (size_t i = 0; i < kBuckets; ++i) limits[i] = least + width * static_cast<double>(i + 1);
  for (const double value : values) {
    if (std::isfinite(value))
      ++counts[std::min(kBuckets - 1, static_cast<size_t>((value - least) / width))];
  }
  // HistogramProto.min, max, num, sum, sum_squares, bucket_limit, bucket
  const std::string histogram = Double(1, least) + Double(2, most) + Double(3, count) +
                                Double(4, sum) + Double(5, squares) + Doubles(6, limits) +
                                Doubles(7, counts);
  return AddSummary(tag, Bytes(5, histogram), step);  // Value.histo
}

}  // namespace caesura
