// SPDX-License-Identifier: Apache-2.0
#include "nvrtc/host_compiler.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include "emulator/lane.h"

extern char** environ;

namespace standin_nvrtc {
namespace {

namespace fs = std::filesystem;
std::atomic<std::uint64_t> compilations{0};

std::string Read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}
void Write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string Hash(const std::string& text) {  // FNV-1a of 64 bits, twice
  std::uint64_t a = 0xcbf29ce484222325u, b = 0x84222325cbf29ce4u;
  for (const char c : text) {
    a = (a ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    b = (b + static_cast<unsigned char>(c)) * 0x9e3779b97f4a7c15u;
  }
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(a),
                static_cast<unsigned long long>(b));
  return digits;
}

bool Run(const std::vector<std::string>& command, const fs::path& log) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  pid_t child = 0;
  const int started =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 1;
  return started == 0 && waitpid(child, &status, 0) == child && status == 0;
}

// Arrays of dynamic shared memory: what the object file wants of thread-local storage and does not
// hold.
std::vector<std::string> DynamicArrays(const std::string& object) {
  std::vector<std::string> names;
  Elf64_Ehdr header;
  if (object.size() < sizeof header) return names;
  std::memcpy(&header, object.data(), sizeof header);
  const auto section = [&](unsigned i) {
    Elf64_Shdr found;
    std::memcpy(&found, object.data() + header.e_shoff + i * sizeof found, sizeof found);
    return found;
  };
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr table = section(i);
    if (table.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr strings = section(table.sh_link);
    for (std::size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      std::memcpy(&symbol, object.data() + table.sh_offset + at, sizeof symbol);
      if (symbol.st_shndx == SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_TLS) {
        names.emplace_back(object.data() + strings.sh_offset + symbol.st_name);
      }
    }
  }
  return names;
}

// They all begin at the same place.
std::string DynamicSharedMemory(const std::vector<std::string>& names) {
  std::ostringstream text;
  text << ".section .tbss,\"awT\",@nobits\n.balign 128\n";
  for (const std::string& name : names) {
    text << ".globl " << name << "\n.type " << name << ", @tls_object\n" << name << ":\n";
  }
  text << ".skip " << caesura_emulator::kMostDynamicShared
       << "\n.section .note.GNU-stack,\"\",@progbits\n";
  return text.str();
}

std::string EmulatorText() {
  std::string text;
  for (const char* name : {"device.h", "device_functions.h", "hooks.h", "lane.h"}) {
    text += Read(fs::path(STANDIN_EMULATOR_FOLDER) / name);
  }
  return text;
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// The source and what makes its kernels known, with lines counted as in the original.
std::string Complete(const Source& source) {
  std::ostringstream text;
  text << "#line 1 \"" << source.name << "\"\n"
       << source.text << "\n#line 1 \"kernel table\"\n"
       << "CAESURA_MODULE_BEGIN\n";
  std::vector<std::string> all = source.expressions;
  for (const std::string& name : PlainKernels(source.text)) {
    if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  }
  for (const std::string& expression : all) {
    const bool address = expression.starts_with('&');
    text << "CAESURA_MODULE_KERNEL(R\"expression(" << expression << ")expression\", "
         << (address ? "" : "&") << expression << ")\n";
  }
  text << "CAESURA_MODULE_END(\"" << source.architecture << "\")\n";
  return text.str();
}

// Names of files in a rule of make, without the target and the first, which is the source.
std::vector<std::string> Dependencies(const std::string& rule) {
  std::vector<std::string> files = Words(rule);
  std::erase(files, "\\");
  files.erase(files.begin(), files.begin() + std::min<std::ptrdiff_t>(2, std::ssize(files)));
  return files;
}

bool Fresh(const fs::path& record) {
  std::ifstream lines(record);
  if (!lines) return false;
  std::string hash, path;
  while (lines >> hash && std::getline(lines >> std::ws, path)) {
    if (Hash(Read(path)) != hash) return false;
  }
  return true;
}

std::vector<std::pair<std::string, std::string>> LoweredNames(const fs::path& library) {
  std::vector<std::pair<std::string, std::string>> names;
  void* loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) return names;
  caesura_emulator::Module module{};
  reinterpret_cast<void (*)(caesura_emulator::Module*)>(dlsym(loaded, "caesura_emulated_module"))(
      &module);
  for (unsigned i = 0; i < module.count; ++i) {
    Dl_info info{};
    if (dladdr(module.entries[i].address, &info) != 0 && info.dli_sname != nullptr) {
      names.emplace_back(module.entries[i].expression, info.dli_sname);
    }
  }
  dlclose(loaded);
  return names;
}

}  // namespace

std::uint64_t Compilations() { return compilations; }

std::vector<std::string> PlainKernels(const std::string& text) {
  std::vector<std::string> names;
  std::string clean;  // without comments
  for (std::size_t i = 0; i < text.size();) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      const std::size_t end = text.find("*/", i + 2);
      i = end == std::string::npos ? text.size() : end + 2;
    } else {
      clean += text[i++];
    }
  }
  int depth = 0;
  std::size_t statement = 0;  // where it begins
  std::vector<bool> transparent;
  const auto is_extern_c = [&](std::size_t at) {
    const std::string head = clean.substr(statement, at - statement);
    return head.find("extern \"C\"") != std::string::npos && head.find('(') == std::string::npos;
  };
  for (std::size_t i = 0; i < clean.size(); ++i) {
    if (clean[i] == '{') {
      transparent.push_back(is_extern_c(i));
      depth += transparent.back() ? 0 : 1;
      statement = i + 1;
    } else if (clean[i] == '}') {
      if (!transparent.empty()) {
        depth -= transparent.back() ? 0 : 1;
        transparent.pop_back();
      }
      statement = i + 1;
    } else if (clean[i] == ';' || (clean[i] == '\n' && clean[statement] == '#')) {
      statement = i + 1;
    }
    while (statement < clean.size() && statement <= i && std::isspace(clean[statement]))
      ++statement;
    if (depth != 0 || clean.compare(i, 10, "__global__") != 0) continue;
    if (clean.substr(statement, i - statement).find("template") != std::string::npos) continue;
    std::size_t at = clean.find("void", i);
    if (at == std::string::npos) break;
    at += 4;
    const auto skip_space = [&] {
      while (at < clean.size() && std::isspace(clean[at])) ++at;
    };
    skip_space();
    if (clean.compare(at, 17, "__launch_bounds__") == 0) {
      at = clean.find('(', at);
      for (int open = 0; at < clean.size();) {
        open += clean[at] == '(' ? 1 : clean[at] == ')' ? -1 : 0;
        ++at;
        if (open == 0) break;
      }
      skip_space();
    }
    std::string name;
    while (at < clean.size() && (std::isalnum(clean[at]) || clean[at] == '_')) name += clean[at++];
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

Compiled Compile(const Source& source, const std::string& cache) {
  Compiled result;
  const std::string text = Complete(source);
  std::vector<std::string> command = Words(STANDIN_COMMAND);
  std::string key = text + '\n' + source.name + __VERSION__;
  for (const std::string& word : command) key += '\n' + word;
  for (const std::string& option : source.options) key += '\n' + option;
  for (const auto& [name, header] : source.headers) key += '\n' + name + '\n' + header;
  static const std::string emulator = EmulatorText();
  const fs::path base = fs::path(cache) / Hash(key + emulator);
  const fs::path library = base.string() + ".so", record = base.string() + ".deps";
  if (fs::exists(library) && Fresh(record)) {
    result.library = Read(library);
    result.lowered = LoweredNames(library);
    result.done = true;
    return result;
  }
  // Other threads and processes may compile the same.
  const std::string number = std::to_string(++compilations);
  const fs::path work = base.string() + "." + std::to_string(getpid()) + "." + number;
  const fs::path log = work / "log";
  Write(work / "kernels.cc", text);
  for (const auto& [name, header] : source.headers) Write(work / "headers" / name, header);
  command.insert(command.end(), {"-I", (work / "headers").string()});
  command.insert(command.end(), source.options.begin(), source.options.end());
  command.insert(command.end(),
                 {"-include", STANDIN_DEVICE_HEADER, "-MMD", "-MF", (work / "rule").string(), "-c",
                  (work / "kernels.cc").string(), "-o", (work / "kernels.o").string()});
  bool done = Run(command, log);
  if (done) {
    Write(work / "dynamic.s", DynamicSharedMemory(DynamicArrays(Read(work / "kernels.o"))));
    done = Run({command[0], "-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-o",
                (work / "library.so").string(), (work / "kernels.o").string(),
                (work / "dynamic.s").string(), "-lm"},
               log);
  }
  result.log = Read(log);
  if (done) {
    std::ostringstream dependencies;
    for (const std::string& file : Dependencies(Read(work / "rule"))) {
      // The emulator's header is in the key.
      if (file.starts_with(work.string()) || file.starts_with(STANDIN_DEVICE_HEADER)) continue;
      dependencies << Hash(Read(file)) << ' ' << file << '\n';
    }
    Write(work / "deps", dependencies.str());
    fs::rename(work / "library.so", library);
    fs::rename(work / "deps", record);
    result.library = Read(library);
    result.lowered = LoweredNames(library);
    result.done = true;
  }
  std::error_code ignored;
  fs::remove_all(work, ignored);
  return result;
}

}  // namespace standin_nvrtc
