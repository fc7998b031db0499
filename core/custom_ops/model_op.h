// SPDX-License-Identifier: Apache-2.0
// Model ops: a node that is a whole model, run by a named runtime (core/plugin/caesura_op.h,
// CaesuraModelRuntime).
//
//   y = ai.caesura.ModelOp <runtime = "openvino", model_file = "net.onnx",
//                           input_names = ["x"], input_types = ["float32[N, 64]"],
//                           output_names = ["y"], output_types = ["float32[N, 10]"]> (x)
//
// Attributes
//   runtime        "caesura", "openvino", "torch" (TorchScript, AOTInductor), or one that a library
//   of the session's brings
//                  (CustomOps::AddLibrary). Otherwise it is the plug-in libcaesura_runtime_NAME.so,
//                  in a folder of CAESURA_PLUGIN_PATH or beside libcaesura, loaded when the first
//                  session asks for it
//   model          the model's bytes, a tensor of uint8; or
//   model_file     a file beneath the folder of the ONNX model that holds the node
//   weights, weights_file    likewise, for formats of two files
//   input_names, input_types, output_names, output_types     the model's, in its own order, which
//   is the node's; an empty
//                  name stands for any. Types read "float32[N, 64]": equal symbols are equal sizes,
//                  "?" is any size,
//                  "[...]" any shape. An output whose sizes follow from these is planned, any other
//                  sized at run time
//   option_names, option_values    options for the runtime (core/custom_ops/custom_op.h)
//   gradient_model or gradient_model_file, gradient_runtime    a model of (x..., dy...) -> (dx of
//   the floating x...), which
//                  computes the gradient; left out, the runtime's own gradient is taken, where it
//                  has one. The gradient's runtime is `runtime` unless said; it has the node's
//                  options where it is the same
// The model is loaded when the session is made, once for equal bytes, runtime and options of a
// session; its names and types are checked against those above. Each run that is in flight has a
// run state of its own.
//
// "ModelOpGrad" is made by training alone: (dy..., x...) -> dx..., by the runtime's own gradient.
#ifndef CAESURA_CORE_CUSTOM_OPS_MODEL_OP_H_
#define CAESURA_CORE_CUSTOM_OPS_MODEL_OP_H_

#include <string>
#include <vector>

#include "core/custom_ops/custom_op.h"
#include "core/plugin/caesura_op.h"

namespace caesura {

inline constexpr char kModelOp[] = "ModelOp";
inline constexpr char kModelOpGrad[] = "ModelOpGrad";

// ModelOp and ModelOpGrad for one session, whose own runtimes come before those that are found by
// name.
std::vector<CustomOp> MakeModelOps(std::vector<CaesuraModelRuntime> runtimes);

// The input of `caesura wrap-model`.
struct WrapOptions {
  std::string runtime;
  std::string model_bytes, weight_bytes;
  // If not empty, the node names these files instead of holding the bytes.
  std::string model_file, weights_file;
  OptionSet options;
  // Names and types ("x", "float32[N, 64]") that the runtime cannot tell, or tells less of; in the
  // model's order.
  std::vector<std::pair<std::string, std::string>> inputs, outputs;
  // A gradient model (its bytes), if any.
  std::string gradient_bytes, gradient_runtime;
};

// A model of one ModelOp node, named "model". kInvalidArgument where a dtype stays unknown, or what
// the runtime tells contradicts what is given.
Result<Model> WrapModel(const WrapOptions& options, std::vector<CaesuraModelRuntime> runtimes = {});

}  // namespace caesura

#endif  // CAESURA_CORE_CUSTOM_OPS_MODEL_OP_H_
