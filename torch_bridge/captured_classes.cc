// SPDX-License-Identifier: Apache-2.0
// The classes and operators of captured calls, as PyTorch knows them.
#include <torch/library.h>

#include "core/base/hand_over.h"
#include "torch_bridge/captured_call.h"

namespace caesura::torch {

void RegisterCapturedCalls() {
  static const bool done = [] {
    static ::torch::Library library(::torch::Library::FRAGMENT, "caesura", std::nullopt, __FILE__,
                                    __LINE__);
    library.class_<CallCounters>("Counters")
        .def(::torch::init<>())
        .def("take", &CallCounters::Take);
    library.class_<CapturedGraph>("Graph")
        .def(::torch::init(
            [](int64_t values, const c10::intrusive_ptr<CallCounters>& counters, int64_t gpu) {
              auto provider = TakeOver<const ExecutionProvider>(gpu);  // _core.Gpu.share
              TORCH_CHECK(gpu == 0 || provider, "no GPU was handed over as ", gpu);
              return c10::make_intrusive<CapturedGraph>(values, counters, std::move(provider));
            }))
        .def("add_constant", &CapturedGraph::AddConstant)
        .def("add_program", &CapturedGraph::AddProgram)
        .def("add_part", &CapturedGraph::AddPart)
        .def("add_cut", &CapturedGraph::AddCut)
        .def("add_operator", &CapturedGraph::AddOperator)
        .def("add_size", &CapturedGraph::AddSize)
        .def("add_element", &CapturedGraph::AddElement);
    library.class_<CapturedCall>("Call").def(::torch::init(
        [](const c10::intrusive_ptr<CapturedGraph>& forward,
           std::optional<c10::intrusive_ptr<CapturedGraph>> backward,
           std::vector<std::vector<int64_t>> layout, bool random, int64_t key, int64_t keep_alive) {
          auto held = TakeOver<void>(keep_alive);  // _core.keep_alive
          TORCH_CHECK(held, "nothing was handed over as ", keep_alive);
          return c10::make_intrusive<CapturedCall>(forward, backward.value_or(nullptr),
                                                   std::move(layout), random, key, std::move(held));
        }));
    library.def(
        "differentiate(int key, Tensor[] tensors, int[] sizes, Tensor?[] gradients, Tensor? "
        "random, Tensor[] saved, int[] wanted, int[] before, Tensor[] before_given, bool joins) -> "
        "(Tensor[], Tensor[], int[], int)");
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace caesura::torch
