// SPDX-License-Identifier: Apache-2.0
#include "core/base/hand_over.h"

#include <map>
#include <mutex>
#include <typeindex>

namespace caesura {
namespace {

struct Waiting {
  std::shared_ptr<const void> object;
  std::type_index type;
};

std::mutex objects_mutex;
std::map<int64_t, Waiting>& Objects() {
  static auto* objects = new std::map<int64_t, Waiting>;  // outlives the objects of other libraries
  return *objects;
}

}  // namespace

int64_t HandOverAs(std::shared_ptr<const void> object, const std::type_info& type) {
  if (object == nullptr) return 0;
  static int64_t last = 0;
  const std::lock_guard<std::mutex> lock(objects_mutex);
  Objects().emplace(++last, Waiting{std::move(object), type});
  return last;
}

std::shared_ptr<const void> TakeOverAs(int64_t number, const std::type_info& type) {
  const std::lock_guard<std::mutex> lock(objects_mutex);
  const auto found = Objects().find(number);
  if (found == Objects().end() || found->second.type != type) return nullptr;
  return std::move(Objects().extract(found).mapped().object);
}

}  // namespace caesura
