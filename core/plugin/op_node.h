// SPDX-License-Identifier: Apache-2.0
// The definition of CaesuraOpNode, which the C table for ops (caesura_op.h) only names, with all
// that set_output and describe_* leave in it.
#ifndef CAESURA_CORE_PLUGIN_OP_NODE_H_
#define CAESURA_CORE_PLUGIN_OP_NODE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/plugin/caesura_op.h"

// Built for one call. What its pointers lead to outlives it: attributes, options, and the bytes of
// constants.
struct CaesuraOpNode {
  struct Argument {
    bool present = false;
    std::string name;
    int32_t dtype = 0;
    bool has_rank = false;
    std::vector<int64_t> dims;  // as CaesuraArgument has them
    const void* data = nullptr;
  };

  std::string name, op_type;
  int version = 1;
  std::vector<Argument> inputs, outputs;
  std::vector<std::optional<caesura::ValueType>> found;  // by set_output
  CaesuraOptions options = {};

  // `value` is what the tensor is known to be; it may be null.
  void AddInput(const std::string& name, const caesura::ValueType& type,
                const caesura::Tensor* value);
  void AddOutput(const std::string& name, const caesura::ValueType& type);
  void SetAttributes(const caesura::AttributeMap& attributes);
  void SetOptions(const std::map<std::string, std::string>& values);
  // `dims` null: the rank is unknown.
  caesura::ValueType TypeOf(int32_t dtype, const std::vector<int64_t>* dims) const;
  // Gives the dim that this number below -1 stands for a name, where it has none.
  void NameDim(int64_t dim);
  const std::vector<CaesuraAttribute>& attributes() const { return attributes_; }

 private:
  Argument Describe(const std::string& name, const caesura::ValueType& type);

  std::vector<std::string> symbols_;  // symbols_[i] is dim -2 - i
  std::vector<const char*> keys_, values_;
  // The arrays of attributes(), one entry an attribute.
  struct Arrays {
    void Show(const caesura::Attribute& attribute, CaesuraAttribute* out);
    void Show(const std::vector<std::string>& values, int32_t kind, CaesuraAttribute* out);
    void Show(const caesura::Tensor* values, size_t count, int32_t kind, CaesuraAttribute* out);
    std::vector<std::string> owned;
    std::vector<const char*> strings;
    std::vector<size_t> lengths;
    std::vector<CaesuraTensor> tensors;
  };
  std::vector<std::unique_ptr<Arrays>> arrays_;
  std::vector<CaesuraAttribute> attributes_;
};

namespace caesura {

// Shows a tensor of the host.
CaesuraTensor ShowTensor(const Tensor& tensor);
// The attribute as C++ has it; kInvalidArgument for one without a known kind or with missing
// arrays.
Result<Attribute> ReadAttribute(const CaesuraAttribute& attribute);
// The elements of a tensor, copied.
Result<Tensor> ReadTensor(const CaesuraTensor& tensor);

// The functions of the table, by family (CaesuraApi::op).
void AddNodeFunctions(CaesuraOpApi* api);      // op_node.cc
void AddContextFunctions(CaesuraOpApi* api);   // op_context.cc
void AddGradientFunctions(CaesuraOpApi* api);  // op_gradient.cc

}  // namespace caesura

#endif  // CAESURA_CORE_PLUGIN_OP_NODE_H_
