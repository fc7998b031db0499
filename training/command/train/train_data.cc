// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/train_data.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "training/command/tensor_files.h"
#include "training/command/train/trained_model.h"
#include "training/data/dataset.h"
#include "training/step/loss.h"

namespace caesura::command {
namespace {

using Arrays = std::map<std::string, Tensor>;

constexpr size_t kMaxTextBytes = size_t{1} << 34;

// An input of the step: its name, the array for it, its element type (kUndefined: as the array is).
struct Wanted {
  std::string input, array;
  DType dtype;
};

const Value* Prediction(const Model& model, const std::string& named) {
  for (const Value* output : model.graph->outputs()) {
    if (named.empty() || output->name() == named) return output;
  }
  return nullptr;  // the session says so
}

Result<std::vector<Wanted>> WantedArrays(const TrainOptions& options, const Model& model) {
  std::map<std::string, std::string> named;
  for (const std::string& text : options.feeds) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos)
      return InvalidArgument("--feed " + text + " is not INPUT=ARRAY");
    named[text.substr(0, equals)] = text.substr(equals + 1);
  }
  std::vector<Wanted> out;
  for (const Value* input : RequiredInputs(model)) {
    const auto it = named.find(input->name());
    out.push_back({input->name(), it == named.end() ? input->name() : it->second, input->dtype()});
    if (it != named.end()) named.erase(it);
  }
  if (!named.empty())
    return InvalidArgument("--feed: the model has no input '" + named.begin()->first + "'");
  const Loss& loss = options.training.step.loss;
  ASSIGN_OR_RETURN(const std::vector<LossTerm> terms, LossTerms(loss));
  for (size_t i = 0; i < terms.size() && loss.kind != Loss::Kind::kOutput; ++i) {
    const Value* prediction = Prediction(model, terms[i].prediction);
    const DType like_prediction = prediction == nullptr ? DType::kUndefined : prediction->dtype();
    out.push_back({i == 0 ? kTargetInput : terms[i].target,
                   i == 0 ? options.target : terms[i].target,
                   loss.kind == Loss::Kind::kCrossEntropy ? DType::kInt64 : like_prediction});
  }
  return out;
}

// The same numbers in another dtype.
Result<Tensor> Convert(const Tensor& tensor, DType dtype, const std::string& name) {
  if (tensor.dtype() == dtype || dtype == DType::kUndefined) return tensor;
  Tensor out;
  const auto write = [&](auto tag) {
    using T = typename decltype(tag)::type;
    out = Tensor::Of<T>(tensor.shape(), tensor.ToVector<T>());
  };
  const bool is_numeric = kNumericTypes.Contains(tensor.dtype()) || tensor.dtype() == DType::kBool;
  if (is_numeric && !(IsFloating(tensor.dtype()) && IsInteger(dtype)) &&
      DispatchNumeric(dtype, write))
    return out;
  return InvalidArgument("array '" + name + "' is " + DTypeName(tensor.dtype()) +
                         ", its input is " + DTypeName(dtype));
}

Result<std::shared_ptr<const Dataset>> LoadArrays(const std::vector<std::string>& paths,
                                                  const std::vector<Wanted>& wanted) {
  if (paths.size() > 1) return InvalidArgument("--data takes one file of arrays, or texts");
  ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile(paths[0]));
  Arrays out;
  std::string missing, there;
  for (const auto& [name, tensor] : file.tensors) there += " '" + name + "'";
  for (const Wanted& one : wanted) {
    const auto it = file.tensors.find(one.array);
    if (it == file.tensors.end()) {
      missing +=
          "\n  no array '" + one.array + "' for " +
          (one.input == kTargetInput ? "the loss (--target NAME)"
                                     : "input '" + one.input + "' (--feed " + one.input + "=NAME)");
      continue;
    }
    ASSIGN_OR_RETURN(out[one.input], Convert(it->second, one.dtype, one.array));
  }
  if (!missing.empty())
    return InvalidArgument("'" + paths[0] + "':" + missing + "\n  it has" + there);
  return MakeArrayDataset(std::move(out));
}

// Draws the held-out part at random, by the seed alone.
Status SplitArrays(const TrainOptions& options, TrainData* data) {
  const int64_t size = data->train->size();
  const auto held_out =
      static_cast<int64_t>(std::llround(options.validation_part * static_cast<double>(size)));
  if (held_out == 0) return {};
  ASSIGN_OR_RETURN(
      Sampler sampler,
      Sampler::Create({.size = size, .batch_size = size, .seed = options.training.seed}));
  const auto order = sampler.Batch(0);
  const auto middle = order.begin() + (size - held_out);
  ASSIGN_OR_RETURN(data->validation, Subset(data->train, {middle, order.end()}));
  ASSIGN_OR_RETURN(data->train, Subset(data->train, {order.begin(), middle}));
  return {};
}

Result<TrainData> LoadArrayData(const TrainOptions& options, const std::vector<Wanted>& wanted) {
  TrainData out;
  ASSIGN_OR_RETURN(out.train, LoadArrays(options.data, wanted));
  if (options.validation.empty()) {
    RETURN_IF_ERROR(SplitArrays(options, &out));
  } else {
    ASSIGN_OR_RETURN(out.validation, LoadArrays({options.validation}, wanted));
  }
  return out;
}

Result<TextWindows> WindowsFor(const TrainOptions& options, const std::vector<Value*>& inputs) {
  if (inputs.size() != 1 || inputs[0]->dtype() != DType::kInt64) {
    return InvalidArgument("to train on text, the model must have one input, int64[batch, length]");
  }
  TextWindows out{
      .length = options.context, .input_name = inputs[0]->name(), .target_name = kTargetInput};
  const auto& shape = inputs[0]->type().shape;
  if (out.length == 0 && shape && shape->size() == 2) out.length = (*shape)[1].value;
  if (out.length < 1)
    return InvalidArgument("the model's input leaves the length open: give --context");
  return out;
}

Result<TrainData> LoadTextData(const TrainOptions& options, const Model& model) {
  ASSIGN_OR_RETURN(TextWindows windows, WindowsFor(options, RequiredInputs(model)));
  std::string text;
  for (const std::string& path : options.data) {
    ASSIGN_OR_RETURN(const std::string one, ReadWholeFile(PosixFileSystem(), path, kMaxTextBytes));
    text += one;
  }
  const double all = static_cast<double>(text.size());
  if (!options.validation.empty()) {
    ASSIGN_OR_RETURN(const std::string one,
                     ReadWholeFile(PosixFileSystem(), options.validation, kMaxTextBytes));
    text += one;  // one vocabulary for both
  }
  TrainData out;
  out.text = std::make_shared<const TextCorpus>(text);
  windows.end = options.validation.empty() ? 1 - options.validation_part
                                           : all / static_cast<double>(text.size());
  ASSIGN_OR_RETURN(out.train, MakeTextDataset(out.text, windows));
  windows.begin = std::exchange(windows.end, 1);
  if (windows.begin < 1) {
    ASSIGN_OR_RETURN(out.validation, MakeTextDataset(out.text, windows));
  }
  return out;
}

}  // namespace

bool IsText(const TrainOptions& options) {
  for (const char* ending : {".npz", ".npy", ".safetensors"}) {
    if (options.data[0].ends_with(ending)) return false;
  }
  return true;
}

Result<TrainData> LoadTrainData(const TrainOptions& options, const Model& model) {
  if (IsText(options)) return LoadTextData(options, model);
  ASSIGN_OR_RETURN(const std::vector<Wanted> wanted, WantedArrays(options, model));
  return LoadArrayData(options, wanted);
}

}  // namespace caesura::command
