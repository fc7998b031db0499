// SPDX-License-Identifier: Apache-2.0
// caesura.gradient.
#include <utility>

#include "core/gradient/gradient_model.h"
#include "core/onnx/model_writer.h"
#include "graph_transforms/plain_model.h"
#include "torch_bridge/python/bindings.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

nb::object Gradient(nb::object source, const GradientModelOptions& options, bool plain,
                    const std::string& path) {
  const Model model = ReadSource(std::move(source));
  const auto make = plain ? PlainGradientModel : GradientModel;
  return Written(Unwrap(WithoutGil([&] { return make(model, options); })), path);
}

}  // namespace

nb::object Written(const Model& model, const std::string& path) {
  if (!path.empty()) {
    Check(WithoutGil([&] { return WriteModel(model, path); }), /*of_file=*/true);
    return nb::none();
  }
  const std::string bytes = Unwrap(WithoutGil([&] { return SerializeModel(model); }));
  return nb::bytes(bytes.data(), bytes.size());
}

void BindGradient(nb::module_& m) {
  m.def(
      "gradient",
      [](nb::object source, std::vector<std::string> of, std::vector<std::string> by, bool sum,
         double scale, std::vector<std::string> names, bool hessian_product, bool plain,
         const std::string& path) {
        return Gradient(std::move(source),
                        {.of = std::move(of),
                         .by = std::move(by),
                         .sum = sum,
                         .scale = scale,
                         .names = std::move(names),
                         .hessian_product = hessian_product},
                        plain, path);
      },
      nb::arg("source"), nb::kw_only(), nb::arg("of"), nb::arg("by"), nb::arg("sum"),
      nb::arg("scale"), nb::arg("names"), nb::arg("hessian_product"), nb::arg("plain"),
      nb::arg("path"));
}

}  // namespace caesura::python
