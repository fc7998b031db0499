// SPDX-License-Identifier: Apache-2.0
// This program trains a step of TrainingSession::ExportTraining with onnxruntime only. The model's
// inputs are x, float32 [32, 2], and the target t, int64 [32].
//   g++ -std=c++17 train_in_onnxruntime.cc -lonnxruntime && ./a.out step.onnx
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

int main(int, char** argv) {
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR);
  Ort::Session session(env, argv[1], Ort::SessionOptions());
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<const char*> outputs(session.GetOutputCount());
  for (size_t i = 0; i < outputs.size(); ++i) {
    char* name = nullptr;
    Ort::ThrowOnError(Ort::GetApi().SessionGetOutputName(session, i, allocator, &name));
    outputs[i] = name;
  }
  std::array<int64_t, 2> x_dims = {32, 2};
  std::array<float, 64> x;
  std::array<int64_t, 32> t;
  std::mt19937 random(0);
  const auto cpu = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<const char*> names = {"x", "t", "caesura.step"};
  std::vector<Ort::Value> state;  // at first the file's own
  for (int64_t step = 1; step <= 40; ++step) {
    for (float& element : x) element = std::normal_distribution<float>()(random);
    for (size_t i = 0; i < t.size(); ++i) t[i] = x[2 * i] > 0;
    std::vector<Ort::Value> feeds;
    feeds.push_back(Ort::Value::CreateTensor(cpu, x.data(), x.size(), x_dims.data(), 2));
    feeds.push_back(Ort::Value::CreateTensor(cpu, t.data(), t.size(), x_dims.data(), 1));
    feeds.push_back(Ort::Value::CreateTensor(cpu, &step, 1, nullptr, 0));
    for (Ort::Value& value : state) feeds.push_back(std::move(value));
    std::vector<Ort::Value> found =
        session.Run({}, names.data(), feeds.data(), feeds.size(), outputs.data(), outputs.size());
    std::printf("%.4f\n", found[0].At<float>({}));  // caesura.loss
    names.resize(3);
    state.clear();
    for (size_t i = 1; i < outputs.size(); ++i) {
      if (std::string(outputs[i]).rfind("updated.", 0) != 0) continue;
      names.push_back(outputs[i] + 8);
      state.push_back(std::move(found[i]));
    }
  }
}
