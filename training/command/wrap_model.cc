// SPDX-License-Identifier: Apache-2.0
// `caesura wrap-model`: makes a whole model of another runtime one node of an ONNX model.
#include <climits>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/custom_ops/model_op.h"
#include "core/files/file_system.h"
#include "core/onnx/model_writer.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

constexpr char kFooter[] =
    "The result is an ONNX model of one node, ai.caesura::ModelOp, with the model's bytes, and the "
    "names and types of its\n"
    "inputs and outputs, in it. Any caesura session runs it, by itself or as a part of a larger "
    "model (onnx.compose joins\n"
    "models), and training passes gradients through it: by the runtime's own (caesura, torch), or "
    "by a second model,\n"
    "--gradient, that takes the inputs and then the outputs' gradients, and gives the gradients of "
    "the floating inputs.\n"
    "\n"
    "Runtimes: caesura (ONNX), openvino (ONNX, or its IR: model.xml --weights model.bin), torch (a "
    "TorchScript archive, or\n"
    "an AOTInductor package, which has no gradient), and those of plug-ins in the folders of "
    "CAESURA_PLUGIN_PATH. A runtime\n"
    "that cannot tell a type, or tells too little, is told it by --input-type and --output-type: "
    "dims that are \"?\" are sized\n"
    "in each run, while equal names are equal sizes, planned ahead. Options: caesura: threads. "
    "openvino: device, threads,\n"
    "precision (f32), hint (latency). torch: runners (of a package: runs at the same time, 1).\n"
    "\n"
    "  caesura wrap-model net.onnx --runtime openvino --option threads=2 --output wrapped.onnx\n"
    "  caesura wrap-model net.pt --runtime torch --input-type 'x=float32[N, 64]' \\\n"
    "      --output-type 'output=float32[N, 10]' --output wrapped.onnx";

struct Options {
  std::string model, weights, out, gradient;
  std::vector<std::string> options, input_types, output_types;
  bool by_name = false;
  WrapOptions wrap;
};

Result<std::pair<std::string, std::string>> Split(const std::string& text, const char* flag) {
  const size_t at = text.find('=');
  if (at != std::string::npos && at > 0) return std::pair(text.substr(0, at), text.substr(at + 1));
  return InvalidArgument(std::string(flag) + ": expected NAME=VALUE, got '" + text + "'");
}

// The node's name of a file: relative to the folder of the model that holds it, and beneath that.
Result<std::string> NameBeneath(const std::string& file, const std::string& out) {
  std::error_code error;
  const std::filesystem::path name = std::filesystem::relative(file, FolderOf(out), error);
  if (error || name.empty() || *name.begin() == "..") {
    return InvalidArgument("'" + file + "' is not beneath the folder of '" + out +
                           "', which --by-name needs");
  }
  return name.string();
}

Status ReadInto(const std::string& path, std::string* bytes) {
  if (path.empty()) return {};
  ASSIGN_OR_RETURN(*bytes, ReadWholeFile(PosixFileSystem(), path, size_t{1} << 36));
  return {};
}

Status Wrap(Options& options) {
  WrapOptions& wrap = options.wrap;
  RETURN_IF_ERROR(ReadInto(options.model, &wrap.model_bytes));
  RETURN_IF_ERROR(ReadInto(options.weights, &wrap.weight_bytes));
  RETURN_IF_ERROR(ReadInto(options.gradient, &wrap.gradient_bytes));
  for (const std::string& text : options.options) {
    ASSIGN_OR_RETURN(const auto option, Split(text, "--option"));
    RETURN_IF_ERROR(wrap.options.Append(option.first, option.second));
  }
  for (const auto& [texts, list, flag] :
       {std::tuple(&options.input_types, &wrap.inputs, "--input-type"),
        std::tuple(&options.output_types, &wrap.outputs, "--output-type")}) {
    for (const std::string& text : *texts) {
      ASSIGN_OR_RETURN(auto stated, Split(text, flag));
      list->push_back(std::move(stated));
    }
  }
  if (options.by_name) {
    ASSIGN_OR_RETURN(wrap.model_file, NameBeneath(options.model, options.out));
    if (!options.weights.empty()) {
      ASSIGN_OR_RETURN(wrap.weights_file, NameBeneath(options.weights, options.out));
    }
  }
  ASSIGN_OR_RETURN(const Model model, WrapModel(wrap));
  RETURN_IF_ERROR(WriteModel(model, options.out));
  auto print = [](const char* what, const std::vector<Value*>& values) {
    for (const Value* value : values)
      std::printf("%-7s %s  %s\n", what, value->name().c_str(), value->type().ToString().c_str());
  };
  print("input", model.graph->inputs());
  print("output", model.graph->outputs());
  return {};
}

}  // namespace

void AddWrapModel(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("wrap-model", "Make a model of another runtime one node of an ONNX model");
  sub->add_option("model", options->model, "The model, in a format that the runtime reads")
      ->required();
  sub->add_option("--runtime", options->wrap.runtime, "Who runs it: caesura, openvino, torch, ...")
      ->required();
  sub->add_option("--output", options->out, "The ONNX model to write")->required();
  sub->add_option("--weights", options->weights, "The second file of formats that have two");
  sub->add_option("--option", options->options,
                  "NAME=VALUE for the runtime; sessions may change it (repeatable)")
      ->allow_extra_args(false);
  sub->add_option("--input-type", options->input_types,
                  "NAME=TYPE of an input, such as 'x=float32[N, 64]' (repeatable)")
      ->allow_extra_args(false);
  sub->add_option("--output-type", options->output_types, "NAME=TYPE of an output (repeatable)")
      ->allow_extra_args(false);
  sub->add_option("--gradient", options->gradient,
                  "A model of the gradient (ONNX, or what --gradient-runtime reads)");
  sub->add_option("--gradient-runtime", options->wrap.gradient_runtime,
                  "Who runs that one; the same as --runtime unless said");
  sub->add_flag("--by-name", options->by_name,
                "Hold the files' names, which must lie beneath --output's folder, not their bytes");
  sub->footer(kFooter);
  sub->callback([=] { *run = [=] { return ExitCodeOf(Wrap(*options)); }; });
}

}  // namespace caesura::command
