// SPDX-License-Identifier: Apache-2.0
// What a kernel's compute function sees: pointers to its inputs, outputs and scratch. Nothing here
// looks up a name or allocates, but for outputs that are sized in the run.
#ifndef CAESURA_CORE_KERNELS_KERNEL_CONTEXT_H_
#define CAESURA_CORE_KERNELS_KERNEL_CONTEXT_H_

#include <cstdint>

#include "core/base/status.h"
#include "core/tensor/tensor.h"

namespace caesura {

// The key of a counter-based random stream (Philox): the same key gives the same numbers, on any
// thread.
struct RandomKey {
  uint64_t seed;    // of the session
  uint64_t step;    // counts runs
  uint64_t stream;  // of the node
};

class RunCollectives;  // core/distributed/run_collectives.h

// How a context reaches what lies behind the pointers; implemented by ExecutionState.
class KernelHost {
 public:
  virtual ~KernelHost() = default;
  // `argument` points at an argument's buffer id (KernelContext's ids + i). Tensors in planned
  // memory come as views, valid until the step ends.
  virtual RuntimeValue ArgumentValue(const uint32_t* argument) = 0;
  virtual Result<Tensor> AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) = 0;
  virtual void SetArgumentValue(const uint32_t* argument, RuntimeValue value) = 0;
  virtual RandomKey random_key(uint32_t stream) const = 0;
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
                uint32_t stream, KernelHost* host)
      : addresses_(addresses),
        ids_(ids),
        first_output_(first_output),
        stream_(stream),
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
  RandomKey random_key() const { return host_->random_key(stream_); }
  // The key's seed and step: two numbers that a random op's kernel on a device reads there, so that
  // a captured launch draws new numbers in the next step. Null on the host.
  const uint64_t* device_random_key() const { return host_->device_random_key(); }
  // What inputs are ready on and outputs must be: the provider's stream
  // (ExecutionProvider::stream); null on the host.
  void* device_stream() const { return host_->device_stream(); }
  // The collectives of the run; null where it has no other ranks.
  RunCollectives* collectives() const { return host_->collectives(); }

 private:
  void* const* addresses_;
  const uint32_t* ids_;
  uint32_t first_output_;
  uint32_t stream_;
  void* scratch_;
  KernelHost* host_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_KERNEL_CONTEXT_H_
