/* SPDX-License-Identifier: Apache-2.0
 * An op of one's own as a plug-in: Clipped (x) -> x, but at most 1 away from 0. */
#include "core/plugin/caesura_op.h"

static const CaesuraApi* api;

static CaesuraStatus* Compute(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run;
  CaesuraTensor x, y;
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  if (failed == NULL) failed = api->op->output(context, 0, &y);
  if (failed != NULL) return failed;
  int64_t count = 1;
  for (int32_t i = 0; i < x.rank; ++i) count *= x.dims[i];
  for (int64_t i = 0; i < count; ++i) {
    const float value = ((const float*)x.data)[i];
    ((float*)y.data)[i] = value < -1 ? -1 : value > 1 ? 1 : value;
  }
  return NULL;
}

/* Straight through: dx = dy, so that clipped values can come back. */
static CaesuraStatus* Gradient(CaesuraGradient* gradient) {
  api->op->set_input_gradient(gradient, 0, api->op->output_gradient(gradient, 0));
  return NULL;
}

CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
  api = table;
  static const int32_t kFloat32[] = {1};
  const CaesuraOp clipped = {.size = sizeof(CaesuraOp),
                             .op_type = "Clipped",
                             .domain = "example",
                             .dtypes = kFloat32,
                             .dtype_count = 1,
                             .compute = Compute,
                             .gradient = Gradient};
  return api->add_op(plugin, &clipped);
}
