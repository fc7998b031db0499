// SPDX-License-Identifier: Apache-2.0
// Rules that look for what a report's user would try first. Each needs a cause that shows in the
// report.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/base/build_facts.h"
#include "training/report/report.h"

namespace caesura {
namespace {

// Below these shares of the time, a change gains too little to be tried first.
constexpr double kWorthwhile = 0.05, kLarge = 0.25;
constexpr int64_t kTinyStepNs = 20'000;  // a kernel's own cost is of this order
constexpr size_t kMuchMemory = size_t{256} << 20;
constexpr double kWorse = 1.05;  // of a loss: more than noise between two validations

std::string Percent(double share) {
  char text[16];
  std::snprintf(text, sizeof(text), "%.0f%%", 100 * share);
  return text;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

bool IsBreak(const Fallback& fallback) { return fallback.op == "a graph break"; }

class Rules {
 public:
  explicit Rules(const Report& report) : report_(report) {
    for (const RecordedRun& run : report.runs) wall_ns_ += static_cast<double>(run.duration_ns);
  }

  std::vector<Advice> Apply() {
    LossThatFails();
    GraphBreaks();
    CallsLeftToPyTorch();
    StepsSizedAtRunTime();
    Bfloat16();
    IdleThreads();
    TinySteps();
    OptimizerShare();
    PeakMemory();
    Overfitting();
    return std::move(out_);
  }

 private:
  using Wanted = std::function<bool(const RecordedStep&)>;

  // The share of the runs' time in steps of a kind.
  double Share(const Wanted& wanted) const {
    double ns = 0;
    for (const RecordedRun& run : report_.runs) {
      for (const RecordedStep& step : run.steps)
        ns += wanted(step) ? static_cast<double>(step.duration_ns) : 0;
    }
    return wall_ns_ > 0 ? ns / wall_ns_ : 0;
  }

  void Add(std::string what, std::string why) { out_.push_back({std::move(what), std::move(why)}); }

  void LossThatFails() {
    const auto& points = report_.curves.points();
    const auto bad = std::find_if(points.begin(), points.end(),
                                  [](const auto& p) { return !std::isfinite(p.loss); });
    if (bad != points.end()) {
      Add("Lower the learning rate, let it rise over the first updates (warmup), or clip the "
          "gradients",
          "The loss is no number at update " + std::to_string(bad->update) + ".");
      return;
    }
    if (points.size() < 8) return;
    const size_t quarter = points.size() / 4;
    const auto mean = [&](size_t begin) {
      double sum = 0;
      for (size_t i = begin; i < begin + quarter; ++i) sum += points[i].loss;
      return sum / static_cast<double>(quarter);
    };
    const double first = mean(0), last = mean(points.size() - quarter);
    if (last > first) {
      Add("Lower the learning rate", "The loss rises: its mean is " + Number(first) +
                                         " over the first quarter and " + Number(last) +
                                         " over the last.");
    }
  }

  // A break costs time on both of its sides, so no share of the time tells whether it matters.
  void GraphBreaks() {
    const auto first = std::find_if(report_.fallbacks.begin(), report_.fallbacks.end(), IsBreak);
    if (first == report_.fallbacks.end()) return;
    const auto count = std::count_if(first, report_.fallbacks.end(), IsBreak);
    std::string why =
        "Python runs between the parts that a graph break leaves, and no pass works "
        "across it. ";
    why += count == 1 ? "The only one" : "The first of " + std::to_string(count);
    if (!first->places.empty()) why += ", at " + first->places.front() + ",";
    Add("Write the forward without the graph break", why + " comes from: " + first->reason + ".");
  }

  void CallsLeftToPyTorch() {
    const double inside = Share([](const RecordedStep& step) { return step.op_type == "ATen"; });
    double share = inside;
    if (report_.own_and_pytorch_seconds) {
      const auto& [own, pytorch] = *report_.own_and_pytorch_seconds;
      if (own + pytorch > 0) share = std::max(share, pytorch / (own + pytorch));
    }
    if (share < kWorthwhile) return;
    std::string why = Percent(share) + " of the time is spent in calls that PyTorch runs.";
    const auto first =
        std::find_if_not(report_.fallbacks.begin(), report_.fallbacks.end(), IsBreak);
    if (first != report_.fallbacks.end())
      why += " The first of them is " + first->op + ": " + first->reason + ".";
    Add("Write the calls that are left to PyTorch in other ops", why);
  }

  void StepsSizedAtRunTime() {
    const Wanted late = [](const RecordedStep& step) {
      return step.kind == PlanStep::Kind::kDynamic;
    };
    const double share = Share(late);
    if (share < kWorthwhile) return;
    Add("Make sizes known before the run: pad to fixed lengths, or take masks in place of "
        "selections",
        "Steps whose sizes show only at run time take " + Percent(share) +
            " of the time: their kernels are made anew in each run, and their memory is not "
            "planned.");
  }

  void Bfloat16() {
    const Wanted is_product = [](const RecordedStep& step) {
      const std::string& op = step.op_type;
      const bool multiplies =
          op.find("MatMul") != std::string::npos || op.find("Gemm") != std::string::npos ||
          op.find("Conv") != std::string::npos || op.find("Attention") != std::string::npos;
      return multiplies &&
             std::any_of(step.inputs.begin(), step.inputs.end(), [](const std::string& input) {
               return input.find(" float32[") != std::string::npos;
             });
    };
    const double share = Share(is_product);
    if (share < kLarge || !HasBfloat16()) return;
    Add("precision \"bf16\", or torch.autocast for a wrapped module",
        "Products, convolutions and attention in float32 take " + Percent(share) +
            " of the time, and this processor multiplies bfloat16 itself.");
  }

  static bool HasBfloat16() {
    for (const auto& [name, value] : BuildFacts()) {
      if (name == "instruction set") return value.find("bfloat16") != std::string::npos;
    }
    return false;
  }

  void IdleThreads() {
    double used = 0, available = 0;
    for (const RecordedRun& run : report_.runs) {
      for (const RecordedStep& step : run.steps) {
        used += static_cast<double>(step.statistics.process_cpu_ns);
        available += static_cast<double>(step.duration_ns) * run.threads;
      }
    }
    if (available == 0 || report_.runs.front().threads < 2 || used / available > 0.6) return;
    Add("A larger batch, or fewer threads",
        "The kernels may use " + std::to_string(report_.runs.front().threads) +
            " threads and keep " + Percent(used / available) + " of their time busy.");
  }

  void TinySteps() {
    const double share =
        Share([](const RecordedStep& step) { return step.duration_ns < kTinyStepNs; });
    if (share < kLarge) return;
    Add("A larger batch", "Steps of less than 20 microseconds each take " + Percent(share) +
                              " of the time: there, starting a kernel costs as much as its work.");
  }

  void OptimizerShare() {
    const double share =
        Share([](const RecordedStep& step) { return step.phase == Phase::kOptimizer; });
    if (share < kLarge) return;
    Add("A larger batch, or several batches to an update (accumulation_steps)",
        "The optimizer takes " + Percent(share) + " of the time, whatever the batch is.");
  }

  void PeakMemory() {
    for (const RecordedRun& run : report_.runs) {
      const int peak = run.memory.Peak();
      if (peak < 0 || run.memory.samples[peak].total() < kMuchMemory) continue;
      const MemorySample& sample = run.memory.samples[peak];
      size_t kept = 0;  // forward values that the backward reads
      for (const LiveValue& value : run.memory.largest) {
        if (value.kind != "arena" || value.first_step < 0 || value.last_step <= sample.step)
          continue;
        const auto phase = [&](int step) {
          return run.steps[std::min<size_t>(step, run.steps.size() - 1)].phase;
        };
        const bool waits =
            phase(value.first_step) == Phase::kForward && phase(value.last_step) != Phase::kForward;
        if (waits) kept += value.bytes;
      }
      const double share = static_cast<double>(kept) / static_cast<double>(sample.total());
      if (share < kLarge) continue;
      Add("memory_budget, if memory is short",
          "At the peak of " + std::to_string(sample.total() >> 20) + " MiB, " + Percent(share) +
              " are results of the forward that wait for the backward. A budget "
              "has some of them computed again.");
      return;
    }
  }

  void Overfitting() {
    const auto& validations = report_.curves.validations();
    if (validations.size() < 3) return;
    const auto best =
        std::min_element(validations.begin(), validations.end(),
                         [](const auto& a, const auto& b) { return a.loss < b.loss; });
    if (!(validations.back().loss > kWorse * best->loss)) return;
    Add("Keep the checkpoint of the lowest validation loss, and end earlier",
        "The validation loss was lowest, " + Number(best->loss) + ", at update " +
            std::to_string(best->update) + " and is " + Number(validations.back().loss) +
            " at the end.");
  }

  const Report& report_;
  double wall_ns_ = 0;
  std::vector<Advice> out_;
};

}  // namespace

std::vector<Advice> FirstThingsToTry(const Report& report) { return Rules(report).Apply(); }

}  // namespace caesura
