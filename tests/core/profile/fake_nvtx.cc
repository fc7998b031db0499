// SPDX-License-Identifier: Apache-2.0
// Stands in for NVTX's C library: writes down what it is told.
#include <cstdint>
#include <cstring>
#include <string>

namespace {
std::string log_text;
}

extern "C" {

int nvtxRangePushEx(const void* attributes) {
  const char* message;
  std::memcpy(&message, static_cast<const char*>(attributes) + 40, sizeof(message));
  uint16_t version, size;
  std::memcpy(&version, attributes, 2);
  std::memcpy(&size, static_cast<const char*>(attributes) + 2, 2);
  log_text += std::to_string(version) + "/" + std::to_string(size) + "[" + message;
  return 0;
}

int nvtxRangePop() {
  log_text += "]";
  return 0;
}

const char* fake_nvtx_log() { return log_text.c_str(); }

}  // extern "C"
