/* SPDX-License-Identifier: Apache-2.0
 * What a plug-in and caesura say to each other: C11, stable. A plug-in is a shared library with one
 * exported function, CaesuraPluginMain. It links nothing of caesura's: all that it calls is in the
 * table that it is given.
 *
 *   static const CaesuraApi* api;
 *   CaesuraStatus* CaesuraPluginMain(const CaesuraApi* table, CaesuraPlugin* plugin) {
 *     api = table;
 *     return api->add_op(plugin, &my_op);
 *   }
 *
 * It is opened once by the system and stays loaded until the process ends, so nobody keeps a handle
 * alive. CaesuraPluginMain is called for every load and adds the same things each time.
 *
 * Versions: tables and descriptions grow at their end only, and each begins with its size in bytes
 * as its writer knew it. What the reader knows beyond that size counts as zero.
 *
 * Errors: functions that can fail return a status; NULL is success. A status is made by make_status
 * and belongs to the one who gets it. No function may throw. Strings are UTF-8; those given to a
 * function are read during the call only.
 *
 * Thread safety: the tables' functions may be called from any thread, on different objects at the
 * same time.
 */
#ifndef CAESURA_CORE_PLUGIN_CAESURA_PLUGIN_H_
#define CAESURA_CORE_PLUGIN_CAESURA_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAESURA_PLUGIN_VERSION 1

typedef struct CaesuraStatus CaesuraStatus;
typedef struct CaesuraPlugin
    CaesuraPlugin; /* what CaesuraPluginMain adds to; lives during that call */

/* The kind of an error; each has the meaning of the StatusCode of the same name. */
typedef enum CaesuraCode {
  CAESURA_INVALID_ARGUMENT = 1, /* the user's inputs, options or names are wrong */
  CAESURA_INVALID_MODEL = 2,
  CAESURA_UNSUPPORTED = 3, /* trying again cannot help; the next candidate is asked */
  CAESURA_NOT_FOUND = 4,
  CAESURA_OUT_OF_MEMORY = 5, /* host memory */
  CAESURA_PROVIDER_FAILURE =
      6, /* compiling or running on a device failed: the session may fall back */
  CAESURA_IO_ERROR = 7,
  CAESURA_CANCELLED = 8,
  CAESURA_INTERNAL = 9
} CaesuraCode;

/* The kind of memory that a tensor is in. */
typedef enum CaesuraDeviceType {
  CAESURA_CPU = 0,
  CAESURA_CUDA = 1,
  CAESURA_OTHER = 2
} CaesuraDeviceType;

/* Elements in row-major order without gaps, borrowed during the call that shows them. */
typedef struct CaesuraTensor {
  void* data;          /* not to be written to where the tensor is an input */
  const int64_t* dims; /* `rank` of them; -1: not known */
  int32_t rank;        /* -1: not known */
  int32_t dtype;       /* as ONNX's TensorProto.DataType counts: 1 float32, 7 int64, ... */
  int32_t device_type; /* a CaesuraDeviceType */
  int32_t device_index;
} CaesuraTensor;

/* Settings by name, each name once. */
typedef struct CaesuraOptions {
  const char* const* keys;
  const char* const* values;
  size_t count;
} CaesuraOptions;

typedef struct CaesuraOp CaesuraOp;
typedef struct CaesuraModelRuntime CaesuraModelRuntime;
typedef struct CaesuraProvider CaesuraProvider;

/* The functions of caesura that a plug-in may call. The table lives as long as the process. */
typedef struct CaesuraApi {
  size_t size;
  uint32_t version; /* CAESURA_PLUGIN_VERSION of the caller */

  CaesuraStatus* (*make_status)(int32_t code, const char* message);
  int32_t (*status_code)(const CaesuraStatus* status);
  const char* (*status_message)(const CaesuraStatus* status); /* lives as long as the status */
  void (*release_status)(CaesuraStatus* status);              /* NULL is fine */
  void (*log_warning)(const char* message);

  /* The library's offer. The descriptions are copied; what they point at must stay. */
  CaesuraStatus* (*add_op)(CaesuraPlugin* plugin, const CaesuraOp* op);
  CaesuraStatus* (*add_model_runtime)(CaesuraPlugin* plugin, const CaesuraModelRuntime* runtime);
  CaesuraStatus* (*add_provider)(CaesuraPlugin* plugin, const CaesuraProvider* provider);

  const struct CaesuraOpApi* op;             /* caesura_op.h */
  const struct CaesuraProviderApi* provider; /* caesura_provider.h */
} CaesuraApi;

/* The one function that a plug-in exports. */
typedef CaesuraStatus* CaesuraPluginMainFunction(const CaesuraApi* api, CaesuraPlugin* plugin);

#ifdef __cplusplus
}
#endif

#endif /* CAESURA_CORE_PLUGIN_CAESURA_PLUGIN_H_ */
