// SPDX-License-Identifier: Apache-2.0
#include "core/ops/recurrent/recurrent_spec.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

using Kind = GateActivation::Kind;

// An activation by name: which of alpha and beta it reads, and what they are when not given.
struct NamedActivation {
  const char* name;
  Kind kind;
  bool reads_alpha, reads_beta;
  double alpha, beta;
};
constexpr NamedActivation kActivations[] = {
    {"relu", Kind::kRelu, false, false, 0, 0},
    {"tanh", Kind::kTanh, false, false, 0, 0},
    {"sigmoid", Kind::kSigmoid, false, false, 0, 0},
    {"affine", Kind::kAffine, true, true, 1, 0},
    {"leakyrelu", Kind::kLeakyRelu, true, false, 0.01, 0},
    {"thresholdedrelu", Kind::kThresholdedRelu, true, false, 1, 0},
    {"scaledtanh", Kind::kScaledTanh, true, true, 1, 1},
    {"hardsigmoid", Kind::kHardSigmoid, true, true, 0.2, 0.5},
    {"elu", Kind::kElu, true, false, 1, 0},
    {"softsign", Kind::kSoftsign, false, false, 0, 0},
    {"softplus", Kind::kSoftplus, false, false, 0, 0},
};

// Takes alphas and betas from the node's lists in the order of the activations that read them.
Status ReadActivations(const KernelInfo& info, RecurrentSpec& spec) {
  std::vector<std::string> names = info.Attr<std::vector<std::string>>("activations", {});
  if (names.empty()) {
    static const std::vector<std::string> kDefaults[] = {
        {"Tanh"}, {"Sigmoid", "Tanh"}, {"Sigmoid", "Tanh", "Tanh"}};
    const auto& defaults = kDefaults[static_cast<int>(spec.kind)];
    for (int64_t d = 0; d < spec.directions; ++d)
      names.insert(names.end(), defaults.begin(), defaults.end());
  }
  const size_t expected = (static_cast<size_t>(spec.kind) + 1) * spec.directions;
  if (names.size() != expected) {
    return info.Invalid(std::to_string(expected) + " activations expected, got " +
                        std::to_string(names.size()));
  }
  const auto alphas = info.Attr<std::vector<float>>("activation_alpha", {});
  const auto betas = info.Attr<std::vector<float>>("activation_beta", {});
  size_t alpha = 0, beta = 0;
  for (std::string name : names) {
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    const auto* found = std::find_if(std::begin(kActivations), std::end(kActivations),
                                     [&](const NamedActivation& a) { return name == a.name; });
    if (found == std::end(kActivations)) return info.Invalid("unknown activation '" + name + "'");
    GateActivation activation{found->kind, found->alpha, found->beta,
                              info.Attr<float>("clip", 0.0f)};
    if (found->reads_alpha && alpha < alphas.size()) activation.alpha = alphas[alpha++];
    if (found->reads_beta && beta < betas.size()) activation.beta = betas[beta++];
    spec.activations.push_back(activation);
  }
  return {};
}

Status CheckShape(const KernelInfo& info, int input, const Shape& expected) {
  if (info.InputShape(input) == expected) return {};
  return info.Invalid("input " + std::to_string(input) + ": expected " + expected.ToString() +
                      ", got " + info.InputShape(input).ToString());
}

Status ReadSizes(const KernelInfo& info, int first, bool quantized, RecurrentSpec& spec) {
  for (int input = first; input < first + 3; ++input) {
    if (!info.IsTensor(input))
      return info.Invalid("input " + std::to_string(input) + ": expected a tensor, got none");
  }
  const Shape &x = info.InputShape(first), &r = info.InputShape(first + 2);
  if (x.rank() != 3 || r.rank() != 3) return info.Invalid("X and R of rank 3 expected");
  const int64_t layout = info.Attr<int64_t>("layout", 0);
  if (layout != 0 && layout != 1)
    return info.Invalid("layout must be 0 or 1, got " + std::to_string(layout));
  spec.batch_first = layout == 1;
  spec.steps = x[spec.batch_first ? 1 : 0];
  spec.batch = x[spec.batch_first ? 0 : 1];
  spec.input = x[2];
  spec.hidden = r[quantized ? 1 : 2];
  const int64_t stated = info.Attr<int64_t>("hidden_size", spec.hidden);
  if (stated != spec.hidden)
    return info.Invalid("hidden_size " + std::to_string(stated) + " is not that of R");
  const std::string direction = info.Attr<std::string>("direction", "forward");
  if (direction == "bidirectional") spec.directions = 2;
  else if (direction == "reverse") spec.first_reversed = true;
  else if (direction != "forward")
    return info.Invalid("direction has a bad value '" + direction + "'");
  return {};
}

}  // namespace

Result<RecurrentSpec> MakeRecurrentSpec(const KernelInfo& info, RecurrentKind kind, int first,
                                        bool quantized) {
  RecurrentSpec spec;
  spec.kind = kind;
  spec.gates = kind == RecurrentKind::kRnn ? 1 : (kind == RecurrentKind::kGru ? 3 : 4);
  RETURN_IF_ERROR(ReadSizes(info, first, quantized, spec));
  RETURN_IF_ERROR(ReadActivations(info, spec));
  spec.linear_before_reset = info.Attr<int64_t>("linear_before_reset", 0) != 0;
  spec.input_forget = info.Attr<int64_t>("input_forget", 0) != 0;
  const bool lstm = kind == RecurrentKind::kLstm;
  spec.has_bias = info.HasInput(first + 3);
  spec.has_lens = info.HasInput(first + 4);
  spec.has_h = info.HasInput(first + 5);
  spec.has_c = lstm && info.HasInput(first + 6);
  spec.has_peepholes = lstm && info.HasInput(first + 7);
  const int64_t d = spec.directions, width = spec.gate_width();
  const auto matrix = [&](int64_t columns) {
    return quantized ? Shape{d, columns, width} : Shape{d, width, columns};
  };
  RETURN_IF_ERROR(CheckShape(info, first + 1, matrix(spec.input)));
  RETURN_IF_ERROR(CheckShape(info, first + 2, matrix(spec.hidden)));
  if (spec.has_bias) RETURN_IF_ERROR(CheckShape(info, first + 3, {d, 2 * width}));
  if (spec.has_lens) RETURN_IF_ERROR(CheckShape(info, first + 4, {spec.batch}));
  if (spec.has_h) RETURN_IF_ERROR(CheckShape(info, first + 5, spec.StateShape()));
  if (spec.has_c) RETURN_IF_ERROR(CheckShape(info, first + 6, spec.StateShape()));
  if (spec.has_peepholes) RETURN_IF_ERROR(CheckShape(info, first + 7, {d, 3 * spec.hidden}));
  if (spec.has_lens && info.InputDType(first + 4) != DType::kInt32)
    return info.Invalid("int32 sequence_lens expected");
  for (int i = 0; i < (lstm ? 8 : 6); ++i) {
    if (i == 4 || (quantized && (i == 1 || i == 2))) continue;
    if (info.HasInput(first + i) && info.InputDType(first + i) != info.InputDType(first)) {
      return info.Invalid("inputs of one dtype expected");
    }
  }
  return spec;
}

}  // namespace caesura
