/* SPDX-License-Identifier: Apache-2.0
 * A provider in plain C that can run Relu and Add of float32, and fails when told to. Options:
 *   claims   chains (default): Relu and Add; each: the same, but every node a part of its own;
 * everything fail     compile; or the number of the run that fails, from 0, counted in the instance
 *   garbage  1: what fails writes to its outputs first
 *   any_shape  1: one compiled part for all shapes
 * TestExecutionProvider works in host memory, FarExecutionProvider in memory of its own, at
 * addresses that the host cannot read; its stream is its instance.
 */
#include "tests/core/plugin/test_provider.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/plugin/caesura_provider.h"

#define MAX_RANK 8

static const CaesuraApi* api;
_Atomic int test_provider_count[kTestProviderCounts];

/* --- settings --- */

typedef struct Instance {
  int everything, each, fail_compile, garbage, any_shape, device;
  int fail_at; /* -1: never */
  _Atomic int runs;
} Instance;

static CaesuraStatus* invalid(const char* what) {
  return api->make_status(CAESURA_INVALID_ARGUMENT, what);
}

static CaesuraStatus* set(Instance* instance, const char* key, const char* value) {
  if (strcmp(key, "claims") == 0) {
    instance->everything = strcmp(value, "everything") == 0;
    instance->each = strcmp(value, "each") == 0;
    return instance->everything || instance->each || strcmp(value, "chains") == 0
               ? NULL
               : invalid("claims: what?");
  }
  if (strcmp(key, "fail") == 0) {
    instance->fail_compile = strcmp(value, "compile") == 0;
    instance->fail_at = instance->fail_compile ? -1 : atoi(value);
    return NULL;
  }
  int* flag = strcmp(key, "garbage") == 0     ? &instance->garbage
              : strcmp(key, "any_shape") == 0 ? &instance->any_shape
                                              : NULL;
  if (flag == NULL) return invalid(key);
  *flag = atoi(value);
  return NULL;
}

static CaesuraStatus* create(const CaesuraOptions* options, void** made) {
  Instance* instance = calloc(1, sizeof(*instance));
  instance->fail_at = -1;
  for (size_t i = 0; i < options->count; ++i) {
    CaesuraStatus* failed = set(instance, options->keys[i], options->values[i]);
    if (failed != NULL) {
      free(instance);
      return failed;
    }
  }
  ++test_provider_count[kInstances];
  *made = instance;
  return NULL;
}

static CaesuraStatus* create_far(const CaesuraOptions* options, void** made) {
  CaesuraStatus* failed = create(options, made);
  if (failed == NULL) ((Instance*)*made)->device = 1;
  return failed;
}

static void release(void* instance) {
  --test_provider_count[kInstances];
  free(instance);
}

/* --- memory of its own: real addresses, moved to where the host faults --- */

#define FAR_AWAY ((uintptr_t)1 << 60)

static void* near_address(const Instance* instance, const void* data) {
  return data == NULL || !instance->device ? (void*)data : (void*)((uintptr_t)data - FAR_AWAY);
}

static CaesuraStatus* device(void* instance, int32_t* type, int32_t* index) {
  (void)instance;
  *type = CAESURA_OTHER;
  *index = 7;
  return NULL;
}

static CaesuraStatus* allocate(void* instance, size_t bytes, void** data) {
  (void)instance;
  void* got = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (got == NULL) return api->make_status(CAESURA_PROVIDER_FAILURE, "no memory");
  memset(got, 0xee, bytes);
  ++test_provider_count[kBuffers];
  *data = (void*)((uintptr_t)got + FAR_AWAY);
  return NULL;
}

static void release_memory(void* instance, void* data) {
  (void)instance;
  --test_provider_count[kBuffers];
  free((void*)((uintptr_t)data - FAR_AWAY));
}

static CaesuraStatus* copy(void* instance, int32_t kind, void* to, const void* from, size_t bytes) {
  if (kind == CAESURA_TO_DEVICE) ++test_provider_count[kToDevice];
  if (kind == CAESURA_TO_HOST) ++test_provider_count[kToHost];
  memcpy(kind == CAESURA_TO_HOST ? to : near_address(instance, to),
         kind == CAESURA_TO_DEVICE ? from : near_address(instance, from), bytes);
  return NULL;
}

static CaesuraStatus* synchronise(void* instance) {
  (void)instance;
  return NULL;
}

static void* stream(void* instance) { return instance; }

/* --- compiling --- */

typedef struct Op {
  int add; /* else Relu */
  int inputs[2], output;
} Op;

typedef struct Compiled {
  Instance* instance;
  size_t ops, values, inputs, outputs;
  Op* op;
  const float** constants; /* by value; copies */
  CaesuraTensor* shapes;   /* by value, of constants */
  int* ends;               /* values after inputs, then outputs */
} Compiled;

static int32_t is_float(const CaesuraGraph* graph, int32_t value) {
  return value >= 0 && api->provider->value(graph, (size_t)value)->tensor.dtype == 1 &&
         api->provider->value(graph, (size_t)value)->tensor.rank <= MAX_RANK;
}

static int can_run(const CaesuraGraph* graph, const CaesuraGraphNode* node) {
  const int relu = strcmp(node->op_type, "Relu") == 0, add = strcmp(node->op_type, "Add") == 0;
  return node->domain[0] == '\0' && (relu || add) && is_float(graph, node->inputs[0]) &&
         (relu || is_float(graph, node->inputs[1]));
}

static CaesuraStatus* capability(void* made, const CaesuraGraph* graph, int32_t* groups) {
  const Instance* instance = made;
  for (size_t i = 0; i < api->provider->node_count(graph); ++i) {
    const CaesuraGraphNode* node = api->provider->node(graph, i);
    if (node->offered == 0) continue;
    if (instance->everything || can_run(graph, node))
      groups[i] = instance->each ? (int32_t)i + 1 : 1;
  }
  return NULL;
}

static void release_compiled(void* made) {
  Compiled* compiled = made;
  for (size_t i = 0; i < compiled->values; ++i) {
    free((void*)compiled->constants[i]);
    free((void*)compiled->shapes[i].dims);
  }
  free(compiled->op);
  free(compiled->constants);
  free(compiled->shapes);
  free(compiled->ends);
  free(compiled);
  --test_provider_count[kCompiled];
}

static int64_t elements(const CaesuraTensor* tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) count *= tensor->dims[i];
  return count;
}

static void keep_constant(Compiled* compiled, size_t i, const CaesuraTensor* tensor) {
  if (tensor->data == NULL || tensor->dtype != 1) return;
  const size_t bytes = (size_t)elements(tensor) * sizeof(float),
               dims = (size_t)tensor->rank * sizeof(int64_t);
  compiled->constants[i] = memcpy(malloc(bytes + 1), tensor->data, bytes);
  compiled->shapes[i] = *tensor;
  compiled->shapes[i].dims =
      memcpy(malloc(dims + 1), dims == 0 ? "" : (const void*)tensor->dims, dims);
}

static CaesuraStatus* compile(void* made, const CaesuraGraph* graph, int32_t threads,
                              void** result) {
  Instance* instance = made;
  const CaesuraProviderApi* get = api->provider;
  ++test_provider_count[kCompiles];
  test_provider_count[kCompiledNodes] += (int)get->node_count(graph);
  test_provider_count[kThreads] = threads;
  if (instance->fail_compile)
    return api->make_status(CAESURA_UNSUPPORTED, "planted: cannot compile");
  for (size_t i = 0; i < get->node_count(graph); ++i) {
    const CaesuraGraphNode* node = get->node(graph, i);
    if (!can_run(graph, node)) return api->make_status(CAESURA_UNSUPPORTED, node->op_type);
  }
  Compiled* compiled = calloc(1, sizeof(*compiled));
  compiled->instance = instance;
  compiled->ops = get->node_count(graph);
  compiled->values = get->value_count(graph);
  compiled->op = calloc(compiled->ops, sizeof(Op));
  compiled->constants = calloc(compiled->values, sizeof(float*));
  compiled->shapes = calloc(compiled->values, sizeof(CaesuraTensor));
  for (size_t i = 0; i < compiled->values; ++i)
    keep_constant(compiled, i, &get->value(graph, i)->tensor);
  for (size_t i = 0; i < compiled->ops; ++i) {
    const CaesuraGraphNode* node = get->node(graph, i);
    Op* op = &compiled->op[i];
    op->add = node->input_count == 2;
    op->inputs[0] = node->inputs[0];
    op->inputs[1] = node->inputs[node->input_count - 1];
    op->output = node->outputs[0];
  }
  const int32_t* inputs = get->inputs(graph, &compiled->inputs);
  const int32_t* outputs = get->outputs(graph, &compiled->outputs);
  compiled->ends = calloc(compiled->inputs + compiled->outputs, sizeof(int));
  for (size_t i = 0; i < compiled->inputs; ++i) compiled->ends[i] = inputs[i];
  for (size_t i = 0; i < compiled->outputs; ++i) compiled->ends[compiled->inputs + i] = outputs[i];
  ++test_provider_count[kCompiled];
  *result = compiled;
  return NULL;
}

/* --- running --- */

typedef struct Array {
  float* data;
  int64_t dims[MAX_RANK];
  int32_t rank;
  int own;
} Array;

static int64_t count_of(const Array* array) {
  int64_t count = 1;
  for (int32_t i = 0; i < array->rank; ++i) count *= array->dims[i];
  return count;
}

static Array view(const CaesuraTensor* tensor, float* data) {
  Array out = {data, {0}, tensor->rank, 0};
  for (int32_t i = 0; i < tensor->rank; ++i) out.dims[i] = tensor->dims[i];
  return out;
}

/* The dim of `array` that meets dim i of an array of `rank` dims. */
static int64_t dim_at(const Array* array, int32_t rank, int32_t i) {
  const int32_t at = i - (rank - array->rank);
  return at < 0 ? 1 : array->dims[at];
}

static float element(const Array* array, int32_t rank, const int64_t* index) {
  int64_t offset = 0;
  for (int32_t i = 0; i < rank; ++i) {
    const int64_t dim = dim_at(array, rank, i);
    offset = offset * dim + (dim == 1 ? 0 : index[i]);
  }
  return array->data[offset];
}

static int run_op(const Op* op, Array* values) {
  const Array *a = &values[op->inputs[0]], *b = &values[op->inputs[1]];
  Array out = {NULL, {0}, a->rank > b->rank ? a->rank : b->rank, 1};
  for (int32_t i = 0; i < out.rank; ++i) {
    const int64_t da = dim_at(a, out.rank, i), db = dim_at(b, out.rank, i);
    if (da != db && da != 1 && db != 1) return 0;
    out.dims[i] = da == 1 ? db : da;
  }
  const int64_t count = count_of(&out);
  out.data = malloc((size_t)count * sizeof(float) + 1);
  for (int64_t i = 0; i < count; ++i) {
    int64_t index[MAX_RANK], rest = i;
    for (int32_t d = out.rank - 1; d >= 0; --d) {
      index[d] = rest % out.dims[d];
      rest /= out.dims[d];
    }
    const float x = element(a, out.rank, index);
    out.data[i] = op->add ? x + element(b, out.rank, index) : x > 0 ? x : 0;
  }
  values[op->output] = out;
  return 1;
}

static CaesuraStatus* store(const Compiled* compiled, CaesuraRun* run, size_t i,
                            const CaesuraTensor* to, const Array* from) {
  void* data = to->data;
  if (data == NULL) {
    CaesuraStatus* failed = api->provider->make_output(run, i, 1, from->dims, from->rank, &data);
    if (failed != NULL) return failed;
  } else if (elements(to) != count_of(from)) {
    return api->make_status(CAESURA_INTERNAL, "an output has another size");
  }
  memcpy(near_address(compiled->instance, data), from->data,
         (size_t)count_of(from) * sizeof(float));
  return NULL;
}

static CaesuraStatus* run(void* made, CaesuraRun* call, const CaesuraTensor* inputs,
                          size_t input_count, const CaesuraTensor* outputs, size_t output_count) {
  const Compiled* compiled = made;
  Instance* instance = compiled->instance;
  ++test_provider_count[kRuns];
  if (instance->runs++ == instance->fail_at) {
    for (size_t i = 0; instance->garbage && i < output_count; ++i) {
      void* data = near_address(instance, outputs[i].data);
      if (data != NULL) memset(data, 0x7b, (size_t)elements(&outputs[i]) * sizeof(float));
    }
    return api->make_status(CAESURA_INTERNAL, "planted: cannot run");
  }
  Array* values = calloc(compiled->values, sizeof(Array));
  for (size_t i = 0; i < compiled->values; ++i) {
    if (compiled->constants[i] != NULL)
      values[i] = view(&compiled->shapes[i], (float*)compiled->constants[i]);
  }
  for (size_t i = 0; i < input_count; ++i) {
    values[compiled->ends[i]] = view(&inputs[i], near_address(instance, inputs[i].data));
  }
  CaesuraStatus* status = NULL;
  for (size_t i = 0; i < compiled->ops && status == NULL; ++i) {
    if (!run_op(&compiled->op[i], values)) status = invalid("shapes do not fit");
  }
  for (size_t i = 0; i < output_count && status == NULL; ++i) {
    status = store(compiled, call, i, &outputs[i], &values[compiled->ends[compiled->inputs + i]]);
  }
  for (size_t i = 0; i < compiled->values; ++i) {
    if (values[i].own) free(values[i].data);
  }
  free(values);
  return status;
}

static int32_t any_shape(void* instance) { return ((Instance*)instance)->any_shape; }

CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
  api = table;
  CaesuraProvider host = {0};
  host.size = sizeof(host);
  host.name = "TestExecutionProvider";
  host.version = "1";
  host.create = create;
  host.release = release;
  host.capability = capability;
  host.compile = compile;
  host.release_compiled = release_compiled;
  host.run = run;
  host.any_shape = any_shape;
  CaesuraProvider far = host;
  far.name = "FarExecutionProvider";
  far.create = create_far;
  far.device = device;
  far.allocate = allocate;
  far.free = release_memory;
  far.copy = copy;
  far.synchronise = synchronise;
  far.stream = stream;
  CaesuraStatus* failed = api->add_provider(plugin, &host);
  return failed != NULL ? failed : api->add_provider(plugin, &far);
}
