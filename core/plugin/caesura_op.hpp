// SPDX-License-Identifier: Apache-2.0
// Ops of plug-ins in C++17: the functions of caesura_op.h with std::string, std::vector and objects
// that clean up after themselves. It is all in this header; a plug-in links nothing.
//
//   struct Scale {
//     static constexpr const char* kOpType = "Scale";
//     static constexpr const char* kDomain = "mine";
//     // Once for each node.
//     explicit Scale(const caesura::plugin::Node& node) : factor_(node.Float("factor", 1)) {}
//     // From many threads.
//     void Compute(caesura::plugin::Context& context) const {
//       auto x = context.Input<float>(0);
//       auto y = context.Output<float>(0);
//       for (size_t i = 0; i < y.size(); ++i) y[i] = factor_ * x[i];
//     }
//     float factor_;
//   };
//   CaesuraStatus* CaesuraPluginMain(const CaesuraApi* api, CaesuraPlugin* plugin) {
//     caesura::plugin::Use(api);
//     return caesura::plugin::Add<Scale>(plugin);
//   }
//
// An op may also have
//   struct Run { explicit Run(const Scale&); ... };     a run state: Compute(Context&, Run&) const
//   static void Infer(OutputTypes& outputs);            see CaesuraOp::infer
//   static void Gradient(GradientScope& gradient);      see CaesuraOp::gradient
//   static void Describe(CaesuraOp& op);                sets counts, dtypes, host inputs, ...
//
// Functions of an op may throw; at the border an Error becomes a status of its code, std::bad_alloc
// one of CAESURA_OUT_OF_MEMORY, and any other exception one of CAESURA_INTERNAL.
#ifndef CAESURA_CORE_PLUGIN_CAESURA_OP_HPP_
#define CAESURA_CORE_PLUGIN_CAESURA_OP_HPP_

#include <map>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/plugin/caesura_op.h"

namespace caesura::plugin {

// An error with a CaesuraCode. Ops throw it; Guard turns it into a status.
class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int32_t code() const { return code_; }

 private:
  int32_t code_;
};

namespace internal {

inline const CaesuraApi*& Table() {
  static const CaesuraApi* table = nullptr;
  return table;
}

}  // namespace internal

// First of all, in CaesuraPluginMain.
inline void Use(const CaesuraApi* api) { internal::Table() = api; }
// The tables that Use has set. REQUIRES: Use was called.
inline const CaesuraApi& Api() { return *internal::Table(); }
inline const CaesuraOpApi& OpApi() { return *Api().op; }

// Throws what a status tells, and releases it.
inline void Check(CaesuraStatus* status) {
  if (status == nullptr) return;
  const std::unique_ptr<CaesuraStatus, void (*)(CaesuraStatus*)> owner(status,
                                                                       Api().release_status);
  throw Error(Api().status_code(status), Api().status_message(status));
}

// Turns an exception of `fn` into a status.
template <typename Fn>
CaesuraStatus* Guard(Fn&& fn) noexcept {
  try {
    fn();
    return nullptr;
  } catch (const Error& e) {
    return Api().make_status(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return Api().make_status(CAESURA_OUT_OF_MEMORY, "memory ran out");
  } catch (const std::exception& e) {
    return Api().make_status(CAESURA_INTERNAL, e.what());
  } catch (...) {
    return Api().make_status(CAESURA_INTERNAL, "an exception that is no std::exception");
  }
}

// The number of an element type, as ONNX counts.
template <typename T>
constexpr int32_t DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return 1;
  else if constexpr (std::is_same_v<T, uint8_t>) return 2;
  else if constexpr (std::is_same_v<T, int8_t>) return 3;
  else if constexpr (std::is_same_v<T, uint16_t>) return 4;
  else if constexpr (std::is_same_v<T, int16_t>) return 5;
  else if constexpr (std::is_same_v<T, int32_t>) return 6;
  else if constexpr (std::is_same_v<T, int64_t>) return 7;
  else if constexpr (std::is_same_v<T, bool>) return 9;
  else if constexpr (std::is_same_v<T, double>) return 11;
  else if constexpr (std::is_same_v<T, uint32_t>) return 12;
  else if constexpr (std::is_same_v<T, uint64_t>) return 13;
  else static_assert(!sizeof(T), "no such element type");
}

// Elements that lie in somebody else's memory. `data` is null for an absent one.
template <typename T>
class Span {
 public:
  Span(T* data, std::vector<int64_t> dims) : data_(data), dims_(std::move(dims)) {
    for (const int64_t dim : dims_) size_ *= static_cast<size_t>(dim);
  }
  T* data() const { return data_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  size_t size() const { return data_ == nullptr ? 0 : size_; }
  T& operator[](size_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size(); }

 private:
  T* data_;
  std::vector<int64_t> dims_;
  size_t size_ = 1;
};

// An input or output of a node. A copy, but for the bytes of a constant, which live as long as the
// call.
struct Argument {
  bool present = false;
  std::string name;
  int32_t dtype = 0;  // 0: not known
  std::optional<std::vector<int64_t>>
      dims;  // empty: not even the rank is known; below 0 as in CaesuraArgument
  const void* data = nullptr;
};

// All that is known of a node; what it returns are copies.
class Node {
 public:
  explicit Node(const CaesuraOpNode* node) : node_(node) {}
  std::string name() const { return OpApi().node_name(node_); }
  std::string op_type() const { return OpApi().node_op_type(node_); }
  int32_t version() const { return OpApi().node_version(node_); }
  size_t input_count() const { return OpApi().node_input_count(node_); }
  size_t output_count() const { return OpApi().node_output_count(node_); }
  Argument input(size_t i) const { return Get(OpApi().node_input, i); }
  Argument output(size_t i) const { return Get(OpApi().node_output, i); }

  bool Has(const char* attribute) const { return Find(attribute, 0).has_value(); }
  // The attribute, or `fallback` where it is absent or of another kind.
  int64_t Int(const char* name, int64_t fallback) const {
    const auto found = Find(name, CAESURA_ATTRIBUTE_INT);
    return found ? found->ints[0] : fallback;
  }
  float Float(const char* name, float fallback) const {
    const auto found = Find(name, CAESURA_ATTRIBUTE_FLOAT);
    return found ? found->floats[0] : fallback;
  }
  std::string String(const char* name, const std::string& fallback) const {
    const auto found = Find(name, CAESURA_ATTRIBUTE_STRING);
    return found ? std::string(found->strings[0], found->string_lengths[0]) : fallback;
  }
  std::vector<int64_t> Ints(const char* name) const {
    const auto found = Find(name, CAESURA_ATTRIBUTE_INTS);
    return found ? std::vector<int64_t>(found->ints, found->ints + found->count)
                 : std::vector<int64_t>();
  }
  std::vector<float> Floats(const char* name) const {
    const auto found = Find(name, CAESURA_ATTRIBUTE_FLOATS);
    return found ? std::vector<float>(found->floats, found->floats + found->count)
                 : std::vector<float>();
  }
  std::vector<std::string> Strings(const char* name) const {
    std::vector<std::string> out;
    const auto found = Find(name, CAESURA_ATTRIBUTE_STRINGS);
    for (size_t i = 0; found && i < found->count; ++i)
      out.emplace_back(found->strings[i], found->string_lengths[i]);
    return out;
  }
  // A value of any kind: as caesura_op.h has it, alive as long as the call.
  std::optional<CaesuraAttribute> Find(const char* name, int32_t kind) const {
    CaesuraAttribute out = {};
    out.size = sizeof(out);
    CaesuraStatus* missing = OpApi().node_attribute(node_, name, &out);
    Api().release_status(missing);
    if (missing != nullptr || (kind != 0 && out.kind != kind)) return std::nullopt;
    return out;
  }

  std::map<std::string, std::string> options() const {
    const CaesuraOptions* given = OpApi().node_options(node_);
    std::map<std::string, std::string> out;
    for (size_t i = 0; i < given->count; ++i) out.emplace(given->keys[i], given->values[i]);
    return out;
  }
  // Empty where it is not given.
  std::string Option(const char* name) const {
    const char* found = OpApi().node_option(node_, name);
    return found == nullptr ? "" : found;
  }
  const CaesuraOpNode* get() const { return node_; }

 private:
  template <typename Getter>
  Argument Get(Getter getter, size_t i) const {
    CaesuraArgument shown = {};
    shown.size = sizeof(shown);
    Check(getter(node_, i, &shown));
    Argument out{shown.present != 0, shown.name, shown.tensor.dtype, std::nullopt,
                 shown.tensor.data};
    if (shown.tensor.rank >= 0)
      out.dims.emplace(shown.tensor.dims, shown.tensor.dims + shown.tensor.rank);
    return out;
  }

  const CaesuraOpNode* node_;
};

// Where Infer says what the outputs are.
class OutputTypes : public Node {
 public:
  explicit OutputTypes(CaesuraOpNode* node) : Node(node), node_(node) {}
  void Set(size_t output, int32_t dtype, const std::optional<std::vector<int64_t>>& dims) {
    const int32_t rank = dims ? static_cast<int32_t>(dims->size()) : -1;
    Check(OpApi().set_output(node_, output, dtype, rank, dims ? dims->data() : nullptr));
  }

 private:
  CaesuraOpNode* node_;
};

// One compute.
class Context {
 public:
  explicit Context(CaesuraContext* context) : context_(context) {}
  size_t input_count() const { return OpApi().input_count(context_); }
  size_t output_count() const { return OpApi().output_count(context_); }
  bool HasOutput(size_t i) const { return OpApi().output_is_present(context_, i) != 0; }
  // Throw where the tensor has another element type.
  template <typename T>
  Span<const T> Input(size_t i) const {
    CaesuraTensor tensor = {};
    Check(OpApi().input(context_, i, &tensor));
    return View<const T>(tensor);
  }
  template <typename T>
  Span<T> Output(size_t i) const {
    CaesuraTensor tensor = {};
    Check(OpApi().output(context_, i, &tensor));
    return View<T>(tensor);
  }
  template <typename T>
  Span<T> AllocateOutput(size_t i, const std::vector<int64_t>& dims) {
    CaesuraTensor tensor = {};
    Check(OpApi().allocate_output(context_, i, DTypeOf<T>(), static_cast<int32_t>(dims.size()),
                                  dims.data(), &tensor));
    return View<T>(tensor);
  }
  // Until compute returns.
  template <typename T>
  T* Scratch(size_t count) {
    void* out = nullptr;
    Check(OpApi().scratch(context_, count * sizeof(T), &out));
    return static_cast<T*>(out);
  }
  void* stream() const { return OpApi().stream(context_); }
  int32_t threads() const { return OpApi().threads(context_); }
  // fn(first, last), which must not throw.
  template <typename Fn>
  void ParallelFor(int64_t count, int64_t grain, Fn fn) {
    auto body = [](int64_t first, int64_t last, void* argument) {
      (*static_cast<Fn*>(argument))(first, last);
    };
    OpApi().parallel_for(context_, count, grain, body, &fn);
  }

 private:
  template <typename T>
  static Span<T> View(const CaesuraTensor& tensor) {
    constexpr int32_t kDType = DTypeOf<std::remove_const_t<T>>();
    if (tensor.dtype != 0 && tensor.dtype != kDType) {
      throw Error(CAESURA_INVALID_ARGUMENT, "expected dtype " + std::to_string(kDType) + ", got " +
                                                std::to_string(tensor.dtype));
    }
    return {static_cast<T*>(tensor.data),
            std::vector<int64_t>(tensor.dims, tensor.dims + tensor.rank)};
  }

  CaesuraContext* context_;
};

// One call of a gradient hook.
class GradientScope {
 public:
  explicit GradientScope(CaesuraGradient* gradient) : gradient_(gradient) {}
  Node node() const { return Node(OpApi().gradient_node(gradient_)); }  // the forward one
  CaesuraOpValue* Input(size_t i) const { return OpApi().gradient_input(gradient_, i); }
  CaesuraOpValue* Output(size_t i) const { return OpApi().gradient_output(gradient_, i); }
  CaesuraOpValue* OutputGradient(size_t i) const {
    return OpApi().output_gradient(gradient_, i);
  }  // null: none
  bool Needs(size_t input) const { return OpApi().needs_gradient(gradient_, input) != 0; }
  std::vector<CaesuraOpValue*> AddNode(const char* op_type, const char* domain,
                                       const std::vector<CaesuraOpValue*>& inputs,
                                       const std::vector<CaesuraAttribute>& attributes = {},
                                       size_t output_count = 1) {
    std::vector<CaesuraOpValue*> outputs(output_count);
    Check(OpApi().add_node(gradient_, op_type, domain, inputs.data(), inputs.size(),
                           attributes.data(), attributes.size(), outputs.data(), output_count));
    return outputs;
  }
  void SetInputGradient(size_t i, CaesuraOpValue* value) {
    OpApi().set_input_gradient(gradient_, i, value);
  }
  // They borrow the number.
  static CaesuraAttribute IntAttribute(const char* name, const int64_t& value) {
    CaesuraAttribute out = {};
    out.size = sizeof(out);
    out.name = name;
    out.kind = CAESURA_ATTRIBUTE_INT;
    out.count = 1;
    out.ints = &value;
    return out;
  }
  static CaesuraAttribute FloatAttribute(const char* name, const float& value) {
    CaesuraAttribute out = {};
    out.size = sizeof(out);
    out.name = name;
    out.kind = CAESURA_ATTRIBUTE_FLOAT;
    out.count = 1;
    out.floats = &value;
    return out;
  }

 private:
  CaesuraGradient* gradient_;
};

namespace internal {

template <typename Op, typename = void>
struct HasRun : std::false_type {};
template <typename Op>
struct HasRun<Op, std::void_t<typename Op::Run>> : std::true_type {};
template <typename Op, typename = void>
struct HasInfer : std::false_type {};
template <typename Op>
struct HasInfer<Op, std::void_t<decltype(&Op::Infer)>> : std::true_type {};
template <typename Op, typename = void>
struct HasGradient : std::false_type {};
template <typename Op>
struct HasGradient<Op, std::void_t<decltype(&Op::Gradient)>> : std::true_type {};
template <typename Op, typename = void>
struct HasDescribe : std::false_type {};
template <typename Op>
struct HasDescribe<Op, std::void_t<decltype(&Op::Describe)>> : std::true_type {};

}  // namespace internal

// Adds the op type Op to the plug-in; returns NULL on success. The file comment lists the members
// that Op has.
template <typename Op>
CaesuraStatus* Add(CaesuraPlugin* plugin) {
  CaesuraOp op = {};
  op.size = sizeof(op);
  op.op_type = Op::kOpType;
  op.domain = Op::kDomain;
  op.create = [](const CaesuraOpNode* node, void** instance) {
    return Guard([&] { *instance = new Op(Node(node)); });
  };
  op.destroy = [](void* instance) { delete static_cast<Op*>(instance); };
  if constexpr (internal::HasRun<Op>::value) {
    op.create_run = [](void* instance, void** run) {
      return Guard([&] { *run = new typename Op::Run(*static_cast<const Op*>(instance)); });
    };
    op.destroy_run = [](void* run) { delete static_cast<typename Op::Run*>(run); };
    op.compute = [](void* instance, void* run, CaesuraContext* context) {
      return Guard([&] {
        Context shown(context);
        static_cast<const Op*>(instance)->Compute(shown, *static_cast<typename Op::Run*>(run));
      });
    };
  } else {
    op.compute = [](void* instance, void*, CaesuraContext* context) {
      return Guard([&] {
        Context shown(context);
        static_cast<const Op*>(instance)->Compute(shown);
      });
    };
  }
  if constexpr (internal::HasInfer<Op>::value) {
    op.infer = [](CaesuraOpNode* node) {
      return Guard([&] {
        OutputTypes outputs(node);
        Op::Infer(outputs);
      });
    };
  }
  if constexpr (internal::HasGradient<Op>::value) {
    op.gradient = [](CaesuraGradient* gradient) {
      return Guard([&] {
        GradientScope scope(gradient);
        Op::Gradient(scope);
      });
    };
  }
  if constexpr (internal::HasDescribe<Op>::value) Op::Describe(op);
  return Api().add_op(plugin, &op);
}

}  // namespace caesura::plugin

#endif  // CAESURA_CORE_PLUGIN_CAESURA_OP_HPP_
