// SPDX-License-Identifier: Apache-2.0
#include "core/graph/contrib_schemas.h"

#include "core/graph/graph.h"

namespace caesura {
namespace {

// Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden], from X [steps,
// batch, input] and R [directions, hidden, 4 * hidden].
Status InferDynamicQuantizeLstm(Graph&, Node* node) {
  const auto dims_of = [&](int input) {
    const Value* value = node->input(input);
    const bool known = value != nullptr && value->type().shape && value->type().shape->size() == 3;
    return known ? *value->type().shape : std::vector<Dim>(3);
  };
  const std::vector<Dim> x = dims_of(0), r = dims_of(2);
  for (int i = 0; i < 3; ++i) {
    Value* output = node->output(i);
    if (output == nullptr || (output->type().is_tensor() && output->type().shape)) continue;
    ValueType type = ValueType::Tensor(DType::kFloat32);
    type.shape = {r[0], x[1], r[1]};
    if (i == 0) type.shape->insert(type.shape->begin(), x[0]);
    output->set_type(std::move(type));
  }
  return {};
}

}  // namespace

std::vector<OpSchemaSpec> ContribOpSchemas() {
  return {{.op_type = "DynamicQuantizeLSTM",
           .min_inputs = 12,
           .max_inputs = 12,
           .min_outputs = 0,
           .max_outputs = 3,
           .domain = kContribDomain,
           .infer = InferDynamicQuantizeLstm}};
}

}  // namespace caesura
