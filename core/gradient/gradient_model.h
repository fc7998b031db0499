// SPDX-License-Identifier: Apache-2.0
// GradientModel: a model that computes what another one does and its gradient.
//
//   ASSIGN_OR_RETURN(const Model energy, ReadModel("energy.onnx"));
//   ASSIGN_OR_RETURN(Model forces, GradientModel(energy, {.of = {"energy"}, .by = {"positions"}}));
//   RETURN_IF_ERROR(WriteModel(forces, "forces.onnx"));      // a file, for any session
//   auto session = Session::Create(std::move(forces));       // or run here
//
// It is a model like others: it can be trained, with a loss on the gradient, too, and has a
// gradient itself.
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_MODEL_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_MODEL_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// The options of GradientModel.
struct GradientModelOptions {
  // Outputs of the model. Empty: its only one.
  std::vector<std::string> of = {};
  // Inputs or initializers of the model, each once. Empty: all its floating inputs.
  std::vector<std::string> by = {};
  // False: the result is a vector-Jacobian product. For each output of `of` that is not known to
  // have one element the model gets an input NAME_gradient, of the output's type: the weights of
  // its elements. True: all weights are one, and there is no such input.
  bool sum = false;
  // The result is multiplied by it: -1 makes forces of the gradient of an energy.
  double scale = 1;
  // Names of the gradients, in the order of `by`. Empty: BY_gradient for each.
  std::vector<std::string> names = {};
  // Adds the product of the Hessian and a vector. For each of `by` the model gets an input
  // BY_direction, of its type, and an output BY_hessian_product: the sum of the second derivatives
  // by it and by each of `by`, times the directions.
  bool hessian_product = false;
};

// The gradient of the weighted sum of all elements of `of`, by each of `by`. The model's inputs and
// outputs stay; the gradients follow the outputs, each of the shape and dtype of what it is by. The
// gradient is that of the model as it runs in a session: of BatchNormalization and Dropout in the
// mode that they are written in.
//
// kInvalidArgument, naming what is wrong, for names that the model does not have, for values that
// are no floating tensors, for an `of` that does not depend on a `by`, and for new names that are
// taken. A gradient that is constant has a Hessian of zeros. kUnsupported lists every node without
// a gradient.
Result<Model> GradientModel(const Model& model, const GradientModelOptions& options);

}  // namespace caesura

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_MODEL_H_
