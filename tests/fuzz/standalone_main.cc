// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target where there is no libFuzzer: each file of the corpus, then a number of changed
// ones, the same in each call.
//
//   fuzz_npz [-runs=N] [-seed=N] FILE|FOLDER...
//
// The input at work is kept in TARGET.last until it has passed: what is there after a crash repeats
// it. One that takes more than a minute ends the process too.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

using Input = std::vector<uint8_t>;
using caesura::fuzz::Random;

constexpr size_t kMaxSize = 1 << 16;
constexpr unsigned kMaxSeconds = 60;  // for one input

std::vector<Input> Read(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> inputs;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

// Where the input at work is kept.
class LastInput {
 public:
  explicit LastInput(std::string path)
      : path_(std::move(path)), fd_(open(path_.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0644)) {}
  ~LastInput() {
    close(fd_);
    unlink(path_.c_str());
  }
  void Keep(const Input& input) {
    alarm(kMaxSeconds);
    if (ftruncate(fd_, 0) != 0 || pwrite(fd_, input.data(), input.size(), 0) < 0)
      std::perror(path_.c_str());
  }

 private:
  std::string path_;
  int fd_;
};

Random& ByteRandom() {
  static Random random(1);
  return random;
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  Random& random = ByteRandom();
  if (size == 0) {
    if (max_size == 0) return 0;
    data[0] = static_cast<uint8_t>(random());
    return 1;
  }
  const size_t at = random.Below(size);
  switch (random.Below(6)) {
    case 0: data[at] ^= static_cast<uint8_t>(1u << random.Below(8)); return size;
    case 1: data[at] = static_cast<uint8_t>(random()); return size;
    case 2: {  // an integer of 1 to 8 bytes
      const int64_t value =
          caesura::fuzz::kExtremes[random.Below(std::size(caesura::fuzz::kExtremes))];
      std::memcpy(data + at, &value, std::min<size_t>(size_t{1} << random.Below(4), size - at));
      return size;
    }
    case 3: {  // less
      const size_t count = 1 + random.Below(std::min<size_t>(size - at, 16));
      std::memmove(data + at, data + at + count, size - at - count);
      return size - count;
    }
    case 4: {  // more
      const size_t count = std::min<size_t>(1 + random.Below(8), max_size - size);
      std::memmove(data + at + count, data + at, size - at);
      return size + count;
    }
    default: {  // a part elsewhere
      const size_t from = random.Below(size),
                   count = 1 + random.Below(std::min<size_t>(size - std::max(at, from), 32));
      std::memmove(data + at, data + from, count);
      return size;
    }
  }
}

int main(int argc, char** argv) {
  size_t runs = 0, seed = 0;
  std::vector<std::string> paths;
  for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc)) {
    if (argument.rfind("-runs=", 0) == 0) runs = std::stoul(argument.substr(6));
    else if (argument.rfind("-seed=", 0) == 0) seed = std::stoul(argument.substr(6)) << 20;
    else paths.push_back(argument);
  }
  const std::vector<Input> corpus = Read(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [-runs=N] [-seed=N] FILE|FOLDER...\n", argv[0]);
    return 2;
  }
  LastInput last(std::string(argv[0]) + ".last");
  for (const Input& input : corpus) {
    last.Keep(input);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  for (size_t run = seed; run < seed + runs; ++run) {
    ByteRandom() = Random(run);
    Input input = corpus[Random(~run).Below(corpus.size())];
    size_t size = input.size();
    input.resize(std::max(size + 4096, kMaxSize));
    const auto mutate = LLVMFuzzerCustomMutator != nullptr
                            ? LLVMFuzzerCustomMutator
                            : [](uint8_t* data, size_t length, size_t max_size, unsigned) {
                                return LLVMFuzzerMutate(data, length, max_size);
                              };
    for (size_t times = 1 + run % 4; times > 0; --times) {
      size = mutate(input.data(), size, input.size(), static_cast<unsigned>(run));
    }
    input.resize(size);
    last.Keep(input);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu seeds and %zu changed inputs passed\n", corpus.size(), runs);
  return 0;
}
