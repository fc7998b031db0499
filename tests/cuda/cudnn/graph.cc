// SPDX-License-Identifier: Apache-2.0
// Checks of operations, and their results by definition, in double; what lies between two
// operations is rounded to its type.
#include "cudnn/graph.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

namespace standin_cudnn {
namespace {

// Calls f with each index into a box of these dims.
template <typename F>
void ForEach(const Dims& dims, F f) {
  Dims at(dims.size(), 0);
  while (true) {
    f(at);
    std::size_t d = dims.size();
    while (d > 0 && ++at[d - 1] == dims[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

std::int64_t Offset(const Tensor& tensor, const Dims& at) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < at.size(); ++d) offset += at[d] * tensor.strides[d];
  return offset;
}

// `at` of a box of `dims` in a tensor that has as many elements of a dim, or fewer, each of them
// for as many in a row.
Dims Shared(const Tensor& tensor, const Dims& at, const Dims& dims) {
  Dims out(at.size());
  for (std::size_t d = 0; d < at.size(); ++d) out[d] = at[d] * tensor.dims[d] / dims[d];
  return out;
}

bool Divides(const Dims& few, const Dims& many) {
  if (few.size() != many.size()) return false;
  for (std::size_t d = 0; d < few.size(); ++d) {
    if (many[d] % few[d] != 0) return false;
  }
  return true;
}

double Rounded(cudnnDataType_t type, double value) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return static_cast<float>(value);
    case CUDNN_DATA_BFLOAT16: return __bfloat162float(__float2bfloat16(static_cast<float>(value)));
    case CUDNN_DATA_HALF: return __half2float(__float2half(static_cast<float>(value)));
    default: return value;
  }
}

// The elements of all tensors while a graph is computed.
class Memory {
 public:
  explicit Memory(const std::map<std::int64_t, void*>& given) : given_(given) {}

  double Read(const Tensor& tensor, const Dims& at) const {
    const std::int64_t offset = Offset(tensor, at);
    if (tensor.is_virtual) return between_.at(tensor.uid)[static_cast<std::size_t>(offset)];
    const char* from = static_cast<const char*>(given_.at(tensor.uid)) + offset * Size(tensor.type);
    switch (tensor.type) {
      case CUDNN_DATA_FLOAT: return Load<float>(from);
      case CUDNN_DATA_BFLOAT16: return __bfloat162float(Load<__nv_bfloat16>(from));
      default: return __half2float(Load<__half>(from));
    }
  }
  void Write(const Tensor& tensor, const Dims& at, double value) {
    const std::int64_t offset = Offset(tensor, at);
    if (tensor.is_virtual) {
      std::vector<double>& to = between_[tensor.uid];
      to.resize(tensor.span() / Bytes(tensor.type), NAN);
      to[static_cast<std::size_t>(offset)] = Rounded(tensor.type, value);
      return;
    }
    char* to = static_cast<char*>(given_.at(tensor.uid)) + offset * Size(tensor.type);
    switch (tensor.type) {
      case CUDNN_DATA_FLOAT: return Store(to, static_cast<float>(value));
      case CUDNN_DATA_BFLOAT16: return Store(to, __float2bfloat16(static_cast<float>(value)));
      default: return Store(to, __float2half(static_cast<float>(value)));
    }
  }

 private:
  static std::int64_t Size(cudnnDataType_t type) { return static_cast<std::int64_t>(Bytes(type)); }
  template <typename T>
  static T Load(const char* from) {
    T value;
    std::memcpy(static_cast<void*>(&value), from, sizeof value);
    return value;
  }
  template <typename T>
  static void Store(char* to, T value) {
    std::memcpy(to, static_cast<const void*>(&value), sizeof value);
  }

  const std::map<std::int64_t, void*>& given_;
  std::map<std::int64_t, std::vector<double>> between_;
};

double Apply(int mode, double x, double b, double t, std::int64_t index) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_GEN_INDEX: return static_cast<double>(index);
    default: return t != 0 ? x : b;  // BINARY_SELECT
  }
}

// Inputs that the mode takes; -1 for a mode that is not known.
int Arity(int mode) {
  switch (mode) {
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
    case CUDNN_POINTWISE_GEN_INDEX: return 1;
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GE: return 2;
    case CUDNN_POINTWISE_BINARY_SELECT: return 3;
    default: return -1;
  }
}

void Pointwise(const Operation& op, Memory& memory, double factor) {
  const Dims& dims = op.output->dims;
  ForEach(dims, [&](const Dims& at) {
    double values[3] = {};
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      values[i] = memory.Read(*op.inputs[i], Shared(*op.inputs[i], at, dims));
    const double y =
        Apply(op.mode, values[0], values[1], values[2], at[static_cast<std::size_t>(op.axis)]);
    memory.Write(*op.output, at, op.output->is_virtual ? y : y * factor);
  });
}

void Matmul(const Operation& op, Memory& memory, double factor) {
  const Tensor &a = *op.inputs[0], &b = *op.inputs[1], &y = *op.output;
  const std::size_t row = y.dims.size() - 2, column = row + 1;
  ForEach(y.dims, [&](const Dims& at) {
    Dims box = y.dims;
    box[column] = a.dims[column];
    Dims left = at;
    left[column] = 0;
    left = Shared(a, left, box);
    box = y.dims;
    box[row] = b.dims[row];
    Dims right = at;
    right[row] = 0;
    right = Shared(b, right, box);
    double sum = 0;
    for (std::int64_t k = 0; k < a.dims[column]; ++k) {
      left[column] = right[row] = k;
      sum += memory.Read(a, left) * memory.Read(b, right);
    }
    memory.Write(y, at, y.is_virtual ? sum : sum * factor);
  });
}

void Reduce(const Operation& op, Memory& memory, double factor) {
  const Tensor &x = *op.inputs[0], &y = *op.output;
  const bool most = op.mode == CUDNN_REDUCE_TENSOR_MAX;
  std::map<Dims, double> sums;
  ForEach(x.dims, [&](const Dims& at) {
    const double value = memory.Read(x, at);
    const auto [sum, is_new] = sums.try_emplace(Shared(y, at, x.dims), value);
    if (!is_new) sum->second = most ? std::max(sum->second, value) : sum->second + value;
  });
  for (const auto& [at, sum] : sums) memory.Write(y, at, y.is_virtual ? sum : sum * factor);
}

// The same memory: an element of y lies where that of x does which has its distance from the start.
void Reshape(const Operation& op, Memory& memory) {
  const Tensor &x = *op.inputs[0], &y = *op.output;
  std::map<std::int64_t, Dims> places;
  ForEach(x.dims, [&](const Dims& at) { places[Offset(x, at)] = at; });
  ForEach(y.dims, [&](const Dims& at) {
    const auto place = places.find(Offset(y, at));
    memory.Write(y, at, place == places.end() ? NAN : memory.Read(x, place->second));
  });
}

// The three products of a convolution are one sum over (sample, filter, channel, place, tap): each
// term adds to an element of one of x, w and y what those of the others give.
void Convolve(const Operation& op, Memory& memory, double factor) {
  const bool forward = op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
  const bool of_data = op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const Tensor& x = of_data ? *op.output : *op.inputs[0];
  const Tensor& w = forward || of_data ? *op.inputs[1] : *op.output;
  const Tensor& y = forward ? *op.output : of_data ? *op.inputs[0] : *op.inputs[1];
  const std::int64_t groups = x.dims[1] / w.dims[1], filters = w.dims[0] / groups;
  std::map<Dims, double> sums;
  ForEach(op.output->dims, [&](const Dims& at) { sums[at] = 0; });
  ForEach(y.dims, [&](const Dims& out) {
    Dims box = w.dims;
    box[0] = 1;
    ForEach(box, [&](const Dims& tap) {
      Dims from = out, filter = tap;
      filter[0] = out[1];
      from[1] = out[1] / filters * w.dims[1] + tap[1];
      for (std::size_t d = 2; d < from.size(); ++d) {
        from[d] = out[d] * op.strides[d - 2] + tap[d] * op.dilations[d - 2] - op.before[d - 2];
        if (from[d] < 0 || from[d] >= x.dims[d]) return;
      }
      if (forward) sums[out] += memory.Read(x, from) * memory.Read(w, filter);
      else if (of_data) sums[from] += memory.Read(y, out) * memory.Read(w, filter);
      else sums[filter] += memory.Read(x, from) * memory.Read(y, out);
    });
  });
  for (const auto& [at, sum] : sums) memory.Write(*op.output, at, sum * factor);
}

bool IsConvolutionOfShapes(const Operation& op, const Tensor& x, const Tensor& w, const Tensor& y) {
  const std::size_t rank = x.dims.size();
  if (rank < 3 || w.dims.size() != rank || y.dims.size() != rank) return false;
  if (x.dims[0] != y.dims[0] || w.dims[0] != y.dims[1] || x.dims[1] % w.dims[1] != 0) return false;
  if (w.dims[0] % (x.dims[1] / w.dims[1]) != 0) return false;
  for (const Dims* each : {&op.before, &op.after, &op.strides, &op.dilations}) {
    if (each->size() != rank - 2) return false;
  }
  for (std::size_t d = 2; d < rank; ++d) {
    const std::int64_t reach = (w.dims[d] - 1) * op.dilations[d - 2] + 1;
    const std::int64_t room = x.dims[d] + op.before[d - 2] + op.after[d - 2] - reach;
    if (room < 0 || room / op.strides[d - 2] + 1 != y.dims[d]) return false;
  }
  return true;
}

bool AreShapesRight(const Operation& op) {
  const Tensor &x = *op.inputs[0], &y = *op.output;
  switch (op.kind) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      for (const TensorPtr& input : op.inputs) {
        if (input->dims.size() != y.dims.size()) return false;
        for (std::size_t d = 0; d < y.dims.size(); ++d) {
          if (input->dims[d] != 1 && input->dims[d] != y.dims[d]) return false;
        }
      }
      return op.axis >= 0 && op.axis < static_cast<std::int64_t>(y.dims.size());
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      const Tensor& b = *op.inputs[1];
      const std::size_t rank = y.dims.size();
      if (rank < 2 || x.dims.size() != rank || b.dims.size() != rank) return false;
      Dims left = y.dims, right = y.dims;
      left[rank - 1] = right[rank - 2] = x.dims[rank - 1];
      return b.dims[rank - 2] == x.dims[rank - 1] && x.dims == left && Divides(b.dims, right) &&
             b.dims[rank - 1] == y.dims[rank - 1];
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return Divides(y.dims, x.dims);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return x.elements() == y.elements();
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return IsConvolutionOfShapes(op, x, *op.inputs[1], y);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return IsConvolutionOfShapes(op, y, *op.inputs[1], x);
    default: return IsConvolutionOfShapes(op, x, y, *op.inputs[1]);
  }
}

// Fused kernels read vectors of 16 bytes: rows of a tensor of halves begin at multiples of them.
bool IsAligned(const Tensor& tensor) {
  if (Bytes(tensor.type) != 2 || !tensor.is_in_memory()) return true;
  for (std::size_t d = 0; d < tensor.dims.size(); ++d) {
    if (tensor.strides[d] != 1 && tensor.dims[d] != 1 && tensor.strides[d] % 8 != 0) return false;
  }
  return true;
}

cudnnStatus_t CheckOperation(const Operation& op) {
  if (!AreShapesRight(op)) return CUDNN_STATUS_BAD_PARAM;
  const bool pointwise = op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
  if (pointwise && Arity(op.mode) != static_cast<int>(op.inputs.size()))
    return Arity(op.mode) < 0 ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_BAD_PARAM;
  if (op.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR &&
      op.mode != CUDNN_REDUCE_TENSOR_ADD && op.mode != CUDNN_REDUCE_TENSOR_MAX)
    return CUDNN_STATUS_NOT_SUPPORTED;
  if (op.kind != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  for (const Tensor* tensor : {op.inputs[0].get(), op.inputs[1].get(), op.output.get()}) {
    if (!IsAligned(*tensor)) return CUDNN_STATUS_NOT_SUPPORTED;
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

std::int64_t Tensor::elements() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t Tensor::span() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
  return static_cast<std::size_t>(last + 1) * Bytes(type);
}

std::size_t Bytes(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_BFLOAT16:
    case CUDNN_DATA_HALF: return 2;
    case CUDNN_DATA_BOOLEAN: return 1;
    default: return 0;
  }
}

cudnnStatus_t Check(std::vector<Operation>& operations) {
  std::set<std::int64_t> written;
  for (const Operation& op : operations) {
    const cudnnStatus_t status = CheckOperation(op);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (!written.insert(op.output->uid).second) return CUDNN_STATUS_BAD_PARAM;
  }
  std::vector<Operation> ordered;
  std::set<std::int64_t> ready;
  while (ordered.size() < operations.size()) {
    const std::size_t before = ordered.size();
    for (const Operation& op : operations) {
      if (ready.count(op.output->uid) != 0) continue;
      const bool can = std::all_of(op.inputs.begin(), op.inputs.end(), [&](const TensorPtr& input) {
        return ready.count(input->uid) != 0 ||
               (written.count(input->uid) == 0 && !input->is_virtual);
      });
      if (!can) continue;
      ready.insert(op.output->uid);
      ordered.push_back(op);
    }
    if (ordered.size() == before) return CUDNN_STATUS_BAD_PARAM;
  }
  operations = std::move(ordered);
  return CUDNN_STATUS_SUCCESS;
}

void Compute(const std::vector<Operation>& operations, const std::map<std::int64_t, void*>& given,
             double factor) {
  Memory memory(given);
  for (const Operation& op : operations) {
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: Pointwise(op, memory, factor); break;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: Matmul(op, memory, factor); break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: Reduce(op, memory, factor); break;
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: Reshape(op, memory); break;
      default: Convolve(op, memory, factor);
    }
  }
}

}  // namespace standin_cudnn
