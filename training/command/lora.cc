// SPDX-License-Identifier: Apache-2.0
// `caesura lora`: adapters of models, added, taken over from files, saved, merged.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "training/adapters/adapter_files.h"
#include "training/adapters/linear_layers.h"
#include "training/adapters/lora.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

constexpr char kLoraFooter[] =
    R"(Without --target, --adapter, --save and --merge the layers that a --target can name are listed.

Examples
  An adapter is added and trained; all else stays:
    caesura lora net.onnx --target q_proj --target v_proj --rank 8 --alpha 16 --output adapted.onnx
    caesura train adapted.onnx --data train.npz --target labels --output trained.onnx

  It goes to PEFT, or one of PEFT's into a model, or into the weights:
    caesura lora trained.onnx --save adapter
    caesura lora net.onnx --adapter adapter --output trained.onnx
    caesura lora trained.onnx --merge --output merged.onnx)";

struct LoraArguments {
  std::string model, out, adapter, save;
  LoraOptions lora;
  bool merge = false;
};

void ListLayers(const Model& model) {
  for (const LinearLayer& layer : LinearLayers(*model.graph)) {
    std::printf("%s  [%lld, %lld]\n", layer.name.c_str(), static_cast<long long>(layer.out),
                static_cast<long long>(layer.in));
  }
}

Status RunLora(const LoraArguments& options) {
  ASSIGN_OR_RETURN(Model model, ReadModel(options.model));
  if (!options.adapter.empty()) {
    ASSIGN_OR_RETURN(const Adapter adapter, ReadAdapter(options.adapter));
    ASSIGN_OR_RETURN(model, AddAdapter(model, adapter));
  } else if (!options.lora.targets.empty()) {
    ASSIGN_OR_RETURN(model, caesura::AddLora(model, options.lora));
  } else if (!options.merge && options.save.empty()) {
    ListLayers(model);
    return {};
  }
  ASSIGN_OR_RETURN(const Adapter adapter, AdapterOf(model));
  int64_t trained = 0;
  for (const auto& [name, layer] : adapter.layers)
    trained += layer.a.elements() + layer.b.elements();
  std::printf("adapter of %zu layers, rank %lld, alpha %g: %lld parameters\n",
              adapter.layers.size(), static_cast<long long>(adapter.rank), adapter.alpha,
              static_cast<long long>(trained));
  if (!options.save.empty()) RETURN_IF_ERROR(SaveAdapter(adapter, options.save));
  if (options.merge) {
    ASSIGN_OR_RETURN(model, MergeAdapter(model));
  }
  return options.out.empty() ? Status() : WriteModel(model, options.out);
}

}  // namespace

void AddLora(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<LoraArguments>();
  CLI::App* sub = app.add_subcommand("lora", "Add an adapter to a model, save it, or merge it");
  sub->add_option("model", options->model, "The ONNX model")->required();
  CLI::Option* out = sub->add_option("--output", options->out, "The ONNX model to write");
  CLI::Option* target =
      sub->add_option("--target", options->lora.targets,
                      "Layers that get an adapter: their names, or the last parts of them "
                      "(repeatable; '*' matches anything)")
          ->allow_extra_args(false)
          ->needs(out);
  sub->add_option("--rank", options->lora.rank, "The adapter's rank")->capture_default_str();
  sub->add_option("--alpha", options->lora.alpha, "Its result is multiplied by alpha / rank")
      ->capture_default_str();
  sub->add_option("--seed", options->lora.seed, "Seeds its first values")->capture_default_str();
  sub->add_option("--adapter", options->adapter, "A folder of PEFT's whose adapter the model gets")
      ->excludes(target);
  sub->add_option("--save", options->save, "A folder for PEFT that the adapter is written to");
  sub->add_flag("--merge", options->merge, "Add the adapter to the weights")->needs(out);
  sub->footer(kLoraFooter);
  sub->callback([=] { *run = [=] { return ExitCodeOf(RunLora(*options)); }; });
}

}  // namespace caesura::command
