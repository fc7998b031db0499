// SPDX-License-Identifier: Apache-2.0
// nvrtc.h: the compiler of kernels, with g++ and the emulator in its place.
#include <nvrtc.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstring>
#include <mutex>
#include <string>
#include "nvrtc/host_compiler.h"
#include "standin.h"

struct _nvrtcProgram {
  standin_nvrtc::Source source;
  standin_nvrtc::Compiled compiled;
  bool tried = false;
};

namespace {

constexpr std::array kArchitectures = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

std::atomic<std::uint64_t> calls = 0;
std::mutex cache_lock;
std::string cache = STANDIN_CACHE;

std::string Cache() {
  const std::lock_guard<std::mutex> lock(cache_lock);
  return cache;
}

bool IsArchitecture(const std::string& text) {
  std::string digits = text.substr(std::min(text.find('_'), text.size()));
  digits.erase(0, 1);
  while (!digits.empty() && std::isalpha(digits.back())) digits.pop_back();
  return (text.starts_with("sm_") || text.starts_with("compute_")) &&
         std::any_of(kArchitectures.begin(), kArchitectures.end(),
                     [&](int known) { return digits == std::to_string(known); });
}

// Options that change nothing on the CPU.
bool IsIgnored(const std::string& option) {
  for (const char* known : {"--use_fast_math",
                            "-use_fast_math",
                            "--fmad",
                            "-fmad",
                            "--ftz",
                            "-ftz",
                            "--prec-div",
                            "-prec-div",
                            "--prec-sqrt",
                            "-prec-sqrt",
                            "--device-as-default-execution-space",
                            "-default-device",
                            "--generate-line-info",
                            "-lineinfo",
                            "--device-debug",
                            "-G",
                            "--extra-device-vectorization",
                            "-extra-device-vectorization",
                            "--restrict",
                            "-restrict",
                            "--maxrregcount",
                            "-maxrregcount",
                            "--disable-warnings",
                            "-w",
                            "--ptxas-options",
                            "--relocatable-device-code=false",
                            "-rdc=false",
                            "--minimal",
                            "-minimal",
                            "--dopt",
                            "-dopt",
                            "--builtin-move-forward",
                            "--builtin-initializer-list",
                            "--split-compile",
                            "-split-compile",
                            "--diag-suppress",
                            "-diag-suppress",
                            "--no-cache",
                            "-no-cache"}) {
    const std::string name = known;
    if (option == name || option.starts_with(name + "=")) return true;
  }
  return false;
}

// Adds what g++ understands to the source; false for an option that NVRTC does not have.
bool TakeOptions(int count, const char* const* options, standin_nvrtc::Source& source,
                 std::string& log) {
  const auto after = [](const std::string& option, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (option.starts_with(name)) return option.substr(std::strlen(name));
    }
    return std::string();
  };
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    const auto separate = [&](std::initializer_list<const char*> names) {
      return std::any_of(names.begin(), names.end(), [&](auto name) { return option == name; }) &&
             i + 1 < count;
    };
    std::string value;
    if (separate({"--gpu-architecture", "-arch"})) {
      source.architecture = options[++i];
    } else if (value = after(option, {"--gpu-architecture=", "-arch="}); !value.empty()) {
      source.architecture = value;
    } else if (separate({"-I", "--include-path"})) {
      source.options.insert(source.options.end(), {"-I", options[++i]});
    } else if (value = after(option, {"--include-path=", "-I"}); !value.empty()) {
      source.options.insert(source.options.end(), {"-I", value});
    } else if (separate({"-D", "--define-macro"})) {
      source.options.push_back(std::string("-D") + options[++i]);
    } else if (value = after(option, {"--define-macro=", "-D"}); !value.empty()) {
      source.options.push_back("-D" + value);
    } else if (value = after(option, {"--undefine-macro=", "-U"}); !value.empty()) {
      source.options.push_back("-U" + value);
    } else if (separate({"-include", "--pre-include"})) {
      source.options.insert(source.options.end(), {"-include", options[++i]});
    } else if (separate({"-diag-suppress", "--diag-suppress", "-maxrregcount"})) {
      ++i;
    } else if (!option.starts_with("-std=c++") && !option.starts_with("--std=c++") &&
               !IsIgnored(option)) {
      log = "nvrtc: error: unrecognized option " + option + "\n";
      return false;
    }
  }
  if (IsArchitecture(source.architecture)) return true;
  log = "nvrtc: error: invalid value for --gpu-architecture (" + source.architecture + ")\n";
  return false;
}

std::string Squeezed(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c); });
  return text;
}

nvrtcResult Size(nvrtcProgram program, std::size_t* bytes) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!program->compiled.done) return NVRTC_ERROR_INVALID_PROGRAM;
  *bytes = program->compiled.library.size();
  return NVRTC_SUCCESS;
}
nvrtcResult Bytes(nvrtcProgram program, char* to) {
  if (program == nullptr || !program->compiled.done) return NVRTC_ERROR_INVALID_PROGRAM;
  std::memcpy(to, program->compiled.library.data(), program->compiled.library.size());
  return NVRTC_SUCCESS;
}

}  // namespace

extern "C" {

void standin_nvrtc_set_cache(const char* folder) {
  const std::lock_guard<std::mutex> lock(cache_lock);
  cache = folder;
}
uint64_t standin_nvrtc_compiled(void) { return standin_nvrtc::Compilations(); }
uint64_t standin_nvrtc_calls(void) { return calls; }

const char* nvrtcGetErrorString(nvrtcResult result) {
  static constexpr std::array kNames = {"NVRTC_SUCCESS",
                                        "NVRTC_ERROR_OUT_OF_MEMORY",
                                        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
                                        "NVRTC_ERROR_INVALID_INPUT",
                                        "NVRTC_ERROR_INVALID_PROGRAM",
                                        "NVRTC_ERROR_INVALID_OPTION",
                                        "NVRTC_ERROR_COMPILATION",
                                        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
                                        "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
                                        "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
                                        "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
                                        "NVRTC_ERROR_INTERNAL_ERROR"};
  const auto index = static_cast<std::size_t>(result);
  return index < kNames.size() ? kNames[index] : "NVRTC_ERROR unknown";
}
nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(kArchitectures.size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
  std::copy(kArchitectures.begin(), kArchitectures.end(), architectures);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char* name, int count,
                               const char* const* headers, const char* const* names) {
  if (program == nullptr || text == nullptr || count < 0) return NVRTC_ERROR_INVALID_INPUT;
  *program = new _nvrtcProgram;
  standin_nvrtc::Source& source = (*program)->source;
  source.text = text;
  source.name = name != nullptr ? name : "default_program";
  source.architecture = "compute_75";
  for (int i = 0; i < count; ++i) source.headers.emplace_back(names[i], headers[i]);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  if (program == nullptr || *program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char* expression) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  if (program->tried) return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
  program->source.expressions.emplace_back(expression);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  program->tried = true;
  ++calls;
  if (!TakeOptions(count, options, program->source, program->compiled.log)) {
    return NVRTC_ERROR_INVALID_OPTION;
  }
  program->compiled = standin_nvrtc::Compile(program->source, Cache());
  return program->compiled.done ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char* expression, const char** name) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!program->compiled.done) return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
  for (const auto& [known, lowered] : program->compiled.lowered) {
    if (Squeezed(known) != Squeezed(expression)) continue;
    *name = lowered.c_str();
    return NVRTC_SUCCESS;
  }
  return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  *bytes = program->compiled.log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  if (program == nullptr) return NVRTC_ERROR_INVALID_PROGRAM;
  std::memcpy(log, program->compiled.log.c_str(), program->compiled.log.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  if (program != nullptr && program->source.architecture.starts_with("compute_")) {
    *bytes = 0;
    return NVRTC_SUCCESS;
  }
  return Size(program, bytes);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* to) { return Bytes(program, to); }
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, std::size_t* bytes) {
  return Size(program, bytes);
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* to) { return Bytes(program, to); }

}  // extern "C"
