// SPDX-License-Identifier: Apache-2.0
// A file system in memory that does what a disk may do: forget what was not synced (file contents
// and names apart), keep any part of it, tear a write, fail any call, and stop dead after any call.
#ifndef CAESURA_TESTS_CORE_FILES_FAULTY_FILE_SYSTEM_H_
#define CAESURA_TESTS_CORE_FILES_FAULTY_FILE_SYSTEM_H_

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/files/file_system.h"

namespace caesura::testing {

class FaultyFileSystem : public FileSystem {
 public:
  // The remains, after a crash, of everything that was not synced.
  enum class Loss { kAll, kNothing, kRandom };

  // Calls are counted from 1, over all methods that change or sync something.
  int calls() const { return calls_; }
  // Call `n` fails (a write after half of its bytes); the calls after it work again.
  void FailCall(int n) { failing_call_ = n; }
  // Nothing works any more after call `n`, until Crash().
  void StopAfter(int n) { last_call_ = n; }

  // The machine goes down and comes up again.
  void Crash(Loss loss, uint32_t seed = 0) {
    std::mt19937 random(seed);
    const auto keep = [&] {
      return loss == Loss::kNothing || (loss == Loss::kRandom && random() % 2 == 0);
    };
    for (const NameChange& change : name_changes_) {
      if (keep()) Apply(change, durable_names_);
    }
    name_changes_.clear();
    names_ = durable_names_;
    for (auto& [path, node] : names_) {
      if (node->changes.empty()) continue;
      std::string bytes = node->durable;
      for (const DataChange& change : node->changes) {
        if (keep())
          Apply(change, loss == Loss::kRandom && random() % 2 == 0 ? &random : nullptr, bytes);
      }
      node->changes.clear();
      node->bytes = node->durable = std::move(bytes);
    }
    calls_ = 0;
    failing_call_ = last_call_ = INT_MAX;
  }

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (!Proceed()) return IoError("'" + path + "' was not created");
    std::shared_ptr<Node>& node = names_[path];
    if (node == nullptr) {
      node = std::make_shared<Node>();
      name_changes_.push_back({path, "", node});
    } else {
      node->bytes.clear();
      node->changes.push_back({0, "", true});
    }
    return std::unique_ptr<WritableFile>(std::make_unique<File>(this, node));
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    auto it = names_.find(path);
    if (it == names_.end()) return NotFound("'" + path + "' is not there");
    return std::unique_ptr<ReadableFile>(std::make_unique<Contents>(it->second->bytes));
  }
  Status Rename(const std::string& from, const std::string& to) override {
    if (!Proceed()) return IoError("'" + from + "' was not renamed");
    auto it = names_.find(from);
    if (it == names_.end()) return NotFound("'" + from + "' is not there");
    name_changes_.push_back({to, from, it->second});
    Apply(name_changes_.back(), names_);
    return {};
  }
  Status Remove(const std::string& path) override {
    if (!Proceed()) return IoError("'" + path + "' was not removed");
    if (names_.erase(path) == 0) return NotFound("'" + path + "' is not there");
    name_changes_.push_back({path, "", nullptr});
    return {};
  }
  Status SyncFolder(const std::string&) override {
    if (!Proceed()) return IoError("the folder was not synced");
    durable_names_ = names_;
    name_changes_.clear();
    return {};
  }
  Result<bool> Exists(const std::string& path) override { return names_.count(path) > 0; }
  Result<std::vector<std::string>> List(const std::string&) override {
    std::vector<std::string> out;
    for (const auto& [path, node] : names_) out.push_back(path);
    return out;
  }

 private:
  struct DataChange {
    size_t offset;
    std::string bytes;
    bool empties;  // the file is cut to nothing instead
  };
  struct Node {
    std::string bytes, durable;
    std::vector<DataChange> changes;  // since the last sync
  };
  struct NameChange {
    std::string path, from;      // a rename has both
    std::shared_ptr<Node> node;  // null: `path` is removed
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  class File : public WritableFile {
   public:
    File(FaultyFileSystem* files, std::shared_ptr<Node> node)
        : files_(files), node_(std::move(node)) {}
    Status Write(std::string_view bytes) override {
      const bool whole = files_->Proceed();
      if (!whole && files_->calls_ > files_->last_call_) return IoError("nothing was written");
      const DataChange change{node_->bytes.size(),
                              std::string(bytes.substr(0, whole ? bytes.size() : bytes.size() / 2)),
                              false};
      Apply(change, nullptr, node_->bytes);
      node_->changes.push_back(change);
      return whole ? Status() : IoError("half was written");
    }
    Status Sync() override {
      if (!files_->Proceed()) return IoError("the file was not synced");
      node_->durable = node_->bytes;
      node_->changes.clear();
      return {};
    }
    Status Close() override {
      return files_->Proceed() ? Status() : IoError("the file was not closed");
    }

   private:
    FaultyFileSystem* files_;
    std::shared_ptr<Node> node_;
  };

  class Contents : public ReadableFile {
   public:
    explicit Contents(std::string bytes) : bytes_(std::move(bytes)) {}
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

  // Counts a call; false when it is to fail.
  bool Proceed() {
    ++calls_;
    return calls_ != failing_call_ && calls_ <= last_call_;
  }
  static void Apply(const NameChange& change, Names& names) {
    if (change.node == nullptr) names.erase(change.path);
    if (change.node != nullptr) names[change.path] = change.node;
    if (!change.from.empty()) names.erase(change.from);
  }
  // With `random`, only a part of the write, between bytes that the disk held before.
  static void Apply(const DataChange& change, std::mt19937* random, std::string& bytes) {
    if (change.empties) {
      bytes.clear();
      return;
    }
    size_t begin = 0, end = change.bytes.size();
    if (random != nullptr && end > 0) {
      begin = (*random)() % end;
      end = begin + (*random)() % (end - begin + 1);
    }
    if (bytes.size() < change.offset + end) bytes.resize(change.offset + end, '\0');
    bytes.replace(change.offset + begin, end - begin, change.bytes, begin, end - begin);
  }

  Names names_, durable_names_;
  std::vector<NameChange> name_changes_;
  int calls_ = 0, failing_call_ = INT_MAX, last_call_ = INT_MAX;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_FILES_FAULTY_FILE_SYSTEM_H_
