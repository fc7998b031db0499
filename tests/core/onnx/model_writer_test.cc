// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/model_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "tests/core/files/faulty_file_system.h"
#include "tests/core/onnx/onnx_wire.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

namespace fs = std::filesystem;

Model SmallModel(float first = 1) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (float[N, 2] x, bool c) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}, int64[2] shape = {-1, 2}> {
      [mul] h = MatMul (x, w)
      [branch] y = If (c) <then_branch = t () => (float[N, 2] a) { a = Reshape (h, shape) },
                           else_branch = e () => (float[N, 2] b) { b = Relu (h) }>
    })")
                    .value();
  model.metadata["author"] = "test";
  model.graph->Initializer(model.graph->FindValue("w"))->data<float>()[0] = first;
  return model;
}

float FirstWeight(const Model& model) {
  return model.graph->Initializer(model.graph->FindValue("w"))->data<float>()[0];
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(ModelWriterTest, RoundTripKeepsEverything) {
  Model model = SmallModel();
  Node* node = model.graph->nodes()[0].get();
  node->set_source("layer.0 at net.py:3");
  node->set_phase(Phase::kBackward);
  node->set_provider("cpu");
  const std::string bytes = SerializeModel(model).value();
  Model again = ReadModelBytes(bytes).value();
  EXPECT_EQ(ModelText(again), ModelText(model));
  EXPECT_EQ(SerializeModel(again).value(), bytes);
  const Node& read = *again.graph->nodes()[0];
  EXPECT_EQ(read.source(), "layer.0 at net.py:3");
  EXPECT_EQ(read.phase(), Phase::kBackward);
  EXPECT_EQ(read.provider(), "cpu");
  EXPECT_EQ(again.metadata.at("author"), "test");
}

TEST(ModelWriterTest, EveryElementTypeComesBack) {
  Model model = SmallModel();
  for (int type = 1; type < kDTypeCount; ++type) {
    const auto dtype = static_cast<DType>(type);
    Tensor tensor = Tensor::Zeros(dtype, Shape{5});
    if (dtype == DType::kString) {
      tensor.data<std::string>()[1] = "text";
    } else if (DTypeFileBits(dtype) < 8) {
      tensor.data<uint8_t>()[1] = 1;
    } else {
      static_cast<uint8_t*>(tensor.raw())[0] = 1;
    }
    model.graph->AddInitializer(DTypeName(dtype), tensor);
  }
  Model again = ReadModelBytes(SerializeModel(model).value()).value();
  for (int type = 1; type < kDTypeCount; ++type) {
    const auto dtype = static_cast<DType>(type);
    const Tensor& before = *model.graph->Initializer(model.graph->FindValue(DTypeName(dtype)));
    const Tensor& after = *again.graph->Initializer(again.graph->FindValue(DTypeName(dtype)));
    ASSERT_EQ(after.dtype(), dtype);
    if (dtype == DType::kString) {
      EXPECT_EQ(after.data<std::string>()[1], "text");
    } else {
      EXPECT_EQ(std::memcmp(before.raw(), after.raw(), before.bytes()), 0) << DTypeName(dtype);
    }
  }
}

TEST(ModelWriterTest, WritesOddEnds) {
  // An output listed twice, an input that is an output, and a body that exports an outer value.
  Model model = SmallModel();
  Graph& graph = *model.graph;
  graph.AddOutput(graph.FindValue("y"));
  graph.AddOutput(graph.inputs()[0]);
  Graph* body = graph.nodes()[1]->Subgraphs()[0];
  body->SetOutput(0, graph.FindValue("h"));
  Result<std::string> bytes = SerializeModel(model);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  Result<Model> again = ReadModelBytes(*bytes);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->graph->outputs().size(), 3u);
}

TEST(ModelWriterTest, ExternalDataComeBackAndOldOnesGo) {
  testing::TemporaryFolder folder;
  const std::string path = folder.path("m.onnx");
  WriteOptions options;
  options.external_above = 0;
  ASSERT_TRUE(WriteModel(SmallModel(5), path, options).ok());
  EXPECT_EQ(FilesIn(folder.path()).size(), 2u);
  Model again = ReadModel(path).value();
  EXPECT_EQ(FirstWeight(again), 5);
  EXPECT_EQ(ModelText(again), ModelText(SmallModel(5)));
  std::ofstream(folder.path("m.onnx.other.data")) << "not ours";
  ASSERT_TRUE(WriteModel(SmallModel(6), path, options).ok());
  EXPECT_EQ(FilesIn(folder.path()).size(), 3u)
      << "the model, its new data, and the file that is not ours";
  EXPECT_EQ(FirstWeight(ReadModel(path).value()), 6);
}

TEST(ModelWriterTest, AFailureAtAnyCallLeavesAWholeModel) {
  testing::FaultyFileSystem files;
  WriteOptions options;
  options.external_above = 0;
  options.files = &files;
  ASSERT_TRUE(WriteModel(SmallModel(1), "/d/m.onnx", options).ok());
  const int calls = files.calls();
  ASSERT_GT(calls, 6);
  for (int stop = 0; stop < calls + 3; ++stop) {
    for (auto loss :
         {testing::FaultyFileSystem::Loss::kAll, testing::FaultyFileSystem::Loss::kNothing,
          testing::FaultyFileSystem::Loss::kRandom}) {
      testing::FaultyFileSystem disk;
      options.files = &disk;
      ASSERT_TRUE(WriteModel(SmallModel(1), "/d/m.onnx", options).ok());
      disk.Crash(testing::FaultyFileSystem::Loss::kAll);
      disk.StopAfter(stop);
      const bool written = WriteModel(SmallModel(2), "/d/m.onnx", options).ok();
      disk.Crash(loss, static_cast<uint32_t>(stop));
      testing::TemporaryFolder folder;
      const std::vector<std::string> names = disk.List("/d").value();
      for (const std::string& name : names) {
        const std::string file = name.substr(name.rfind('/') + 1);
        std::ofstream(folder.path(file)) << ReadWholeFile(disk, "/d/" + file, 1 << 20).value();
      }
      Result<Model> model = ReadModel(folder.path("m.onnx"));
      ASSERT_TRUE(model.ok()) << "stopped after call " << stop << ": " << model.status().ToString();
      if (written) {
        EXPECT_EQ(FirstWeight(*model), 2);
      }
    }
  }
}

TEST(ModelWriterTest, ExternalDataOutsideOfTheFolderAreRefused) {
  testing::TemporaryFolder folder;
  fs::create_directories(folder.path("model"));
  std::ofstream(folder.path("secret")) << std::string(8, 's');
  std::ofstream(folder.path("model/w.bin")) << std::string(16, 'w');
  auto status = [&](const std::string& location, const std::string& offset,
                    const std::string& length) {
    testing::Wire parts;
    parts.Message(1, testing::NodeWire("Add", {"x", "w"}, {"y"}));
    parts.Message(5, testing::ExternalTensor("w", {2}, location, offset, length));
    std::ofstream(folder.path("model/m.onnx"))
        << testing::ModelWire(testing::GraphWire(parts)).bytes();
    return ReadModel(folder.path("model/m.onnx")).status();
  };
  EXPECT_TRUE(status("w.bin", "", "").ok());
  EXPECT_TRUE(status("w.bin", "8", "8").ok());
  EXPECT_NE(status("../secret", "", "").message().find("no plain path"), std::string::npos);
  EXPECT_NE(status(folder.path("secret"), "", "").message().find("absolute"), std::string::npos);
  EXPECT_NE(status("w.bin", "9", "8").message().find("asked for"), std::string::npos);
  EXPECT_NE(status("w.bin", "18446744073709551615", "8").message().find("asked for"),
            std::string::npos);
  EXPECT_NE(status("w.bin", "0", "16").message().find("external length is 16"), std::string::npos);
  EXPECT_NE(status("w.bin", "-8", "8").message().find("offset is '-8'"), std::string::npos);
  EXPECT_NE(status("w.bin", "0x8", "8").message().find("offset is '0x8'"), std::string::npos);
  EXPECT_NE(status("", "", "").message().find("no location"), std::string::npos);
  fs::create_symlink(folder.path("secret"), folder.path("model/link"));
  EXPECT_NE(status("link", "", "").message().find("symbolic link"), std::string::npos);
  fs::create_hard_link(folder.path("secret"), folder.path("model/hard"));
  EXPECT_NE(status("hard", "", "").message().find("hard links"), std::string::npos);
}

TEST(ModelWriterTest, DeclaresTheLowestOpsetThatFits) {
  auto opset = [](const std::string& body) {
    const std::string head = "<ir_version: 10, opset_import: [\"\" : 28]> g ";
    Model again = ReadModelBytes(SerializeModel(ParseModelText(head + body).value()).value(),
                                 {.external_data_folder = {}, .normalise_opsets = false})
                      .value();
    return again.opsets.at("");
  };
  EXPECT_EQ(opset("(float[2] x) => (float[2] y) { y = Relu (x) }"), 17);
  EXPECT_EQ(opset("(float[2] x) => (float[2] y) { y = Gelu (x) }"), 20);
  EXPECT_EQ(opset("(float[2, 3] x, int64[1] a) => (float[2, 1] y) { y = ReduceMean (x, a) }"), 18);
  EXPECT_EQ(opset("(float[2] x) => (int64[2] y) { y = Cast <to = 7, saturate = 1> (x) }"), 19);
  EXPECT_EQ(opset("(bfloat16[2] x) => (bfloat16[2] y) { y = Selu (x) }"), 22);
}

TEST(ModelWriterTest, CannotWriteIntoNothing) {
  EXPECT_FALSE(WriteModel(SmallModel(), "/nowhere/at/all.onnx").ok());
}

}  // namespace
}  // namespace caesura
