/* SPDX-License-Identifier: Apache-2.0
 * Providers, as plug-ins describe them; see caesura_plugin.h for the rules.
 *
 * A provider takes parts of a graph and runs each of them as a whole. It is asked, in this order,
 *   create      once for each set of options,
 *   capability  which nodes of a session's graph it would take. The session then joins neighbours
 *               that can run without waiting for anything outside: there are no cycles.
 *   compile     one part, as a graph of its own: named inputs and outputs, constants inside;
 *   run         the compiled part, on inputs and outputs at given addresses;
 *   release_compiled and release.
 *
 * A graph is shown in two forms, and each provider takes the one that it can do right with less
 * work: as nodes and values to look through, enough to decide by op and type, and as the bytes of
 * an ONNX model, which is what most runtimes read already. A single node is to be had as an ONNX
 * model too: a provider that hands it to its runtime's own reader claims what that reader accepts,
 * not what a list hopes for.
 *
 * compile or run failing with any code but OUT_OF_MEMORY (and, for run, INVALID_ARGUMENT: the
 * values are wrong for the op) is a provider failure: the session may go on without the provider.
 *
 * Devices with memory of their own: a provider that gives `device`, `allocate`, `free`, `copy` and
 * `synchronise` gets all arguments of run in its memory. It has one queue of work: what copy and
 * run begin is done in the order of the calls and may be unfinished when they return; synchronise
 * waits for all of it. Without them it works in host memory and is done when run returns.
 *
 * Thread safety: capability, compile, run (also of one compiled part) and the memory functions are
 * called from any thread at the same time; create and release are not called while anything else of
 * the instance is.
 */
#ifndef CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_
#define CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_

#include "core/plugin/caesura_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CaesuraGraph CaesuraGraph; /* to be read; lives during the call that shows it, with
                                             all that is got from it */
typedef struct CaesuraRun CaesuraRun;     /* one call of run */

/* A value of a graph. It lives as long as its graph is shown. */
typedef struct CaesuraValue {
  const char* name;
  CaesuraTensor tensor; /* dtype 0: not known, or no tensor. data: the elements of a constant,
                           otherwise NULL */
} CaesuraValue;

/* A node of a graph. It lives as long as its graph is shown. */
typedef struct CaesuraGraphNode {
  const char* op_type;
  const char* domain; /* "": ONNX's own */
  const char* name;
  int32_t version; /* of the domain's ops, in which this op got the meaning that it has here; 0: not
                      known */
  int32_t offered; /* 0: capability must not take it */
  const int32_t* inputs; /* indices of values; -1: left out */
  int32_t input_count;
  int32_t output_count;
  const int32_t* outputs;
} CaesuraGraphNode;

/* The direction of a copy. */
typedef enum CaesuraCopyKind {
  CAESURA_TO_DEVICE = 0,
  CAESURA_TO_HOST = 1,
  CAESURA_WITHIN = 2
} CaesuraCopyKind;

/* A provider of a plug-in. add_provider copies the description; what it points at must stay for the
 * process's life. */
struct CaesuraProvider {
  size_t size;
  const char* name;    /* "FarExecutionProvider": what users ask for */
  const char* version; /* changes when results may; may be NULL */
  int32_t min_nodes;   /* parts of fewer nodes are not worth a call; below 1: 1. The option
                          "min_nodes" comes first */

  /* Required. INVALID_ARGUMENT for names and values of options that are not known. "min_nodes" is
   * not among them. */
  CaesuraStatus* (*create)(const CaesuraOptions* options, void** instance);
  void (*release)(void* instance);
  /* `groups` has an entry a node, all 0: leave the node. Nodes with equal numbers above 0 may
   * become one part. */
  CaesuraStatus* (*capability)(void* instance, const CaesuraGraph* graph, int32_t* groups);
  /* A run may take `threads` threads. */
  CaesuraStatus* (*compile)(void* instance, const CaesuraGraph* graph, int32_t threads,
                            void** compiled);
  void (*release_compiled)(void* compiled); /* before the instance */
  /* Outputs whose shape did not follow from the inputs' have no data: make_output makes them. */
  CaesuraStatus* (*run)(void* compiled, CaesuraRun* run, const CaesuraTensor* inputs,
                        size_t input_count, const CaesuraTensor* outputs, size_t output_count);

  /* Optional. Nonzero: one compiled part serves all shapes that the graph's types allow; compile
   * then sees dims of -1. Without it each combination of shapes is compiled. */
  int32_t (*any_shape)(void* instance);

  /* All or none. `type`: a CaesuraDeviceType but CAESURA_CPU. Addresses are multiples of 64, and
   * addresses within an allocation may be computed as in C. A failing allocate is a provider
   * failure. */
  CaesuraStatus* (*device)(void* instance, int32_t* type, int32_t* index);
  CaesuraStatus* (*allocate)(void* instance, size_t bytes, void** data);
  void (*free)(void* instance, void* data);
  CaesuraStatus* (*copy)(void* instance, int32_t kind, void* to, const void* from, size_t bytes);
  CaesuraStatus* (*synchronise)(void* instance);

  /* Optional, for providers with memory of their own: the queue of the calling thread as the
   * device's library has it (a cudaStream_t), for ops that work in this memory
   * (CaesuraOpApi.stream). */
  void* (*stream)(void* instance);
};

/* The functions of caesura that a provider may call, as CaesuraApi.provider. The table lives as
 * long as the process. */
typedef struct CaesuraProviderApi {
  size_t size;

  /* Nodes are in an order in which they can run. */
  size_t (*node_count)(const CaesuraGraph* graph);
  const CaesuraGraphNode* (*node)(const CaesuraGraph* graph, size_t node);
  size_t (*value_count)(const CaesuraGraph* graph);
  const CaesuraValue* (*value)(const CaesuraGraph* graph, size_t value);
  /* The graph's own inputs and outputs, as indices of values. Constants are no inputs. */
  const int32_t* (*inputs)(const CaesuraGraph* graph, size_t* count);
  const int32_t* (*outputs)(const CaesuraGraph* graph, size_t* count);

  /* Attributes: NULL where the node has none of that name and kind; its op's default holds then. An
   * int (a float) is a list of one. Other kinds are to be had from the ONNX forms. */
  const int64_t* (*ints)(const CaesuraGraph* graph, size_t node, const char* name, size_t* count);
  const float* (*floats)(const CaesuraGraph* graph, size_t node, const char* name, size_t* count);
  const char* (*string)(const CaesuraGraph* graph, size_t node, const char* name);

  /* The graph as an ONNX model. UNSUPPORTED beyond 2 GB. */
  CaesuraStatus* (*onnx)(const CaesuraGraph* graph, const void** bytes, size_t* size);
  /* One node as an ONNX model, with the constants that it reads; valid until the next call for this
   * graph. Not for nodes that are not offered. */
  CaesuraStatus* (*node_onnx)(const CaesuraGraph* graph, size_t node, const void** bytes,
                              size_t* size);

  /* Memory for an output that has no data: of the caller's kind, where run's arguments are. */
  CaesuraStatus* (*make_output)(CaesuraRun* run, size_t output, int32_t dtype, const int64_t* dims,
                                int32_t rank, void** data);
} CaesuraProviderApi;

#ifdef __cplusplus
}
#endif

#endif /* CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_ */
