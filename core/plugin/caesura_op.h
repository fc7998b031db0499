/* SPDX-License-Identifier: Apache-2.0
 * Ops and runtimes of whole models, as plug-ins describe them; see caesura_plugin.h for the rules.
 */
#ifndef CAESURA_CORE_PLUGIN_CAESURA_OP_H_
#define CAESURA_CORE_PLUGIN_CAESURA_OP_H_

#include "core/plugin/caesura_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CaesuraOp {
  size_t size;
  const char* op_type;
};

struct CaesuraModelRuntime {
  size_t size;
  const char* name;
};

typedef struct CaesuraOpApi {
  size_t size;
} CaesuraOpApi;

#ifdef __cplusplus
}
#endif

#endif /* CAESURA_CORE_PLUGIN_CAESURA_OP_H_ */
