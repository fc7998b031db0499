// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_runtime_openvino.so: model ops (core/custom_ops/model_op.h) that OpenVINO
// runs, from ONNX or from its own IR (model: the XML, weights: the BIN). It links OpenVINO and
// nothing of caesura's.
//
// Options: device (CPU), threads (0: OpenVINO's choice), precision (f32; bf16, f16, or "" for the
// device's own choice), hint (latency, or throughput).
#include <cstring>
#include <map>
#include <string_view>

#include "core/providers/openvino/openvino_tensor.h"

namespace {

using caesura::plugin::Check;
using caesura::plugin::Node;
using caesura::plugin::OpApi;
using caesura_openvino::Borrow;
using caesura_openvino::DTypeOf;
using caesura_openvino::Error;
using caesura_openvino::Guard;
using caesura_openvino::Requests;

// OpenVINO finds its devices once a process.
ov::Core& Core() {
  static auto* core = new ov::Core;
  return *core;
}

struct LoadedModel {
  ov::Tensor weights;  // the model's constants point into it
  ov::CompiledModel compiled;
  Requests requests;
};

struct RunState {
  explicit RunState(LoadedModel& of)
      : model(of), request(of.requests.Make(of.compiled)), bound(of.compiled.outputs().size()) {}
  LoadedModel& model;
  ov::InferRequest request;
  std::vector<bool> bound;  // outputs that a run has bound to memory of its own
};

ov::AnyMap ReadOptions(const Node& node, std::string* device) {
  std::map<std::string, std::string> options = {
      {"device", "CPU"}, {"threads", "0"}, {"precision", "f32"}, {"hint", "latency"}};
  for (const auto& [key, value] : node.options()) {
    if (options.count(key) == 0) {
      throw Error(CAESURA_INVALID_ARGUMENT,
                  "there is no option '" + key + "'; known are: device, hint, precision, threads");
    }
    options[key] = value;
  }
  ov::AnyMap out;
  *device = options["device"];
  const std::string& threads = options["threads"];
  if (threads.empty() || threads.size() > 4 ||
      threads.find_first_not_of("0123456789") != std::string::npos) {
    throw Error(CAESURA_INVALID_ARGUMENT,
                "option threads: expected a number, got '" + threads + "'");
  }
  if (threads != "0") out.insert(ov::inference_num_threads(std::stoi(threads)));
  const std::map<std::string, ov::element::Type> precisions = {
      {"f32", ov::element::f32}, {"bf16", ov::element::bf16}, {"f16", ov::element::f16}};
  if (const auto found = precisions.find(options["precision"]); found != precisions.end()) {
    out.insert(ov::hint::inference_precision(found->second));
  } else if (!options["precision"].empty()) {
    throw Error(
        CAESURA_INVALID_ARGUMENT,
        "option precision: expected f32, bf16, f16 or nothing, got '" + options["precision"] + "'");
  }
  if (options["hint"] != "latency" && options["hint"] != "throughput") {
    throw Error(CAESURA_INVALID_ARGUMENT,
                "option hint: expected latency or throughput, got '" + options["hint"] + "'");
  }
  out.insert(ov::hint::performance_mode(options["hint"] == "latency"
                                            ? ov::hint::PerformanceMode::LATENCY
                                            : ov::hint::PerformanceMode::THROUGHPUT));
  return out;
}

// A model that comes as bytes opens no files: its tensors must be in it.
void CheckSelfContained(std::string_view bytes) {
  if (bytes.find(std::string_view("\x0a\x08location", 10)) == std::string_view::npos) return;
  throw Error(CAESURA_UNSUPPORTED,
              "the ONNX model keeps tensors in other files; put them into the model");
}

CaesuraStatus* Load(const CaesuraOpNode* given, const void* bytes, size_t size, const void* weights,
                    size_t weight_bytes, void** model) {
  return Guard([&] {
    std::string device;
    const ov::AnyMap config = ReadOptions(Node(given), &device);
    const std::string text(static_cast<const char*>(bytes), size);
    CheckSelfContained(text);
    auto loaded = std::make_unique<LoadedModel>();
    if (weight_bytes > 0) {
      loaded->weights = ov::Tensor(ov::element::u8, {weight_bytes});
      std::memcpy(loaded->weights.data(), weights, weight_bytes);
    }
    std::shared_ptr<ov::Model> read;
    try {
      read = Core().read_model(text, loaded->weights);
    } catch (const std::exception& error) {
      throw Error(CAESURA_INVALID_MODEL, error.what());
    }
    loaded->compiled = Core().compile_model(read, device, config);
    *model = loaded.release();
  });
}

void DescribePort(const ov::Output<const ov::Node>& port, const std::string& fallback,
                  CaesuraOpNode* description,
                  CaesuraStatus* (*describe)(CaesuraOpNode*, const char*, int32_t, int32_t,
                                             const int64_t*)) {
  const std::string name = port.get_names().empty() ? fallback : port.get_any_name();
  const ov::PartialShape& shape = port.get_partial_shape();
  std::vector<int64_t> dims;
  if (shape.rank().is_static()) {
    for (const ov::Dimension& dim : shape) dims.push_back(dim.is_static() ? dim.get_length() : -1);
  }
  const int32_t rank = shape.rank().is_static() ? static_cast<int32_t>(dims.size()) : -1;
  Check(describe(description, name.c_str(), DTypeOf(port.get_element_type()), rank, dims.data()));
}

CaesuraStatus* Describe(void* model, CaesuraOpNode* description) {
  return Guard([&] {
    const ov::CompiledModel& compiled = static_cast<LoadedModel*>(model)->compiled;
    for (size_t i = 0; i < compiled.inputs().size(); ++i) {
      DescribePort(compiled.inputs()[i], "input_" + std::to_string(i), description,
                   OpApi().describe_input);
    }
    for (size_t i = 0; i < compiled.outputs().size(); ++i) {
      DescribePort(compiled.outputs()[i], "output_" + std::to_string(i), description,
                   OpApi().describe_output);
    }
  });
}

void Run(RunState& run, CaesuraContext* context) {
  const size_t inputs = OpApi().input_count(context), outputs = OpApi().output_count(context);
  for (size_t i = 0; i < outputs; ++i) {
    CaesuraTensor planned = {};
    Check(OpApi().output(context, i, &planned));
    if (planned.dtype == 0 && run.bound[i]) {  // of another node's run: a request forgets no memory
      run.request = run.model.requests.Make(run.model.compiled);
      run.bound.assign(run.bound.size(), false);
    }
  }
  for (size_t i = 0; i < inputs; ++i) {
    CaesuraTensor given = {};
    Check(OpApi().input(context, i, &given));
    run.request.set_input_tensor(i, Borrow(given));
  }
  for (size_t i = 0; i < outputs; ++i) {
    CaesuraTensor planned = {};
    Check(OpApi().output(context, i, &planned));
    if (planned.dtype == 0) continue;
    run.request.set_output_tensor(i, Borrow(planned));
    run.bound[i] = true;
  }
  run.model.requests.Infer(run.request);
  for (size_t i = 0; i < outputs; ++i) {
    if (run.bound[i] || OpApi().output_is_present(context, i) == 0) continue;
    ov::Tensor made = run.request.get_output_tensor(i);
    const ov::Shape shape = made.get_shape();
    const std::vector<int64_t> dims(shape.begin(), shape.end());
    const CaesuraTensor shown = {made.data(),
                                 dims.data(),
                                 static_cast<int32_t>(dims.size()),
                                 DTypeOf(made.get_element_type()),
                                 CAESURA_CPU,
                                 0};
    Check(OpApi().copy_output(context, i, &shown));
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(
    const CaesuraApi* api, CaesuraPlugin* plugin) {
  caesura::plugin::Use(api);
  CaesuraModelRuntime runtime = {};
  runtime.size = sizeof(runtime);
  runtime.name = "openvino";
  runtime.load = Load;
  runtime.unload = [](void* model) { delete static_cast<LoadedModel*>(model); };
  runtime.describe = Describe;
  runtime.create_run = [](void* model, void** run) {
    return Guard([&] { *run = new RunState(*static_cast<LoadedModel*>(model)); });
  };
  runtime.destroy_run = [](void* run) { delete static_cast<RunState*>(run); };
  runtime.run = [](void* run, CaesuraContext* context) {
    return Guard([&] { Run(*static_cast<RunState*>(run), context); });
  };
  return api->add_model_runtime(plugin, &runtime);
}
