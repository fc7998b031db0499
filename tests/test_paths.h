// SPDX-License-Identifier: Apache-2.0
// Paths of what tests open and start. One source is told them, so that a compiler cache finds all
// others for a checkout in another folder.
#ifndef CAESURA_TESTS_TEST_PATHS_H_
#define CAESURA_TESTS_TEST_PATHS_H_

namespace caesura::testing {

// The root of the sources.
extern const char* const kSourceFolder;
// ONNX's node tests, written out.
extern const char* const kNodeTestsFolder;
// A stand-in for NVTX's C library.
extern const char* const kFakeNvtx;
// Plug-ins in tests/core/plugin: a provider, and ops in C, in C++17 and for CUDA.
extern const char* const kTestProvider;
extern const char* const kTestOpsC;
extern const char* const kTestOpsCpp17;
extern const char* const kTestOpsCuda;
// The program that kill_sweep_test.cc starts.
extern const char* const kKillSweepChild;
// Stand-ins for CUDA's libraries (tests/cuda).
extern const char* const kStandinDriver;
extern const char* const kStandinNvrtc;
extern const char* const kStandinCublasLt;
extern const char* const kStandinCudnn;
extern const char* const kStandinNccl;
// The stand-in for NVRTC, which also asks the real one (core/cuda/checked_nvrtc.cc).
extern const char* const kCheckedNvrtc;
// The real cuDNN, and the command that has it plan (tests/core/ops/cuda/cudnn_plans.cc).
extern const char* const kRealCudnn;
extern const char* const kCudnnPlansCommand;

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TEST_PATHS_H_
