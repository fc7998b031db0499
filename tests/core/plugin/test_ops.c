/* SPDX-License-Identifier: Apache-2.0
 * A plug-in in C11, as its author would write it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plugin/caesura_op.h"

static const CaesuraApi* api;

/* --- Scale (x) -> factor * x + offset: an attribute, an option, a gradient --- */

typedef struct Scale {
  float factor, offset;
} Scale;

static CaesuraStatus* CreateScale(const CaesuraOpNode* node, void** instance) {
  Scale* scale = malloc(sizeof(Scale));
  if (scale == NULL) return api->make_status(CAESURA_OUT_OF_MEMORY, "no memory");
  CaesuraAttribute factor = {.size = sizeof(factor)};
  CaesuraStatus* missing = api->op->node_attribute(node, "factor", &factor);
  scale->factor = missing == NULL ? factor.floats[0] : 1;
  api->release_status(missing);
  scale->offset = (float)atof(api->op->node_option(node, "offset"));
  *instance = scale;
  return NULL;
}

static void ScaleRange(int64_t first, int64_t last, void* argument) {
  void** a = argument;
  const Scale* scale = a[0];
  for (int64_t i = first; i < last; ++i)
    ((float*)a[2])[i] = scale->factor * ((const float*)a[1])[i] + scale->offset;
}

static int64_t Count(const CaesuraTensor* tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) count *= tensor->dims[i];
  return count;
}

static CaesuraStatus* ComputeScale(void* instance, void* run, CaesuraContext* context) {
  (void)run;
  CaesuraTensor x, y;
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  if (failed == NULL) failed = api->op->output(context, 0, &y);
  if (failed != NULL) return failed;
  void* arguments[] = {instance, x.data, y.data};
  api->op->parallel_for(context, Count(&x), 1024, ScaleRange, arguments);
  return NULL;
}

static CaesuraStatus* ScaleGradient(CaesuraGradient* gradient) {
  CaesuraAttribute factor = {.size = sizeof(factor)};
  CaesuraStatus* failed =
      api->op->node_attribute(api->op->gradient_node(gradient), "factor", &factor);
  if (failed != NULL) return failed;
  const CaesuraTensor constant = {.data = (void*)factor.floats, .rank = 0, .dtype = 1};
  CaesuraOpValue *inputs[2] = {api->op->output_gradient(gradient, 0), NULL}, *dx;
  failed = api->op->add_constant(gradient, &constant, &inputs[1]);
  if (failed == NULL) failed = api->op->add_node(gradient, "Mul", NULL, inputs, 2, NULL, 0, &dx, 1);
  if (failed == NULL) api->op->set_input_gradient(gradient, 0, dx);
  return failed;
}

/* --- Repeat (x, count) -> x, count times: a size that follows from a value --- */

static CaesuraStatus* InferRepeat(CaesuraOpNode* node) {
  CaesuraArgument x = {.size = sizeof(x)}, count = {.size = sizeof(count)};
  CaesuraStatus* failed = api->op->node_input(node, 0, &x);
  if (failed == NULL) failed = api->op->node_input(node, 1, &count);
  if (failed != NULL) return failed;
  const int64_t known = x.tensor.rank == 1 && x.tensor.dims[0] >= 0 && count.tensor.data != NULL;
  const int64_t size = known ? x.tensor.dims[0] * *(const int64_t*)count.tensor.data : -1;
  return api->op->set_output(node, 0, x.tensor.dtype, 1, &size);
}

static CaesuraStatus* ComputeRepeat(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run;
  CaesuraTensor x, count, y;
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  if (failed == NULL) failed = api->op->input(context, 1, &count);
  if (failed == NULL) failed = api->op->output(context, 0, &y);
  if (failed != NULL) return failed;
  const size_t bytes = (size_t)x.dims[0] * sizeof(float);
  for (int64_t i = 0; i < *(const int64_t*)count.data; ++i)
    memcpy((char*)y.data + (size_t)i * bytes, x.data, bytes);
  return NULL;
}

/* --- Positive (x) -> the positive ones: a size that shows only at run time; scratch; a run state
 * --- */

static CaesuraStatus* InferPositive(CaesuraOpNode* node) {
  const int64_t unknown = -1;
  return api->op->set_output(node, 0, 1, 1, &unknown);
}

static CaesuraStatus* CreateRun(void* instance, void** run) {
  (void)instance;
  *run = calloc(1, sizeof(int64_t));
  return NULL;
}

static CaesuraStatus* ComputePositive(void* instance, void* run, CaesuraContext* context) {
  (void)instance;
  CaesuraTensor x, y;
  void* kept;
  CaesuraStatus* beyond = api->op->input(context, api->op->input_count(context), &x);
  if (beyond == NULL) return api->make_status(CAESURA_INTERNAL, "an input too many was given");
  api->release_status(beyond);
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  if (failed == NULL) failed = api->op->scratch(context, (size_t)Count(&x) * sizeof(float), &kept);
  if (failed != NULL) return failed;
  int64_t* n =
      run; /* shared with another compute, or left from the last one, it would count wrong */
  *n = 0;
  for (int64_t i = 0; i < Count(&x); ++i) {
    const float v = ((const float*)x.data)[i];
    if (v > 0) ((float*)kept)[(*n)++] = v;
  }
  failed = api->op->allocate_output(context, 0, 1, 1, n, &y);
  if (failed == NULL && *n > 0) memcpy(y.data, kept, (size_t)*n * sizeof(float));
  return failed;
}

/* --- Spell: fails to be made, telling all that it was shown --- */

static void Append(char* out, size_t size, const char* text) {
  strncat(out, text, size - strlen(out) - 1);
}

static void AppendArgument(char* out, size_t size, const CaesuraArgument* argument) {
  char text[128];
  snprintf(text, sizeof(text), " %s:%d", argument->present ? argument->name : "-",
           (int)argument->tensor.dtype);
  Append(out, size, text);
  for (int32_t i = 0; i < argument->tensor.rank; ++i) {
    snprintf(text, sizeof(text), "%c%d", i == 0 ? '[' : ',', (int)argument->tensor.dims[i]);
    Append(out, size, text);
  }
  Append(out, size, argument->tensor.rank > 0 ? "]" : "");
  if (argument->tensor.data != NULL) Append(out, size, "=constant");
}

static CaesuraStatus* CreateSpell(const CaesuraOpNode* node, void** instance) {
  (void)instance;
  char out[2000] = "", text[256];
  snprintf(text, sizeof(text), "%s %s v%d |", api->op->node_name(node), api->op->node_op_type(node),
           (int)api->op->node_version(node));
  Append(out, sizeof(out), text);
  CaesuraArgument argument = {.size = sizeof(argument)};
  for (size_t i = 0; i < api->op->node_input_count(node); ++i) {
    CaesuraStatus* failed = api->op->node_input(node, i, &argument);
    if (failed != NULL) return failed;
    AppendArgument(out, sizeof(out), &argument);
  }
  Append(out, sizeof(out), " ->");
  for (size_t i = 0; i < api->op->node_output_count(node); ++i) {
    CaesuraStatus* failed = api->op->node_output(node, i, &argument);
    if (failed != NULL) return failed;
    AppendArgument(out, sizeof(out), &argument);
  }
  Append(out, sizeof(out), " |");
  for (size_t i = 0; i < api->op->node_attribute_count(node); ++i) {
    CaesuraAttribute a = {.size = sizeof(a)};
    CaesuraStatus* failed = api->op->node_attribute_at(node, i, &a);
    if (failed != NULL) return failed;
    snprintf(text, sizeof(text), " %s=", a.name);
    Append(out, sizeof(out), text);
    for (size_t k = 0; k < a.count; ++k) {
      if (a.ints != NULL) snprintf(text, sizeof(text), "i%d ", (int)a.ints[k]);
      else if (a.floats != NULL) snprintf(text, sizeof(text), "f%g ", (double)a.floats[k]);
      else if (a.strings != NULL) snprintf(text, sizeof(text), "s%.20s ", a.strings[k]);
      else
        snprintf(text, sizeof(text), "t%d/%d ", (int)a.tensors[k].dtype, (int)Count(&a.tensors[k]));
      Append(out, sizeof(out), text);
    }
  }
  Append(out, sizeof(out), "|");
  const CaesuraOptions* options = api->op->node_options(node);
  for (size_t i = 0; i < options->count; ++i) {
    snprintf(text, sizeof(text), " %s=%s", options->keys[i], options->values[i]);
    Append(out, sizeof(out), text);
  }
  return api->make_status(CAESURA_INVALID_ARGUMENT, out);
}

/* --- Careless: promises an output that it does not allocate --- */

static CaesuraStatus* ComputeNothing(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run, (void)context;
  return NULL;
}

static CaesuraStatus* ComputeFailure(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run, (void)context;
  return api->make_status(CAESURA_PROVIDER_FAILURE, "the device is gone");
}

/* --- the runtime "test": a model's bytes are a number, and it multiplies with that --- */

typedef struct Product {
  float factor;
  int32_t sizeless; /* option: tells no output sizes */
} Product;

typedef struct ProductRun {
  const Product* model;
  int32_t busy;
} ProductRun;

static CaesuraStatus* LoadProduct(const CaesuraOpNode* node, const void* bytes, size_t size,
                                  const void* weights, size_t weight_bytes, void** model) {
  (void)weights, (void)weight_bytes;
  char text[32] = "";
  memcpy(text, bytes, size < sizeof(text) - 1 ? size : sizeof(text) - 1);
  if (text[0] == '!') return api->make_status(CAESURA_INVALID_MODEL, "this is no number");
  const CaesuraOptions* options = api->op->node_options(node);
  Product* product = calloc(1, sizeof(Product));
  product->factor = (float)atof(text);
  for (size_t i = 0; i < options->count; ++i) {
    if (strcmp(options->keys[i], "factor") == 0) product->factor = (float)atof(options->values[i]);
    else if (strcmp(options->keys[i], "sizeless") == 0) product->sizeless = 1;
    else {
      free(product);
      return api->make_status(CAESURA_INVALID_ARGUMENT,
                              "there is no such option; known are: factor, sizeless");
    }
  }
  *model = product;
  return NULL;
}

static CaesuraStatus* DescribeProduct(void* model, CaesuraOpNode* description) {
  const int64_t same = -2, any = -1;
  CaesuraStatus* failed = api->op->describe_input(description, "x", 1, 1, &same);
  if (failed != NULL) return failed;
  return api->op->describe_output(description, "y", 1, 1,
                                  ((Product*)model)->sizeless ? &any : &same);
}

static CaesuraStatus* CreateProductRun(void* model, void** run) {
  ProductRun* made = calloc(1, sizeof(ProductRun));
  made->model = model;
  *run = made;
  return NULL;
}

static CaesuraStatus* Multiply(ProductRun* run, CaesuraContext* context, size_t input) {
  if (run->busy++ != 0) return api->make_status(CAESURA_INTERNAL, "two runs share a state");
  CaesuraTensor x, y;
  CaesuraStatus* failed = api->op->input(context, input, &x);
  if (failed == NULL) failed = api->op->output(context, 0, &y);
  if (failed == NULL && y.dtype == 0)
    failed = api->op->allocate_output(context, 0, 1, x.rank, x.dims, &y);
  if (failed != NULL) return failed;
  for (int64_t i = 0; i < Count(&x); ++i)
    ((float*)y.data)[i] = run->model->factor * ((const float*)x.data)[i];
  run->busy = 0;
  return NULL;
}

static CaesuraStatus* RunProduct(void* run, CaesuraContext* context) {
  return Multiply(run, context, 0);
}

/* (dy, x) -> dx */
static CaesuraStatus* RunProductGradient(void* run, CaesuraContext* context) {
  return Multiply(run, context, 0);
}

static const int32_t kFloats[] = {1};
static const int32_t kSecondInput[] = {1};
static const char* const kOffset[] = {"offset"};
static const char* const kZero[] = {"0"};

CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
  api = table;
  const CaesuraOp ops[] = {
      {.size = sizeof(CaesuraOp),
       .op_type = "Scale",
       .domain = "test.c",
       .dtypes = kFloats,
       .dtype_count = 1,
       .options = {kOffset, kZero, 1},
       .create = CreateScale,
       .destroy = free,
       .compute = ComputeScale,
       .gradient = ScaleGradient},
      {.size = sizeof(CaesuraOp),
       .op_type = "Repeat",
       .domain = "test.c",
       .min_inputs = 2,
       .max_inputs = 2,
       .dtypes = kFloats,
       .dtype_count = 1,
       .host_inputs = kSecondInput,
       .host_input_count = 1,
       .infer = InferRepeat,
       .compute = ComputeRepeat},
      {.size = sizeof(CaesuraOp),
       .op_type = "Positive",
       .domain = "test.c",
       .infer = InferPositive,
       .create_run = CreateRun,
       .destroy_run = free,
       .compute = ComputePositive},
      {.size = sizeof(CaesuraOp),
       .op_type = "Spell",
       .domain = "test.c",
       .since_version = 3,
       .min_inputs = 1,
       .max_inputs = CAESURA_ANY_NUMBER,
       .min_outputs = 1,
       .max_outputs = 2,
       .flags = CAESURA_OP_CHECKS_OPTIONS,
       .create = CreateSpell,
       .compute = ComputeNothing},
      {.size = sizeof(CaesuraOp),
       .op_type = "Careless",
       .domain = "test.c",
       .infer = InferPositive,
       .compute = ComputeNothing},
      {.size = sizeof(CaesuraOp),
       .op_type = "Broken",
       .domain = "test.c",
       .compute = ComputeFailure},
  };
  CaesuraStatus* failed = NULL;
  for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]) && failed == NULL; ++i)
    failed = api->add_op(plugin, &ops[i]);
  CaesuraModelRuntime runtime = {.size = sizeof(runtime),
                                 .name = "test",
                                 .load = LoadProduct,
                                 .unload = free,
                                 .describe = DescribeProduct,
                                 .create_run = CreateProductRun,
                                 .destroy_run = free,
                                 .run = RunProduct,
                                 .run_gradient = RunProductGradient};
  if (failed == NULL) failed = api->add_model_runtime(plugin, &runtime);
  runtime.name = "test_without_gradient";
  runtime.run_gradient = NULL;
  if (failed == NULL) failed = api->add_model_runtime(plugin, &runtime);
  return failed;
}
