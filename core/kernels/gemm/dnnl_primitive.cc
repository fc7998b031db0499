// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/gemm/dnnl_primitive.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <cstring>

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/kernels/gemm/dnnl_handles.h"

namespace caesura {
namespace {

bool ToDnnlType(DType dtype, dnnl_data_type_t* out) {
  switch (dtype) {
    case DType::kFloat32: *out = dnnl_f32; return true;
    case DType::kBFloat16: *out = dnnl_bf16; return true;
    case DType::kFloat16: *out = dnnl_f16; return true;
    case DType::kInt32: *out = dnnl_s32; return true;
    case DType::kInt8: *out = dnnl_s8; return true;
    case DType::kUInt8: *out = dnnl_u8; return true;
    default: return false;
  }
}

bool IsTaken(const DnnlTensor& tensor, dnnl_data_type_t* type) {
  return ToDnnlType(tensor.dtype, type) && tensor.dims.size() <= DNNL_MAX_NDIMS &&
         FitDnnl(tensor.dims);
}

const_dnnl_memory_desc_t QueryDesc(const_dnnl_primitive_desc_t desc, dnnl_query_t what, int index) {
  return dnnl_primitive_desc_query_md(desc, what, index);
}

// oneDNN's objects for one call at a time: memory handles take a new pointer in each call, so two
// threads cannot share them.
struct ArgumentSet {
  DnnlStream stream;
  std::vector<DnnlMemory> memories;
  std::vector<dnnl_exec_arg_t> arguments;
};

// Sets that nobody uses at the moment. Lock-free: a call takes one out and puts it back.
class ArgumentPool {
 public:
  ~ArgumentPool() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_acquire);
  }
  ArgumentSet* Take() {
    for (auto& slot : slots_) {
      if (slot.load(std::memory_order_relaxed) == nullptr) continue;
      if (ArgumentSet* set = slot.exchange(nullptr, std::memory_order_acquire)) return set;
    }
    return nullptr;
  }
  void Return(ArgumentSet* set) {
    for (auto& slot : slots_) {
      ArgumentSet* empty = nullptr;
      if (slot.compare_exchange_strong(empty, set, std::memory_order_release,
                                       std::memory_order_relaxed))
        return;
    }
    delete set;
  }

 private:
  std::array<std::atomic<ArgumentSet*>, 16> slots_{};
};

// A primitive with the numbers of its arguments; it knows their layouts. The last memory of a set
// is the scratchpad, where there is one.
class Primitive {
 public:
  static Result<std::unique_ptr<Primitive>> Make(KernelInfo& info, int threads,
                                                 const_dnnl_primitive_desc_t desc,
                                                 std::vector<int> arguments) {
    auto out = std::make_unique<Primitive>();
    out->threads_ = threads;
    dnnl_primitive_t handle = nullptr;
    RETURN_IF_ERROR(DnnlStatus(dnnl_primitive_create(&handle, desc), "dnnl_primitive_create"));
    out->primitive_.reset(handle);
    const_dnnl_memory_desc_t scratchpad = QueryDesc(desc, dnnl_query_scratchpad_md, 0);
    if (const size_t bytes = scratchpad == nullptr ? 0 : dnnl_memory_desc_get_size(scratchpad);
        bytes > 0) {
      out->has_scratchpad_ = true;
      out->scratchpad_ = info.BookScratch(bytes);
      arguments.push_back(DNNL_ARG_SCRATCHPAD);
    }
    out->arguments_ = std::move(arguments);
    ASSIGN_OR_RETURN(ArgumentSet * first, out->MakeSet());
    out->pool_.Return(first);
    return out;
  }

  // `pointers`: one an argument, without the scratchpad.
  Status Run(KernelContext& context, const void* const* pointers) const {
    ArgumentSet* set = pool_.Take();
    if (set == nullptr) {
      ASSIGN_OR_RETURN(set, MakeSet());
    }
    const size_t given = arguments_.size() - (has_scratchpad_ ? 1 : 0);
    for (size_t i = 0; i < given; ++i) {
      dnnl_memory_set_data_handle(set->memories[i].get(), const_cast<void*>(pointers[i]));
    }
    if (has_scratchpad_)
      dnnl_memory_set_data_handle(set->memories[given].get(), context.Scratch<void>(scratchpad_));
    dnnl_status_t status;
    {
      DnnlTeam team(threads_);
      status =
          dnnl_primitive_execute(primitive_.get(), set->stream.get(),
                                 static_cast<int>(set->arguments.size()), set->arguments.data());
    }
    pool_.Return(set);
    return status == dnnl_success ? Status() : DnnlStatus(status, "dnnl_primitive_execute");
  }

 private:
  Result<ArgumentSet*> MakeSet() const {
    auto set = std::make_unique<ArgumentSet>();
    dnnl_stream_t stream = nullptr;
    RETURN_IF_ERROR(
        DnnlStatus(dnnl_stream_create(&stream, DnnlCpuEngine(), dnnl_stream_default_flags),
                   "dnnl_stream_create"));
    set->stream.reset(stream);
    const_dnnl_primitive_desc_t desc = nullptr;
    RETURN_IF_ERROR(DnnlStatus(dnnl_primitive_get_primitive_desc(primitive_.get(), &desc),
                               "dnnl_primitive_get_primitive_desc"));
    for (const int id : arguments_) {
      dnnl_memory_t memory = nullptr;
      RETURN_IF_ERROR(
          DnnlStatus(dnnl_memory_create(&memory, QueryDesc(desc, dnnl_query_exec_arg_md, id),
                                        DnnlCpuEngine(), DNNL_MEMORY_NONE),
                     "dnnl_memory_create"));
      set->memories.emplace_back(memory);
      set->arguments.push_back({id, memory});
    }
    return set.release();
  }

  DnnlPrimitiveHandle primitive_;
  int threads_ = 1;
  bool has_scratchpad_ = false;
  size_t scratchpad_ = 0;
  std::vector<int> arguments_;
  mutable ArgumentPool pool_;
};

Result<std::unique_ptr<Primitive>> MakeReorder(KernelInfo& info, int threads,
                                               const_dnnl_memory_desc_t from,
                                               const_dnnl_memory_desc_t to) {
  DnnlAttributes attributes = MakeDnnlAttributes();
  dnnl_primitive_desc_t desc = nullptr;
  RETURN_IF_ERROR(DnnlStatus(dnnl_reorder_primitive_desc_create(&desc, from, DnnlCpuEngine(), to,
                                                                DnnlCpuEngine(), attributes.get()),
                             "reorder"));
  DnnlPrimitiveDesc owner(desc);
  return Primitive::Make(info, threads, desc, {DNNL_ARG_FROM, DNNL_ARG_TO});
}

}  // namespace

struct DnnlCall::Rep {
  struct Copy {
    size_t argument;
    size_t scratch;  // where the argument lies in the primitive's own layout
    bool is_output;
    std::unique_ptr<Primitive> reorder;
  };
  std::unique_ptr<Primitive> primitive;
  size_t argument_count = 0;
  std::vector<Copy> copies;
};

Status DnnlCall::Run(KernelContext& context, std::initializer_list<const void*> pointers) const {
  if (rep_->copies.empty()) return rep_->primitive->Run(context, pointers.begin());
  constexpr size_t kMaxArguments = 12;
  const void* own[kMaxArguments];
  std::copy(pointers.begin(), pointers.end(), own);
  for (const Rep::Copy& copy : rep_->copies) {
    own[copy.argument] = context.Scratch<void>(copy.scratch);
    if (copy.is_output) continue;
    const void* ends[2] = {pointers.begin()[copy.argument], own[copy.argument]};
    RETURN_IF_ERROR(copy.reorder->Run(context, ends));
  }
  RETURN_IF_ERROR(rep_->primitive->Run(context, own));
  for (const Rep::Copy& copy : rep_->copies) {
    if (!copy.is_output) continue;
    const void* ends[2] = {own[copy.argument], pointers.begin()[copy.argument]};
    RETURN_IF_ERROR(copy.reorder->Run(context, ends));
  }
  return {};
}

dnnl_engine_t DnnlCpuEngine() {
  static const dnnl_engine_t engine = [] {
    if (env::MaxIsa() == "x86-64") dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
    if (env::MaxIsa() == "x86-64-v3") dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
    dnnl_engine_t out = nullptr;
    return dnnl_engine_create(&out, dnnl_cpu, 0) == dnnl_success ? out : nullptr;
  }();
  return engine;
}

Status DnnlStatus(dnnl_status_t status, const char* what) {
  switch (status) {
    case dnnl_success: return {};
    case dnnl_out_of_memory: return OutOfMemory(std::string("oneDNN: ") + what);
    case dnnl_unimplemented: return Declined(std::string("oneDNN has no implementation: ") + what);
    default:
      return Internal(std::string("oneDNN: ") + what + " failed with status " +
                      std::to_string(status));
  }
}

DnnlMemoryDesc MakeDnnlMemoryDesc(const DnnlTensor& tensor) {
  if (tensor.packed) return MakePackedDesc(tensor);
  dnnl_data_type_t type;
  if (!IsTaken(tensor, &type)) return nullptr;
  dnnl_dims_t dims, strides;
  int64_t stride = 1;
  for (size_t i = tensor.dims.size(); i-- > 0;) {
    dims[i] = tensor.dims[i];
    strides[i] = tensor.strides.empty() ? stride : tensor.strides[i];
    stride *= tensor.dims[i];
  }
  dnnl_memory_desc_t out = nullptr;
  dnnl_memory_desc_create_with_strides(&out, static_cast<int>(tensor.dims.size()), dims, type,
                                       strides);
  return DnnlMemoryDesc(out);
}

DnnlMemoryDesc MakeDnnlAnyDesc(const DnnlTensor& tensor) {
  dnnl_data_type_t type;
  if (!IsTaken(tensor, &type)) return nullptr;
  dnnl_dims_t dims;
  std::copy(tensor.dims.begin(), tensor.dims.end(), dims);
  dnnl_memory_desc_t out = nullptr;
  dnnl_memory_desc_create_with_tag(&out, static_cast<int>(tensor.dims.size()), dims, type,
                                   dnnl_format_tag_any);
  return DnnlMemoryDesc(out);
}

DnnlAttributes MakeDnnlAttributes() {
  dnnl_primitive_attr_t out = nullptr;
  if (dnnl_primitive_attr_create(&out) != dnnl_success) return nullptr;
  dnnl_primitive_attr_set_scratchpad_mode(out, dnnl_scratchpad_mode_user);
  return DnnlAttributes(out);
}

DnnlTeam::DnnlTeam(int threads) : before_(omp_get_max_threads()), threads_(threads) {
  if (before_ != threads_) omp_set_num_threads(threads_);
}

DnnlTeam::~DnnlTeam() {
  if (before_ != threads_) omp_set_num_threads(before_);
}

Result<DnnlCall> MakeDnnlCall(KernelInfo& info, int threads, DnnlPrimitiveDesc desc,
                              const std::vector<DnnlArgument>& arguments) {
  const char* name = nullptr;
  dnnl_primitive_desc_query(desc.get(), dnnl_query_impl_info_str, 0, &name);
  if (name != nullptr && std::strncmp(name, "ref", 3) == 0) {
    return info.Refuse(std::string("oneDNN has only its reference implementation (") + name + ")");
  }
  DnnlTeam team(threads);
  auto rep = std::make_shared<DnnlCall::Rep>();
  std::vector<int> ids;
  for (const DnnlArgument& argument : arguments) {
    const_dnnl_memory_desc_t own = QueryDesc(desc.get(), dnnl_query_exec_arg_md, argument.id);
    const DnnlMemoryDesc ours = MakeDnnlMemoryDesc(argument.tensor);
    if (own == nullptr || ours == nullptr)
      return info.Refuse("oneDNN does not take one of the tensors");
    const size_t index = ids.size();
    ids.push_back(argument.id);
    if (dnnl_memory_desc_equal(own, ours.get())) continue;
    const size_t scratch = info.BookScratch(dnnl_memory_desc_get_size(own));
    const_dnnl_memory_desc_t from = argument.is_output ? own : ours.get();
    const_dnnl_memory_desc_t to = argument.is_output ? ours.get() : own;
    ASSIGN_OR_RETURN(std::unique_ptr<Primitive> reorder, MakeReorder(info, threads, from, to));
    rep->copies.push_back({index, scratch, argument.is_output, std::move(reorder)});
  }
  ASSIGN_OR_RETURN(rep->primitive, Primitive::Make(info, threads, desc.get(), std::move(ids)));
  rep->argument_count = arguments.size();
  return DnnlCall(std::move(rep));
}

}  // namespace caesura
