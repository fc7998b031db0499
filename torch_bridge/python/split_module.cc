// SPDX-License-Identifier: Apache-2.0
#include "training/session/split_module.h"

#include "torch_bridge/python/provider_fallback.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

// The arguments of the Python class, by name.
std::unique_ptr<SplitModule> OpenSplitModule(nb::object source, nb::dict arguments) {
  const auto names = [&](const char* key) {
    return nb::cast<std::vector<std::string>>(arguments[key]);
  };
  SplitModuleOptions options;
  options.trainable = names("trainable");
  options.frozen = names("frozen");
  options.train_constants = nb::cast<bool>(arguments["train_constants"]);
  options.inputs = names("inputs");
  options.training = nb::cast<bool>(arguments["training"]);
  options.threads = nb::cast<int>(arguments["threads"]);
  options.providers = ProvidersOf(nb::cast<NamedProviders>(arguments["providers"]));
  options.gradients_on_device = nb::cast<bool>(arguments["on_device"]);
  options.seed = nb::cast<uint64_t>(arguments["seed"]);
  options.custom_ops = nb::cast<const CustomOps&>(arguments["custom_ops"]);
  return Unwrap(SplitModule::Create(ReadSource(source), std::move(options)));
}

// The result of `call`, computed without the interpreter's lock.
template <typename Call>
auto Released(Call call) {
  return Unwrap(WithoutGil(call));
}

}  // namespace

void BindSplit(nb::module_& m) {
  nb::class_<ForwardRun>(m, "ForwardRun")
      .def("take_outputs",
           [](ForwardRun& run, bool on_device) {
             std::vector<RuntimeValue> outputs = std::move(run.outputs);
             for (RuntimeValue& output : outputs) output = on_device ? output : OnHost(output);
             return outputs;
           })
      .def_prop_ro("pending", &ForwardRun::pending)
      .def("backward",
           [](ForwardRun& run, std::vector<RuntimeValue> gradients, bool keep) {
             return Released([&] { return run.Backward(std::move(gradients), keep); });
           })
      .def("save", [](ForwardRun& run, const std::string& path, std::vector<RuntimeValue> outputs) {
        run.outputs = std::move(outputs);
        const Status status = run.Save(path);
        run.outputs.clear();
        if (!status.ok()) Raise(status, /*of_file=*/true);
      });
  nb::class_<SplitModule> modules(m, "Split");
  BindFallback(modules);
  modules.def_static("open", &OpenSplitModule)
      .def("forward",
           [](SplitModule& module, nb::dict arrays) {
             return Released([&, feeds = FeedsOf(arrays)] { return module.Forward(feeds); });
           })
      .def("load_run",
           [](const SplitModule& module, const std::string& path) {
             return Unwrap(module.LoadRun(path), /*of_file=*/true);
           })
      .def("predict",
           [](SplitModule& module, nb::dict arrays) {
             return Released([&, feeds = FeedsOf(arrays)] { return module.Predict(feeds); });
           })
      .def("output_names", &SplitModule::output_names)
      .def("gradient_names", &SplitModule::gradient_names)
      .def("unreachable", &SplitModule::unreachable)
      .def("parameter_names", &SplitModule::ParameterNames)
      .def("parameter",
           [](const SplitModule& module, const std::string& name) {
             return RuntimeValue(Unwrap(Unwrap(module.Parameter(name)).Clone()));
           })
      .def("set_parameters", [](SplitModule& module, nb::dict arrays) {
        std::map<std::string, Tensor> tensors;
        for (const auto& [name, value] : FeedsOf(arrays)) {
          if (!value.is_tensor())
            Raise(InvalidArgument("parameter '" + name + "' must be an array"));
          tensors[name] = value.tensor();
        }
        const Status status = module.SetParameters(tensors);
        if (!status.ok()) Raise(status);
      });
}

}  // namespace caesura::python
