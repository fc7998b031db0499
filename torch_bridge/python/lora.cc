// SPDX-License-Identifier: Apache-2.0
// caesura.lora.
#include "training/adapters/lora.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/onnx/model_writer.h"
#include "torch_bridge/python/bindings.h"
#include "training/adapters/adapter_files.h"

namespace nb = nanobind;

namespace caesura::python {

void BindLora(nb::module_& m) {
  // As gradient: the bytes of the model, or None where it is written to `path`. `adapter`: a
  // folder, or empty.
  m.def(
      "lora",
      [](nb::object source, std::vector<std::string> targets, int64_t rank, double alpha,
         uint64_t seed, const std::string& adapter, bool merge, const std::string& path) {
        Model model = ReadSource(std::move(source));
        if (!adapter.empty()) {
          const Adapter read = Unwrap(WithoutGil([&] { return ReadAdapter(adapter); }), true);
          model = Unwrap(WithoutGil([&] { return AddAdapter(model, read); }));
        } else if (!merge) {
          const LoraOptions options = {std::move(targets), rank, alpha, seed};
          model = Unwrap(WithoutGil([&] { return AddLora(model, options); }));
        }
        if (merge) model = Unwrap(WithoutGil([&] { return MergeAdapter(model); }));
        return Written(model, path);
      },
      nb::arg("source"), nb::kw_only(), nb::arg("targets"), nb::arg("rank"), nb::arg("alpha"),
      nb::arg("seed"), nb::arg("adapter"), nb::arg("merge"), nb::arg("path"));
}

}  // namespace caesura::python
