// SPDX-License-Identifier: Apache-2.0
// `caesura gradient`: a model's gradient by its inputs, as a model.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/gradient/gradient_model.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "graph_transforms/plain_model.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

constexpr char kFooter[] =
    R"(The result is an ONNX model, without --plain with operators of caesura's. Its inputs and outputs are those of MODEL; for each
output of several elements, without --sum, an input NAME_gradient is added, the weights of its elements, and for each
input of --by an output BY_gradient.

Examples
  How each pixel changes the scores that "scores_gradient" weighs:
    caesura gradient net.onnx --of scores --by images --output saliency.onnx
    caesura predict saliency.onnx --data pixels.npz --output slopes.npz

  Forces of a potential, and training it by measured energies and forces:
    caesura gradient energy.onnx --by positions --sum --scale -1 --name forces --output potential.onnx
    caesura train potential.onnx --data molecules.npz --loss mse --target energies --also 'forces=measured*10')";

struct Options {
  std::string model, out;
  bool plain = false;
  GradientModelOptions gradient;
};

Status Write(const Options& options) {
  ASSIGN_OR_RETURN(const Model model, ReadModel(options.model));
  const auto make = options.plain ? PlainGradientModel : GradientModel;
  ASSIGN_OR_RETURN(const Model gradient, make(model, options.gradient));
  RETURN_IF_ERROR(WriteModel(gradient, options.out));
  for (const auto& [what, values] : {std::pair("input", &gradient.graph->inputs()),
                                     std::pair("output", &gradient.graph->outputs())}) {
    for (const Value* value : *values)
      std::printf("%-7s %s  %s\n", what, value->name().c_str(), value->type().ToString().c_str());
  }
  return {};
}

}  // namespace

void AddGradient(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("gradient", "Write a model's gradient by its inputs as a model");
  GradientModelOptions& gradient = options->gradient;
  sub->add_option("model", options->model, "The ONNX model")->required();
  sub->add_option("--output", options->out, "The ONNX model to write")->required();
  const auto add_names = [&](const char* flag, std::vector<std::string>* names, const char* help) {
    sub->add_option(flag, *names, help)->allow_extra_args(false);
  };
  add_names("--of", &gradient.of, "An output (repeatable: their gradients add up); the only one");
  add_names("--by", &gradient.by, "An input or initializer (repeatable); all floating inputs");
  add_names("--name", &gradient.names, "The gradient's name, once for each --by; BY_gradient");
  sub->add_flag("--sum", gradient.sum,
                "The gradient of the sum of all elements, without inputs for weights");
  sub->add_option("--scale", gradient.scale, "A factor of the results")->capture_default_str();
  sub->add_flag("--hessian-product", gradient.hessian_product,
                "Add, for each --by, an input BY_direction and an output BY_hessian_product");
  sub->add_flag(
      "--plain", options->plain,
      "Write ONNX's own operators only, which any runtime runs; initializers of --by become "
      "inputs with defaults");
  sub->footer(kFooter);
  sub->callback([=] { *run = [=] { return ExitCodeOf(Write(*options)); }; });
}

}  // namespace caesura::command
