// SPDX-License-Identifier: Apache-2.0
// Program: a captured graph, run on PyTorch's tensors by position. Kernels: what could not run so.
#include <nanobind/stl/pair.h>

#include <iterator>

#include "core/base/hand_over.h"
#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/plan/function_expansion.h"
#include "core/providers/cuda/cuda_provider.h"
#include "core/runtime/subgraph.h"
#include "torch_bridge/python/bindings.h"
#include "training/step/parameters.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

class Program {
 public:
  Program(nb::bytes model, int threads, const Gpu* gpu) {
    auto parsed = Unwrap(ReadModelBytes(std::string_view(model.c_str(), model.size())));
    graph_ = Unwrap(OpenCaptured(std::move(parsed), gpu == nullptr ? nullptr : gpu->provider,
                                 CpuProvider, threads));
  }

  // Runs through all yields; gives what they hand out, then the graph's outputs.
  // Plain ints are host scalars that the plan is made for: shapes follow from them.
  std::vector<nb::object> Run(const nb::list& inputs) {
    std::vector<RuntimeValue> feeds;
    std::vector<FeedSpec> known;
    Take(inputs, &feeds, &known);
    std::vector<RuntimeValue> values;
    const Status status = [&] {
      nb::gil_scoped_release release;
      RunResult result = graph_->Run({.feeds = std::move(feeds),
                                      .plan = {.known = std::move(known)},
                                      .at_yield = AtYield::kWait});
      while (true) {
        std::move(result.values.begin(), result.values.end(), std::back_inserter(values));
        if (!result.waiting) return result.status;
        result = result.waiting.GoOn({});
      }
    }();
    if (!status.ok()) Raise(status);
    std::vector<nb::object> out;
    for (const RuntimeValue& value : values) out.push_back(ToTorch(value.tensor()));
    return out;
  }

  std::pair<std::string, size_t> Plan(const nb::list& inputs) {
    std::vector<RuntimeValue> feeds;
    std::vector<FeedSpec> known;
    Take(inputs, &feeds, &known);
    const auto plan = Unwrap(graph_->Plan(feeds, {.known = std::move(known)}));
    return {plan->ToString(), plan->arena_bytes()};
  }

 private:
  void Take(const nb::list& inputs, std::vector<RuntimeValue>* feeds,
            std::vector<FeedSpec>* known) {
    for (nb::handle input : inputs) {
      if (nb::isinstance<nb::int_>(input)) {
        known->resize(feeds->size() +
                      1);  // PlanCache takes a short list, and most graphs have no such input
        known->back().value = Tensor::Scalar(nb::cast<int64_t>(input));
        feeds->emplace_back(known->back().value);
      } else {
        feeds->emplace_back(FromPython(input));
      }
    }
  }

  std::unique_ptr<caesura::Program> graph_;
};

// Runs programs, and tells which could not run.
class Kernels {
 public:
  explicit Kernels(const Gpu* gpu) {
    if (gpu != nullptr) gpu_ = gpu->provider;
    if (gpu_) providers_.insert(providers_.begin(), gpu_);
  }

  // Why the model, with inputs of these shapes (or of these values, where they are ints), has no
  // plan, or, on a GPU, none that runs there as a whole; "" where it has one.
  std::string Problem(nb::bytes bytes, const nb::list& inputs) const {
    auto model = ReadModelBytes(std::string_view(bytes.c_str(), bytes.size()));
    if (!model.ok()) return model.status().message();
    auto expanded = ExpandMissingKernels(*model->graph, providers_);
    if (!expanded.ok()) return expanded.status().message();
    std::vector<FeedSpec> feeds;
    for (nb::handle input : inputs) {
      FeedSpec& feed = feeds.emplace_back();
      if (nb::isinstance<nb::int_>(input)) {
        feed = FeedSpec::Of(RuntimeValue(Tensor::Scalar(nb::cast<int64_t>(input))));
        feed.value = Tensor::Scalar(nb::cast<int64_t>(input));
      } else {
        feed.device = gpu_ ? gpu_->device() : Device{};
        feed.dtype = model->graph->inputs()[feeds.size() - 1]->dtype();
        feed.shape = Shape(nb::cast<std::vector<int64_t>>(input));
      }
    }
    PlanOptions options;
    options.fetch_devices.assign(model->graph->outputs().size(), std::nullopt);
    auto made = ExecutionPlan::Create(model->graph, feeds, providers_,
                                      WithSubgraphs(std::move(options), providers_));
    if (!made.ok()) return made.status().message();
    if (!gpu_) return "";
    const ExecutionPlan& plan = **made;
    for (const PlanStep& step : plan.steps()) {
      if (step.kind == PlanStep::Kind::kCopy)
        return step.node->op_type() + " has no kernel on " + gpu_->device().ToString();
    }
    for (const Yield::Item& item : plan.fetches()) {
      const PlannedBuffer& buffer = plan.buffers()[plan.values()[item.value].buffer];
      const bool constant = buffer.kind == PlannedBuffer::Kind::kConstant;
      if (!constant && plan.devices()[item.device].device != gpu_->device())
        return "its result is made on the host";
    }
    return "";
  }

 private:
  std::shared_ptr<const ExecutionProvider> gpu_;
  ProviderList providers_ = {CpuProvider()};
};

}  // namespace

Gpu::Gpu(const ProviderOptions& given) : options(Unwrap(ParseCudaOptions(given))) {
  const Device device{DeviceType::kCuda, static_cast<int16_t>(options.device_id)};
  CudaOptions with_memory = options;
  with_memory.allocate = [device](size_t bytes) { return TorchMemory(device, bytes); };
  provider = Unwrap(MakeCudaProvider(with_memory));
  AddDeviceProvider(provider);
}

Status Gpu::WaitForTorch() const {
  ASSIGN_OR_RETURN(void* const theirs, TorchStream(provider->device()));
  return OrderStreams(*provider, theirs, provider->stream());
}

Status Gpu::TorchWaits() const {
  ASSIGN_OR_RETURN(void* const theirs, TorchStream(provider->device()));
  return OrderStreams(*provider, provider->stream(), theirs);
}

void BindProgram(nb::module_& m) {
  nb::class_<Gpu>(m, "Gpu")
      .def(nb::init<const ProviderOptions&>())
      .def("wait_for_torch", [](const Gpu& gpu) { Check(gpu.WaitForTorch()); })
      .def("torch_waits", [](const Gpu& gpu) { Check(gpu.TorchWaits()); })
      // The ranks of a process group of PyTorch's, which exchange the GPU's memory. All call it.
      .def("communicator",
           [](const Gpu& gpu, const std::string& group_name) {
             std::unique_ptr<Communicator> control = OpenCommunicator(group_name);
             auto ranks =
                 WithoutGil([&] { return NcclCommunicator(std::move(control), gpu.options); });
             return std::shared_ptr<Communicator>(Unwrap(std::move(ranks)));
           })
      // A number for torch.classes.caesura.Graph (hand_over.h).
      .def("share", [](const Gpu& gpu) {
        return HandOver(std::shared_ptr<const ExecutionProvider>(gpu.provider));
      });
  nb::class_<Program>(m, "Program")
      .def(nb::init<nb::bytes, int, const Gpu*>(), nb::arg("model"), nb::arg("threads"),
           nb::arg("gpu").none())
      .def("run", &Program::Run)
      .def("plan", &Program::Plan);
  nb::class_<Kernels>(m, "Kernels")
      .def(nb::init<const Gpu*>(), nb::arg("gpu").none())
      .def("problem", &Kernels::Problem);
}

}  // namespace caesura::python
