/* SPDX-License-Identifier: Apache-2.0
 * Ops and runtimes of whole models, as plug-ins describe them; see caesura_plugin.h for the rules.
 *
 *   static CaesuraStatus* Compute(void* instance, void* run, CaesuraContext* context) {
 *     CaesuraTensor x, y;
 *     CaesuraStatus* failed = api->op->input(context, 0, &x);
 *     if (failed == NULL) failed = api->op->output(context, 0, &y);
 *     if (failed != NULL) return failed;
 *     for (int64_t i = 0; i < x.dims[0]; ++i) ((float*)y.data)[i] = 2 * ((const float*)x.data)[i];
 *     return NULL;
 *   }
 *   static const CaesuraOp twice = {
 *       .size = sizeof(CaesuraOp), .op_type = "Twice", .domain = "mine", .compute = Compute};
 *
 * State: an instance belongs to one node of one session. It is made when the session is, and used
 * by many runs at the same time: what changes in a run belongs into a run state, which one compute
 * has to itself.
 *
 * Tensors are numbers in row-major order; ops on strings, sequences and optionals are C++
 * (core/custom_ops/custom_op.h).
 */
#ifndef CAESURA_CORE_PLUGIN_CAESURA_OP_H_
#define CAESURA_CORE_PLUGIN_CAESURA_OP_H_

#include "core/plugin/caesura_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CaesuraOpNode
    CaesuraOpNode; /* what is known of a node; lives during the call that shows it */
typedef struct CaesuraContext
    CaesuraContext; /* of one compute; used on the thread that it was called on */
typedef struct CaesuraGradient CaesuraGradient; /* of one call of a gradient hook */
typedef struct CaesuraOpValue
    CaesuraOpValue; /* an edge of the graph that a gradient hook adds to */

#define CAESURA_ANY_NUMBER (-1) /* of inputs or outputs */

/* An input or output of a node. */
typedef struct CaesuraArgument {
  size_t size;
  int32_t present; /* 0: an optional one that is left out; all below is then empty */
  const char* name;
  /* Known facts: dtype 0 and rank -1 are "not yet". A dim below -1 is a number that is not known
   * yet either, and the same in each place where this number stands: copy it to say that an
   * output's dim equals it. `data` is there for inputs whose value is part of the model and not
   * trained, and for host inputs once they are known. */
  CaesuraTensor tensor;
} CaesuraArgument;

/* The kinds of attributes. Each kind fills one array of a CaesuraAttribute. */
typedef enum CaesuraAttributeKind {
  CAESURA_ATTRIBUTE_INT = 1,
  CAESURA_ATTRIBUTE_FLOAT = 2,
  CAESURA_ATTRIBUTE_STRING = 3,
  CAESURA_ATTRIBUTE_INTS = 4,
  CAESURA_ATTRIBUTE_FLOATS = 5,
  CAESURA_ATTRIBUTE_STRINGS = 6,
  CAESURA_ATTRIBUTE_TENSOR = 7,
  CAESURA_ATTRIBUTE_TENSORS = 8,
  CAESURA_ATTRIBUTE_GRAPH = 9, /* strings[0] is an ONNX model in ONNX's text form */
  CAESURA_ATTRIBUTE_GRAPHS = 10,
  CAESURA_ATTRIBUTE_TYPE = 11 /* strings[0], such as "float32[batch, 3]" */
} CaesuraAttributeKind;

/* An attribute of a node. Its owner is the side that fills it; it is read during the call only. */
typedef struct CaesuraAttribute {
  size_t size;
  const char* name;
  int32_t
      kind; /* a CaesuraAttributeKind; the one array below that belongs to it has `count` entries */
  size_t count;
  const int64_t* ints;
  const float* floats;
  const char* const* strings;   /* each ends with a zero that its length does not count */
  const size_t* string_lengths; /* NULL in what a plug-in gives: up to the zero */
  const CaesuraTensor* tensors;
} CaesuraAttribute;

/* Properties of an op, joined by |. */
typedef enum CaesuraOpFlags {
  CAESURA_OP_NOT_DETERMINISTIC =
      1, /* results differ from call to call: never folded, never shared */
  CAESURA_OP_CHECKS_OPTIONS =
      2 /* `create` is given options of any name, and refuses those that it does not know */
} CaesuraOpFlags;

/* An op of a plug-in. add_op copies the description; what it points at must stay for the process's
 * life. */
struct CaesuraOp {
  size_t size;
  const char* op_type;
  const char* domain;    /* the plug-in's own, not one of ONNX's */
  int32_t since_version; /* of the domain; 0 counts as 1. Another version of an op is another
                            CaesuraOp */
  int32_t min_inputs, max_inputs;   /* 0 and 0 count as 1 and 1; max may be CAESURA_ANY_NUMBER */
  int32_t min_outputs, max_outputs; /* likewise */
  uint32_t flags;                   /* CaesuraOpFlags */
  const int32_t* dtypes; /* that input `typed_input` may have; none: every one but strings */
  size_t dtype_count;
  int32_t typed_input;
  const int32_t*
      host_inputs; /* inputs whose values `infer` reads once they are known (shapes, axes, sizes) */
  size_t host_input_count;
  const int32_t*
      no_gradient_inputs; /* inputs that no gradient flows to; -1 - i: input i and all after it */
  size_t no_gradient_input_count;
  const char* provider;   /* whose memory it works on; NULL: the host's */
  CaesuraOptions options; /* that the op knows, with their defaults */

  /* Says what is known of the outputs, by CaesuraOpApi.set_output: while the graph is read, when
   * dims may be unknown, and with all of them known before it is computed. An output with an
   * unknown dim even then is allocated in compute. NULL: each output has the dtype and shape of
   * input 0. */
  CaesuraStatus* (*infer)(CaesuraOpNode* node);
  /* Makes the instance of a node; may be NULL, and the instance too. */
  CaesuraStatus* (*create)(const CaesuraOpNode* node, void** instance);
  void (*destroy)(void* instance);
  /* Makes a run state; may be NULL. States are kept and used again; one whose compute has failed is
   * destroyed. */
  CaesuraStatus* (*create_run)(void* instance, void** run);
  void (*destroy_run)(void* run);
  /* From any number of threads at the same time, each with a run state of its own. Outputs are
   * complete when it returns, or, on a device, when the work that it has put on CaesuraOpApi.stream
   * is. */
  CaesuraStatus* (*compute)(void* instance, void* run, CaesuraContext* context);
  /* Adds the nodes that compute the gradients of the inputs; NULL: the op has none. */
  CaesuraStatus* (*gradient)(CaesuraGradient* gradient);
};

/* A runtime for nodes "ai.caesura::ModelOp" (core/custom_ops/model_op.h). */
struct CaesuraModelRuntime {
  size_t size;
  const char* name; /* as the node's attribute `runtime` has it */
  /* The model from its bytes; `weights` are those of a second file, where the format has one.
   * `node` gives the options, and the names and types that the model must have: a runtime reports
   * its own through `describe`. The bytes live during the call only. Options that the runtime does
   * not know are CAESURA_INVALID_ARGUMENT, listing the known ones. */
  CaesuraStatus* (*load)(const CaesuraOpNode* node, const void* bytes, size_t size_in_bytes,
                         const void* weights, size_t weight_bytes, void** model);
  void (*unload)(void* model);
  /* By CaesuraOpApi.describe_input and describe_output, in the model's order. */
  CaesuraStatus* (*describe)(void* model, CaesuraOpNode* description);
  /* As in CaesuraOp: `run` from any number of threads, each with a run state of its own. Its inputs
   * and outputs are the node's. Outputs that output() gives no memory for are allocated by
   * allocate_output. */
  CaesuraStatus* (*create_run)(void* model, void** run);
  void (*destroy_run)(void* run);
  CaesuraStatus* (*run)(void* run, CaesuraContext* context);
  /* The model's gradient by the runtime's own means, or NULL. The inputs are the gradients of the
   * outputs (those that are absent stand for zeros), then the model's inputs; the outputs the
   * gradients of the inputs, as far as they are present. The forward is computed anew. */
  CaesuraStatus* (*run_gradient)(void* run, CaesuraContext* context);
  /* True if run_gradient is for this model: CAESURA_UNSUPPORTED says why not, when a session that
   * needs it is made. May be NULL: it is for all. */
  CaesuraStatus* (*check_gradient)(void* model);
};

/* The functions of caesura that an op may call, as CaesuraApi.op. The table lives as long as the
 * process. */
typedef struct CaesuraOpApi {
  size_t size;

  /* --- a node --- */
  const char* (*node_name)(const CaesuraOpNode* node);
  const char* (*node_op_type)(const CaesuraOpNode* node);
  int32_t (*node_version)(const CaesuraOpNode* node);
  size_t (*node_input_count)(const CaesuraOpNode* node);
  size_t (*node_output_count)(const CaesuraOpNode* node);
  /* Fill `out`, whose size the caller has set. CAESURA_NOT_FOUND where there is no such input,
   * output or attribute. */
  CaesuraStatus* (*node_input)(const CaesuraOpNode* node, size_t i, CaesuraArgument* out);
  CaesuraStatus* (*node_output)(const CaesuraOpNode* node, size_t i, CaesuraArgument* out);
  size_t (*node_attribute_count)(const CaesuraOpNode* node);
  CaesuraStatus* (*node_attribute_at)(const CaesuraOpNode* node, size_t i, CaesuraAttribute* out);
  CaesuraStatus* (*node_attribute)(const CaesuraOpNode* node, const char* name,
                                   CaesuraAttribute* out);
  const CaesuraOptions* (*node_options)(const CaesuraOpNode* node);
  const char* (*node_option)(const CaesuraOpNode* node, const char* name); /* NULL: not given */
  /* In `infer`: rank -1 and dims below 0 as in CaesuraArgument. Absent outputs are ignored. */
  CaesuraStatus* (*set_output)(CaesuraOpNode* node, size_t i, int32_t dtype, int32_t rank,
                               const int64_t* dims);
  /* In `describe` of a model runtime; `dims` as above: an equal number below -1 is an equal size.
   */
  CaesuraStatus* (*describe_input)(CaesuraOpNode* description, const char* name, int32_t dtype,
                                   int32_t rank, const int64_t* dims);
  CaesuraStatus* (*describe_output)(CaesuraOpNode* description, const char* name, int32_t dtype,
                                    int32_t rank, const int64_t* dims);

  /* --- a compute --- */
  size_t (*input_count)(const CaesuraContext* context);
  size_t (*output_count)(const CaesuraContext* context);
  /* An absent input has dtype 0 and no data. */
  CaesuraStatus* (*input)(CaesuraContext* context, size_t i, CaesuraTensor* out);
  /* An output whose size was known before has its memory; one that was not has dtype 0 and no data
   * until allocate_output; so has an absent one, which allocate_output refuses. */
  CaesuraStatus* (*output)(CaesuraContext* context, size_t i, CaesuraTensor* out);
  int32_t (*output_is_present)(const CaesuraContext* context, size_t i);
  CaesuraStatus* (*allocate_output)(CaesuraContext* context, size_t i, int32_t dtype, int32_t rank,
                                    const int64_t* dims, CaesuraTensor* out);
  /* The same with the bytes of `value`, which is host memory; an output whose size was known before
   * must have its dtype and shape. For ops of host memory. */
  CaesuraStatus* (*copy_output)(CaesuraContext* context, size_t i, const CaesuraTensor* value);
  /* Memory of the op's device until compute returns. */
  CaesuraStatus* (*scratch)(CaesuraContext* context, size_t bytes, void** out);
  /* The device's stream, which inputs are ready on; NULL on the CPU. */
  void* (*stream)(const CaesuraContext* context);
  int32_t (*threads)(const CaesuraContext* context); /* that compute may use */
  /* Calls body(first, last, argument) on ranges that cover [0, count), in parallel where count is
   * above 2 * grain. */
  void (*parallel_for)(CaesuraContext* context, int64_t count, int64_t grain,
                       void (*body)(int64_t first, int64_t last, void* argument), void* argument);

  /* --- a gradient --- */
  const CaesuraOpNode* (*gradient_node)(const CaesuraGradient* gradient); /* the forward node */
  CaesuraOpValue* (*gradient_input)(CaesuraGradient* gradient,
                                    size_t i); /* of the forward node; NULL: absent */
  CaesuraOpValue* (*gradient_output)(CaesuraGradient* gradient, size_t i);
  CaesuraOpValue* (*output_gradient)(CaesuraGradient* gradient, size_t i); /* NULL: none comes in */
  int32_t (*needs_gradient)(const CaesuraGradient* gradient, size_t input);
  /* A node; NULL inputs are absent ones. It has the options of the forward node where the op is a
   * plug-in's. */
  CaesuraStatus* (*add_node)(CaesuraGradient* gradient, const char* op_type, const char* domain,
                             CaesuraOpValue* const* inputs, size_t input_count,
                             const CaesuraAttribute* attributes, size_t attribute_count,
                             CaesuraOpValue** outputs, size_t output_count);
  CaesuraStatus* (*add_constant)(CaesuraGradient* gradient, const CaesuraTensor* tensor,
                                 CaesuraOpValue** out);
  /* Each input for which needs_gradient says so must get one; several for one input add up. */
  void (*set_input_gradient)(CaesuraGradient* gradient, size_t input, CaesuraOpValue* value);
} CaesuraOpApi;

#ifdef __cplusplus
}
#endif

#endif /* CAESURA_CORE_PLUGIN_CAESURA_OP_H_ */
