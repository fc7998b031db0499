// SPDX-License-Identifier: Apache-2.0
// The numbers of CastAll (ai.caesura): tensors of one floating type as tensors of another.
#ifndef CAESURA_CORE_OPS_ELEMENTWISE_CAST_ALL_H_
#define CAESURA_CORE_OPS_ELEMENTWISE_CAST_ALL_H_

#include <string>
#include <vector>

#include "core/kernels/kernel.h"

namespace caesura {

struct CastAllSpec {
  DType from = DType::kUndefined, to = DType::kUndefined;
  std::vector<int64_t> elements;  // of each tensor

  // Checks inputs and outputs, and plans the outputs.
  static Result<CastAllSpec> Make(KernelInfo& info) {
    if (!info.IsTensor(0)) return info.Invalid("at least one tensor expected");
    CastAllSpec out{info.InputDType(0), static_cast<DType>(info.Attr<int64_t>("to", 0)), {}};
    if (!kFloatTypes.Contains(out.from) || !kFloatTypes.Contains(out.to))
      return info.Invalid("expected casts between types of " + kFloatTypes.ToString());
    for (int i = 0; i < info.input_count(); ++i) {
      const bool fits = info.IsTensor(i) && info.HasOutput(i) && info.InputDType(i) == out.from;
      if (!fits)
        return info.Invalid("tensor " + std::to_string(i) + " must be of " + DTypeName(out.from) +
                            ", as the first one, and have an output");
      out.elements.push_back(info.InputShape(i).elements());
      info.SetOutput(i, out.to, info.InputShape(i));
    }
    return out;
  }
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ELEMENTWISE_CAST_ALL_H_
