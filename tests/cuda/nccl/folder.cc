// SPDX-License-Identifier: Apache-2.0
// Ranks in several processes of one machine: each writes what it brings into a file, and reads the
// files of the others.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include "nccl/exchange.h"

namespace standin_nccl {
namespace {

namespace fs = std::filesystem;

class FolderGroup : public Group {
 public:
  FolderGroup(int size, fs::path folder) : Group(size), folder_(std::move(folder)) {
    fs::create_directories(folder_);
  }

  void Join(int rank) override { Put("joined." + std::to_string(rank), "", {}); }
  bool HasAll() override {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!fs::exists(folder_ / ("joined." + std::to_string(rank)))) return false;
    }
    return true;
  }

  void Arrive(int rank, const Part& part) override {
    const auto* begin = static_cast<const std::byte*>(part.input);
    Put(NameOf(rank, part), Describe(part), Bytes(begin, begin + InputBytes(part, ranks)));
  }

  bool IsWhole(int rank, const Part& part) override {
    if (differs_) return false;
    const std::vector<std::string> names = NamesOf(rank, part);
    for (const std::string& name : names) {
      if (!fs::exists(folder_ / name)) return false;
    }
    for (const std::string& name : names) {
      std::string described;
      Read(name, &described);
      if (described == Describe(part)) continue;
      ReportDifference(rank, Describe(part), described);
      differs_ = true;
    }
    return !differs_;
  }

  void Finish(int rank, const Part& part) override {
    if (part.kind == Part::Kind::kSend) return;
    std::string described;
    std::vector<Bytes> inputs;
    for (const std::string& name : NamesOf(rank, part)) inputs.push_back(Read(name, &described));
    const Bytes result = IsPairwise(part) ? inputs[0] : Combine(part, rank, inputs);
    std::copy(result.begin(), result.end(), static_cast<std::byte*>(part.output));
  }

 private:
  static std::string NameOf(int rank, const Part& part) {
    const std::string number = std::to_string(part.number), own = std::to_string(rank);
    const std::string peer = std::to_string(part.peer);
    switch (part.kind) {
      case Part::Kind::kSend: return "sent." + own + "." + peer + "." + number;
      case Part::Kind::kReceive: return "awaited." + peer + "." + own + "." + number;
      default: return "all." + number + "." + own;
    }
  }
  // The names of the files that the part needs.
  std::vector<std::string> NamesOf(int rank, const Part& part) const {
    Part theirs = part;
    theirs.peer = rank;
    if (part.kind == Part::Kind::kSend) theirs.kind = Part::Kind::kReceive;
    if (part.kind == Part::Kind::kReceive) theirs.kind = Part::Kind::kSend;
    if (IsPairwise(part)) return {NameOf(part.peer, theirs)};
    std::vector<std::string> names;
    for (int other = 0; other < ranks; ++other) names.push_back(NameOf(other, part));
    return names;
  }

  void Put(const std::string& name, const std::string& described, const Bytes& data) const {
    const fs::path made = folder_ / (name + ".part");
    {
      std::ofstream file(made, std::ios::binary);
      file << described << '\n';
      file.write(reinterpret_cast<const char*>(data.data()),
                 static_cast<std::streamsize>(data.size()));
    }
    fs::rename(made, folder_ / name);
  }
  Bytes Read(const std::string& name, std::string* described) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    std::getline(file, *described);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    Bytes data(text.size());
    std::ranges::transform(text, data.begin(),
                           [](char byte) { return static_cast<std::byte>(byte); });
    return data;
  }

  const fs::path folder_;
  bool differs_ = false;
};

}  // namespace

std::shared_ptr<Group> GroupInFolder(int ranks, const std::string& folder) {
  return std::make_shared<FolderGroup>(ranks, folder);
}

}  // namespace standin_nccl
