// SPDX-License-Identifier: Apache-2.0
// `caesura convert`: arrays from one file format into another, and steps into plain ONNX files.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "training/command/command.h"
#include "training/command/tensor_files.h"
#include "training/session/exported_step.h"

namespace caesura::command {
namespace {

struct ConvertOptions {
  std::string from, to;
  TrainingExport step;
  bool compress = false, training = false;
};

int ConvertStep(const ConvertOptions& options) {
  const auto session = OpenStep(options.from);
  if (!session.ok()) return Report(session.status());
  const Status written = (*session)->ExportTraining(options.to, options.step);
  return written.ok() ? kDone : Report(written);
}

int RunConvert(const ConvertOptions& options) {
  if (options.training) return ConvertStep(options);
  const Result<TensorFile> contents = ReadTensorFile(options.from);
  if (!contents.ok()) return Report(contents.status());
  const Status written = WriteTensorFile(options.to, *contents, options.compress);
  if (!written.ok()) return Report(written);
  for (const auto& [name, tensor] : contents->tensors) {
    std::printf("%s  %s%s\n", name.c_str(), DTypeName(tensor.dtype()),
                tensor.shape().ToString().c_str());
  }
  return kDone;
}

}  // namespace

void AddConvert(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* sub = app.add_subcommand(
      "convert",
      "Convert arrays between .npz, .npy and .safetensors, or a step into a plain ONNX file");
  sub->add_option("from", options->from, "The file to read")->required();
  sub->add_option("to", options->to, "The file to write; its ending says the format")->required();
  sub->add_flag("--compress", options->compress, "Compress an .npz");
  sub->add_flag("--training", options->training,
                "The file to read is an exported step; the one to write is an ONNX file that "
                "trains in any runtime");
  sub->add_option("--opset", options->step.opset,
                  "With --training: the version of ONNX's operators, for an older runtime");
  sub->callback([=] { *run = [=] { return RunConvert(*options); }; });
}

}  // namespace caesura::command
