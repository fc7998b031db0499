// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/files/safetensors.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Adapter TwoByThree() {
  return {1,
          4.0,
          {{"net.fc",
            {Tensor::Of<float>(Shape{1, 3}, {1, 2, 3}), Tensor::Of<float>(Shape{2, 1}, {4, 5})}}}};
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(AdapterFiles, AreReadBack) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/a/b";
  ASSERT_TRUE(SaveAdapter(TwoByThree(), path).ok());
  const Adapter read = ReadAdapter(path).value();
  EXPECT_EQ(read.rank, 1);
  EXPECT_EQ(read.alpha, 4.0);
  EXPECT_THAT(read.layers.at("net.fc").a.ToVector<float>(), ElementsAre(1, 2, 3));
  EXPECT_THAT(read.layers.at("net.fc").b.ToVector<float>(), ElementsAre(4, 5));
  EXPECT_EQ(ReadSafetensors(path + "/adapter_model.safetensors")
                .value()
                .tensors.count("base_model.model.net.fc.lora_A.weight"),
            1);
  EXPECT_EQ(ReadAdapter(folder.path()).status().code(), StatusCode::kNotFound);
}

TEST(AdapterFiles, WhatPeftMayHaveAndThisHasNotIsRefusedByName) {
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(SaveAdapter(TwoByThree(), folder.path()).ok());
  const auto refusal = [&](const std::string& config) {
    Write(folder.path() + "/adapter_config.json", config);
    const Status status = ReadAdapter(folder.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << config;
    return status.message();
  };
  EXPECT_THAT(refusal(R"({"peft_type": "LOHA", "r": 1})"), HasSubstr("got \"LOHA\""));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "r": 1, "use_dora": true})"),
              HasSubstr("use_dora is not supported, got true"));
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "r": 1, "rank_pattern": {"fc": 2}})"),
              HasSubstr("rank_pattern"));
}

TEST(AdapterFiles, DamageIsNamed) {
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(SaveAdapter(TwoByThree(), folder.path()).ok());
  const std::string tensors = folder.path() + "/adapter_model.safetensors";
  const std::string a = "base_model.model.net.fc.lora_A.weight";
  const auto message = [&] { return ReadAdapter(folder.path()).status().message(); };

  TensorFile file = ReadSafetensors(tensors).value();
  TensorFile other = file;
  other.tensors.erase(a);
  ASSERT_TRUE(WriteSafetensors(tensors, other).ok());
  EXPECT_THAT(message(), HasSubstr("layer 'net.fc' has no .lora_A.weight"));

  other = file;
  other.tensors[a] = Tensor::Zeros(DType::kFloat32, Shape{2, 3});
  ASSERT_TRUE(WriteSafetensors(tensors, other).ok());
  EXPECT_THAT(message(),
              HasSubstr("tensor '" + a + "': expected floats of rank 1, got float32[2, 3]"));

  other = file;
  other.tensors["net.fc.lora_A.weight"] = file.tensors[a];
  ASSERT_TRUE(WriteSafetensors(tensors, other).ok());
  EXPECT_THAT(message(), HasSubstr("tensor 'net.fc.lora_A.weight': expected base_model.model."));

  ASSERT_TRUE(WriteSafetensors(tensors, file).ok());
  for (const char* config : {"", "[]", "{\"peft_type\": 3}", "{\"peft_type\": \"LORA\", \"r\": 0}",
                             "{\"peft_type\": \"LORA\", \"r\": \"x\"}"}) {
    Write(folder.path() + "/adapter_config.json", config);
    const Status status = ReadAdapter(folder.path()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidModel) << config;
    EXPECT_THAT(status.message(), HasSubstr("adapter_config.json"));
  }
}

}  // namespace
}  // namespace caesura
