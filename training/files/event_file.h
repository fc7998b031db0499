// SPDX-License-Identifier: Apache-2.0
// EventWriter: files that TensorBoard reads. Neither TensorBoard nor TensorFlow is needed to write
// them.
//
//   auto events = EventWriter::Create("runs/first").value();
//   events->AddScalar("loss/train", loss, update);
//
// A file is a sequence of TFRecords (length, masked CRC-32C of it, bytes, masked CRC-32C of them;
// little-endian), each an `Event` message of tensorflow/core/util/event.proto.
#ifndef CAESURA_TRAINING_FILES_EVENT_FILE_H_
#define CAESURA_TRAINING_FILES_EVENT_FILE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace caesura {

class FileSystem;  // core/files/file_system.h
class WritableFile;
FileSystem& PosixFileSystem();

// Writes one file of events, which it owns. Each event is in the file when its call has returned.
// Calls fail with kIoError where the file cannot be written. Thread safety: all methods from any
// thread.
class EventWriter {
 public:
  // Makes the folder if it is not there, and in it a new file, named after the time, machine and
  // process.
  static Result<std::unique_ptr<EventWriter>> Create(const std::string& folder,
                                                     FileSystem& files = PosixFileSystem());

  // `step`: the horizontal axis, usually updates done. A tag's first part ("loss" of "loss/train")
  // is its group.
  Status AddScalar(const std::string& tag, double value, int64_t step);
  // Shown as Markdown.
  Status AddText(const std::string& tag, const std::string& text, int64_t step);
  // Counts the values in 64 buckets of equal width; values that are not finite are left out.
  // Nothing is written where none is left.
  Status AddHistogram(const std::string& tag, std::span<const float> values, int64_t step);

  ~EventWriter();

  const std::string& path() const { return path_; }

 private:
  EventWriter(std::string path, std::unique_ptr<WritableFile> file);
  // `summary_value`: the encoded Summary.Value without its tag.
  Status AddSummary(const std::string& tag, const std::string& summary_value, int64_t step);
  Status WriteRecord(const std::string& event);

  const std::string path_;
  std::mutex mutex_;
  const std::unique_ptr<WritableFile> file_;
};

// CRC-32C (RFC 3720, polynomial 0x1EDC6F41 reflected).
uint32_t Crc32c(std::string_view bytes);

}  // namespace caesura

#endif  // CAESURA_TRAINING_FILES_EVENT_FILE_H_
