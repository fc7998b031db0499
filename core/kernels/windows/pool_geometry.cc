// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/windows/pool_geometry.h"

#include <limits>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/kernels/factory_checks.h"

namespace caesura {

Result<PoolGeometry> MakePoolGeometry(const KernelInfo& info, const Shape& x) {
  PoolGeometry g;
  ASSIGN_OR_RETURN(g.window, MakeWindowGeometry(info, x, {}));
  if (g.window.rank() > 3) return info.Refuse("more than three spatial axes");
  g.images = x[0] * x[1];
  std::vector<int64_t> dims = {x[0], x[1]};
  dims.insert(dims.end(), g.window.output.begin(), g.window.output.end());
  ASSIGN_OR_RETURN(g.output, CheckDims(info, std::move(dims), DType::kInt64));
  g.seen = WithoutUnseen(g.window);
  return g;
}

Result<PoolGeometry> MakeMaxPoolGeometry(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(0)));
  if (g.window.InputCount() > std::numeric_limits<int32_t>::max())
    return info.Refuse("an image beyond 2^31 elements");
  info.SetOutput(0, info.InputDType(0), g.output);
  info.SetOutput(1, DType::kInt64, g.output);
  return g;
}

Result<PoolGeometry> MakePoolGradGeometry(KernelInfo& info) {
  ASSIGN_OR_RETURN(const PoolGeometry g, MakePoolGeometry(info, info.InputShape(1)));
  if (info.InputShape(0) != g.output) {
    return info.Invalid("dY of shape " + g.output.ToString() + " expected, got " +
                        info.InputShape(0).ToString());
  }
  if (info.InputDType(1) != info.InputDType(0)) return info.Invalid("inputs of one dtype expected");
  info.SetOutput(0, info.InputDType(0), info.InputShape(1));
  return g;
}

Result<GlobalPoolShape> MakeGlobalPoolGradShape(KernelInfo& info) {
  const Shape& x = info.InputShape(1);
  if (x.rank() < 2 || info.InputShape(0).elements() != x[0] * x[1])
    return info.Invalid("dY of one element a channel expected");
  info.SetOutput(0, info.InputDType(0), x);
  return GlobalPoolShape{x[0] * x[1], x.Elements(2, x.rank())};
}

Result<GlobalPoolShape> MakeGlobalPoolShape(KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  if (x.rank() < 2) return info.Invalid("X of rank 2 or more expected, got " + x.ToString());
  const GlobalPoolShape out{x[0] * x[1], x.Elements(2, x.rank())};
  if (out.count == 0 && out.images > 0) return info.Invalid("an empty window: " + x.ToString());
  Shape y = x;
  for (int d = 2; d < x.rank(); ++d) y[d] = 1;
  info.SetOutput(0, info.InputDType(0), std::move(y));
  return out;
}

}  // namespace caesura
