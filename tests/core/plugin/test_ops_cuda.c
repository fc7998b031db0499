/* SPDX-License-Identifier: Apache-2.0
 * A plug-in with an op for NVIDIA's GPUs, as its author would write it.
 */
#include <cuda.h>

#include "core/plugin/caesura_op.h"

static const CaesuraApi* api;

/* A test plants an error by it: work on a stream that nobody waits for. */
static CUstream elsewhere;
void test_ops_cuda_use_stream(CUstream stream);
void test_ops_cuda_use_stream(CUstream stream) { elsewhere = stream; }

static size_t BytesOf(const CaesuraTensor* tensor) {
  size_t bytes = sizeof(float);
  for (int32_t i = 0; i < tensor->rank; ++i) bytes *= (size_t)tensor->dims[i];
  return bytes;
}

/* --- Keep (x) -> x, by way of scratch memory --- */

static CaesuraStatus* ComputeKeep(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run;
  CaesuraTensor x, y;
  void* kept;
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  if (failed == NULL) failed = api->op->output(context, 0, &y);
  if (failed == NULL) failed = api->op->scratch(context, BytesOf(&x), &kept);
  if (failed != NULL) return failed;
  const CUstream stream = elsewhere != NULL ? elsewhere : api->op->stream(context);
  CUresult result = cuMemcpyDtoDAsync((CUdeviceptr)kept, (CUdeviceptr)x.data, BytesOf(&x), stream);
  if (result == CUDA_SUCCESS)
    result = cuMemcpyDtoDAsync((CUdeviceptr)y.data, (CUdeviceptr)kept, BytesOf(&x), stream);
  if (result == CUDA_SUCCESS) return NULL;
  return api->make_status(CAESURA_PROVIDER_FAILURE, "cuMemcpyDtoDAsync failed");
}

static CaesuraStatus* KeepGradient(CaesuraGradient* gradient) {
  CaesuraOpValue *dy = api->op->output_gradient(gradient, 0), *dx;
  CaesuraStatus* failed = api->op->add_node(gradient, "Keep", "test.cuda", &dy, 1, NULL, 0, &dx, 1);
  if (failed == NULL) api->op->set_input_gradient(gradient, 0, dx);
  return failed;
}

/* --- FromHost: forgets that its output is on the GPU --- */

static CaesuraStatus* ComputeFromHost(void* instance, void* run, CaesuraContext* context) {
  (void)instance, (void)run;
  CaesuraTensor x;
  CaesuraStatus* failed = api->op->input(context, 0, &x);
  return failed != NULL ? failed : api->op->copy_output(context, 0, &x);
}

static const int32_t kFloats[] = {1};

CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
  api = table;
  const CaesuraOp keep = {.size = sizeof(CaesuraOp),
                          .op_type = "Keep",
                          .domain = "test.cuda",
                          .dtypes = kFloats,
                          .dtype_count = 1,
                          .provider = "CUDAExecutionProvider",
                          .compute = ComputeKeep,
                          .gradient = KeepGradient};
  const CaesuraOp from_host = {.size = sizeof(CaesuraOp),
                               .op_type = "FromHost",
                               .domain = "test.cuda",
                               .provider = "CUDAExecutionProvider",
                               .compute = ComputeFromHost};
  CaesuraStatus* failed = api->add_op(plugin, &keep);
  return failed != NULL ? failed : api->add_op(plugin, &from_host);
}
