// SPDX-License-Identifier: Apache-2.0
// Whole training steps (forward, cross-entropy, backward, AdamW) of a GPT of any size, made here
// with random weights, in C++ and on a GPU. The sizes of GPT-2 (124 M) where none are given.
//
//   gpt2_step                               the time of a step, and each op's share of it
//   gpt2_step --layers 2 --batch 1 --check  losses and parameters beside the CPU's; same bits twice
//   gpt2_step --plan                        makes the plan only, and counts its steps by op; with
//                                           CAESURA_VERBOSE=2 cuBLASLt's algorithm for each product
//                                           is logged
//
// Figures are printed as JSON objects, one a line. Ends with 1 where a check fails.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/onnx/model_reader.h"
#include "core/profile/profiler.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/cuda/cuda_provider.h"
#include "training/session/option_table.h"
#include "training/session/training_session.h"

namespace {

using caesura::Result;
using caesura::Status;
using caesura::Tensor;

struct Sizes {
  int layers = 12, width = 768, heads = 12, time = 1024, vocabulary = 50257, batch = 8;
  std::string precision = "bf16";
};

// `text` with values in place of marks.
std::string Filled(std::string text,
                   const std::vector<std::pair<std::string, std::string>>& marks) {
  for (const auto& [mark, value] : marks) {
    for (size_t at; (at = text.find(mark)) != text.npos;) text.replace(at, mark.size(), value);
  }
  return text;
}

std::string ModelText(const Sizes& sizes) {
  std::string weights, blocks, x = "x";
  for (int i = 0; i < sizes.layers; ++i) {
    const std::vector<std::pair<std::string, std::string>> marks = {{"@", std::to_string(i)},
                                                                    {"INPUT", x}};
    weights += Filled(R"(, float[$W] scale_a@, float[$W] shift_a@, float[$W,$3W] qkv@,
      float[$3W] qkv_bias@, float[$W,$W] proj@, float[$W] proj_bias@, float[$W] scale_b@,
      float[$W] shift_b@, float[$W,$4W] up@, float[$4W] up_bias@, float[$4W,$W] down@,
      float[$W] down_bias@)",
                      marks);
    blocks += Filled(R"(
  na@ = LayerNormalization <axis = -1> (INPUT, scale_a@, shift_a@)
  m@ = MatMul (na@, qkv@)
  l@ = Add (m@, qkv_bias@)
  q@, k@, v@ = Split <axis = -1, num_outputs = 3> (l@)
  a@ = Attention <is_causal = 1, q_num_heads = $H, kv_num_heads = $H> (q@, k@, v@)
  pm@ = MatMul (a@, proj@)
  pb@ = Add (pm@, proj_bias@)
  xa@ = Add (INPUT, pb@)
  nb@ = LayerNormalization <axis = -1> (xa@, scale_b@, shift_b@)
  um@ = MatMul (nb@, up@)
  ub@ = Add (um@, up_bias@)
  g@ = Gelu <approximate = "tanh"> (ub@)
  dm@ = MatMul (g@, down@)
  db@ = Add (dm@, down_bias@)
  xb@ = Add (xa@, db@))",
                     marks);
    x = "xb" + std::to_string(i);
  }
  const std::string text = R"(<ir_version: 10, opset_import: ["": 23]>
gpt (int64[batch,$T] tokens, float[$V,$W] token, float[$T,$W] position, float[$W] scale_f,
     float[$W] shift_f)" + weights +
                           R"() => (float[batch,$T,$V] scores) {
  e = Gather <axis = 0> (token, tokens)
  x = Add (e, position))" + blocks +
                           R"(
  last = LayerNormalization <axis = -1> (LAST, scale_f, shift_f)
  head = Transpose <perm = [1, 0]> (token)
  scores = MatMul (last, head)
})";
  return Filled(text, {{"$3W", std::to_string(3 * sizes.width)},
                       {"$4W", std::to_string(4 * sizes.width)},
                       {"$W", std::to_string(sizes.width)},
                       {"$H", std::to_string(sizes.heads)},
                       {"$T", std::to_string(sizes.time)},
                       {"$V", std::to_string(sizes.vocabulary)},
                       {"LAST", x}});
}

// Weights of GPT-2's size (a deviation of 0.02), ones for scales.
Result<caesura::Model> MakeModel(const Sizes& sizes) {
  auto parsed = caesura::ParseModelText(ModelText(sizes));
  if (!parsed.ok()) return parsed.status();
  caesura::Model model = *std::move(parsed);
  std::mt19937 random(1);
  const std::vector<caesura::Value*> inputs = model.graph->inputs();
  for (size_t i = 1; i < inputs.size(); ++i) {
    std::vector<int64_t> dims;
    for (const caesura::Dim& dim : *inputs[i]->type().shape) dims.push_back(dim.value);
    Tensor weight = Tensor::Zeros(caesura::DType::kFloat32, caesura::Shape(dims));
    const bool is_scale = inputs[i]->name().rfind("scale", 0) == 0;
    for (int64_t e = 0; e < weight.elements(); ++e) {
      // Evenly distributed: its deviation is that of the range, divided by the root of 12.
      const float drawn = (static_cast<float>(random()) * 0x1p-32f - 0.5f) * 0.07f;
      weight.data<float>()[e] = is_scale ? 1.0f : drawn;
    }
    model.graph->RemoveInput(inputs[i]);
    model.graph->SetInitializer(inputs[i], std::move(weight));
  }
  return model;
}

caesura::NamedValues Batch(const Sizes& sizes, uint32_t seed) {
  std::mt19937 random(seed);
  caesura::NamedValues out;
  for (const char* name : {"tokens", "next"}) {
    Tensor tensor = Tensor::Zeros(caesura::DType::kInt64, caesura::Shape{sizes.batch, sizes.time});
    for (int64_t e = 0; e < tensor.elements(); ++e)
      tensor.data<int64_t>()[e] = random() % static_cast<uint32_t>(sizes.vocabulary);
    out[name] = std::move(tensor);
  }
  return out;
}

using Session = std::unique_ptr<caesura::TrainingSession>;

Result<Session> Open(const Sizes& sizes, const caesura::ProviderList& providers) {
  auto model = MakeModel(sizes);
  if (!model.ok()) return model.status();
  caesura::TrainingOptions options;
  options.step.loss = caesura::Loss::CrossEntropy("next");
  options.step.loss.class_axis = -1;
  // Epsilon is above the rounding of gradients that are nothing else (a key's bias), of which AdamW
  // would make steps of full size.
  options.step.optimizer =
      caesura::AdamW{.learning_rate = 3e-4, .epsilon = 1e-6, .weight_decay = 0.1};
  options.step.clip_norm = 1;
  const std::string precision = sizes.precision == "tf32" ? "fp32" : sizes.precision;
  if (auto set = caesura::SetOption("precision", precision, &options); !set.ok()) return set;
  options.providers = providers;
  options.fallback = false;
  return caesura::TrainingSession::Create(*std::move(model), std::move(options));
}

// Losses of some steps, then all parameters' elements.
struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> parameters;
};

Result<Trained> Train(const Sizes& sizes, const caesura::ProviderList& providers, int steps) {
  auto session = Open(sizes, providers);
  if (!session.ok()) return session.status();
  Trained out;
  for (int i = 0; i < steps; ++i) {
    auto loss = (*session)->Step(Batch(sizes, static_cast<uint32_t>(i)));
    if (!loss.ok()) return loss.status();
    out.losses.push_back(*loss);
  }
  for (const std::string& name : (*session)->parameters().Names()) {
    auto parameter = (*session)->parameters().Get(name);
    if (!parameter.ok()) return parameter.status();
    auto copy = parameter->Clone();
    if (!copy.ok()) return copy.status();
    out.parameters.push_back(*std::move(copy));
  }
  return out;
}

bool SameBits(const Trained& a, const Trained& b) {
  if (a.losses != b.losses) return false;
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    const Tensor &x = a.parameters[i], &y = b.parameters[i];
    if (x.bytes() != y.bytes() || std::memcmp(x.raw(), y.raw(), x.bytes()) != 0) return false;
  }
  return true;
}

// Prints how far the GPU's losses and parameters are from the CPU's after three steps. False where
// the losses are further apart than they may be, or another run gives other bits.
Result<bool> Check(const Sizes& sizes, const caesura::ProviderList& cpu,
                   const caesura::ProviderList& gpu) {
  constexpr int kSteps = 3;
  auto got = Train(sizes, gpu, kSteps), again = Train(sizes, gpu, kSteps);
  if (!got.ok()) return got.status();
  if (!again.ok()) return again.status();
  auto wanted = Train(sizes, cpu, kSteps);
  if (!wanted.ok()) return wanted.status();
  // Sums have another order; halves round each product and attention to 2^-9 of it in bfloat16.
  const double tolerance = sizes.precision == "fp32" ? 1e-5 : 1e-2;
  const bool same = SameBits(*got, *again);
  bool passed = same;
  for (int i = 0; i < kSteps; ++i) {
    const double apart = std::abs(got->losses[i] - wanted->losses[i]) / std::abs(wanted->losses[i]);
    passed &= apart <= tolerance;  // not where a loss is no number
    std::printf("{\"step\": %d, \"loss\": %.7f, \"on_cpu\": %.7f, \"apart\": %.3g}\n", i,
                got->losses[i], wanted->losses[i], apart);
  }
  double apart = 0;
  for (size_t p = 0; p < got->parameters.size(); ++p) {
    const Tensor &a = got->parameters[p], &b = wanted->parameters[p];
    for (int64_t e = 0; e < a.elements(); ++e)
      apart = std::max(apart, std::abs(double{a.data<float>()[e]} - b.data<float>()[e]));
  }
  std::printf(
      "{\"check\": \"%s\", \"passed\": %s, \"tolerance\": %.3g, \"parameters_apart\": "
      "%.3g, \"same_bits_twice\": %s}\n",
      sizes.precision.c_str(), passed ? "true" : "false", tolerance, apart,
      same ? "true" : "false");
  return passed;
}

// Waits for the device at both ends of each step of the plan, so that the profiler's times are the
// device's.
class Waits : public caesura::ExecutionObserver {
 public:
  explicit Waits(const caesura::ExecutionProvider& provider) : provider_(provider) {}
  void OnStepBegin(const caesura::ExecutionPlan&, const caesura::ExecutionState&, int) override {
    provider_.Synchronise().ok();
  }
  void OnStepEnd(const caesura::ExecutionPlan&, const caesura::ExecutionState&, int,
                 const Status&) override {
    provider_.Synchronise().ok();
  }

 private:
  const caesura::ExecutionProvider& provider_;
};

// A line for all steps of one op that read and write so many bytes: their number, the time of one,
// and its bytes by that time. The slowest lines first.
void PrintSteps(const caesura::Profiler& profiler) {
  std::map<std::pair<std::string, size_t>, std::vector<double>> times;
  for (const caesura::ProfileEvent& event : profiler.Events()) {
    if (event.kind != caesura::ProfileEvent::Kind::kStep) continue;
    const caesura::StepSizes& of = event.sizes;
    times[{event.op_type, of.activation_bytes + of.parameter_bytes + of.output_bytes}].push_back(
        1e-3 * static_cast<double>(event.duration_ns));
  }
  std::vector<std::pair<double, std::string>> lines;
  for (auto& [step, us] : times) {
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2], total = std::accumulate(us.begin(), us.end(), 0.0);
    char line[120];
    std::snprintf(line, sizeof line, "%10.1f %6zu %10.1f %10.1f  ", total, us.size(), median,
                  1e-3 * static_cast<double>(step.second) / median);
    lines.emplace_back(-total, line + step.first);
  }
  std::sort(lines.begin(), lines.end());
  std::printf("  total us  steps  median us       GB/s  op\n");
  for (size_t i = 0; i < std::min<size_t>(lines.size(), 30); ++i)
    std::printf("%s\n", lines[i].second.c_str());
}

Status Time(const Sizes& sizes, const caesura::ProviderList& providers, int steps) {
  auto session = Open(sizes, providers);
  if (!session.ok()) return session.status();
  const caesura::NamedValues batch = Batch(sizes, 0);
  std::vector<double> milliseconds;
  double loss = 0;
  const int untimed = std::max(2, steps / 4);
  for (int i = 0; i < untimed + steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    auto done = (*session)->Step(batch);  // the loss has come to the host when it returns
    if (!done.ok()) return done.status();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i == 0) std::printf("first step: %.0f ms, loss %.5f\n", took.count(), *done);
    if (i >= untimed) milliseconds.push_back(took.count());
    loss = *done;
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double median = milliseconds[milliseconds.size() / 2];
  std::printf(
      "{\"system\": \"caesura\", \"precision\": \"%s\", \"batch\": %d, \"time\": %d, "
      "\"milliseconds\": %.3f, \"fastest\": %.3f, \"slowest\": %.3f, "
      "\"tokens_per_second\": %.0f, \"loss\": %.5f}\n",
      sizes.precision.c_str(), sizes.batch, sizes.time, median, milliseconds.front(),
      milliseconds.back(), 1e3 * sizes.batch * sizes.time / median, loss);
  Waits waits(*providers.front());
  caesura::Profiler profiler;
  auto watched = (*session)->Step(batch, {&waits, &profiler});
  if (!watched.ok()) return watched.status();
  std::printf("One step, with a wait after each op:\n%s\n", profiler.Summary().c_str());
  PrintSteps(profiler);
  return {};
}

// Prints how often the plan of a step has each op on the GPU, and on the host.
Status CountSteps(const Sizes& sizes, const caesura::ProviderList& providers) {
  auto session = Open(sizes, providers);
  if (!session.ok()) return session.status();
  auto plan = (*session)->runs().Plan(Batch(sizes, 0));
  if (!plan.ok()) return plan.status();
  std::map<std::string, int> on_gpu, on_host;
  for (const caesura::PlanStep& step : (*plan)->steps()) {
    const bool copies = step.kind == caesura::PlanStep::Kind::kCopy;
    ++(step.provider->device().is_host() ? on_host
                                         : on_gpu)[copies ? "copy" : step.node->op_type()];
  }
  const auto print = [](const char* name, const std::map<std::string, int>& counts) {
    std::printf("\"%s\": {", name);
    const char* between = "";
    for (const auto& [op, number] : counts)
      std::printf("%s\"%s\": %d", std::exchange(between, ", "), op.c_str(), number);
  };
  std::printf("{\"precision\": \"%s\", \"steps\": %zu, ", sizes.precision.c_str(),
              (*plan)->steps().size());
  print("on_gpu", on_gpu);
  std::printf("}, ");
  print("on_host", on_host);
  std::printf("}}\n");
  return {};
}

int Run(int count, char** arguments) {
  Sizes sizes;
  bool check = false, plan = false;
  int steps = 20;
  std::string provider = "cuda";
  CLI::App app("Whole training steps of a GPT on a GPU");
  app.add_option("--layers", sizes.layers)->capture_default_str();
  app.add_option("--width", sizes.width)->capture_default_str();
  app.add_option("--heads", sizes.heads)->capture_default_str();
  app.add_option("--time", sizes.time, "Tokens of a sequence")->capture_default_str();
  app.add_option("--vocabulary", sizes.vocabulary)->capture_default_str();
  app.add_option("--batch", sizes.batch)->capture_default_str();
  app.add_option("--precision", sizes.precision,
                 "fp32, tf32 (float32 with products in TF32), bf16 or fp16")
      ->capture_default_str();
  app.add_option("--steps", steps, "Timed ones")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--provider", provider)
      ->capture_default_str()
      ->check(CLI::IsMember({"cuda", "cpu"}));
  app.add_flag("--check", check, "Three steps beside the CPU's, twice");
  app.add_flag("--plan", plan, "The plan only");
  CLI11_PARSE(app, count, arguments);

  const caesura::ProviderList cpu = {caesura::MakeCpuProvider()};
  caesura::ProviderList providers = cpu;
  if (provider == "cuda") {
    caesura::CudaOptions options;
    options.tf32 = sizes.precision == "tf32";
    auto made = caesura::MakeCudaProvider(options);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
      return 1;
    }
    providers.insert(providers.begin(), *made);
  }
  Status status;
  bool passed = true;
  if (plan) {
    status = CountSteps(sizes, providers);
  } else if (check) {
    auto checked = Check(sizes, cpu, providers);
    status = checked.status();
    passed = checked.ok() && *checked;
  } else {
    status = Time(sizes, providers, steps);
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() && passed ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) { return Run(count, arguments); }
