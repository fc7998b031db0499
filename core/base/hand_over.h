// SPDX-License-Identifier: Apache-2.0
// Hands objects from one library of the process to another through code that carries only numbers,
// such as Python between this library and PyTorch's.
#ifndef CAESURA_CORE_BASE_HAND_OVER_H_
#define CAESURA_CORE_BASE_HAND_OVER_H_

#include <cstdint>
#include <memory>
#include <typeinfo>
#include <utility>

namespace caesura {

int64_t HandOverAs(std::shared_ptr<const void> object, const std::type_info& type);
std::shared_ptr<const void> TakeOverAs(int64_t number, const std::type_info& type);

// Returns a number, under which TakeOver<T> gives the object once; until then it is kept. 0 for
// null. Thread safety: from any thread, as TakeOver.
template <typename T>
int64_t HandOver(std::shared_ptr<T> object) {
  return HandOverAs(std::move(object), typeid(T));
}

// Null for 0, and for a number under which no object of this type waits.
template <typename T>
std::shared_ptr<T> TakeOver(int64_t number) {
  return std::static_pointer_cast<T>(std::const_pointer_cast<void>(TakeOverAs(number, typeid(T))));
}

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_HAND_OVER_H_
