/* SPDX-License-Identifier: Apache-2.0
 * A provider from outside of the tree: runs each Relu of float32 by itself, and nothing else.
 */
#include "core/plugin/caesura_provider.h"

static const CaesuraApi* api;
static int instance; /* there is nothing to remember */

static CaesuraStatus* create(const CaesuraOptions* options, void** made) {
  if (options->count > 0) return api->make_status(CAESURA_INVALID_ARGUMENT, options->keys[0]);
  *made = &instance;
  return NULL;
}

static void release(void* made) { (void)made; }

static CaesuraStatus* capability(void* made, const CaesuraGraph* graph, int32_t* groups) {
  (void)made;
  for (size_t i = 0; i < api->provider->node_count(graph); ++i) {
    const CaesuraGraphNode* node = api->provider->node(graph, i);
    if (!node->offered || node->op_type[0] != 'R' || node->op_type[1] != 'e' ||
        node->op_type[2] != 'l')
      continue;
    const CaesuraTensor* x = &api->provider->value(graph, (size_t)node->inputs[0])->tensor;
    if (x->dtype == 1) groups[i] = (int32_t)i + 1;
  }
  return NULL;
}

static CaesuraStatus* compile(void* made, const CaesuraGraph* graph, int32_t threads,
                              void** compiled) {
  (void)graph;
  (void)threads;
  *compiled = made;
  return NULL;
}

static CaesuraStatus* run(void* compiled, CaesuraRun* call, const CaesuraTensor* inputs,
                          size_t input_count, const CaesuraTensor* outputs, size_t output_count) {
  (void)compiled;
  const float* x = inputs[0].data;
  void* y = outputs[0].data;
  int64_t count = 1;
  for (int32_t i = 0; i < inputs[0].rank; ++i) count *= inputs[0].dims[i];
  if (input_count != 1 || output_count != 1)
    return api->make_status(CAESURA_INTERNAL, "not a Relu");
  if (y == NULL) {
    CaesuraStatus* failed =
        api->provider->make_output(call, 0, 1, inputs[0].dims, inputs[0].rank, &y);
    if (failed != NULL) return failed;
  }
  for (int64_t i = 0; i < count; ++i) ((float*)y)[i] = x[i] > 0 ? x[i] : 0;
  return NULL;
}

CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
  CaesuraProvider provider = {0};
  api = table;
  provider.size = sizeof(provider);
  provider.name = "ReluExecutionProvider";
  provider.create = create;
  provider.release = release;
  provider.capability = capability;
  provider.compile = compile;
  provider.release_compiled = release;
  provider.run = run;
  return api->add_provider(plugin, &provider);
}
