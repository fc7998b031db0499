// SPDX-License-Identifier: Apache-2.0
#include "core/ops/collectives/exchanges.h"

#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/collectives/collectives.h"

namespace caesura {
namespace {

// Parts of ranks lie one after the other along dim 0.
Status CreateExchange(KernelInfo& info, Collective::Kind kind) {
  const auto ranks = static_cast<int>(info.Attr<int64_t>("ranks", 0));
  if (ranks < 2) return info.Invalid("needs an attribute ranks of 2 or more");
  const bool is_divided = kind != Collective::Kind::kAllReduce;
  Collective planned{.kind = kind, .dtype = info.InputDType(0)};
  const int64_t parts = planned.InputParts(ranks);
  std::vector<int64_t> dims = info.InputShape(0).dims();
  if (is_divided && dims.empty()) return info.Invalid("needs a tensor of one dim or more");
  if (is_divided && dims[0] % parts != 0) {
    return info.Invalid("needs a first dim that " + std::to_string(ranks) +
                        " ranks divide equally, got " + std::to_string(dims[0]));
  }
  if (is_divided) dims[0] = dims[0] / parts * planned.OutputParts(ranks);
  planned.count = info.InputShape(0).elements() / parts;
  info.SetOutput(0, planned.dtype, Shape(dims));
  if (!is_divided) info.SetMayReuse(0, 0);
  info.SetCompute([=](KernelContext& context) -> Status {
    ASSIGN_OR_RETURN(RunCollectives* const collectives, CollectivesOf(context, ranks));
    Collective collective = planned;
    collective.input = context.Input<void>(0);
    collective.output = context.Output<void>(0);
    return collectives->Run(collective);
  });
  return {};
}

template <Collective::Kind kKind>
void AddExchange(KernelRegistry& registry, const char* op_type) {
  registry.Add({.op_type = op_type,
                .domain = kCaesuraDomain,
                .types = kFixedTypes,
                .deterministic = false,
                .create = [](KernelInfo& info) { return CreateExchange(info, kKind); }});
}

}  // namespace

void RegisterExchanges(KernelRegistry& registry) {
  AddExchange<Collective::Kind::kAllReduce>(registry, "AllReduce");
  AddExchange<Collective::Kind::kAllGather>(registry, "AllGather");
  AddExchange<Collective::Kind::kReduceScatter>(registry, "ReduceScatter");
  AddExchange<Collective::Kind::kAllToAll>(registry, "AllToAll");
}

}  // namespace caesura
