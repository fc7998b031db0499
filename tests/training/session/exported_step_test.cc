// SPDX-License-Identifier: Apache-2.0
// An exported step's options are read, and a damaged one is refused. Folders that Python has
// written are opened in tests/python.
#include "training/session/exported_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/providers/cpu_provider.h"
#include "tests/temporary_folder.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kStepJson[] = R"({"loss": "loss", "trainable": ["w"], "clip_norm": 0.5,
    "accumulation_steps": 2, "precision": "bf16", "optimizer": "sgd",
    "coefficients": {"learning_rate": 0.25, "momentum": 0.5},
    "groups": [{"names": ["w"], "learning_rate_scale": 2, "optimizer": "adamw",
                "coefficients": {"beta1": 0.75}},
               {"names": ["*"], "learning_rate_scale": 1, "optimizer": "sgd",
                "coefficients": {"weight_decay": 0.125}}]})";

// The square of w * x, with this text in its metadata.
Model ModelOfStep(const std::string& json) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20]>
      g (float[2] x) => (float[] loss) <float[2] w = {1, 2}> {
        a = Mul (w, x) b = Mul (a, a) loss = ReduceSum <keepdims = 0> (b) })")
                    .value();
  model.metadata[kStepMetadata] = json;
  return model;
}

std::string With(const std::string& from, const std::string& to) {
  std::string json = kStepJson;
  return json.replace(json.find(from), from.size(), to);
}

TEST(ExportedStep, ItsOptionsAreRead) {
  const StepOptions options = ReadStepOptions(ModelOfStep(kStepJson)).value();
  EXPECT_EQ(options.loss.kind, Loss::Kind::kOutput);
  EXPECT_EQ(options.loss.prediction, "loss");
  EXPECT_THAT(options.trainable, ElementsAre("w"));
  EXPECT_EQ(options.clip_norm, 0.5);
  EXPECT_EQ(options.accumulation_steps, 2);
  EXPECT_EQ(options.precision, DType::kBFloat16);
  EXPECT_EQ(std::get<Sgd>(options.optimizer).momentum, 0.5);
  ASSERT_EQ(options.groups.size(), 2u);
  EXPECT_EQ(options.groups[0].learning_rate_scale, 2);
  EXPECT_EQ(std::get<AdamW>(*options.groups[0].optimizer).beta1, 0.75);
  EXPECT_EQ(std::get<Sgd>(*options.groups[1].optimizer).weight_decay, 0.125);
}

TEST(ExportedStep, AModelWithoutMetadataIsNone) {
  Model model = ModelOfStep("");
  model.metadata.clear();
  const Status none = ReadStepOptions(model).status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("it is no exported step"));
}

TEST(ExportedStep, EntriesThatAreWrongAreNamed) {
  const auto refusal = [](const std::string& json) {
    const Status status = ReadStepOptions(ModelOfStep(json)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidModel) << json;
    return status.message();
  };
  EXPECT_THAT(refusal("{"), HasSubstr("metadata 'caesura.step' is no JSON object"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is no JSON object"));
  // All of them at once.
  EXPECT_THAT(refusal(R"({"loss": 1, "groups": [1]})"),
              AllOf(HasSubstr("'loss', 'trainable', 'clip_norm', 'accumulation_steps'"),
                    HasSubstr("'coefficients'"), HasSubstr("'groups'")));
  for (const char* steps : {"0", "-1", "1e9", "1.5", "\"2\""})
    EXPECT_THAT(refusal(With("s\": 2", std::string("s\": ") + steps)),
                HasSubstr("'accumulation_steps'"));
  EXPECT_THAT(refusal(With("0.5,", "-0.5,")), HasSubstr("'clip_norm'"));
  EXPECT_THAT(refusal(With("[\"w\"]", "[\"w\", 3]")), HasSubstr("'trainable'"));
  EXPECT_THAT(refusal(With("bf16", "int4")), HasSubstr("precision 'int4' is none of"));
  EXPECT_THAT(refusal(With("\"sgd\"", "\"sgdx\"")), HasSubstr("optimizer 'sgdx' is none of"));
  EXPECT_THAT(refusal(With("\"momentum\"", "\"speed\"")), HasSubstr("has no coefficient 'speed'"));
  EXPECT_THAT(refusal(With("\"beta1\": 0.75", "\"beta9\": 1")), HasSubstr("coefficient 'beta9'"));
}

// A folder is opened, trained and saved, and opened again where it was.
TEST(ExportedStep, GoesOnWhereItWasSaved) {
  const testing::TemporaryFolder folder;
  EXPECT_FALSE(IsExportedStep(folder.path()).value());
  const std::string json = R"({"loss": "loss", "trainable": [], "clip_norm": 0,
      "accumulation_steps": 1, "precision": "fp32", "optimizer": "sgd",
      "coefficients": {"learning_rate": 0.125, "momentum": 0.5}, "groups": []})";
  ASSERT_TRUE(WriteModel(ModelOfStep(json), ExportedModelPath(folder.path())).ok());
  EXPECT_TRUE(IsExportedStep(folder.path()).value());
  EXPECT_FALSE(OpenStep(folder.path()).ok());  // there is no state yet
  TrainingOptions options;
  options.step = ReadStepOptions(ModelOfStep(json)).value();
  auto first = TrainingSession::Create(ModelOfStep(json), options).value();
  ASSERT_TRUE(first->Save(ExportedStatePath(folder.path())).ok());
  auto session = OpenStep(folder.path()).value();
  const NamedValues batch = {{"x", FloatVector({1, 0.5f})}};
  EXPECT_EQ(session->Step(batch).value(), 2);  // 1 + 1
  // w - 0.125 * 2 w x^2
  EXPECT_THAT(session->parameters().Get("w").value().ToVector<float>(), ElementsAre(0.75f, 1.875f));
  ASSERT_TRUE(session->Save(ExportedStatePath(folder.path())).ok());
  const double expected = session->Step(batch).value();
  auto again = OpenStep(folder.path()).value();
  EXPECT_EQ(again->Step(batch).value(), expected);
  EXPECT_EQ(again->parameters().Get("w").value().ToVector<float>(),
            session->parameters().Get("w").value().ToVector<float>());
}

}  // namespace
}  // namespace caesura
