// SPDX-License-Identifier: Apache-2.0
// OpenVINO as a provider: parts of a graph compiled for the CPU.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/plugin/caesura_provider.h"
#include "core/providers/openvino/openvino_plugin.h"
#include "core/providers/openvino/openvino_refusals.h"

namespace caesura_openvino {
namespace {

using caesura::plugin::Check;

struct Instance {
  ov::Core core;
  int threads = 0;  // 0: as many as the session gives
  bool dynamic = false;
};

int Number(const char* text) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < 1) {
    throw Error(CAESURA_INVALID_ARGUMENT,
                "option threads: expected a number above 0, got '" + std::string(text) + "'");
  }
  return value;
}

CaesuraStatus* Create(const CaesuraOptions* options, void** made) {
  return Guard([&] {
    auto instance = std::make_unique<Instance>();
    for (size_t i = 0; i < options->count; ++i) {
      const std::string key = options->keys[i], value = options->values[i];
      if (key == "threads") {
        instance->threads = Number(value.c_str());
      } else if (key == "shapes" && (value == "static" || value == "dynamic")) {
        instance->dynamic = value == "dynamic";
      } else if (key == "shapes") {
        throw Error(CAESURA_INVALID_ARGUMENT,
                    "option shapes: expected static or dynamic, got '" + value + "'");
      } else {
        throw Error(CAESURA_INVALID_ARGUMENT,
                    "no option '" + key + "'; there are threads, shapes and min_nodes");
      }
    }
    *made = instance.release();
  });
}

// True if OpenVINO's own reader takes the node, and its CPU device all that the reader makes of it.
bool Takes(ov::Core& core, const CaesuraGraph* graph, size_t node) {
  try {
    const void* bytes = nullptr;
    size_t size = 0;
    Check(ProviderApi().node_onnx(graph, node, &bytes, &size));
    const std::shared_ptr<ov::Model> model = ReadOnnx(core, bytes, size);
    const ov::SupportedOpsMap taken = core.query_model(model, "CPU");
    const auto ops = model->get_ops();
    return std::all_of(ops.begin(), ops.end(),
                       [&](const auto& op) { return taken.count(op->get_friendly_name()) > 0; });
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;  // its way of saying no
  }
}

CaesuraStatus* Capability(void* made, const CaesuraGraph* graph, int32_t* groups) {
  return Guard([&] {
    ov::Core& core = static_cast<Instance*>(made)->core;
    for (size_t i = 0; i < ProviderApi().node_count(graph); ++i) {
      if (ProviderApi().node(graph, i)->offered == 0 || Refusal(graph, i) != nullptr) continue;
      if (Takes(core, graph, i)) groups[i] = 1;
    }
  });
}

// --- compiled parts ---

struct Compiled {
  CompiledModel model;
  std::vector<size_t> inputs, outputs;  // OpenVINO's numbers of the part's ends
};

// By the part's ends: which of `ports` they are. An end without a port of its own would never be
// read or written.
std::vector<size_t> PortsOf(const CaesuraGraph* graph, bool inputs,
                            const std::vector<ov::Output<const ov::Node>>& ports) {
  size_t count = 0;
  const int32_t* ends =
      inputs ? ProviderApi().inputs(graph, &count) : ProviderApi().outputs(graph, &count);
  std::vector<size_t> out;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = ProviderApi().value(graph, static_cast<size_t>(ends[i]))->name;
    const auto port = std::find_if(ports.begin(), ports.end(),
                                   [&](const auto& p) { return p.get_names().count(name) > 0; });
    const auto number = static_cast<size_t>(port - ports.begin());
    if (port == ports.end() || std::find(out.begin(), out.end(), number) != out.end()) {
      throw Error(CAESURA_UNSUPPORTED,
                  "'" + name + "' is no end of the model that OpenVINO has made");
    }
    out.push_back(number);
  }
  return out;
}

CaesuraStatus* Compile(void* made, const CaesuraGraph* graph, int32_t threads, void** result) {
  return Guard([&] {
    auto& instance = *static_cast<Instance*>(made);
    const void* bytes = nullptr;
    size_t size = 0;
    Check(ProviderApi().onnx(graph, &bytes, &size));
    const std::shared_ptr<ov::Model> model = ReadOnnx(instance.core, bytes, size);
    std::unique_ptr<Compiled> compiled(new Compiled{
        {instance.core, model, instance.threads > 0 ? instance.threads : threads}, {}, {}});
    compiled->inputs = PortsOf(graph, true, compiled->model.model().inputs());
    compiled->outputs = PortsOf(graph, false, compiled->model.model().outputs());
    *result = compiled.release();
  });
}

void HandOut(const ov::Tensor& tensor, CaesuraRun* run, size_t output, int32_t dtype) {
  const std::vector<int64_t> dims(tensor.get_shape().begin(), tensor.get_shape().end());
  void* data = nullptr;
  Check(ProviderApi().make_output(run, output, dtype, dims.data(),
                                  static_cast<int32_t>(dims.size()), &data));
  if (tensor.get_byte_size() > 0) std::memcpy(data, tensor.data(), tensor.get_byte_size());
}

CaesuraStatus* Run(void* made, CaesuraRun* run, const CaesuraTensor* inputs, size_t input_count,
                   const CaesuraTensor* outputs, size_t output_count) {
  return Guard([&] {
    auto& compiled = *static_cast<Compiled*>(made);
    const bool all_sized =
        std::all_of(outputs, outputs + output_count, [](const auto& o) { return o.rank >= 0; });
    // A request that has written to a caller's memory goes on writing there, so one that shall not
    // is a fresh one.
    compiled.model.WithRequest(!all_sized, [&](ov::InferRequest& request, const auto& infer) {
      for (size_t i = 0; i < input_count; ++i) {
        request.set_input_tensor(compiled.inputs[i], Borrow(inputs[i]));
      }
      for (size_t i = 0; i < output_count; ++i) {
        if (outputs[i].rank < 0) continue;
        request.set_output_tensor(compiled.outputs[i], Borrow(outputs[i]));
      }
      infer();
      for (size_t i = 0; i < output_count; ++i) {
        if (outputs[i].rank >= 0) continue;
        HandOut(request.get_output_tensor(compiled.outputs[i]), run, i, outputs[i].dtype);
      }
    });
  });
}

const std::string& Version() {
  static const std::string version = ov::get_openvino_version().buildNumber;
  return version;
}

}  // namespace

const CaesuraProvider& Provider() {
  static const CaesuraProvider provider = [] {
    CaesuraProvider out = {};
    out.size = sizeof(out);
    out.name = "OpenVINOExecutionProvider";
    out.version = Version().c_str();
    // A call costs 9 us more than steps of our own do (one thread; a run of one small Sigmoid: 1.9
    // us with our kernel, 10.5 us with OpenVINO), so lone nodes are left.
    out.min_nodes = 3;
    out.create = Create;
    out.release = [](void* instance) { delete static_cast<Instance*>(instance); };
    out.capability = Capability;
    out.compile = Compile;
    out.release_compiled = [](void* compiled) { delete static_cast<Compiled*>(compiled); };
    out.run = Run;
    out.any_shape = [](void* instance) -> int32_t {
      return static_cast<Instance*>(instance)->dynamic;
    };
    return out;
  }();
  return provider;
}

}  // namespace caesura_openvino
