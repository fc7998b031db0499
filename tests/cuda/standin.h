/* SPDX-License-Identifier: Apache-2.0 */
/* How a test steers the stand-ins for CUDA's libraries, and what it asks them afterwards
   (README.md). A test finds these functions in libcaesura_standin_cuda by name (dlsym), except
   where another library is named. */
#ifndef CAESURA_TESTS_CUDA_STANDIN_H_
#define CAESURA_TESTS_CUDA_STANDIN_H_
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Forgets streams, events, modules, memory, contexts (also those current on other threads),
   reports, counts and planned failures. No handle from before may be used. All that is drawn
   follows from the seed. */
void standin_reset(uint64_t seed);

/* From now on, draws from this seed; nothing else changes. */
void standin_set_seed(uint64_t seed);

enum {
  STANDIN_LANES_DRAWN = 0, /* one of the next, for each launch; the default */
  STANDIN_LANES_FORWARD = 1,
  STANDIN_LANES_REVERSE = 2,
  STANDIN_LANES_SHUFFLED = 3,
  STANDIN_LANES_FIRST_WARP_AHEAD = 4, /* a warp runs as far as it can, then the next */
  STANDIN_LANES_ANY_WARP_AHEAD = 5
};
void standin_set_lane_order(int order);

/* At the start and after a reset: the variable STANDIN_DEVICES, or 1. The devices are alike: sm_90
 * with 132 multiprocessors. */
void standin_set_devices(int count);
/* Their chip from now on, in tenths: 80 for sm_80. */
void standin_set_capability(int capability);
/* Bytes of memory of each device; 80 GiB after a reset. More gives CUDA_ERROR_OUT_OF_MEMORY. */
void standin_set_memory(uint64_t bytes);
/* The n-th call of the function from now takes so many milliseconds longer. */
void standin_delay(const char* function, int n, int milliseconds);
/* With a value other than 0, a launch returns only when its kernel has run, as where
   CUDA_LAUNCH_BLOCKING is set. 0 after a reset. */
void standin_block_launches(int on);
/* The version that cuDriverGetVersion tells; 13000 after a reset. */
void standin_set_driver_version(int version);

/* Faults of the program under test, each told once. Where the variable STANDIN_REPORTS names a
   file, they are added to it, too. */
size_t standin_report_count(void);
const char* standin_report(size_t index); /* valid until the next reset or clear */
void standin_clear_reports(void);

/* The n-th call from now (1 is the next) of the function of this name, as in cuda.h without _v2,
   returns `error` (a CUresult) and does nothing. It may be set for several functions. n = 0 takes
   back what was set for this one. */
void standin_fail(const char* function, int n, int error);
/* The n-th operation from now whose name begins with this ("kernel ", "copy ", "fill ",
   "cublasLtMatmul", ...) fails when the device runs it: the error is sticky, as after an illegal
   access. */
void standin_fail_operation(const char* name, int n, int error);

/* Calls of the function of this name since the last reset, and operations whose names begin with
 * this. */
uint64_t standin_calls(const char* function);
uint64_t standin_operations(const char* name);
/* Times that the host had to wait for the device: synchronizations, copies that wait, cuMemFree. */
uint64_t standin_host_waits(void);
/* Bytes that are allocated on the device now, and the most there were. */
uint64_t standin_allocated(void);
uint64_t standin_most_allocated(void);
/* Operations that no one has waited for yet. */
size_t standin_pending(void);

/* --- For other stand-ins (cuBLASLt, cuDNN, NCCL) --- */

typedef struct {
  const void* at;
  size_t bytes;
  int writes;
} standin_range;

/* Adds an operation to a stream (a CUstream of the current context; in a capture, to the graph).
   `run` is called when the stream comes to it, once for each launch of a graph, and returns a
   CUresult: CUDA_ERROR_NOT_READY if it has to be called again later; `release` once, after the
   last run. The ranges are checked and ordered. Returns a CUresult. */
int standin_enqueue(void* stream, const char* name, const standin_range* ranges, size_t count,
                    int (*run)(void* argument), void (*release)(void* argument), void* argument);
/* Adds a report. */
void standin_add_report(const char* text);
/* Counts a call, and gives the error that was planned for it, or 0. */
int standin_called(const char* function);

/* --- In libcaesura_standin_nvrtc --- */

/* Where compiled kernels are kept; made if it is not there. Without a call: in the build. */
void standin_nvrtc_set_cache(const char* folder);
/* Programs that were compiled, not found in the cache, in this process. */
uint64_t standin_nvrtc_compiled(void);
/* Calls of nvrtcCompileProgram in this process. */
uint64_t standin_nvrtc_calls(void);

/* --- In libcaesura_standin_cublaslt --- */

/* The next n heuristic requests give CUBLAS_STATUS_NOT_SUPPORTED. */
void standin_cublaslt_refuse(int n);

/* --- In libcaesura_standin_cudnn --- */

/* The next n heuristic requests give no engine. */
void standin_cudnn_refuse(int n);

/* --- In libcaesura_standin_nccl --- */

/* Communicators of the current process that were neither destroyed nor aborted. */
uint64_t standin_nccl_communicators(void);

#ifdef __cplusplus
}
#endif
#endif /* CAESURA_TESTS_CUDA_STANDIN_H_ */
