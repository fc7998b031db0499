// SPDX-License-Identifier: Apache-2.0
// The methods that caesura.sessions.provider_fallback.FallsBack calls, for each class of sessions.
#ifndef CAESURA_TORCH_BRIDGE_PYTHON_PROVIDER_FALLBACK_H_
#define CAESURA_TORCH_BRIDGE_PYTHON_PROVIDER_FALLBACK_H_

#include "core/runtime/provider_fallback.h"
#include "torch_bridge/python/bindings.h"

namespace caesura::python {

// The record as a dict; None for none.
inline nanobind::object ToPython(const std::optional<FallbackRecord>& record) {
  if (!record) return nanobind::none();
  nanobind::dict out;
  out["provider"] = record->provider;
  out["phase"] = FallbackStageName(record->stage);
  out["node"] = record->node;
  out["cause"] = record->cause;
  out["when"] = std::chrono::duration<double>(record->when.time_since_epoch()).count();
  out["runs_before"] = record->runs_before;
  out["milliseconds"] = record->milliseconds;
  out["bytes"] = record->bytes;
  out["shared_bytes"] = record->shared_bytes;
  out["providers"] = record->providers;
  return out;
}

template <typename Session>
void BindFallback(nanobind::class_<Session>& sessions) {
  sessions.def("disable_fallback", [](Session& session) { session.fallback().set_enabled(false); })
      .def("enable_fallback", [](Session& session) { session.fallback().set_enabled(true); })
      .def("providers", [](Session& session) { return session.fallback().provider_names(); })
      .def("fallback_record",
           [](Session& session) { return ToPython(session.fallback().record()); });
}

}  // namespace caesura::python

#endif  // CAESURA_TORCH_BRIDGE_PYTHON_PROVIDER_FALLBACK_H_
