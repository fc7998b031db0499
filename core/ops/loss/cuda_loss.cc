// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLoss, SoftmaxCrossEntropyLossTraining (ai.caesura), NegativeLogLikelihoodLoss,
// and their gradients (ai.caesura): a block a sample, then one block that adds the samples up in
// double, in their order.
#include "core/cuda/cuda_source.h"
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/cuda/element_source.h"
#include "core/kernels/cuda/strided_walk.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/loss/loss_spec.h"

namespace caesura {
namespace {

// As many threads as a row has use for, at most `most`.
CudaGrid GridOf(const CudaDevice& device, const LossSpec& spec, unsigned most) {
  unsigned threads = 32;
  while (threads < most && threads * int64_t{8} < spec.classes) threads *= 2;
  return {static_cast<unsigned>(
              std::min<int64_t>(spec.samples(), int64_t{32} * device.multiprocessors())),
          threads};
}

// The columns that a thread reads at once: at most 16, and few past the row's end.
int64_t ColumnsAtOnce(int64_t classes, int64_t threads) {
  const int64_t all = (classes + threads - 1) / threads, times = (all + 15) / 16;
  return (all + times - 1) / times;
}

// The places of a sample's scores in what is read and in what is written: of the first one, and the
// distance from class to class.
struct Places {
  StridedWalk samples;
  std::array<int64_t, 2> strides;
  bool wide;  // offsets inside a sample may need 64 bits

  static Places Make(const Shape& scores, const Layout& from, const Layout& to) {
    Places out;
    std::vector<int64_t> dims = scores.dims();
    std::vector<std::vector<int64_t>> of = {StridesOf(scores, from), StridesOf(scores, to)};
    for (size_t n = 0; n < 2; ++n) {
      out.strides[n] = of[n][1];
      of[n].erase(of[n].begin() + 1);
    }
    dims.erase(dims.begin() + 1);
    out.samples = StridedWalk::Make(dims, of);
    out.wide = scores[1] * std::max(out.strides[0], out.strides[1]) > int64_t{1} << 30;
    return out;
  }
};

std::string Source(const char* file, DType dtype, const LossSpec& spec, const Places& places,
                   bool softmax, unsigned threads, DType written) {
  const auto stride = [&](int n, const char* name) {
    return places.strides[n] == 1 ? std::string("1") : std::string("(Index)") + name;
  };
  const std::string suffix = dtype == DType::kFloat64 ? "" : "f";
  return CudaMacros({{"S_TYPE", CudaStorageType(dtype)},
                     {"Y_TYPE", CudaStorageType(written)},
                     {"C_TYPE", CudaComputeType(dtype)},
                     {"L_TYPE", CudaStorageType(spec.label_type)},
                     {"INDEX_TYPE", places.wide ? "i64" : "int"},
                     {"X_STRIDE", stride(0, "x_stride")},
                     {"Y_STRIDE", stride(1, "y_stride")},
                     {"THREADS", std::to_string(threads)},
                     {"AT_ONCE", std::to_string(ColumnsAtOnce(spec.classes, threads))},
                     {"SOFTMAX", softmax ? "true" : "false"},
                     {"EXP", "exp" + suffix},
                     {"LOG", "log" + suffix},
                     {"WALK_NUMBERS", std::to_string(places.samples.Numbers().size())},
                     {"OFFSETS", places.samples.Offsets()}}) +
         CudaInclude(file);
}

std::string WrongLabel(const LossSpec& spec) {
  return spec.node + " a label is outside [0, " + std::to_string(spec.classes) + ")";
}

constexpr CudaGrid kOneBlock = {1, 1024};

Status CreateLoss(KernelInfo& info, const CudaDevicePtr& device, bool softmax) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, info.InputShape(0), 1, 2));
  if (spec.classes == 0) return info.Invalid("at least one class expected");
  if (spec.samples() == 0) return info.Refuse("there are no samples");
  const bool each = spec.reduction == LossReduction::kNone;
  info.SetOutput(0, dtype, each ? info.InputShape(1) : Shape{});
  const bool has_log_prob = softmax && info.HasOutput(1);
  const bool has_lse = softmax && info.HasOutput(2);
  if (softmax) {
    info.SetOutput(1, dtype, info.InputShape(0));
    info.SetOutput(2, LogSumDType(dtype), info.InputShape(1));
  }
  const size_t bytes = static_cast<size_t>(spec.samples()) * sizeof(double);
  const size_t losses = info.BookScratch(bytes), weights = info.BookScratch(bytes);
  // A multiprocessor runs one or two blocks of that size at once, and the cache holds their rows
  // until log-probabilities are made of them.
  const CudaGrid grid = GridOf(*device, spec, 1024);
  const Places places =
      Places::Make(info.InputShape(0), info.input(0).layout, info.OutputLayout(1));
  const std::string source =
      Source("core/ops/loss/loss.cuh", dtype, spec, places, softmax, grid.threads, dtype);
  ASSIGN_OR_RETURN(const CudaKernel samples,
                   CudaKernel::Make(device, source, "sample_losses", grid));
  ASSIGN_OR_RETURN(const CudaKernel finish,
                   CudaKernel::Make(device, source, "finish_loss", kOneBlock));
  info.SetCompute([=, walk = places.samples.Numbers(), strides = places.strides,
                   error = device->error_cell(),
                   number = device->AddError(WrongLabel(spec))](KernelContext& context) -> Status {
    const void* given = spec.weight_input < 0 ? nullptr : context.Input<void>(spec.weight_input);
    void *of_losses = context.Scratch<void>(losses), *of_weights = context.Scratch<void>(weights);
    const int64_t count = spec.samples();
    const int has_ignore = spec.has_ignore;
    CudaArguments arguments;
    arguments.AddPointer(context.Input<void>(0));
    arguments.AddPointer(context.Input<void>(1));
    arguments.AddPointer(given);
    arguments.AddPointer(has_log_prob ? context.Output<void>(1) : nullptr);
    arguments.AddPointer(has_lse ? context.Output<void>(2) : nullptr);
    arguments.AddPointer(each ? context.Output<void>(0) : nullptr);
    arguments.AddPointer(of_losses);
    arguments.AddPointer(of_weights);
    for (const int64_t* value : {&count, &spec.classes, walk.data(), &strides[0], &strides[1]})
      arguments.Add(value);
    arguments.Add(&has_ignore);
    arguments.Add(&spec.ignore);
    arguments.AddPointer(error);
    arguments.Add(&number);
    RETURN_IF_ERROR(samples.LaunchWith(arguments.addresses()));
    if (each) return {};
    return finish.Launch(of_losses, of_weights, context.Output<void>(0), spec.samples(),
                         static_cast<int>(spec.reduction == LossReduction::kMean));
  });
  return {};
}

// SoftmaxCrossEntropyLossGrad (dLoss, scores, labels, weights?, lse); NegativeLogLikelihoodLossGrad
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
  DType written = dtype;
  if (softmax) {
    ASSIGN_OR_RETURN(written, CheckScoreGradient(info, spec));
  } else {
    RETURN_IF_ERROR(CheckLossGradient(info, spec));
  }
  info.SetOutput(0, written, scores);
  const bool each = spec.reduction == LossReduction::kNone;
  const bool mean = spec.reduction == LossReduction::kMean;
  const size_t total = info.BookScratch(sizeof(double));
  const CudaGrid grid = GridOf(*device, spec, 512);
  const Places places =
      Places::Make(scores, softmax ? info.input(1).layout : Layout(), info.OutputLayout(0));
  const std::string source = Source("core/ops/loss/loss_gradient.cuh", dtype, spec, places, softmax,
                                    grid.threads, written);
  ASSIGN_OR_RETURN(const CudaKernel weigh,
                   CudaKernel::Make(device, source, "total_weight", kOneBlock));
  ASSIGN_OR_RETURN(const CudaKernel gradients,
                   CudaKernel::Make(device, source, "score_gradients", grid));
  info.SetCompute([=, walk = places.samples.Numbers(), strides = places.strides,
                   error = device->error_cell(),
                   number = device->AddError(WrongLabel(spec))](KernelContext& context) -> Status {
    const void* labels = context.Input<void>(spec.label_input);
    const void* given = spec.weight_input < 0 ? nullptr : context.Input<void>(spec.weight_input);
    const int has_ignore = spec.has_ignore;
    void* divisor = context.Scratch<void>(total);
    if (mean) {
      RETURN_IF_ERROR(weigh.Launch(labels, given, divisor, spec.samples(), spec.classes, has_ignore,
                                   spec.ignore));
    }
    const int64_t count = spec.samples();
    const int is_mean = mean, one_loss = !each;
    CudaArguments arguments;
    arguments.AddPointer(context.Input<void>(0));
    arguments.AddPointer(softmax ? context.Input<void>(1) : nullptr);
    arguments.AddPointer(labels);
    arguments.AddPointer(given);
    arguments.AddPointer(softmax ? context.Input<void>(4) : nullptr);
    arguments.AddPointer(divisor);
    arguments.AddPointer(context.Output<void>(0));
    for (const int64_t* value : {&count, &spec.classes, walk.data(), &strides[0], &strides[1]})
      arguments.Add(value);
    arguments.Add(&has_ignore);
    arguments.Add(&spec.ignore);
    arguments.Add(&is_mean);
    arguments.Add(&one_loss);
    arguments.AddPointer(error);
    arguments.Add(&number);
    return gradients.LaunchWith(arguments.addresses());
  });
  return {};
}

}  // namespace

void RegisterCudaLoss(KernelRegistry& registry, const CudaDevicePtr& device) {
  auto add = [&](const char* op, const char* domain, auto create, bool softmax, KernelDef def) {
    def.op_type = op;
    def.domain = domain;
    def.types = kFloatTypes;
    def.create = [=](KernelInfo& info) { return create(info, device, softmax); };
    registry.Add(std::move(def));
  };
  // The scores of a language model are its largest values: gradients overwrite them, and so do
  // log-probabilities.
  for (const char* domain : {"", kCaesuraDomain}) {
    add(*domain == 0 ? "SoftmaxCrossEntropyLoss" : "SoftmaxCrossEntropyLossTraining", domain,
        CreateLoss, true,
        {.aliases = {MayReuse(0, 1)}, .strided_inputs = {0}, .strided_outputs = {1}});
  }
  add("NegativeLogLikelihoodLoss", "", CreateLoss, false, {.strided_inputs = {0}});
  add("SoftmaxCrossEntropyLossGrad", kCaesuraDomain, CreateLossGrad, true,
      {.aliases = {MayReuse(1, 0)}, .strided_inputs = {1}, .strided_outputs = {0}});
  add("NegativeLogLikelihoodLossGrad", kCaesuraDomain, CreateLossGrad, false,
      {.host_inputs = {3}, .strided_outputs = {0}});
}

}  // namespace caesura
