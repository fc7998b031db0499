// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/op_gradient.h"

#include "core/base/status_macros.h"
#include "core/plugin/plugin_library.h"

namespace caesura {
namespace {

CaesuraOpValue* Show(Value* value) { return reinterpret_cast<CaesuraOpValue*>(value); }
Value* Read(CaesuraOpValue* value) { return reinterpret_cast<Value*>(value); }

Status AddNode(CaesuraGradient* gradient, const char* op_type, const char* domain,
               const std::vector<CaesuraOpValue*>& inputs, const CaesuraAttribute* attributes,
               size_t attribute_count, CaesuraOpValue** outputs, size_t output_count) {
  AttributeMap map;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (attributes[i].size != sizeof(CaesuraAttribute) || attributes[i].name == nullptr) {
      return InvalidArgument("an attribute of " + std::string(op_type) +
                             " has no name, or a size of another version");
    }
    ASSIGN_OR_RETURN(map[attributes[i].name], ReadAttribute(attributes[i]));
  }
  std::vector<Value*> values;
  for (CaesuraOpValue* input : inputs) values.push_back(Read(input));
  ASSIGN_OR_RETURN(const std::vector<Value*> made,
                   gradient->hook.AddNode(op_type, values, std::move(map), domain,
                                          std::vector<bool>(output_count, true)));
  for (size_t i = 0; i < output_count; ++i) outputs[i] = Show(made[i]);
  return {};
}

}  // namespace

void AddGradientFunctions(CaesuraOpApi* api) {
  api->gradient_node = [](const CaesuraGradient* g) { return &g->node; };
  api->gradient_input = [](CaesuraGradient* g, size_t i) {
    return Show(g->hook.node().input(static_cast<int>(i)));
  };
  api->gradient_output = [](CaesuraGradient* g, size_t i) {
    return Show(g->hook.node().output(static_cast<int>(i)));
  };
  api->output_gradient = [](CaesuraGradient* g, size_t i) {
    return Show(g->hook.OutputGradient(static_cast<int>(i)));
  };
  api->needs_gradient = [](const CaesuraGradient* g, size_t i) -> int32_t {
    return g->hook.NeedsInputGradient(static_cast<int>(i));
  };
  api->add_node = [](CaesuraGradient* g, const char* op_type, const char* domain,
                     CaesuraOpValue* const* inputs, size_t input_count,
                     const CaesuraAttribute* attributes, size_t attribute_count,
                     CaesuraOpValue** outputs, size_t output_count) {
    return GiveStatus(AddNode(g, op_type, domain == nullptr ? "" : domain,
                              {inputs, inputs + input_count}, attributes, attribute_count, outputs,
                              output_count));
  };
  api->add_constant = [](CaesuraGradient* g, const CaesuraTensor* tensor, CaesuraOpValue** out) {
    auto read = ReadTensor(*tensor);
    if (!read.ok()) return GiveStatus(read.status());
    *out = Show(g->hook.AddConstant(*std::move(read)));
    return GiveStatus({});
  };
  api->set_input_gradient = [](CaesuraGradient* g, size_t i, CaesuraOpValue* value) {
    g->hook.SetInputGradient(static_cast<int>(i), Read(value));
  };
}

}  // namespace caesura
