// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/strided_walk.h"

#include <algorithm>

namespace caesura {

StridedWalk StridedWalk::Make(const std::vector<int64_t>& dims,
                              const std::vector<std::vector<int64_t>>& strides) {
  StridedWalk out;
  out.strides.resize(strides.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    out.elements *= dims[d];
    if (dims[d] == 1) continue;
    bool merges = !out.dims.empty();
    for (size_t n = 0; n < strides.size() && merges; ++n)
      merges = out.strides[n].back() == strides[n][d] * dims[d];
    if (merges) {
      out.dims.back() *= dims[d];
    } else {
      out.dims.push_back(dims[d]);
    }
    for (size_t n = 0; n < strides.size(); ++n) {
      if (merges) out.strides[n].back() = strides[n][d];
      else out.strides[n].push_back(strides[n][d]);
    }
  }
  if (out.dims.empty()) {
    out.dims = {1};
    for (std::vector<int64_t>& of_operand : out.strides) of_operand = {1};
  }
  return out;
}

bool StridedWalk::HasVectors(int64_t elements) const {
  const auto is_multiple = [&](int64_t number) { return number % elements == 0; };
  if (dims.size() > 1 && !is_multiple(dims.back())) return false;
  return std::all_of(strides.begin(), strides.end(), [&](const std::vector<int64_t>& of_operand) {
    return of_operand.back() == 0 ||
           (of_operand.back() == 1 &&
            std::all_of(of_operand.begin(), of_operand.end() - 1, is_multiple));
  });
}

std::vector<int64_t> StridedWalk::Numbers() const {
  std::vector<int64_t> out = dims;
  for (const std::vector<int64_t>& of_operand : strides)
    out.insert(out.end(), of_operand.begin(), of_operand.end());
  return out;
}

std::string StridedWalk::Struct(const std::string& name) const {
  return "struct " + name + " { i64 at[" + std::to_string(dims.size() * (strides.size() + 1)) +
         "]; };\n";
}

std::string StridedWalk::Offsets(const std::string& index, const std::string& walk,
                                 const std::string& offset) const {
  std::string out;
  bool all_dense = true;
  for (size_t n = 0; n < strides.size(); ++n) {
    out += "i64 " + offset + std::to_string(n) + " = " + (IsDense(n) ? index : "0") + ";\n";
    all_dense &= IsDense(n);
  }
  if (all_dense) return out;
  // Divisions of 32 bits take a fraction of the time.
  const std::string type = elements < (int64_t{1} << 32) ? "unsigned" : "i64";
  out += "{\n" + type + " rest = (" + type + ")(" + index + ");\n";
  for (size_t d = dims.size(); d-- > 0;) {
    const bool outermost = d == 0;
    const std::string dim = "(" + type + ")" + walk + ".at[" + std::to_string(d) + "]";
    out += "{ const " + type + " at = " + (outermost ? "rest" : "rest % " + dim) + ";";
    if (!outermost) out += " rest /= " + dim + ";";
    for (size_t n = 0; n < strides.size(); ++n) {
      if (IsDense(n)) continue;
      out += " " + offset + std::to_string(n) + " += at * " + walk + ".at[" +
             std::to_string(dims.size() * (n + 1) + d) + "];";
    }
    out += " }\n";
  }
  return out + "}\n";
}

}  // namespace caesura
