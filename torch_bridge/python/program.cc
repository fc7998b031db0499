// SPDX-License-Identifier: Apache-2.0
// Program: a captured graph, run on PyTorch's tensors by position.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "core/load/model_reader.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "torch_bridge/python/bindings.h"
#include "training/kernels/training_ops.h"
#include "training/parameter_graph.h"

namespace nb = nanobind;

namespace caesura::python {
namespace {

using Array = nb::ndarray<nb::device::cpu>;

// DLPack's type codes and widths, and their numbers here.
struct TypeRow {
  nb::dlpack::dtype_code code;
  uint8_t bits;
  DType dtype;
};
constexpr TypeRow kTypes[] = {
    {nb::dlpack::dtype_code::Float, 32, DType::kFloat32},   {nb::dlpack::dtype_code::Float, 64, DType::kFloat64},
    {nb::dlpack::dtype_code::Float, 16, DType::kFloat16},   {nb::dlpack::dtype_code::Bfloat, 16, DType::kBFloat16},
    {nb::dlpack::dtype_code::Int, 64, DType::kInt64},       {nb::dlpack::dtype_code::Int, 32, DType::kInt32},
    {nb::dlpack::dtype_code::Int, 16, DType::kInt16},       {nb::dlpack::dtype_code::Int, 8, DType::kInt8},
    {nb::dlpack::dtype_code::UInt, 8, DType::kUInt8},       {nb::dlpack::dtype_code::UInt, 16, DType::kUInt16},
    {nb::dlpack::dtype_code::UInt, 32, DType::kUInt32},     {nb::dlpack::dtype_code::UInt, 64, DType::kUInt64},
    {nb::dlpack::dtype_code::Bool, 8, DType::kBool},
};

Tensor Borrow(const Array& array, const std::string& what) {
  const TypeRow* row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) {
    return static_cast<uint8_t>(r.code) == array.dtype().code && r.bits == array.dtype().bits && array.dtype().lanes == 1;
  });
  if (row == std::end(kTypes)) Raise(InvalidArgument(what + " has a dtype that programs do not take"));
  std::vector<int64_t> dims(array.ndim());
  int64_t stride = 1;
  for (size_t d = array.ndim(); d-- > 0;) {
    dims[d] = static_cast<int64_t>(array.shape(d));
    if (dims[d] != 1 && array.size() > 0 && array.stride(d) != stride) Raise(InvalidArgument(what + " is not contiguous"));
    stride *= dims[d];
  }
  return Tensor::Borrow(row->dtype, Unwrap(CheckedShape(dims, row->dtype)), array.data());
}

nb::object ToTorch(const Tensor& tensor) {
  const TypeRow* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeRow& r) { return r.dtype == tensor.dtype(); });
  if (row == std::end(kTypes)) Raise(InvalidArgument(std::string("PyTorch takes no ") + DTypeName(tensor.dtype())));
  auto* keep = new std::shared_ptr<Buffer>(tensor.buffer());
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(p); });
  const auto& dims = tensor.shape().dims();
  const std::vector<size_t> shape(dims.begin(), dims.end());
  const nb::dlpack::dtype dtype{static_cast<uint8_t>(row->code), row->bits, 1};
  return nb::cast(nb::ndarray<nb::pytorch>(tensor.raw(), shape.size(), shape.data(), owner, nullptr, dtype));
}

class Program {
 public:
  Program(nb::bytes model, int threads) {
    const ProviderList providers = {MakeCpuProvider(RegisterTrainingKernels)};
    PlanOptions options;
    options.threads = threads;
    auto parsed = Unwrap(ReadModelBytes(std::string_view(model.c_str(), model.size())));
    graph_ = Unwrap(ParameterGraph::Create(parsed.graph, {}, providers, options, StepPasses()));
  }

  // Plain ints are host scalars that the plan is made for: shapes follow from them.
  std::vector<nb::object> Run(const nb::list& inputs) {
    std::vector<RuntimeValue> feeds;
    std::vector<FeedSpec> known;
    std::vector<Array> arrays;  // held while the run reads them
    Take(inputs, &feeds, &known, &arrays);
    auto results = [&] {
      nb::gil_scoped_release release;
      return graph_->Run(std::move(feeds), {}, nullptr, known);
    }();
    std::vector<nb::object> out;
    for (const RuntimeValue& value : Unwrap(std::move(results))) out.push_back(ToTorch(value.tensor()));
    return out;
  }

  std::pair<std::string, size_t> Plan(const nb::list& inputs) {
    std::vector<RuntimeValue> feeds;
    std::vector<FeedSpec> known;
    std::vector<Array> arrays;
    Take(inputs, &feeds, &known, &arrays);
    const auto plan = Unwrap(graph_->Plan(feeds, known));
    return {plan->ToString(), plan->arena_bytes()};
  }

 private:
  void Take(const nb::list& inputs, std::vector<RuntimeValue>* feeds, std::vector<FeedSpec>* known,
            std::vector<Array>* arrays) {
    for (nb::handle input : inputs) {
      known->emplace_back();
      if (nb::isinstance<nb::int_>(input)) {
        known->back().value = Tensor::Scalar(nb::cast<int64_t>(input));
        feeds->emplace_back(known->back().value);
      } else {
        arrays->push_back(nb::cast<Array>(input));
        feeds->emplace_back(Borrow(arrays->back(), "an input"));
      }
    }
  }

  std::unique_ptr<ParameterGraph> graph_;
};

}  // namespace

Tensor BorrowArray(nb::handle array, const std::string& what) {
  return Borrow(nb::cast<Array>(array), what);
}

void BindProgram(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def(nb::init<nb::bytes, int>())
      .def("run", &Program::Run)
      .def("plan", &Program::Plan);
}

}  // namespace caesura::python
