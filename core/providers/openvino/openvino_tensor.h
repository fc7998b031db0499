// SPDX-License-Identifier: Apache-2.0
// Parts that the plug-ins that link OpenVINO (the provider, the runtime of model ops) share: types,
// tensors, failures, requests.
#ifndef CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_TENSOR_H_
#define CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_TENSOR_H_

#include <mutex>
#include <new>
#include <openvino/openvino.hpp>
#include <shared_mutex>
#include <string>

#include "core/plugin/caesura_op.hpp"

namespace caesura_openvino {

using caesura::plugin::Error;

// Turns an exception of `fn` into a status; one of OpenVINO's is a provider failure.
template <typename Fn>
CaesuraStatus* Guard(const Fn& fn) {
  return caesura::plugin::Guard([&] {
    try {
      fn();
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(CAESURA_PROVIDER_FAILURE, error.what());
    }
  });
}

struct ElementType {
  int32_t dtype;  // as ONNX counts
  ov::element::Type_t type;
};
inline constexpr ElementType kElementTypes[] = {
    {1, ov::element::f32},   {2, ov::element::u8},      {3, ov::element::i8},
    {4, ov::element::u16},   {5, ov::element::i16},     {6, ov::element::i32},
    {7, ov::element::i64},   {9, ov::element::boolean}, {10, ov::element::f16},
    {11, ov::element::f64},  {12, ov::element::u32},    {13, ov::element::u64},
    {16, ov::element::bf16},
};

// Types to and from OpenVINO's. Both throw where the other side has no such type.
inline int32_t DTypeOf(const ov::element::Type& type) {
  for (const ElementType& entry : kElementTypes) {
    if (type == entry.type) return entry.dtype;
  }
  throw Error(CAESURA_UNSUPPORTED, "element type " + type.get_type_name() + " has no counterpart");
}
inline ov::element::Type TypeOf(int32_t dtype) {
  for (const ElementType& entry : kElementTypes) {
    if (dtype == entry.dtype) return entry.type;
  }
  throw Error(CAESURA_UNSUPPORTED, "dtype " + std::to_string(dtype) + " is none of OpenVINO's");
}

// OpenVINO's view of the tensor's bytes.
inline ov::Tensor Borrow(const CaesuraTensor& tensor) {
  static char nothing[8];  // OpenVINO takes no null, not even for no elements
  return {TypeOf(tensor.dtype), ov::Shape(tensor.dims, tensor.dims + tensor.rank),
          tensor.data == nullptr ? nothing : tensor.data};
}

// Makes and runs a compiled model's requests, so that none is made while another runs: OpenVINO
// 2026.4's CPU device, with one thread a run, then reads what the run changes, and crashes. Runs go
// beside each other. Thread safety: all methods from any thread.
class Requests {
 public:
  ov::InferRequest Make(ov::CompiledModel& model) {
    std::lock_guard<std::mutex> turn(turn_);
    std::unique_lock<std::shared_mutex> alone(running_);
    return model.create_infer_request();
  }

  void Infer(ov::InferRequest& request) {
    std::unique_lock<std::mutex> turn(turn_);  // who waits to make one is not overtaken
    std::shared_lock<std::shared_mutex> running(running_);
    turn.unlock();
    request.infer();
  }

 private:
  std::mutex turn_;
  std::shared_mutex running_;
};

}  // namespace caesura_openvino

#endif  // CAESURA_CORE_PROVIDERS_OPENVINO_OPENVINO_TENSOR_H_
