// SPDX-License-Identifier: Apache-2.0
// All cases at once: in bfloat16, with dims of zero and one, as scalars, and through the model
// format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <set>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "graph_transforms/pipeline.h"
#include "tests/gradients/gradient_check.h"

namespace caesura {
namespace {

// A rounding to bfloat16 is off by up to 2^-9 of the number. Gradients are rounded a few times on
// their way, and what is compared is relative to the largest entry: eight such steps.
constexpr double kBFloat16Tolerance = 8.0 / 512;

// Cases whose ops have no bfloat16 in ONNX's schemas, so that no model can hold them.
const std::map<std::string, std::string> kNoBFloat16 = {
    {"Shrink", "Shrink knows no bfloat16"},
    {"SequenceAt", "no sequences of bfloat16"},
    {"SequenceTwice", "no sequences of bfloat16"},
    {"SequenceInsert", "no sequences of bfloat16"},
    {"SequenceErase", "no sequences of bfloat16"},
    {"SplitToSequence", "no sequences of bfloat16"},
    {"ConcatFromSequenceNewAxis", "no sequences of bfloat16"},
};

void ExpectNear(const CaseRun& found, const std::vector<std::vector<double>>& expected,
                double tolerance) {
  ASSERT_EQ(found.gradients.size(), expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    ASSERT_EQ(found.gradients[k].size(), expected[k].size());
    const double scale = ScaleOf(expected[k]);
    for (size_t i = 0; i < expected[k].size(); ++i) {
      EXPECT_NEAR(found.gradients[k][i], expected[k][i], tolerance * scale)
          << "d" << found.xs[k] << "[" << i << "]";
    }
  }
}

// Both begin from numbers that are exact in bfloat16.
TEST(GradientSweep, BFloat16MatchesDouble) {
  int compared = 0;
  for (const GradientCase& c : AllGradientCases()) {
    SCOPED_TRACE(c.name);
    const DType wide = c.no_double.empty() ? DType::kFloat64 : DType::kFloat32,
                narrow = DType::kBFloat16;
    Result<CaseRun> found = RunForward(c, narrow, narrow);
    if (auto it = kNoBFloat16.find(c.name); it != kNoBFloat16.end()) {
      std::cout << "not in bfloat16: " << c.name << " (" << it->second << ")\n";
      EXPECT_NE(found.status().message().find("has unsupported type"), std::string::npos)
          << found.status().ToString();
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    const Status status = RunBackward(c, narrow, &*found, narrow);
    ASSERT_TRUE(status.ok()) << status.ToString();
    CaseRun expected = RunForward(c, wide, narrow).value();
    ASSERT_TRUE(RunBackward(c, wide, &expected, narrow).ok());
    ExpectNear(*found, expected.gradients, kBFloat16Tolerance);
    ++compared;
  }
  EXPECT_GE(compared, 350);
  std::cout << compared << " cases compared in bfloat16, " << kNoBFloat16.size() << " without\n";
}

// The passes of a training step, fusion among them, change nothing but the order of sums: the
// tolerances are those without passes.
void ExpectFusedMatchesDouble(DType narrow, double tolerance) {
  int fused = 0;
  for (const GradientCase& c : AllGradientCases()) {
    SCOPED_TRACE(c.name);
    if (narrow == DType::kBFloat16 && kNoBFloat16.count(c.name) > 0) continue;
    const DType wide = c.no_double.empty() ? DType::kFloat64 : DType::kFloat32;
    CaseRun found = RunForward(c, narrow, narrow).value();
    const Status status = RunBackward(c, narrow, &found, narrow, StepPasses());
    ASSERT_TRUE(status.ok()) << status.ToString();
    CaseRun expected = RunForward(c, wide, narrow).value();
    ASSERT_TRUE(RunBackward(c, wide, &expected, narrow).ok());
    ExpectNear(found, expected.gradients, tolerance);
    fused += found.fused ? 1 : 0;
  }
  EXPECT_GE(fused,
            85);  // fewer in bfloat16: the gradient's Sign reads a Shrink, which has no bfloat16
  std::cout << fused << " cases with fused nodes\n";
}

TEST(GradientSweep, FusedFloatMatchesDouble) { ExpectFusedMatchesDouble(DType::kFloat32, 1e-5); }
TEST(GradientSweep, FusedBFloat16MatchesDouble) {
  ExpectFusedMatchesDouble(DType::kBFloat16, kBFloat16Tolerance);
}

// --- variants of a case's shapes ---

struct Variant {
  GradientCase c;
  enum Kind { kEmpty, kOne, kScalar } kind;
};

// "double[2,3] x, int64[2] i" with each dim of each input passed through `dim_of(input, dim)`.
std::string MapDims(const std::string& inputs,
                    const std::function<std::string(int, const std::string&)>& dim_of) {
  std::string out, dim;
  int input = 0;
  bool inside = false;
  for (char c : inputs) {
    if (!inside) {
      out += c;
      inside = c == '[';
      input += c == ',';
    } else if (c == ',' || c == ']') {
      if (!dim.empty()) out += dim_of(input, dim);
      dim.clear();
      out += c;
      inside = c == ',';
    } else {
      dim += c;
    }
  }
  return out;
}

// Every size in turn made zero in all inputs that have it; each dim of each input in turn made one,
// which broadcasts where the op does; and everything made a scalar. Whether that is a case at all,
// the forward run says.
std::vector<Variant> VariantsOf(const GradientCase& c) {
  std::set<std::string> sizes;
  int dims = 0;
  MapDims(c.inputs, [&](int, const std::string& dim) {
    ++dims;
    if (dim != "0" && dim != "1") sizes.insert(dim);
    return dim;
  });
  std::vector<Variant> out;
  const auto add = [&](Variant::Kind kind, const std::string& name, const std::string& inputs) {
    if (inputs == c.inputs) return;
    Variant& variant = out.emplace_back(Variant{c, kind});
    variant.c.name += name;
    variant.c.inputs = inputs;
  };
  for (const std::string& size : sizes) {
    add(Variant::kEmpty, " with 0 for " + size,
        MapDims(c.inputs, [&](int, const std::string& dim) { return dim == size ? "0" : dim; }));
  }
  for (int target = 0; target < dims; ++target) {
    int at = 0;
    const std::string inputs = MapDims(c.inputs, [&](int, const std::string& dim) {
      return at++ == target && dim != "0" ? "1" : dim;
    });
    add(Variant::kOne, " with 1 for dim " + std::to_string(target), inputs);
  }
  if (sizes.empty()) return out;
  std::string scalars = MapDims(c.inputs, [](int, const std::string&) { return ""; });
  std::erase(scalars, ',');
  for (size_t at = 0; (at = scalars.find("] ", at)) != std::string::npos;) {
    at = scalars.find(' ', at + 2);
    if (at != std::string::npos) scalars.insert(at, ",");
  }
  add(Variant::kScalar, " of scalars", scalars);
  return out;
}

// Variants whose backward fails although the forward runs.
const std::map<std::string, std::string> kNoVariantGradient = {
    {"AttentionCache", "the function body says 0 to Reshape, which keeps a dim there"},
    {"AttentionScores", "the function body says 0 to Reshape, which keeps a dim there"},
    {"LRN", "the pooling window does not fit into no channels"},
    {"LRNEven", "the pooling window does not fit into no channels"},
    {"Loop", "a state that changes its shape between iterations"},
    {"LoopScanOnly", "a state that changes its shape between iterations"},
    {"LoopWhile", "a state that changes its shape between iterations"},
};

// The shapes are wrong, not the library.
bool IsOfShapes(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kInvalidModel;
}

TEST(GradientSweep, Variants) {
  int compared[3] = {}, refused[3] = {};
  std::set<std::string> failed;
  for (const GradientCase& c : AllGradientCases()) {
    if (!c.no_double.empty()) continue;
    for (const Variant& variant : VariantsOf(c)) {
      SCOPED_TRACE(variant.c.name + ": " + variant.c.inputs);
      Result<CaseRun> run = RunForward(variant.c, DType::kFloat64);
      if (!run.ok()) {
        ++refused[variant.kind];
        EXPECT_TRUE(IsOfShapes(run.status())) << run.status().ToString();
        continue;
      }
      const Status status = RunBackward(variant.c, DType::kFloat64, &*run);
      if (!status.ok() && kNoVariantGradient.count(c.name)) {
        EXPECT_TRUE(IsOfShapes(status)) << status.ToString();
        failed.insert(c.name);
        continue;
      }
      ASSERT_TRUE(status.ok()) << status.ToString();
      ExpectNear(*run, Differences(*run, 1e-6), 1e-3);
      ++compared[variant.kind];
    }
  }
  EXPECT_EQ(failed.size(), kNoVariantGradient.size());
  EXPECT_GE(compared[Variant::kEmpty], 650);
  EXPECT_GE(compared[Variant::kOne], 740);
  EXPECT_GE(compared[Variant::kScalar], 120);
  std::cout << "compared " << compared[0] << " empty, " << compared[1] << " with a one, "
            << compared[2] << " scalar variants; refused by the forward: " << refused[0] << ", "
            << refused[1] << ", " << refused[2] << "\n";
}

// Each case with its feeds as defaults of its inputs is written, read and written again.
// CAESURA_GRADIENT_CASES=FOLDER keeps the files for tests that compare with other libraries.
TEST(GradientSweep, CasesSurviveTheModelFormat) {
  const char* folder = std::getenv("CAESURA_GRADIENT_CASES");
  for (const GradientCase& c : AllGradientCases()) {
    SCOPED_TRACE(c.name);
    Model model = LoadCase(c, c.no_double.empty() ? DType::kFloat64 : DType::kFloat32).value();
    for (const auto& [name, value] : CaseFeeds(c, *model.graph)) {
      model.graph->SetInitializer(model.graph->FindValue(name), value.tensor());
    }
    const std::string bytes = SerializeModel(model).value();
    EXPECT_EQ(SerializeModel(ReadModelBytes(bytes).value()).value(), bytes);
    if (folder != nullptr)
      std::ofstream(std::string(folder) + "/" + c.name + ".onnx", std::ios::binary) << bytes;
  }
}

}  // namespace
}  // namespace caesura
