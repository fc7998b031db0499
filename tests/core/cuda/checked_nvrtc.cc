// SPDX-License-Identifier: Apache-2.0
// NVRTC for tests: a program is compiled by the real NVRTC for real GPUs, which must take it, and
// then by the stand-in, whose result is what runs. A program that the real one refuses is refused.
// Programs that it took are kept in a folder, and it does not compile them again: tests make the
// same.
//
// CHECKED_ARCHITECTURES (sm_90 where unset) lists the GPUs; CHECKED_NVRTC_LOG names a file for
// lines "architecture kernel: registers, spills" as the assembler tells them; CHECKED_CUBINS names
// a folder for the real code, by architecture. While one of these two is set, each program is
// compiled once more in a process.
#include <dlfcn.h>
#include <nvrtc.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

void* Open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "checked_nvrtc: %s\n", dlerror());
  return library;
}

template <typename Function>
Function* Find(void* library, const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void* Real() {
  // NVRTC looks for the first one by its name only.
  static void* const library = (Open(CAESURA_REAL_NVRTC_BUILTINS), Open(CAESURA_REAL_NVRTC));
  return library;
}
void* Standin() {
  static void* const library = Open(CAESURA_STANDIN_NVRTC);
  return library;
}

#define REAL(name) Find(Real(), #name, &name)
#define STANDIN(name) Find(Standin(), #name, &name)

// A program of ours: the stand-in's, and what the real one needs to make it again.
struct Program {
  nvrtcProgram standin = nullptr;
  std::string source, log;
};

Program& Of(nvrtcProgram program) { return *reinterpret_cast<Program*>(program); }

void WriteUsage(const std::string& architecture, const std::string& log) {
  const char* path = std::getenv("CHECKED_NVRTC_LOG");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  if (file == nullptr) return;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    const bool tells = line.find("Used ") != std::string::npos ||
                       line.find("spill") != std::string::npos ||
                       line.find("Compiling entry") != std::string::npos;
    if (tells) std::fprintf(file, "%s %s\n", architecture.c_str(), line.c_str());
  }
  std::fclose(file);
}

// The file of a program that the real NVRTC takes holds all that this follows from.
std::filesystem::path FileOf(const std::string& key) {
  return std::filesystem::path(CAESURA_TAKEN_PROGRAMS) /
         std::to_string(std::hash<std::string>()(key));
}

bool IsListing() {
  return std::getenv("CHECKED_NVRTC_LOG") != nullptr || std::getenv("CHECKED_CUBINS") != nullptr;
}
std::mutex listed_lock;
std::set<std::string> listed;

bool WasTaken(const std::string& key) {
  if (IsListing()) {
    const std::lock_guard<std::mutex> locked(listed_lock);
    return listed.count(key) > 0;
  }
  std::ifstream file(FileOf(key), std::ios::binary);
  return key == std::string(std::istreambuf_iterator<char>(file), {});
}

void KeepTaken(const std::string& key) {
  if (IsListing()) {
    const std::lock_guard<std::mutex> locked(listed_lock);
    listed.insert(key);
  }
  const std::filesystem::path path = FileOf(key);
  std::filesystem::path made = path;
  made += "." + std::to_string(getpid());  // other processes and threads may write the same
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(made, std::ios::binary) << key;
  std::error_code moved_by_another_thread;
  std::filesystem::rename(made, path, moved_by_another_thread);
}

void KeepCubin(const std::string& architecture, const std::string& key, nvrtcProgram real) {
  const char* folder = std::getenv("CHECKED_CUBINS");
  size_t size = 0;
  if (folder == nullptr || REAL(nvrtcGetCUBINSize)(real, &size) != NVRTC_SUCCESS) return;
  std::string code(size, '\0');
  if (REAL(nvrtcGetCUBIN)(real, code.data()) != NVRTC_SUCCESS) return;
  const std::filesystem::path own = std::filesystem::path(folder) / architecture;
  std::filesystem::create_directories(own);
  std::ofstream(own / (FileOf(key).filename().string() + ".cubin"), std::ios::binary) << code;
}

nvrtcResult CheckFor(const std::string& architecture, Program& program,
                     const std::vector<std::string>& options) {
  int major = 0, minor = 0;
  REAL(nvrtcVersion)(&major, &minor);
  std::ostringstream key;
  key << "NVRTC " << major << '.' << minor << ' ' << architecture << '\n';
  for (const std::string& option : options) key << option << '\n';
  key << program.source;
  if (WasTaken(key.str())) return NVRTC_SUCCESS;

  nvrtcProgram real = nullptr;
  nvrtcResult result =
      REAL(nvrtcCreateProgram)(&real, program.source.c_str(), "caesura.cu", 0, nullptr, nullptr);
  if (result != NVRTC_SUCCESS) return result;
  const std::string own = "--gpu-architecture=" + architecture;
  std::vector<const char*> given = {own.c_str(), "--ptxas-options=-v"};
  for (const std::string& option : options) {
    if (option.find("arch") == std::string::npos) given.push_back(option.c_str());
  }
  result = REAL(nvrtcCompileProgram)(real, static_cast<int>(given.size()), given.data());
  size_t size = 0;
  std::string log;
  if (REAL(nvrtcGetProgramLogSize)(real, &size) == NVRTC_SUCCESS && size > 1) {
    log.resize(size);
    REAL(nvrtcGetProgramLog)(real, log.data());
  }
  if (result == NVRTC_SUCCESS) KeepCubin(architecture, key.str(), real);
  REAL(nvrtcDestroyProgram)(&real);
  if (result == NVRTC_SUCCESS) {
    WriteUsage(architecture, log);
    KeepTaken(key.str());
  } else {
    program.log = "the real NVRTC, for " + architecture + ":\n" + log;
  }
  return result;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) { return STANDIN(nvrtcVersion)(major, minor); }
const char* nvrtcGetErrorString(nvrtcResult result) { return STANDIN(nvrtcGetErrorString)(result); }

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name,
                               int headers, const char* const* texts, const char* const* names) {
  auto* made = new Program{nullptr, source, {}};
  const nvrtcResult result =
      STANDIN(nvrtcCreateProgram)(&made->standin, source, name, headers, texts, names);
  *program = reinterpret_cast<nvrtcProgram>(made);
  return result;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  const nvrtcResult result = STANDIN(nvrtcDestroyProgram)(&Of(*program).standin);
  delete &Of(*program);
  *program = nullptr;
  return result;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  Program& own = Of(program);
  const char* listed = std::getenv("CHECKED_ARCHITECTURES");
  std::istringstream architectures(listed != nullptr ? listed : "sm_90");
  const std::vector<std::string> given(options, options + count);
  for (std::string architecture; std::getline(architectures, architecture, ',');) {
    const nvrtcResult result = CheckFor(architecture, own, given);
    if (result != NVRTC_SUCCESS) return result;
  }
  return STANDIN(nvrtcCompileProgram)(own.standin, count, options);
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  if (Of(program).log.empty()) return STANDIN(nvrtcGetProgramLogSize)(Of(program).standin, size);
  *size = Of(program).log.size() + 1;
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  const std::string& own = Of(program).log;
  if (own.empty()) return STANDIN(nvrtcGetProgramLog)(Of(program).standin, log);
  own.copy(log, own.size());
  log[own.size()] = '\0';
  return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  return STANDIN(nvrtcGetCUBINSize)(Of(program).standin, size);
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* image) {
  return STANDIN(nvrtcGetCUBIN)(Of(program).standin, image);
}

}  // extern "C"
