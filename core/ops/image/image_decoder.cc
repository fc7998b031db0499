// SPDX-License-Identifier: Apache-2.0
// ImageDecoder is refused: no image codec is linked.
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

Status CreateImageDecoder(KernelInfo& info) {
  return info.Refuse("is not done: no image codec is linked; decode images before they are fed");
}

}  // namespace

void RegisterImageDecoder(KernelRegistry& registry) {
  registry.Add({.op_type = "ImageDecoder", .create = CreateImageDecoder});
}

}  // namespace caesura
