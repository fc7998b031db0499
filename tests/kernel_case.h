// SPDX-License-Identifier: Apache-2.0
// Runs one kernel without a plan or an executor: inputs in, outputs out.
//
//   KernelCase relu("Relu", {Tensor::Of<float>({2}, {-1, 1})});
//   std::vector<RuntimeValue> y = relu.Run().value();
#ifndef CAESURA_TESTS_KERNEL_CASE_H_
#define CAESURA_TESTS_KERNEL_CASE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/graph.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/providers/cpu_provider.h"

namespace caesura {

// An attribute of a string.
inline Attribute Text(const char* text) { return std::string(text); }

struct KernelCase : private KernelHost {
  std::string op_type;
  std::string domain = "";
  AttributeMap attributes = {};
  std::vector<RuntimeValue> inputs = {};  // an empty one is an absent input
  int output_count = 1;
  int since_version = 0;  // 0: any
  int threads = 1;
  // The runner of every body of the node; null: the node has none.
  std::shared_ptr<SubgraphRunner> body = nullptr;
  // True if outputs that are in place get the input's buffer, as a plan does it, or one of their
  // own.
  bool share_in_place = true;

  KernelCase(std::string op_type, std::vector<RuntimeValue> inputs, AttributeMap attributes = {},
             std::string domain = "", int output_count = 1)
      : op_type(std::move(op_type)),
        domain(std::move(domain)),
        attributes(std::move(attributes)),
        inputs(std::move(inputs)),
        output_count(output_count) {}

  // By a kernel of the CPU provider.
  Result<std::vector<RuntimeValue>> Run() {
    static const auto cpu = MakeCpuProvider();
    return Run(cpu->kernels());
  }
  Result<std::vector<RuntimeValue>> Run(const KernelRegistry& registry) {
    Graph graph;
    Node* node = MakeNode(&graph);
    std::vector<InputInfo> infos;
    for (const RuntimeValue& value : inputs) infos.push_back(InfoOf(value));
    KernelInfo info(*node, std::move(infos), threads);
    info.set_subgraph_runner([this](const std::string&) { return body; });
    ASSIGN_OR_RETURN(const KernelDef* def, registry.Create(info, "test"));
    RETURN_IF_ERROR(PlaceOutputs(info, *def));
    std::vector<char> scratch(info.scratch_bytes() + kBufferAlignment);
    const size_t misaligned = reinterpret_cast<uintptr_t>(scratch.data()) % kBufferAlignment;
    KernelContext context(addresses_.data(), ids_.data(), static_cast<uint32_t>(inputs.size()),
                          scratch.data() + (kBufferAlignment - misaligned) % kBufferAlignment, 0,
                          this);
    const ComputeFunction compute = info.TakeCompute();
    if (!compute) return Internal("the kernel has no compute function");
    RETURN_IF_ERROR(compute(context));
    return std::vector<RuntimeValue>(values_.begin() + static_cast<int64_t>(inputs.size()),
                                     values_.end());
  }

 private:
  Node* MakeNode(Graph* graph) const {
    std::vector<Value*> in, out;
    for (const RuntimeValue& value : inputs)
      in.push_back(value.has_value() ? graph->AddInput("", {}) : nullptr);
    for (int i = 0; i < output_count; ++i) out.push_back(graph->AddValue(""));
    Node* node = graph->AddNode(op_type, in, out, attributes, domain);
    node->set_since_version(since_version);
    return node;
  }

  static InputInfo InfoOf(const RuntimeValue& value) {
    InputInfo info;
    info.present = value.has_value();
    info.is_tensor = value.is_tensor();
    info.runtime_value = &value;
    if (!info.is_tensor) return info;
    info.dtype = value.tensor().dtype();
    info.shape = value.tensor().shape();
    info.value = &value.tensor();
    return info;
  }

  Status PlaceOutputs(const KernelInfo& info, const KernelDef& def) {
    values_ = inputs;
    for (int o = 0; o < output_count; ++o) {
      const OutputInfo& output = info.outputs()[o];
      if (output.kind == OutputInfo::Kind::kUnset)
        return Internal("the kernel did not decide on an output");
      values_.emplace_back();
      if (output.kind == OutputInfo::Kind::kSizedInCompute) continue;
      ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(output.dtype, output.shape));
      values_.back() = std::move(tensor);
    }
    auto share = [&](const Alias& alias) {
      if (alias.kind == Alias::Kind::kInPlace)
        values_[inputs.size() + alias.output] = inputs[alias.input];
    };
    for (const Alias& alias : info.aliases()) {
      if (share_in_place) share(alias);
    }
    for (const Alias& alias : def.aliases) {
      if (share_in_place) share(alias);
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      ids_.push_back(static_cast<uint32_t>(i));
      addresses_.push_back(values_[i].is_tensor() ? values_[i].tensor().raw() : nullptr);
    }
    return {};
  }

  // KernelHost
  RuntimeValue ArgumentValue(const uint32_t* argument) override { return values_[*argument]; }
  Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) override {
    ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, std::move(shape)));
    SetArgumentValue(argument, tensor);
    return tensor;
  }
  void SetArgumentValue(const uint32_t* argument, RuntimeValue value) override {
    addresses_[*argument] = value.is_tensor() ? value.tensor().raw() : nullptr;
    values_[*argument] = std::move(value);
  }
  RandomKey random_key(uint32_t subsequence) const override { return {0, 0, subsequence}; }
  Result<Tensor> CopyOf(const Tensor& tensor) const override { return tensor.Clone(); }

  std::vector<RuntimeValue> values_;
  std::vector<void*> addresses_;
  std::vector<uint32_t> ids_;
};

}  // namespace caesura

#endif  // CAESURA_TESTS_KERNEL_CASE_H_
