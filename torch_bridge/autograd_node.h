// SPDX-License-Identifier: Apache-2.0
// Pointers to nodes of autograd. PyTorch 2.12 holds nodes by std::shared_ptr, later releases by
// c10::intrusive_ptr.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace caesura::torch {

inline constexpr bool kNodesAreShared = std::is_same_v<decltype(::torch::autograd::Edge::function),
                                                       std::shared_ptr<::torch::autograd::Node>>;

// A pointer to T, a class derived from Node, that converts to this release's pointer to a Node.
template <typename T>
using NodePtr = std::conditional_t<kNodesAreShared, std::shared_ptr<T>, c10::intrusive_ptr<T>>;

// Makes a node. Deep chains of nodes are deleted without recursion.
template <typename T, typename... Args>
NodePtr<T> MakeNode(Args&&... args) {
  if constexpr (kNodesAreShared) {
    return NodePtr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace caesura::torch
