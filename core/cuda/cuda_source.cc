// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/cuda_source.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace caesura {
namespace {

constexpr char kInclude[] = "#include \"";

// The file that the line includes; null where it includes none.
const CudaFile* IncludedBy(const std::string& line) {
  if (!line.starts_with(kInclude)) return nullptr;
  for (const CudaFile& file : CudaFiles()) {
    if (line == kInclude + std::string(file.path) + "\"") return &file;
  }
  return nullptr;
}

void AddText(const std::string& name, const std::string& text, std::set<const CudaFile*>& included,
             std::string& out) {
  std::istringstream lines(text);
  int number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    const CudaFile* file = IncludedBy(line);
    if (file == nullptr) {
      out += line + "\n";
      continue;
    }
    if (included.insert(file).second) {
      out += "#line 1 \"" + std::string(file->path) + "\"\n";
      AddText(file->path, file->text, included, out);
    }
    out += "#line " + std::to_string(number + 1) + " \"" + name + "\"\n";
  }
}

}  // namespace

std::string CudaMacros(const std::vector<std::pair<const char*, std::string>>& macros) {
  std::string out;
  for (auto [name, text] : macros) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    out += std::string("#define ") + name + " " + text + "\n";
  }
  return out;
}

std::string CudaInclude(const std::string& path) { return kInclude + path + "\"\n"; }

std::string WithCudaFiles(const std::string& source) {
  std::string out;
  std::set<const CudaFile*> included;
  AddText("caesura.cu", source, included, out);
  return out;
}

}  // namespace caesura
