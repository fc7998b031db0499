// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdlib>

#include "core/kernels/kernel_registry.h"
#include "core/ops/cpu_kernels.h"
#include "core/base/build_facts.h"
#include "core/base/env.h"
#include "core/base/hand_over.h"
#include "core/base/log.h"
#include "core/base/utf8.h"
#include "core/distributed/rank_facts.h"
#include "core/onnx/model_reader.h"
#include "core/plugin/plugin_library.h"
#include "core/providers/cpu_provider.h"
#include "torch_bridge/kernel_library.h"
#include "torch_bridge/python/bindings.h"
#include "training/session/rank_group.h"

namespace caesura::python {
namespace {

// A function of the library that was opened; changed under the GIL only. Null: none was.
TorchKernelsFunction* torch_kernels = nullptr;
TorchProviderFunction* torch_provider = nullptr;
TorchCommunicatorFunction* torch_communicator = nullptr;
TorchStreamFunction* torch_stream = nullptr;
TorchMemoryFunction* torch_memory = nullptr;
std::string torch_version;
// caesura.Suspended and caesura.RankFailure once the module is there.
PyObject* suspended_error = PyExc_RuntimeError;
PyObject* rank_failure_error = PyExc_RuntimeError;

Clock::time_point DeadlineOf(const Communicator& communicator) {
  return Clock::now() + communicator.timeout();
}

void LoadTorchLibrary(const std::string& path, const std::string& version) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Raise(IoError(std::string("cannot open the library: ") + dlerror()));
  auto* function = reinterpret_cast<TorchKernelsFunction*>(dlsym(library, kTorchKernelsName));
  auto* provider =
      reinterpret_cast<TorchProviderFunction*>(dlsym(library, kTorchProviderFunctionName));
  auto* communicator =
      reinterpret_cast<TorchCommunicatorFunction*>(dlsym(library, kTorchCommunicatorFunctionName));
  auto* stream = reinterpret_cast<TorchStreamFunction*>(dlsym(library, kTorchStreamFunctionName));
  auto* memory = reinterpret_cast<TorchMemoryFunction*>(dlsym(library, kTorchMemoryFunctionName));
  if (function == nullptr || provider == nullptr || communicator == nullptr || stream == nullptr ||
      memory == nullptr)
    Raise(IoError(path + " is no library of caesura's"));
  KernelRegistry trial;
  if (const char* why = function(version.c_str(), &trial)) Raise(Unsupported(why));
  torch_kernels = function;
  torch_provider = provider;
  torch_communicator = communicator;
  torch_stream = stream;
  torch_memory = memory;
  torch_version = version;
}

constexpr char kSuspendedDoc[] =
    R"(A step was suspended before one of its nodes, and waits.

Raised by the steps of a TrainingSession once `suspend` is true, or at a signal that suspend_on() names. Nothing is
lost: resume() ends the step, save() writes it down, and restore() takes it up in another process.

Example::

    try:
        loss = session.step(feeds)
    except caesura.Suspended:
        session.save("run.ckpt")
)";

constexpr char kRankFailureDoc[] =
    R"(Another rank of a distributed run is lost or late, has failed, or does something else.

Raised by the steps of a TrainingSession and of compile_step() that are ranks of one run. The step has changed nothing on
this rank, and the process group is of no more use: restart from the last checkpoint, or make a new group.

Example::

    try:
        loss = step(inputs, targets)
    except caesura.RankFailure as error:
        print(error)  # names the rank, where that is known
        raise
)";

PyObject* MakeError(nanobind::module_& m, const char* name, const char* doc) {
  PyObject* error = PyErr_NewExceptionWithDoc((std::string("caesura.") + name).c_str(), doc,
                                              PyExc_RuntimeError, nullptr);
  if (error == nullptr) throw nanobind::python_error();
  m.attr(name) = nanobind::handle(error);
  return error;
}

// A number for a constructor of the torch library's (hand_over.h), which then holds the object.
int64_t KeepAlive(nanobind::object object) {
  auto release = [](void* held) {
    if (!Py_IsInitialized()) return;
    nanobind::gil_scoped_acquire lock;
    Py_DECREF(static_cast<PyObject*>(held));
  };
  return HandOver(std::shared_ptr<void>(object.release().ptr(), release));
}

}  // namespace

std::unique_ptr<Communicator> OpenCommunicator(const std::string& group_name) {
  if (torch_communicator == nullptr)
    Raise(Unsupported("process groups need libcaesura_torch, which is not loaded"));
  return Unwrap(torch_communicator(group_name));
}

std::shared_ptr<const ExecutionProvider> CpuProvider() {
  return MakeCpuProvider([](KernelRegistry& registry) {
    if (torch_kernels != nullptr) torch_kernels(torch_version.c_str(), &registry);
  });
}

std::shared_ptr<const ExecutionProvider> NamedProvider(const std::string& name,
                                                       const std::string& device) {
  if (name == "cpu") return CpuProvider();
  if (name != "torch" && name != "torch-only") {
    Raise(InvalidArgument("provider '" + name + "' is none of cpu, torch, torch-only"));
  }
  if (torch_provider == nullptr)
    Raise(Unsupported("the torch provider needs caesura.torch_kernels.load()"));
  if (name == "torch-only") return Unwrap(torch_provider(device, {}));
  return Unwrap(torch_provider(device, RegisterCpuKernels));
}

Result<void*> TorchStream(Device device) {
  if (torch_stream == nullptr)
    return Unsupported("PyTorch's streams need caesura.torch_kernels.load()");
  return torch_stream(device);
}

Result<std::shared_ptr<void>> TorchMemory(Device device, size_t bytes) {
  if (torch_memory == nullptr)
    return Unsupported("PyTorch's memory needs caesura.torch_kernels.load()");
  return torch_memory(device, bytes);
}

void Raise(const Status& status, bool of_file) {
  const std::string text =
      EscapedToUtf8(status.message());  // it may quote what a model or a file holds
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kInvalidModel: type = PyExc_ValueError; break;
    case StatusCode::kNotFound: type = of_file ? PyExc_FileNotFoundError : PyExc_KeyError; break;
    case StatusCode::kOutOfMemory: type = PyExc_MemoryError; break;
    case StatusCode::kIoError: type = PyExc_OSError; break;
    case StatusCode::kDeclined:
    case StatusCode::kUnsupported: type = PyExc_NotImplementedError; break;
    case StatusCode::kSuspended: type = suspended_error; break;
    case StatusCode::kRankFailure: type = rank_failure_error; break;
    default: break;
  }
  PyErr_SetString(type, text.c_str());
  throw nanobind::python_error();
}

Model ReadSource(nanobind::object source) {
  if (!nanobind::isinstance<nanobind::bytes>(source)) {
    return Unwrap(ReadModel(nanobind::cast<std::string>(source)), /*of_file=*/true);
  }
  const auto bytes = nanobind::cast<nanobind::bytes>(source);
  return Unwrap(ReadModelBytes(std::string_view(bytes.c_str(), bytes.size())));
}

ProviderList ProvidersOf(const NamedProviders& named, std::optional<CountingDevice>* counting) {
  ProviderList out;
  std::optional<CountingDevice> device;
  for (const auto& [name, options] : named) {
    const auto option = [&given = options](const char* key) {
      const auto found = given.find(key);
      return found == given.end() ? std::string() : found->second;
    };
    if (name == "counting") {
      CountingOptions made;
      const std::string bytes = option("memory_bytes");
      if (!bytes.empty()) made.memory_bytes = std::strtoull(bytes.c_str(), nullptr, 10);
      device.emplace(made);
      out.push_back(device->providers().front());
    } else if (device && name == "cpu") {
      out.push_back(device->providers().back());
    } else if (name == "cpu" || name == "torch" || name == "torch-only") {
      out.push_back(NamedProvider(name, option("device")));
    } else {
      out.push_back(Unwrap(ProviderByName(name, options)));
    }
    AddDeviceProvider(out.back());
  }
  if (counting != nullptr) *counting = std::move(device);
  return out;
}

}  // namespace caesura::python

NB_MODULE(_core, m) {
  m.doc() = "The native half of caesura; use the package's own names.";
  m.attr("__version__") = caesura::Version();
  m.attr("has_asserts") = caesura::HasAsserts();
  using namespace caesura::python;
  suspended_error = MakeError(m, "Suspended", kSuspendedDoc);
  rank_failure_error = MakeError(m, "RankFailure", kRankFailureDoc);
  nanobind::class_<caesura::Communicator>(m, "Communicator")
      .def_prop_ro("rank", &caesura::Communicator::rank)
      .def_prop_ro("size", &caesura::Communicator::size)
      .def_prop_ro("name", &caesura::Communicator::name)
      .def("meet",
           [](caesura::Communicator& own, const std::vector<int64_t>& words) {
             return Unwrap(WithoutGil([&] { return own.Meet(words, DeadlineOf(own)); }));
           })
      .def("gather_facts", [](caesura::Communicator& own, const caesura::RankFacts& facts) {
        return Unwrap(
            WithoutGil([&] { return caesura::GatherFacts(own, facts, DeadlineOf(own)); }));
      });
  m.attr("compared_words") = caesura::kComparedWords;
  m.attr("most_rows") = caesura::kMostRows;
  m.def("rank_differences", &caesura::DifferencesOfRanks);
  m.def("communicator", [](const std::string& group_name) {
    return std::shared_ptr<caesura::Communicator>(OpenCommunicator(group_name));
  });
  nanobind::set_leak_warnings(false);  // PyTorch's caches of compiled graphs live to the very end
  m.def("load_torch_library", &caesura::python::LoadTorchLibrary);
  m.def("keep_alive", &caesura::python::KeepAlive);
  m.def("add_plugin_folder", &caesura::AddPluginFolder);
  m.def("lost_parts", &caesura::LostParts);
  m.def("program_cache", [] {
    return nanobind::make_tuple(caesura::env::ProgramCache(),
                                caesura::env::ProgramCacheMegabytes());
  });
  caesura::python::BindValues(m);
  caesura::python::BindOrtValue(m);
  caesura::python::BindCustomOps(m);
  caesura::python::BindSession(m);
  caesura::python::BindGradient(m);
  caesura::python::BindLora(m);
  caesura::python::BindTraining(m);
  caesura::python::BindStepCall(m);
  caesura::python::BindClip(m);
  caesura::python::BindSplit(m);
  caesura::python::BindProgram(m);
  caesura::python::BindRecording(m);
  caesura::python::BindWatch(m);
}
