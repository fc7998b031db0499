/* SPDX-License-Identifier: Apache-2.0
 * Providers, as plug-ins describe them; see caesura_plugin.h for the rules.
 */
#ifndef CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_
#define CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_

#include "core/plugin/caesura_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CaesuraProvider {
  size_t size;
  const char* name;
};

typedef struct CaesuraProviderApi {
  size_t size;
} CaesuraProviderApi;

#ifdef __cplusplus
}
#endif

#endif /* CAESURA_CORE_PLUGIN_CAESURA_PROVIDER_H_ */
