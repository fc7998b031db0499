// SPDX-License-Identifier: Apache-2.0
#include <iterator>

#include "core/graph/op_def.h"

namespace caesura {

#define FAMILY(name, parts) parts
#define CPU(part)
#define CUDA(part)
#define OPS(part) std::vector<OpDef> part##Ops();
#include "core/ops/families.inc"
#undef OPS

const std::vector<OpDef>& AllOpDefs() {
  static const auto* ops = [] {
    auto* out = new std::vector<OpDef>;
#define OPS(part) part##Ops,
    for (auto* table : {
#include "core/ops/families.inc"
         }) {
      std::vector<OpDef> rows = table();
      out->insert(out->end(), std::make_move_iterator(rows.begin()),
                  std::make_move_iterator(rows.end()));
    }
    return out;
  }();
  return *ops;
}

}  // namespace caesura
