// SPDX-License-Identifier: Apache-2.0
// Compiles a kernel's source with g++ and the emulator's header into a library, or finds it in a
// folder.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace standin_nvrtc {

struct Source {
  std::string name, text, architecture;
  std::vector<std::string> options;                          // of g++
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
  std::vector<std::string> expressions;                      // beside the kernels in the text
};

struct Compiled {
  bool done = false;
  std::string log, library;                                  // the library's bytes
  std::vector<std::pair<std::string, std::string>> lowered;  // expression, mangled name
};

/// Kernels at global scope that are no templates, by name.
std::vector<std::string> PlainKernels(const std::string& text);

Compiled Compile(const Source& source, const std::string& cache);

/// Calls of the compiler in this process.
std::uint64_t Compilations();

}  // namespace standin_nvrtc
