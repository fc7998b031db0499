// SPDX-License-Identifier: Apache-2.0
// Modules are libraries that the stand-in NVRTC has made; their kernels run on the emulator.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include "driver/state.h"

namespace standin {
namespace {

using caesura_emulator::kWrite;

// The memory that a kernel may touch, and that it has touched.
class KernelMemory : public caesura_emulator::Memory {
 public:
  explicit KernelMemory(const CUmod_st& module) : module_(module) {}

  std::string Access(std::uintptr_t at, unsigned bytes, unsigned flags, std::uint32_t block,
                     const void* place, std::string& race) override {
    if (Region* region = Find(at, bytes); region != nullptr) {
      if (region->freed) return "it is used after it was freed: " + region->name;
      const std::uintptr_t raced = Touch(at, bytes, flags, block);
      if (raced != 0 && raced_.insert(place).second) {
        race = "byte " + std::to_string(raced - region->begin) + " of " + region->name +
               ", which another block of the launch uses";
      }
      return {};
    }
    if ((flags & kWrite) == 0) {
      for (const Interval& part : module_.constants) {
        if (at >= part.begin && at + bytes <= part.end) return {};
      }
    }
    return Describe(at, bytes);
  }

  void Fence(std::uint32_t block) override {
    Begin(block);
    fenced_ = NewStamp();
    Merge(found_, known_);
  }

  // Calls visit(region, writes, intervals) for all that was touched.
  void ForEach(const std::function<void(Region&, bool, Intervals)>& visit) {
    std::vector<std::uintptr_t> order;
    for (const auto& [page, chunk] : chunks_) order.push_back(page);
    std::sort(order.begin(), order.end());
    for (const bool writes : {false, true}) {
      std::map<Region*, Intervals> found;
      for (const std::uintptr_t page : order) {
        const Bits& bits = writes ? chunks_[page].written : chunks_[page].read;
        for (std::size_t i = 0; i < kChunk; ++i) {
          if (bits[i / 64] == 0) {
            i += 63;
            continue;
          }
          if ((bits[i / 64] >> i % 64 & 1) == 0) continue;
          const std::uintptr_t at = page * kChunk + i;
          Intervals& parts = found[Find(at, 1)];
          if (!parts.empty() && parts.back().end == at) {
            ++parts.back().end;
          } else {
            parts.push_back({at, at + 1});
          }
        }
      }
      for (auto& [region, parts] : found) visit(*region, writes, std::move(parts));
    }
  }

 private:
  static constexpr std::size_t kChunk = 4096;
  using Bits = std::array<std::uint64_t, kChunk / 64>;
  static constexpr std::uint32_t kSeveral = 0xffffffff;
  struct Chunk {
    Bits read{}, written{};
    std::array<std::uint32_t, kChunk> reader{}, writer{};  // stamps; 0: none
  };
  // Blocks by their last stamp that another one may rely on.
  using Stamps = std::unordered_map<std::uint32_t, std::uint32_t>;

  static void Merge(const Stamps& from, Stamps& to) {
    for (const auto& [block, stamp] : from) to[block] = std::max(to[block], stamp);
  }

  // Accesses from here on have another stamp. Returns that of those until now.
  std::uint32_t NewStamp() {
    block_of_.push_back(block_);
    return stamp_++;
  }

  // Blocks run one after another, each to its end.
  void Begin(std::uint32_t block) {
    if (block_ == block) return;
    NewStamp();
    block_ = block;
    first_ = stamp_;
    fenced_ = 0;
    found_.clear();
    known_.clear();
  }

  // True if another block's access has no order with those of the block at work.
  bool Races(std::uint32_t stamp) const {
    if (stamp == 0 || (stamp >= first_ && stamp != kSeveral)) return false;
    if (stamp == kSeveral) return true;
    const auto known = known_.find(block_of_[stamp]);
    return known == known_.end() || known->second < stamp;
  }

  // The block changes a word: it finds what others knew who did so before it, and leaves what it
  // had at its last fence.
  void Meet(std::uintptr_t word) {
    Stamps& met = met_[word];
    Merge(met, found_);
    if (fenced_ == 0) return;
    met[block_] = fenced_;
    Merge(known_, met);
  }

  Region* Find(std::uintptr_t at, unsigned bytes) {
    for (Region* region : recent_) {
      if (region != nullptr && at >= region->begin && at + bytes <= region->end()) return region;
    }
    Region* region = Driver().regions.Find(at);
    if (region == nullptr || at + bytes > region->end()) return nullptr;
    recent_[next_++ % recent_.size()] = region;
    return region;
  }

  // Returns the first byte that conflicts with another block's access, or 0. Atomic operations
  // conflict with nothing: their order may show in the result all the same, if they are on
  // floating-point numbers.
  std::uintptr_t Touch(std::uintptr_t at, unsigned bytes, unsigned flags, std::uint32_t block) {
    const bool writes = (flags & kWrite) != 0, atomic = (flags & caesura_emulator::kAtomic) != 0;
    std::uintptr_t raced = 0;
    Begin(block);
    if (atomic) Meet(at);
    for (; bytes > 0; ++at, --bytes) {
      const std::uintptr_t page = at / kChunk, offset = at % kChunk;
      auto& [known, chunk] = cache_[page % cache_.size()];
      if (chunk == nullptr || known != page) {
        known = page;
        chunk = &chunks_[page];
      }
      (writes ? chunk->written : chunk->read)[offset / 64] |= std::uint64_t{1} << offset % 64;
      if (atomic) continue;
      std::uint32_t &writer = chunk->writer[offset], &reader = chunk->reader[offset];
      if (raced == 0 && (Races(writer) || (writes && Races(reader)))) raced = at;
      if (writes) {
        writer = stamp_;
      } else {
        reader = Races(reader) ? kSeveral : stamp_;
      }
    }
    return raced;
  }

  std::string Describe(std::uintptr_t at, unsigned bytes) const {
    if (at < 4096) return "a null pointer, at " + std::to_string(at);
    Region* near = Driver().regions.Before(at);
    if (near == nullptr) return "address " + std::to_string(at) + ", which no allocation holds";
    return "byte " + std::to_string(at + bytes - 1 - near->begin) + " of " + near->name;
  }

  const CUmod_st& module_;
  std::set<const void*> raced_;  // places that were told
  // Stamps count blocks and their fences, in the order of time.
  std::uint32_t block_ = kSeveral, first_ = 0, stamp_ = 0;
  std::uint32_t fenced_ = 0;             // the last stamp before a fence of the block at work
  std::vector<std::uint32_t> block_of_;  // by stamp
  Stamps found_, known_;                 // by the block at work: without a fence since, and with
  std::unordered_map<std::uintptr_t, Stamps> met_;  // by word
  std::array<Region*, 4> recent_{};
  std::size_t next_ = 0;
  std::unordered_map<std::uintptr_t, Chunk> chunks_;
  std::array<std::pair<std::uintptr_t, Chunk*>, 64> cache_{};
};

// The library's shared memory on this thread.
caesura_emulator::SharedMemory::Place SharedPlace(const CUmod_st& module) {
  caesura_emulator::SharedMemory::Place place;
  place.dynamic = Address(module.module.dynamic_shared());  // makes the thread's copy, too
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& found = *static_cast<caesura_emulator::SharedMemory::Place*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
          const std::uintptr_t begin = Address(info->dlpi_tls_data);
          const std::uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
          if (found.dynamic < begin || found.dynamic >= end) continue;
          found.begin = begin;
          found.end = end;
          return 1;
        }
        return 0;
      },
      &place);
  return place;
}

void FindSegments(CUmod_st& module) {
  link_map* map = nullptr;
  dlinfo(module.library, RTLD_DI_LINKMAP, &map);
  struct Search {
    CUmod_st& module;
    std::uintptr_t base;
  } search{module, map->l_addr};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& [module, base] = *static_cast<Search*>(data);
        if (info->dlpi_addr != base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_LOAD) continue;
          const std::uintptr_t begin = base + header.p_vaddr;
          ((header.p_flags & PF_W) != 0 ? module.variables : module.constants)
              .push_back({begin, begin + header.p_memsz});
        }
        return 1;
      },
      &search);
  for (const Interval& part : module.variables) {
    Region region;
    region.kind = Region::Kind::kModule;
    region.begin = part.begin;
    region.bytes = part.end - part.begin;
    region.name = "variables of a module";
    Driver().regions.Add(std::move(region));
  }
}

// The size of the library that begins here.
std::size_t ImageBytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != EM_X86_64) return 0;
  return header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
}

int Number(const char* architecture) {
  int number = 0;
  for (; *architecture != 0; ++architecture) {
    if (*architecture >= '0' && *architecture <= '9') number = number * 10 + *architecture - '0';
  }
  return number;
}

void Close(CUmod_st& module) {
  for (const Interval& part : module.variables) Driver().regions.Erase(part.begin);
  if (module.library != nullptr) dlclose(module.library);
  if (module.file >= 0) close(module.file);
}

CUresult Load(const void* image, CUmod_st& module) {
  const std::size_t bytes = ImageBytes(image);
  if (bytes == 0) return CUDA_ERROR_INVALID_IMAGE;  // a cubin or PTX for a real device
  module.file = memfd_create("standin-module", MFD_CLOEXEC);
  if (module.file < 0 || write(module.file, image, bytes) != static_cast<ssize_t>(bytes)) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(module.file);
  module.library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module.library == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  auto* describe = reinterpret_cast<void (*)(caesura_emulator::Module*)>(
      dlsym(module.library, "caesura_emulated_module"));
  if (describe == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  describe(&module.module);
  if (Number(module.module.architecture) > 90) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (unsigned i = 0; i < module.module.count; ++i) {
    const caesura_emulator::Entry& entry = module.module.entries[i];
    Dl_info info{};
    if (entry.call == nullptr || dladdr(entry.address, &info) == 0 || info.dli_sname == nullptr) {
      continue;
    }
    auto function = std::make_unique<CUfunc_st>();
    function->name = entry.expression;
    function->lowered = info.dli_sname;
    function->entry = &entry;
    function->owner = &module;
    module.functions.emplace(info.dli_sname, std::move(function));
  }
  FindSegments(module);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult LoadModule(const void* image, CUmodule* module) {
  auto loaded = std::make_unique<CUmod_st>();
  loaded->context = CurrentContext();
  if (const CUresult error = Load(image, *loaded); error != CUDA_SUCCESS) {
    Close(*loaded);
    return error;
  }
  *module = loaded.get();
  Driver().modules.emplace(loaded.get(), std::move(loaded));
  return CUDA_SUCCESS;
}

void UnloadModule(CUmodule module) {
  Close(*module);
  Driver().modules.erase(module);
}

void ForgetModules() {
  while (!Driver().modules.empty()) UnloadModule(Driver().modules.begin()->first);
}

CUresult RunKernel(CUfunction function, caesura_emulator::Launch launch, unsigned dynamic_shared,
                   std::vector<void*> arguments, const Operation& operation) {
  State& state = Driver();
  KernelMemory memory(*function->owner);
  launch.kernel = function->name;
  launch.shared = SharedPlace(*function->owner);
  launch.shared.dynamic_bytes = dynamic_shared;
  launch.order = state.lane_order;
  launch.seed = Draw();
  launch.body = [&] { function->entry->call(arguments.data()); };
  std::vector<std::string> reports;
  const bool done = caesura_emulator::Grid(launch, memory, reports).Run();
  for (const std::string& report : reports) Report(report);
  memory.ForEach([&](Region& region, bool writes, const Intervals& at) {
    if (region.signals && !writes) return;
    if (region.kind == Region::Kind::kPinned) NotePinned(region, operation, writes, at);
    CheckAccess(operation, region, writes, at);
  });
  return done ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace standin
