// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss, and their gradients (ai.caesura): a block a
// sample, then one block that adds the samples up in double, in their order.
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/cuda/row_source.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/loss_spec.h"

namespace caesura {
namespace {

// Scores [batch, classes, positions]: sample i's are `at`, `at + positions` and so on.
constexpr char kSample[] =
    "const i64 at = (i / positions * classes) * positions + i % positions;\n"
    "i64 label = labels[i];\n"
    "const bool ignored = has_ignore && label == ignore;\n"
    "if (!ignored && (label < 0 || label >= classes)) {\n"
    "if (threadIdx.x == 0) atomicCAS(error, 0u, number);\nlabel = 0;\n}\n"
    "if (ignored) label = 0;\n"
    "const C weight = ignored ? (C)0 : weights ? Load(weights + label) : (C)1;\n";

// Per sample: its loss and its weight. Softmax: log-probabilities, which are written to `log_prob`.
constexpr char kForward[] = R"(
extern "C" __global__ void sample_losses(const S* x, const L* labels, const S* weights, S* log_prob,
    S* losses, double* loss_parts, double* weight_parts, i64 samples, i64 classes, i64 positions,
    int has_ignore, i64 ignore, unsigned* error, unsigned number) {
  for (i64 i = blockIdx.x; i < samples; i += gridDim.x) {
    SAMPLE
    C shift = 0;
    if (SOFTMAX) {
      C most = -INFINITE;
      for (i64 c = threadIdx.x; c < classes; c += blockDim.x)
        most = ExtremeMax(most, Load(x + at + c * positions));
      most = RowReduce(most, RowMax());
      C sum = 0;
      for (i64 c = threadIdx.x; c < classes; c += blockDim.x)
        sum += EXP(Load(x + at + c * positions) - most);
      shift = most + LOG(RowReduce(sum, RowSum()));
    }
    // Read before log_prob is written, which may lie where x does.
    const C score = Load(x + at + label * positions);
    __syncthreads();
    if (log_prob) {
      for (i64 c = threadIdx.x; c < classes; c += blockDim.x)
        Store(log_prob + at + c * positions, Load(x + at + c * positions) - shift);
    }
    if (threadIdx.x == 0) {
      const C loss = ignored ? (C)0 : -(score - shift) * weight;
      if (losses) Store(losses + i, loss);
      loss_parts[i] = loss;
      weight_parts[i] = weight;
    }
    __syncthreads();
  }
}

extern "C" __global__ void finish_loss(const double* loss_parts, const double* weight_parts, S* loss,
    i64 samples, int mean) {
  double sum = 0, weight = 0;
  for (i64 i = threadIdx.x; i < samples; i += blockDim.x) {
    sum += loss_parts[i];
    weight += weight_parts[i];
  }
  sum = RowReduce(sum, RowSum());
  weight = RowReduce(weight, RowSum());
  if (threadIdx.x == 0) Store(loss, (C)(mean ? sum / weight : sum));
}
)";

constexpr char kBackward[] = R"(
extern "C" __global__ void total_weight(const L* labels, const S* weights, double* total, i64 samples,
    i64 classes, int has_ignore, i64 ignore) {
  double sum = 0;
  for (i64 i = threadIdx.x; i < samples; i += blockDim.x) {
    const i64 label = labels[i];
    const bool counts = !(has_ignore && label == ignore) && label >= 0 && label < classes;
    if (counts) sum += weights ? (double)Load(weights + label) : 1.0;
  }
  sum = RowReduce(sum, RowSum());
  if (threadIdx.x == 0) *total = sum;
}

extern "C" __global__ void score_gradients(const S* d_loss, const S* log_prob, const L* labels,
    const S* weights, const double* total, S* dx, i64 samples, i64 classes, i64 positions,
    int has_ignore, i64 ignore, int mean, int one_loss, unsigned* error, unsigned number) {
  for (i64 i = blockIdx.x; i < samples; i += gridDim.x) {
    SAMPLE
    const C g = Load(d_loss + (one_loss ? 0 : i)) / (mean ? (C)*total : (C)1) * weight;
    for (i64 c = threadIdx.x; c < classes; c += blockDim.x) {
      C v = SOFTMAX ? EXP(Load(log_prob + at + c * positions)) * g : (C)0;
      if (c == label) v -= g;
      Store(dx + at + c * positions, ignored ? (C)0 : v);
    }
  }
}
)";

std::string Source(const char* text, DType dtype, const LossSpec& spec, bool softmax) {
  std::string body = text;
  const size_t sample = body.find("SAMPLE");
  body.replace(sample, std::size("SAMPLE") - 1, kSample);
  const std::string suffix = dtype == DType::kFloat64 ? "" : "f";
  return CudaRowPrelude() + "typedef " + CudaStorageType(dtype) + " S;\ntypedef " +
         CudaComputeType(dtype) + " C;\ntypedef " + CudaStorageType(spec.label_type) +
         " L;\n#define SOFTMAX " + (softmax ? "true" : "false") + "\n#define EXP exp" + suffix +
         "\n#define LOG log" + suffix + "\n" + body;
}

CudaGrid GridOf(const CudaDevice& device, const LossSpec& spec) {
  return {static_cast<unsigned>(
              std::min<int64_t>(spec.samples(), int64_t{16} * device.multiprocessors())),
          static_cast<unsigned>(std::clamp<int64_t>((spec.classes + 31) / 32 * 32, 32, 512))};
}

std::string WrongLabel(const LossSpec& spec) {
  return spec.node + " a label is outside [0, " + std::to_string(spec.classes) + ")";
}

constexpr CudaGrid kOneBlock = {1, 256};

Status CreateLoss(KernelInfo& info, const CudaDevicePtr& device, bool softmax) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, info.InputShape(0), 1, 2));
  if (spec.classes == 0) return info.Invalid("at least one class expected");
  if (spec.samples() == 0) return info.Refuse("there are no samples");
  const bool each = spec.reduction == LossReduction::kNone;
  info.SetOutput(0, dtype, each ? info.InputShape(1) : Shape{});
  const bool has_log_prob = softmax && info.HasOutput(1);
  if (softmax) info.SetOutput(1, dtype, info.InputShape(0));
  const size_t bytes = static_cast<size_t>(spec.samples()) * sizeof(double);
  const size_t losses = info.BookScratch(bytes), weights = info.BookScratch(bytes);
  const std::string source = Source(kForward, dtype, spec, softmax);
  ASSIGN_OR_RETURN(const CudaKernel samples,
                   CudaKernel::Make(device, source, "sample_losses", GridOf(*device, spec)));
  ASSIGN_OR_RETURN(const CudaKernel finish,
                   CudaKernel::Make(device, source, "finish_loss", kOneBlock));
  info.SetCompute([=, error = device->error_cell(),
                   number = device->AddError(WrongLabel(spec))](KernelContext& context) -> Status {
    const void* given = spec.weight_input < 0 ? nullptr : context.Input<void>(spec.weight_input);
    void *of_losses = context.Scratch<void>(losses), *of_weights = context.Scratch<void>(weights);
    RETURN_IF_ERROR(samples.Launch(context.Input<void>(0), context.Input<void>(1), given,
                                   has_log_prob ? context.Output<void>(1) : nullptr,
                                   each ? context.Output<void>(0) : nullptr, of_losses, of_weights,
                                   spec.samples(), spec.classes, spec.positions,
                                   static_cast<int>(spec.has_ignore), spec.ignore, error, number));
    if (each) return {};
    return finish.Launch(of_losses, of_weights, context.Output<void>(0), spec.samples(),
                         static_cast<int>(spec.reduction == LossReduction::kMean));
  });
  return {};
}

// SoftmaxCrossEntropyLossGrad (dLoss, log_prob, labels, weights?); NegativeLogLikelihoodLossGrad
// (dLoss, labels, weights?, shape[host]).
Status CreateLossGrad(KernelInfo& info, const CudaDevicePtr& device, bool softmax) {
  const DType dtype = info.InputDType(0);
  Shape scores;
  if (softmax) {
    scores = info.InputShape(1);
  } else {
    Result<Shape> given = CheckedShape(info.HostInts(3), dtype);
    if (!given.ok()) return info.Invalid(given.status().message());
    scores = *std::move(given);
  }
  const int label_input = softmax ? 2 : 1;
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, scores, label_input, label_input + 1));
  if (spec.samples() == 0 || spec.classes == 0) return info.Refuse("there are no samples");
  const bool each = spec.reduction == LossReduction::kNone;
  if (info.InputShape(0) != (each ? info.InputShape(label_input) : Shape{}))
    return info.Invalid("dLoss: unexpected shape " + info.InputShape(0).ToString());
  info.SetOutput(0, dtype, scores);
  const bool mean = spec.reduction == LossReduction::kMean;
  const size_t total = info.BookScratch(sizeof(double));
  const std::string source = Source(kBackward, dtype, spec, softmax);
  ASSIGN_OR_RETURN(const CudaKernel weigh,
                   CudaKernel::Make(device, source, "total_weight", kOneBlock));
  ASSIGN_OR_RETURN(const CudaKernel gradients,
                   CudaKernel::Make(device, source, "score_gradients", GridOf(*device, spec)));
  info.SetCompute([=, error = device->error_cell(),
                   number = device->AddError(WrongLabel(spec))](KernelContext& context) -> Status {
    const void* labels = context.Input<void>(spec.label_input);
    const void* given = spec.weight_input < 0 ? nullptr : context.Input<void>(spec.weight_input);
    const int has_ignore = spec.has_ignore;
    void* divisor = context.Scratch<void>(total);
    if (mean) {
      RETURN_IF_ERROR(weigh.Launch(labels, given, divisor, spec.samples(), spec.classes, has_ignore,
                                   spec.ignore));
    }
    return gradients.Launch(context.Input<void>(0), softmax ? context.Input<void>(1) : nullptr,
                            labels, given, divisor, context.Output<void>(0), spec.samples(),
                            spec.classes, spec.positions, has_ignore, spec.ignore,
                            static_cast<int>(mean), static_cast<int>(!each), error, number);
  });
  return {};
}

}  // namespace

void RegisterCudaLoss(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, std::vector<int> host_inputs, auto create,
                 bool softmax) {
    registry.Add({.op_type = op,
                  .domain = domain,
                  .types = kFloatTypes,
                  .host_inputs = std::move(host_inputs),
                  .create = [=](KernelInfo& info) { return create(info, device, softmax); }});
  };
  add("SoftmaxCrossEntropyLoss", "", {}, CreateLoss, true);
  add("NegativeLogLikelihoodLoss", "", {}, CreateLoss, false);
  add("SoftmaxCrossEntropyLossGrad", kCaesuraDomain, {}, CreateLossGrad, true);
  add("NegativeLogLikelihoodLossGrad", kCaesuraDomain, {3}, CreateLossGrad, false);
}

}  // namespace caesura
