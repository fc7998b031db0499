// SPDX-License-Identifier: Apache-2.0
// Sessions and bindings for Python. Runs let go of the interpreter's lock; what they read of
// Python's is taken before.
#include <optional>
#include <utility>

#include "core/base/utf8.h"
#include "core/plugin/plugin_library.h"
#include "core/profile/chrome_trace.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "torch_bridge/python/provider_fallback.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// The arguments of the package's InferenceSession.
struct SessionSettings {
  int threads = 0;
  NamedProviders providers;
  int optimization = 2;  // 0: none; 1: what keeps the graph's ops; 2: fusion too
  bool reuse_memory = true;
  bool profile = false;
  CustomOps custom_ops;
};

struct RunSettings {
  std::shared_ptr<std::atomic<bool>> terminate = std::make_shared<std::atomic<bool>>(false);
  std::string tag;
};

// True if a torch.Tensor is among the values, so that the outputs should be such too.
bool HoldTorch(nb::dict feeds) {
  bool arrays = true;
  for (auto [name, item] : feeds) arrays &= IsArray(item);
  return !arrays && nb::cast<bool>(nb::module_::import_("caesura.sessions.values")
                                       .attr("holds_torch")(feeds.attr("values")()));
}

class PythonSession {
 public:
  PythonSession(nb::object source, const SessionSettings& settings) {
    SessionOptions options;
    options.threads = settings.threads;
    options.reuse_memory = settings.reuse_memory;
    options.custom_ops = settings.custom_ops;
    if (settings.profile) profiler_ = std::make_unique<Profiler>();
    options.providers = ProvidersOf(settings.providers, &device_);
    bool ours = true;  // fusion is for our own kernels
    for (const auto& [name, given] : settings.providers)
      ours &= name != "torch" && name != "torch-only";
    if (settings.optimization == 1)
      options.passes = [](const ProviderList&) { return ForwardPasses(); };
    if (settings.optimization == 2 && ours) options.passes = InferencePasses;
    Model model = ReadSource(source);
    session_ =
        Unwrap(WithoutGil([&] { return Session::Create(std::move(model), std::move(options)); }));
  }

  // Asynchronous runs hand their results to Python before the session can go.
  ~PythonSession() {
    nb::gil_scoped_release release;
    session_.reset();
  }

  Session& session() { return *session_; }
  const std::optional<CountingDevice>& device() const { return device_; }

  // By name. The second counts those whose bytes are others than the caller's.
  std::pair<NamedValues, uint64_t> Feeds(nb::dict feeds) const {
    uint64_t copied = 0;
    NamedValues values;
    for (auto [key, item] : feeds) {
      std::string name = nb::cast<std::string>(key);
      bool is_copy = false;
      RuntimeValue value = ValueOf(item, &is_copy);
      if (value.is_map()) value = WithDeclaredFloats(name, std::move(value));
      values.emplace(std::move(name), std::move(value));
      copied += is_copy;
    }
    return {std::move(values), copied};
  }
  // The feeds of a run; counts those that were copied.
  NamedValues Take(nb::dict feeds) {
    auto [values, copied] = Feeds(feeds);
    inputs_ += values.size();
    inputs_copied_ += copied;
    return std::move(values);
  }
  ProviderFallback& fallback() { return session_->fallback(); }
  // The report of the runs until now; later ones are not watched.
  void EndProfiling(const std::string& trace) {
    const Status written = WriteChromeTrace(trace, profiler_->Events());
    if (!written.ok()) Raise(written, /*of_file=*/true);
    profiling_ended_ = true;
  }
  nb::tuple exchanged() const { return nb::make_tuple(inputs_, inputs_copied_); }

  std::vector<RuntimeValue> Run(const NamedValues& feeds, const std::vector<std::string>& names,
                                RunSettings* settings) {
    RunOptions options = OptionsOf(settings);
    return Unwrap(WithoutGil([&] { return session_->Run(feeds, names, std::move(options)); }));
  }
  std::vector<RuntimeValue> Run(const IoBinding& binding, RunSettings* settings) {
    RunOptions options = OptionsOf(settings);
    return Unwrap(WithoutGil([&] { return session_->Run(binding, std::move(options)); }));
  }
  // Then calls done(results as run() gives them, ""), or done([], what went wrong), on a thread of
  // the session's.
  void RunAsync(std::vector<std::string> names, nb::dict feeds, RunSettings* settings,
                nb::object done) {
    const auto forget = [](nb::object* held) {
      nb::gil_scoped_acquire gil;
      delete held;
    };
    const std::shared_ptr<nb::object> held(new nb::object(std::move(done)), forget);
    const auto call = [held, torch = HoldTorch(feeds)](Result<std::vector<RuntimeValue>> results) {
      nb::gil_scoped_acquire gil;
      nb::list outputs;
      for (const RuntimeValue& value : results.ok() ? *results : std::vector<RuntimeValue>()) {
        outputs.append(ObjectOf(value, torch));
      }
      (*held)(outputs, EscapedToUtf8(results.status().message()));
    };
    const Status begun =
        session_->RunAsync(Take(feeds), std::move(names), call, OptionsOf(settings));
    if (!begun.ok()) Raise(begun);
  }

 private:
  // A dict of Python's numbers, whose values came as float64 or int64, as the map of floats that
  // the model declares.
  RuntimeValue WithDeclaredFloats(const std::string& name, RuntimeValue value) const {
    const auto& inputs = session_->inputs();
    const auto it = std::find_if(inputs.begin(), inputs.end(),
                                 [&](const Value* v) { return v->name() == name; });
    const ValueType* element = it == inputs.end() ? nullptr : (*it)->type().element.get();
    const RuntimeValue::MapEntries& map = value.map();
    if (element == nullptr ||
        (map.values.dtype() != DType::kFloat64 && map.values.dtype() != DType::kInt64))
      return value;
    const Shape& shape = map.values.shape();
    if (element->dtype == DType::kFloat32) {
      return RuntimeValue::Map(map.keys, Tensor::Of(shape, map.values.ToVector<float>()));
    }
    if (element->dtype == DType::kFloat64) {
      return RuntimeValue::Map(map.keys, Tensor::Of(shape, map.values.ToVector<double>()));
    }
    return value;
  }

  RunOptions OptionsOf(const RunSettings* settings) const {
    RunOptions options;
    if (profiler_ != nullptr && !profiling_ended_) options.observers = {profiler_.get()};
    if (settings == nullptr) return options;
    options.cancel = settings->terminate;
    options.tag = settings->tag;
    return options;
  }

  std::optional<CountingDevice> device_;
  std::unique_ptr<Profiler> profiler_;  // before the session, whose last runs may be in it
  bool profiling_ended_ = false;        // under the interpreter's lock
  std::unique_ptr<Session> session_;
  uint64_t inputs_ = 0, inputs_copied_ = 0;  // under the interpreter's lock
};

// The contents of caesura.IOBinding: bound values, and the last run's outputs.
class PythonBinding {
 public:
  explicit PythonBinding(PythonSession& session) : session_(session), binding_(session.session()) {}

  void BindInput(const std::string& name, const OrtValue& value) {
    Check(binding_.BindInput(name, value.value));
  }
  void BindOutput(const std::string& name, const OrtValue& value, bool replaces_input) {
    if (value.read_only)
      Raise(InvalidArgument("the buffer bound to output '" + name + "' is read-only"));
    if (!value.value.is_tensor())
      Raise(InvalidArgument("the buffer bound to output '" + name + "' is no tensor"));
    Check(binding_.BindOutput(
        name, value.value.tensor(),
        replaces_input ? IoBinding::Overlap::kExact : IoBinding::Overlap::kRefused));
  }
  void BindOutputOn(const std::string& name, const std::string& device, int index) {
    Check(binding_.BindOutput(name, DeviceNamed(device, index)));
  }
  void ClearInputs() { binding_.ClearInputs(); }
  void ClearOutputs() {
    binding_.ClearOutputs();
    results_.clear();
  }

  nb::list Run(RunSettings* settings) {
    const IoBinding now = binding_;  // other threads may bind while this one runs
    results_ = session_.Run(now, settings);
    return Outputs();
  }
  nb::list Outputs() const {
    nb::list out;
    for (const RuntimeValue& value : results_) out.append(OrtValue{value});
    return out;
  }
  nb::list OutputsOnHost() {
    const std::vector<RuntimeValue> results = results_;
    nb::list out;
    for (const RuntimeValue& value : results)
      out.append(ObjectOf(Unwrap(session_.session().ToHost(value)), false));
    return out;
  }
  std::vector<std::string> names() const { return binding_.output_names(); }
  std::vector<OutputSpec> Specs() { return Unwrap(session_.session().OutputSpecs(binding_)); }

 private:
  static void Check(const Status& status) {
    if (!status.ok()) Raise(status);
  }

  PythonSession& session_;  // kept alive by the binding's Python object
  IoBinding binding_;
  std::vector<RuntimeValue> results_;
};

// True of the symbols that shape inference gives to dims that the model leaves open: "unk__3".
bool IsOwnSymbol(const std::string& symbol) {
  const std::string prefix = "unk__";
  return symbol.rfind(prefix, 0) == 0 &&
         symbol.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
}

// (name, type text, dims: int, symbol or None; None when the rank is unknown)
nb::tuple Describe(const Value* value) {
  nb::object dims = nb::none();
  if (value->type().shape) {
    nb::list list;
    for (const Dim& dim : *value->type().shape) {
      if (dim.known()) list.append(dim.value);
      else if (!dim.symbol.empty() && !IsOwnSymbol(dim.symbol)) list.append(dim.symbol);
      else list.append(nb::none());
    }
    dims = list;
  }
  return nb::make_tuple(value->name(), TypeText(value->type()), dims);
}

// Inputs that have an initializer, or those that have none.
std::vector<nb::tuple> DescribeInputs(PythonSession& session, bool with_default) {
  std::vector<nb::tuple> out;
  const Graph& graph = *session.session().model().graph;
  for (const Value* value : graph.inputs()) {
    if ((graph.Initializer(value) != nullptr) == with_default) out.push_back(Describe(value));
  }
  return out;
}

std::vector<nb::tuple> DescribeOutputs(PythonSession& session) {
  std::vector<nb::tuple> out;
  for (const Value* value : session.session().outputs()) out.push_back(Describe(value));
  return out;
}

// name -> shape as a list, or None where it shows only at run time
nb::dict ShapesOf(const std::vector<OutputSpec>& specs) {
  nb::dict out;
  for (const OutputSpec& spec : specs) {
    out[spec.name.c_str()] = spec.known ? nb::cast(spec.shape.dims()) : nb::none();
  }
  return out;
}

nb::dict CountsOf(PythonSession& session) {
  if (!session.device()) Raise(InvalidArgument("the session has no device that counts"));
  const DeviceCounts counts = session.device()->counts();
  nb::dict out;
  out["kernels"] = counts.kernels;
  out["copies_to_device"] = counts.copies_to_device;
  out["bytes_to_device"] = counts.bytes_to_device;
  out["copies_to_host"] = counts.copies_to_host;
  out["bytes_to_host"] = counts.bytes_to_host;
  out["copies_within"] = counts.copies_within;
  out["synchronisations"] = counts.synchronisations;
  return out;
}

}  // namespace

void BindSession(nb::module_& m) {
  m.def("has_plugin", [](const std::string& stem) {
    return FindPluginLibrary(stem).find('/') != std::string::npos;
  });
  nb::class_<RunSettings>(m, "RunSettings")
      .def(nb::init<>())
      .def_prop_rw(
          "terminate", [](const RunSettings& s) { return s.terminate->load(); },
          [](RunSettings& s, bool value) { *s.terminate = value; })
      .def_rw("logid", &RunSettings::tag);
  nb::class_<PythonSession> sessions(m, "Session");
  BindFallback(sessions);
  sessions
      .def(
          "__init__",
          [](PythonSession* self, nb::object source, NamedProviders providers, int threads,
             int optimization, bool reuse_memory, bool profile, const CustomOps& custom_ops) {
            new (self) PythonSession(source, {threads, std::move(providers), optimization,
                                              reuse_memory, profile, custom_ops});
          },
          nb::arg("source"), nb::arg("providers"), nb::arg("threads"), nb::arg("optimization"),
          nb::arg("reuse_memory"), nb::arg("profile"), nb::arg("custom_ops"))
      .def("inputs", &DescribeInputs, nb::arg("with_default"))
      .def("outputs", &DescribeOutputs)
      .def("metadata",
           [](PythonSession& s) {
             const Model& model = s.session().model();
             return nb::make_tuple(model.producer, model.graph->name(), model.domain,
                                   model.description, model.graph_description, model.version,
                                   model.metadata);
           })
      .def(
          "run",
          [](PythonSession& s, const std::vector<std::string>& names, nb::dict feeds,
             RunSettings* settings, bool torch) {
            torch = torch || HoldTorch(feeds);
            nb::list out;
            for (const RuntimeValue& value : s.Run(s.Take(feeds), names, settings))
              out.append(ObjectOf(value, torch));
            return out;
          },
          nb::arg("names"), nb::arg("feeds"), nb::arg("settings").none(), nb::arg("torch") = false)
      .def(
          "run_values",
          [](PythonSession& s, const std::vector<std::string>& names, nb::dict feeds,
             RunSettings* settings) {
            nb::list out;
            for (RuntimeValue& value : s.Run(s.Take(feeds), names, settings))
              out.append(OrtValue{std::move(value)});
            return out;
          },
          nb::arg("names"), nb::arg("feeds"), nb::arg("settings").none())
      .def("run_async", &PythonSession::RunAsync, nb::arg("names"), nb::arg("feeds"),
           nb::arg("settings").none(), nb::arg("done"))
      .def(
          "wait_for_async_runs", [](PythonSession& s) { s.session().WaitForAsyncRuns(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("output_shapes",
           [](PythonSession& s, nb::dict feeds) {
             return ShapesOf(Unwrap(s.session().OutputSpecs(s.Feeds(feeds).first)));
           })
      .def("synchronise",
           [](PythonSession& s) { Check(WithoutGil([&] { return s.session().Synchronise(); })); })
      .def("end_profiling", &PythonSession::EndProfiling)
      .def("exchanged", &PythonSession::exchanged)
      .def("device_counts", &CountsOf)
      .def("plan", [](PythonSession& s, nb::dict feeds) {
        return Unwrap(s.session().Plan(s.Feeds(feeds).first))->ToString();
      });
  nb::class_<PythonBinding>(m, "Binding")
      .def(nb::init<PythonSession&>(), nb::keep_alive<1, 2>())
      .def("bind_input", &PythonBinding::BindInput)
      .def("bind_output", &PythonBinding::BindOutput)
      .def("bind_output_on", &PythonBinding::BindOutputOn)
      .def("clear_inputs", &PythonBinding::ClearInputs)
      .def("clear_outputs", &PythonBinding::ClearOutputs)
      .def("run", &PythonBinding::Run, nb::arg("settings").none())
      .def("outputs", &PythonBinding::Outputs)
      .def("outputs_on_host", &PythonBinding::OutputsOnHost)
      .def("names", &PythonBinding::names)
      .def("output_shapes", [](PythonBinding& b) { return ShapesOf(b.Specs()); });
}

}  // namespace caesura::python
