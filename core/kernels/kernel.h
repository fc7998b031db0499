// SPDX-License-Identifier: Apache-2.0
// A kernel is a definition that planning reads, a factory that settles everything once, and a
// function that only computes.
//
//   Status CreateRelu(KernelInfo& info) {    // called while planning, with known dtypes and shapes
//     const int64_t count = info.InputShape(0).elements();
//     info.SetOutput(0, info.InputDType(0), info.InputShape(0));
//     info.SetCompute([count](KernelContext& context) {      // called in every step
//       const float* x = context.Input<float>(0);
//       float* y = context.Output<float>(0);
//       for (int64_t i = 0; i < count; ++i) y[i] = std::max(x[i], 0.0f);
//       return Status();
//     });
//     return {};
//   }
//   KernelDef relu = {.op_type = "Relu", .types = {DType::kFloat32}, .aliases = {MayReuse(0, 0)},
//                     .create = CreateRelu};    // goes into CustomOp::kernels or a KernelRegistry
//
// Dtypes, shapes, attributes, algorithm and scratch are decided in the factory; the function has no
// reason to fail but the values it reads (an index out of range) or the device. It keeps no state
// between calls.
#ifndef CAESURA_CORE_KERNELS_KERNEL_H_
#define CAESURA_CORE_KERNELS_KERNEL_H_

#include <cassert>
#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"
#include "core/tensor/tensor.h"

namespace caesura {

class KernelContext;
class KernelInfo;

// Makes the kernel of one node while a graph is planned: sets the outputs and the compute function.
// kDeclined (KernelInfo::Refuse) makes planning ask the next candidate; any other error is final.
using KernelFactory = Status (*)(KernelInfo&);

// The function of a step. Copies share the captured values, so that plans which differ in sizes
// alone share what they do not change. Thread safety: may be called from several threads at once.
class ComputeFunction {
 public:
  ComputeFunction() = default;
  // `fn` takes KernelContext& and returns Status, or nothing.
  template <typename Fn>
    requires(!std::is_same_v<Fn, ComputeFunction>)
  ComputeFunction(Fn fn)  // NOLINT: implicit, as std::function has it
      : target_(std::make_shared<Fn>(std::move(fn))), call_(&Call<Fn>) {}

  Status operator()(KernelContext& context) const { return call_(target_.get(), context); }
  explicit operator bool() const { return call_ != nullptr; }

 private:
  template <typename Fn>
  static Status Call(void* target, KernelContext& context) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn&, KernelContext&>>) {
      (*static_cast<Fn*>(target))(context);
      return Status();
    } else {
      return (*static_cast<Fn*>(target))(context);
    }
  }
  std::shared_ptr<void> target_;
  Status (*call_)(void*, KernelContext&) = nullptr;
};

// A way in which an output may or must share its bytes with an input.
struct Alias {
  // The bytes that the output shares.
  enum class Kind : uint8_t {
    kMayReuse,  // the output may overwrite the input when nobody reads the input afterwards (same
                // byte count)
    kView,     // the output is the input's bytes under another shape; the plan then drops the step.
               // The compute function copies, for the cases in which sharing is impossible.
    kInPlace,  // the output must be the input's buffer: an update of a parameter or of optimizer
               // state
  };
  int input;
  int output;
  Kind kind;
};
// The three kinds of aliases, for KernelDef::aliases.
inline Alias MayReuse(int input, int output) { return {input, output, Alias::Kind::kMayReuse}; }
inline Alias View(int input, int output) { return {input, output, Alias::Kind::kView}; }
inline Alias InPlace(int input, int output) { return {input, output, Alias::Kind::kInPlace}; }

// All that planning and passes may ask about a kernel without making one.
struct KernelDef {
  std::string op_type = {};
  std::string domain = "";
  // Schema versions whose semantics the kernel has.
  int since = 1;
  int until = INT_MAX;
  // Dtypes accepted for the input `typed_input` (ignored when that input is absent or no tensor).
  DTypeSet types = kAllTypes;
  int typed_input = 0;
  // Inputs whose *values* the factory reads (shapes, axes, pads, k, ...): they must be on the host
  // and known before the node is sized. A node whose host inputs are known only at run time is
  // created at run time. An index -1 - i stands for "input i and all after it".
  std::vector<int> host_inputs = {};
  // Takes the place of host_inputs for ops whose host inputs depend on the node (PyTorch's
  // operators: on the schema that it names).
  std::function<bool(const Node&, int)> host_input_of = nullptr;
  // Outputs that are in host memory even on a device (Shape, Size, a random offset).
  std::vector<int> host_outputs = {};
  // Inputs whose values are never read, only dtype and shape: folding does not wait for them
  // (Shape, Size, EyeLike).
  std::vector<int> unread_inputs = {};
  std::vector<Alias> aliases = {};
  // Inputs that the kernel reads under any InputInfo::layout (-1 - i as above); all others come
  // dense.
  std::vector<int> strided_inputs = {};
  // Outputs that the kernel writes under any KernelInfo::OutputLayout.
  std::vector<int> strided_outputs = {};
  // The kernel is several times as fast on matrices whose rows begin at multiples of 16 bytes: the
  // plan lays out large ones so, where all their readers take strides.
  bool pads_rows = false;
  // Indices of inputs that the plan lays out as one block, in this order (-1 - i as above);
  // verified before the first step. Each begins at the next multiple of contiguous_alignment after
  // the end of the one before: with 1 the block has no gaps.
  std::vector<int> contiguous_inputs = {};
  size_t contiguous_alignment = 1;
  // False for kernels whose results differ from call to call: never folded, never cached.
  bool deterministic = true;
  // Mostly a plain KernelFactory; a function object where a wrapper or a user's op needs to carry
  // something.
  std::function<Status(KernelInfo&)> create = nullptr;

  bool IsHostInput(const Node& node, int i) const {
    return host_input_of ? host_input_of(node, i) : Lists(host_inputs, i);
  }
  bool TakesStrides(int input) const { return Lists(strided_inputs, input); }
  static bool Lists(const std::vector<int>& indices, int i) {
    for (int index : indices) {
      if (index == i || (index < 0 && i >= -1 - index)) return true;
    }
    return false;
  }
};

// Runs a subgraph (a body of If, Loop, Scan) as a function of its inputs; outer values come from
// the context of the node that owns the body. Declared here, implemented by the executor.
class SubgraphRunner {
 public:
  virtual ~SubgraphRunner() = default;
  // `inputs` in the order of the body's inputs. The results are owned by the caller: none of them
  // shares memory that a later run may overwrite. `iteration` counts the calls that one execution
  // of the node makes, so that random ops differ from one to the next.
  virtual Result<std::vector<RuntimeValue>> Run(std::vector<RuntimeValue> inputs,
                                                KernelContext& outer, uint64_t iteration = 0) = 0;
  virtual const Graph& graph() const = 0;
};

// The facts about one input when a kernel is created.
struct InputInfo {
  bool present = false;
  bool is_tensor = false;
  DType dtype = DType::kUndefined;
  Shape shape;
  // Where the elements lie, from the address that the context gives. Dense but for
  // KernelDef::strided_inputs.
  Layout layout = {};
  // The value, when it is known already: always for declared host inputs, otherwise for constants.
  const Tensor* value = nullptr;
  // The value of a non-tensor input when the kernel is created at run time; null while planning.
  const RuntimeValue* runtime_value = nullptr;
};

// The factory's decision about one output.
struct OutputInfo {
  // Sized while planning, or by the compute function.
  enum class Kind : uint8_t { kUnset, kPlanned, kSizedInCompute };
  Kind kind = Kind::kUnset;
  DType dtype = DType::kUndefined;
  Shape shape;
};

// Output 0 as a way of looking at bytes that are there already; see KernelInfo::SetView and
// SetConcat.
struct ViewInfo {
  // The relation of the output to the bytes.
  enum class Kind : uint8_t { kNone, kLayout, kPermutation, kReshape, kConcat };
  Kind kind = Kind::kNone;
  std::vector<Layout> layouts;       // of each output in input 0's buffer
  std::vector<int64_t> permutation;  // kPermutation
  int axis = 0;                      // kConcat
};

// The factory's view of the node, and where it writes its decisions. Lives during the factory's
// call only.
class KernelInfo {
 public:
  KernelInfo(const Node& node, std::vector<InputInfo> inputs, int threads)
      : node_(node),
        inputs_(std::move(inputs)),
        outputs_(node.outputs().size()),
        threads_(threads) {}

  const Node& node() const { return node_; }
  template <typename T>
  T Attr(const std::string& name, T fallback) const {
    return node_.Attr<T>(name, std::move(fallback));
  }

  int input_count() const { return static_cast<int>(inputs_.size()); }
  bool HasInput(int i) const { return InRange(i, inputs_) && inputs_[i].present; }
  const InputInfo& input(int i) const { return inputs_[i]; }
  bool IsTensor(int i) const { return HasInput(i) && inputs_[i].is_tensor; }
  // REQUIRES (both): IsTensor(i).
  DType InputDType(int i) const { return assert(IsTensor(i)), inputs_[i].dtype; }
  const Shape& InputShape(int i) const { return assert(IsTensor(i)), inputs_[i].shape; }
  // A declared host input, or a constant; null when absent or not known before the run.
  const Tensor* InputValue(int i) const { return InRange(i, inputs_) ? inputs_[i].value : nullptr; }
  // A host input of integers (any width) as int64; empty when absent.
  std::vector<int64_t> HostInts(int i) const {
    const Tensor* value = InputValue(i);
    return value == nullptr ? std::vector<int64_t>() : value->ToVector<int64_t>();
  }

  int output_count() const { return static_cast<int>(outputs_.size()); }
  bool HasOutput(int i) const { return InRange(i, outputs_) && node_.output(i) != nullptr; }
  // The dtype that the graph gives an output (for ops that choose it: Cast, RandomNormal, ...).
  DType GraphOutputDType(int i) const { return node_.outputs()[i]->dtype(); }

  // The number of threads for the kernel. Part of the plan: results may depend on it.
  int threads() const { return threads_; }

  // --- decisions ---
  // Ignored for absent outputs.
  void SetOutput(int i, DType dtype, Shape shape) {
    if (InRange(i, outputs_)) outputs_[i] = {OutputInfo::Kind::kPlanned, dtype, std::move(shape)};
  }
  // The output's size, or its kind (a sequence), shows only at run time: the function calls
  // AllocateOutput or SetOutputValue.
  void SetOutputSizedInCompute(int i) {
    if (InRange(i, outputs_)) outputs_[i].kind = OutputInfo::Kind::kSizedInCompute;
  }
  // Books scratch memory for each call; returns the handle for KernelContext::Scratch. Contents are
  // undefined. On a device the first one begins at a multiple of kDeviceAlignment.
  size_t BookScratch(size_t bytes) {
    const size_t offset = scratch_bytes_;
    scratch_bytes_ += (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    return offset;
  }
  // Output i is input 0's bytes under layouts[i] (absolute: the input's own layout is in it). The
  // plan drops the step where all readers of all outputs take strides; otherwise the compute
  // function copies.
  void SetViews(std::vector<Layout> layouts) {
    view_ = {ViewInfo::Kind::kLayout, std::move(layouts), {}, 0};
  }
  // Output 0 is input 0's bytes with permuted dims. The plan may also have the input's producer
  // write it in the output's order.
  void SetPermutedView(std::vector<int64_t> permutation) {
    Layout layout =
        Simplified(outputs_[0].shape, Permuted(inputs_[0].shape, inputs_[0].layout, permutation));
    view_ = {ViewInfo::Kind::kPermutation, {std::move(layout)}, std::move(permutation), 0};
  }
  // Output 0 has the elements of input 0, in order, in another shape.
  void SetReshapedView() {
    auto layout = Reshaped(inputs_[0].shape, inputs_[0].layout, outputs_[0].shape);
    if (layout)
      view_ = {
          ViewInfo::Kind::kReshape, {Simplified(outputs_[0].shape, *std::move(layout))}, {}, 0};
  }
  // Output 0 is all inputs, one after the other along `axis`: the plan may have their producers
  // write into it.
  void SetConcat(int axis) { view_ = {ViewInfo::Kind::kConcat, {}, {}, axis}; }
  // Where output i is to be written. Dense but for KernelDef::strided_outputs.
  const Layout& OutputLayout(int i) const {
    static const Layout kDense;
    return InRange(i, output_layouts_) ? output_layouts_[i] : kDense;
  }
  // Adds an Alias of kind kInPlace, for ops whose number of inputs shows only here.
  void SetInPlace(int input, int output) { aliases_.push_back(InPlace(input, output)); }
  // Adds an Alias of kind kMayReuse.
  void SetMayReuse(int input, int output) { aliases_.push_back(MayReuse(input, output)); }
  void SetCompute(ComputeFunction compute) { compute_ = std::move(compute); }

  // The runner of the body in attribute `name`; null when the node has none of that name.
  std::shared_ptr<SubgraphRunner> Subgraph(const std::string& name) const {
    return subgraph_runner_ ? subgraph_runner_(name) : nullptr;
  }

  // "DECLINED: [Op 'name'] ...": this kernel does not do it; the next candidate is asked. Any other
  // failure of a factory is final.
  Status Refuse(const std::string& why) const { return Declined(node_.Label() + " " + why); }
  // "INVALID_ARGUMENT: [Op 'name'] ..." : the inputs are wrong for the op, whichever kernel runs
  // it.
  Status Invalid(const std::string& why) const {
    return InvalidArgument(node_.Label() + " " + why);
  }

  // --- for the planner ---
  const std::vector<OutputInfo>& outputs() const { return outputs_; }
  // Set by the factory, beside KernelDef::aliases.
  const std::vector<Alias>& aliases() const { return aliases_; }
  size_t scratch_bytes() const { return scratch_bytes_; }
  const ViewInfo& view() const { return view_; }
  void set_output_layouts(std::vector<Layout> layouts) { output_layouts_ = std::move(layouts); }
  // Forgets the decisions of a factory that refused.
  void Reset() {
    outputs_.assign(outputs_.size(), {});
    aliases_.clear();
    scratch_bytes_ = 0;
    view_ = {};
    compute_ = {};
  }
  ComputeFunction TakeCompute() { return std::move(compute_); }
  void set_subgraph_runner(std::function<std::shared_ptr<SubgraphRunner>(const std::string&)> fn) {
    subgraph_runner_ = std::move(fn);
  }

 private:
  template <typename T>
  static bool InRange(int i, const std::vector<T>& list) {
    return static_cast<size_t>(i) < list.size();
  }

  const Node& node_;
  std::vector<InputInfo> inputs_;
  std::vector<OutputInfo> outputs_;
  int threads_;
  std::vector<Alias> aliases_;
  size_t scratch_bytes_ = 0;
  ViewInfo view_;
  std::vector<Layout> output_layouts_;
  ComputeFunction compute_;
  std::function<std::shared_ptr<SubgraphRunner>(const std::string&)> subgraph_runner_;
};

// --- running ---
//
// A compute function sees pointers to its inputs, outputs and scratch. Nothing here looks up a name
// or allocates, but for outputs that are sized at run time.

// The key of counter-based random numbers (Philox): the same key gives the same numbers, on any
// thread.
struct RandomKey {
  uint64_t seed;         // of the session
  uint64_t step;         // counts runs
  uint64_t subsequence;  // of the node: its own numbers
};

class RunCollectives;  // core/distributed/run_collectives.h

// Answers the calls of a context that need more than pointers; implemented by ExecutionState.
class KernelHost {
 public:
  virtual ~KernelHost() = default;
  // `argument` points at an argument's buffer id (KernelContext's ids + i). Tensors in planned
  // memory come as views, valid until the step ends.
  virtual RuntimeValue ArgumentValue(const uint32_t* argument) = 0;
  virtual Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) = 0;
  virtual void SetArgumentValue(const uint32_t* argument, RuntimeValue value) = 0;
  virtual RandomKey random_key(uint32_t subsequence) const = 0;
  // The random key's seed and step in memory of the step's device; null on the host.
  virtual const uint64_t* device_random_key() const { return nullptr; }
  // ExecutionProvider::stream() of who runs the step.
  virtual void* device_stream() const { return nullptr; }
  // RunOptions::collectives.
  virtual RunCollectives* collectives() const { return nullptr; }
  // A copy of a tensor in memory of its own, on the device that it is on.
  virtual Result<Tensor> CopyOf(const Tensor& tensor) const = 0;
};

// The arguments of one call of a kernel. It lives during the call only. Thread safety: one thread
// at a time.
class KernelContext {
 public:
  // `addresses[ids[i]]` is the address of the i-th argument: inputs, then implicit inputs of
  // bodies, then outputs.
  KernelContext(void* const* addresses, const uint32_t* ids, uint32_t first_output, void* scratch,
                uint32_t subsequence, KernelHost* host)
      : addresses_(addresses),
        ids_(ids),
        first_output_(first_output),
        subsequence_(subsequence),
        scratch_(scratch),
        host_(host) {}

  // Null for an absent input.
  template <typename T>
  const T* Input(int i) const {
    return static_cast<uint32_t>(i) < first_output_ ? static_cast<const T*>(addresses_[ids_[i]])
                                                    : nullptr;
  }
  // Null for an absent output. Undefined for one that the factory has not sized by SetOutput.
  template <typename T>
  T* Output(int i) const {
    return static_cast<T*>(addresses_[ids_[first_output_ + i]]);
  }
  template <typename T>
  T* Scratch(size_t handle) const {
    return reinterpret_cast<T*>(static_cast<char*>(scratch_) + handle);
  }

  // Any input as a value (sequences, maps, optionals; tensors as views that end with the step).
  RuntimeValue InputValue(int i) const { return host_->ArgumentValue(ids_ + i); }
  // For outputs declared with SetOutputSizedInCompute.
  Result<Tensor> AllocateOutput(int i, DType dtype, Shape shape) const {
    return host_->AllocateArgument(ids_ + first_output_ + i, dtype, std::move(shape));
  }
  void SetOutputValue(int i, RuntimeValue value) const {
    host_->SetArgumentValue(ids_ + first_output_ + i, std::move(value));
  }
  Result<Tensor> CopyOf(const Tensor& tensor) const { return host_->CopyOf(tensor); }
  // For an op with a `seed` attribute put it into the key's seed.
  RandomKey random_key() const { return host_->random_key(subsequence_); }
  // The key's seed and step: two numbers that a random op's kernel on a device reads there, so that
  // a captured launch draws new numbers in the next step. Null on the host.
  const uint64_t* device_random_key() const { return host_->device_random_key(); }
  // The stream that inputs are ready on and outputs must be: the provider's
  // (ExecutionProvider::stream); null on the host.
  void* device_stream() const { return host_->device_stream(); }
  // The collectives of the run; null where it has no other ranks.
  RunCollectives* collectives() const { return host_->collectives(); }

 private:
  void* const* addresses_;
  const uint32_t* ids_;
  uint32_t first_output_;
  uint32_t subsequence_;
  void* scratch_;
  KernelHost* host_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_KERNEL_H_
