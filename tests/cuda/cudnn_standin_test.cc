// SPDX-License-Identifier: Apache-2.0
// The stand-in cuDNN: graphs against their definition, and descriptors that are wrong.
#include <cudnn_graph.h>
#include <cmath>
#include <map>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;
using Dims = std::vector<std::int64_t>;

// A graph as its test writes it down, with every call's status.
class Graph {
 public:
  explicit Graph(Device& device) : device_(device), stream_(device.Stream()) {
    EXPECT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetStream(handle_, reinterpret_cast<cudaStream_t>(stream_)),
              CUDNN_STATUS_SUCCESS);
  }
  ~Graph() {
    for (const cudnnBackendDescriptor_t made : made_) cudnnBackendDestroyDescriptor(made);
    cudnnDestroy(handle_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cudnnBackendDescriptor_t Make(cudnnBackendDescriptorType_t kind) {
    cudnnBackendDescriptor_t made = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(kind, &made), CUDNN_STATUS_SUCCESS);
    made_.push_back(made);
    return made;
  }
  template <typename T>
  void Set(cudnnBackendDescriptor_t of, int attribute, cudnnBackendAttributeType_t type, T value) {
    Set(of, attribute, type, std::vector<T>{value});
  }
  template <typename T>
  void Set(cudnnBackendDescriptor_t of, int attribute, cudnnBackendAttributeType_t type,
           const std::vector<T>& values) {
    Keep(cudnnBackendSetAttribute(of, static_cast<cudnnBackendAttributeName_t>(attribute), type,
                                  static_cast<std::int64_t>(values.size()), values.data()));
  }
  void Finalize(cudnnBackendDescriptor_t of) { Keep(cudnnBackendFinalize(of)); }

  cudnnBackendDescriptor_t Tensor(std::int64_t id, const Dims& dims, const Dims& strides,
                                  cudnnDataType_t type = CUDNN_DATA_FLOAT, int flag = 0) {
    const auto made = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    Set(made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    Set(made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    Set(made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dims);
    Set(made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
    Set(made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
    const char yes = 1;
    if (flag != 0)
      Keep(cudnnBackendSetAttribute(made, static_cast<cudnnBackendAttributeName_t>(flag),
                                    CUDNN_TYPE_BOOLEAN, 1, &yes));
    Finalize(made);
    return made;
  }
  // Dense, between operations.
  cudnnBackendDescriptor_t Between(std::int64_t id, const Dims& dims,
                                   cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    Dims strides(dims.size(), 1);
    for (std::size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
    return Tensor(id, dims, strides, type, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }
  void Pointwise(cudnnPointwiseMode_t mode, const std::vector<cudnnBackendDescriptor_t>& inputs,
                 cudnnBackendDescriptor_t y, std::int64_t axis = -1) {
    const auto how = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    Set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    Set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (axis >= 0) Set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    Finalize(how);
    constexpr int kInputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                               CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                               CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    std::map<int, cudnnBackendDescriptor_t> parts = {
        {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}};
    for (std::size_t i = 0; i < inputs.size(); ++i) parts[kInputs[i]] = inputs[i];
    Operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, parts);
  }
  void Matmul(cudnnBackendDescriptor_t a, cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y) {
    const auto how = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    Set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    Finalize(how);
    Operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_OPERATION_MATMUL_DESC, how},
                                                          {CUDNN_ATTR_OPERATION_MATMUL_ADESC, a},
                                                          {CUDNN_ATTR_OPERATION_MATMUL_BDESC, b},
                                                          {CUDNN_ATTR_OPERATION_MATMUL_CDESC, y}});
  }
  void Reduce(cudnnReduceTensorOp_t mode, cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y) {
    const auto how = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    Set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
    Set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    Finalize(how);
    Operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
              {{CUDNN_ATTR_OPERATION_REDUCTION_DESC, how},
               {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x},
               {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y}});
  }
  void Operation(cudnnBackendDescriptorType_t kind,
                 const std::map<int, cudnnBackendDescriptor_t>& parts) {
    const auto made = Make(kind);
    for (const auto& [attribute, part] : parts)
      Set(made, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, part);
    if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1.0f);
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 0.0f);
    } else if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1.0f);
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 0.0f);
    } else if (kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR) {
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, 1.0f);
      Set(made, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, 0.0f);
    }
    Finalize(made);
    operations_.push_back(made);
  }

  // Uploads floats, or gives room for as many.
  void Give(std::int64_t id, const std::vector<float>& values, std::size_t offset = 0) {
    const CUdeviceptr at = device_.Memory(values.size() * sizeof(float) + offset) + offset;
    EXPECT_CUDA(cuMemcpyHtoDAsync(at, values.data(), values.size() * sizeof(float), stream_));
    ids_.push_back(id);
    addresses_.push_back(reinterpret_cast<void*>(at));
  }
  void GiveNumber(std::int64_t id, const float* value) {
    ids_.push_back(id);
    addresses_.push_back(const_cast<float*>(value));
  }

  // Makes and runs the plan of the n-th engine; the first refusal on the way.
  cudnnStatus_t Run(std::size_t engine = 1) {
    const auto graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations_);
    Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    Finalize(graph);
    const auto heuristic = Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    Set(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, graph);
    Set(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    Finalize(heuristic);
    std::vector<cudnnBackendDescriptor_t> configs = {Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
                                                     Make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)};
    std::int64_t count = 0;
    if (status_ != CUDNN_STATUS_SUCCESS) return status_;
    Keep(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
    if (count < 2) return CUDNN_STATUS_NOT_SUPPORTED;
    Keep(cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 2, &count, configs.data()));
    const auto plan = Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    Set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        configs[engine]);
    Set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    Finalize(plan);
    std::int64_t bytes = 0;
    Keep(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                  1, &count, &bytes));
    const auto pack = Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    Set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids_);
    Set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses_);
    Set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
        reinterpret_cast<void*>(device_.Memory(static_cast<std::size_t>(bytes))));
    Finalize(pack);
    if (status_ == CUDNN_STATUS_SUCCESS) Keep(cudnnBackendExecute(handle_, plan, pack));
    return status_;
  }
  std::vector<float> Read(std::int64_t id, std::size_t count) {
    std::vector<float> out(count);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] != id) continue;
      EXPECT_CUDA(cuMemcpyDtoHAsync(out.data(), reinterpret_cast<CUdeviceptr>(addresses_[i]),
                                    count * sizeof(float), stream_));
    }
    return out;
  }
  cudnnStatus_t status() const { return status_; }

 private:
  void Keep(cudnnStatus_t status) {
    if (status_ == CUDNN_STATUS_SUCCESS) status_ = status;
  }

  Device& device_;
  CUstream stream_;
  cudnnHandle_t handle_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
  std::vector<cudnnBackendDescriptor_t> made_, operations_;
  std::vector<std::int64_t> ids_;
  std::vector<void*> addresses_;
};

std::vector<float> Waves(std::size_t count, float phase) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = std::sin(static_cast<float>(i) + phase);
  return out;
}

// Y = softmax(scale * Q K^T, causal) V over 2 heads of 3 queries, 3 keys and 2 elements, of which
// K and V have one head; a row of K begins every 5 elements.
struct Attention {
  std::int64_t stride_of_k = 5;
  bool causal = true;
  float scale = 0.5f;
  std::size_t offset_of_q = 0, engine = 1;
  bool has_v = true;
  cudnnDataType_t type_of_v = CUDNN_DATA_FLOAT;
};

constexpr std::int64_t kHeads = 2, kRows = 3, kSize = 2;

cudnnStatus_t RunAttention(const Attention& c, Device& device, std::vector<float>* y) {
  Graph g(device);
  const Dims scores = {kHeads, kRows, kRows}, row = {kHeads, kRows, 1}, one = {1, 1, 1};
  const auto q = g.Tensor(1, {kHeads, kRows, kSize}, {kRows * kSize, kSize, 1});
  const auto k = g.Tensor(2, {1, kSize, kRows}, {kRows * 5, 1, c.stride_of_k});
  const auto v = g.Tensor(3, {1, kRows, kSize}, {kRows * kSize, kSize, 1}, c.type_of_v);
  const auto out = g.Tensor(4, {kHeads, kRows, kSize}, {kSize, kHeads * kSize, 1});
  const auto scale = g.Tensor(5, one, one, CUDNN_DATA_FLOAT, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  const auto hidden = g.Tensor(6, one, one, CUDNN_DATA_FLOAT, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  const auto p = g.Between(10, scores), s = g.Between(11, scores), i = g.Between(12, scores),
             j = g.Between(13, scores), sees = g.Between(14, scores, CUDNN_DATA_BOOLEAN),
             m = g.Between(15, scores), most = g.Between(16, row), low = g.Between(17, scores),
             e = g.Between(18, scores), sum = g.Between(19, row), share = g.Between(20, scores);
  // The order of operations is free.
  g.Matmul(share, v, out);
  g.Matmul(q, k, p);
  g.Pointwise(CUDNN_POINTWISE_MUL, {p, scale}, s);
  g.Pointwise(CUDNN_POINTWISE_GEN_INDEX, {s}, i, 1);
  g.Pointwise(CUDNN_POINTWISE_GEN_INDEX, {s}, j, 2);
  g.Pointwise(CUDNN_POINTWISE_CMP_GE, {i, c.causal ? j : i}, sees);
  g.Pointwise(CUDNN_POINTWISE_BINARY_SELECT, {s, hidden, sees}, m);
  g.Reduce(CUDNN_REDUCE_TENSOR_MAX, m, most);
  g.Pointwise(CUDNN_POINTWISE_SUB, {m, most}, low);
  g.Pointwise(CUDNN_POINTWISE_EXP, {low}, e);
  g.Reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  g.Pointwise(CUDNN_POINTWISE_DIV, {e, sum}, share);
  g.Give(1, Waves(kHeads * kRows * kSize, 1), c.offset_of_q);
  g.Give(2, Waves(kRows * 5, 2));
  if (c.has_v) g.Give(3, Waves(kRows * kSize, 3));
  g.Give(4, std::vector<float>(kHeads * kRows * kSize));
  const float minus_infinity = -INFINITY;
  g.GiveNumber(5, &c.scale);
  g.GiveNumber(6, &minus_infinity);
  const cudnnStatus_t status = g.Run(c.engine);
  if (status == CUDNN_STATUS_SUCCESS) *y = g.Read(4, kHeads * kRows * kSize);
  return status;
}

std::vector<float> AttentionByDefinition() {
  const auto q = Waves(kHeads * kRows * kSize, 1), k = Waves(kRows * 5, 2),
             v = Waves(kRows * kSize, 3);
  std::vector<float> y(q.size());
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t i = 0; i < kRows; ++i) {
      double sum = 0, of_v[kSize] = {};
      for (std::int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < kSize; ++d)
          score += 0.5 * q[(h * kRows + i) * kSize + d] * k[j * 5 + d];
        sum += std::exp(score);
        for (std::int64_t d = 0; d < kSize; ++d) of_v[d] += std::exp(score) * v[j * kSize + d];
      }
      for (std::int64_t d = 0; d < kSize; ++d)
        y[(i * kHeads + h) * kSize + d] = static_cast<float>(of_v[d] / sum);
    }
  }
  return y;
}

// The elements are below 1: some float roundings.
bool IsClose(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= 1e-5f)) return false;
  }
  return a.size() == b.size();
}

class CudnnTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CudnnTest, ::testing::Range<std::uint64_t>(0, kSeeds));

TEST_P(CudnnTest, AttentionIsAsDescribed) {
  Device device(GetParam());
  std::vector<float> y;
  EXPECT_EQ(RunAttention({}, device, &y), CUDNN_STATUS_SUCCESS);
  EXPECT_TRUE(IsClose(y, AttentionByDefinition()));
  EXPECT_EQ(Reports(), "");
}

// Descriptors that say something else give other numbers.
TEST_P(CudnnTest, ComputesFromTheDescriptors) {
  for (const Attention& wrong :
       {Attention{.stride_of_k = 4}, Attention{.causal = false}, Attention{.scale = 0.25f}}) {
    Device device(GetParam());
    std::vector<float> y;
    EXPECT_EQ(RunAttention(wrong, device, &y), CUDNN_STATUS_SUCCESS);
    EXPECT_FALSE(IsClose(y, AttentionByDefinition()));
    EXPECT_EQ(Reports(), "");
  }
}

TEST_P(CudnnTest, NamesWhatIsOutOfBounds) {
  Device device(GetParam());
  std::vector<float> y;
  EXPECT_EQ(RunAttention({.stride_of_k = 8}, device, &y), CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(Reports(), HasSubstr("out of bounds: cudnnBackendExecute reads to byte 72 of device "
                                   "memory 2 (60 bytes)"));
}

TEST_P(CudnnTest, OneEngineIsNotDeterministic) {
  Device device(GetParam());
  std::vector<float> first, second;
  EXPECT_EQ(RunAttention({.engine = 0}, device, &first), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(RunAttention({.engine = 0}, device, &second), CUDNN_STATUS_SUCCESS);
  EXPECT_FALSE(IsClose(first, second));
}

TEST(CudnnRulesTest, RefusesWhatMakesNoSense) {
  Device device(1);
  std::vector<float> y;
  EXPECT_EQ(RunAttention({.offset_of_q = 4}, device, &y),
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(RunAttention({.has_v = false}, device, &y), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  // Rows of halves begin at multiples of 8.
  EXPECT_EQ(RunAttention({.type_of_v = CUDNN_DATA_HALF}, device, &y), CUDNN_STATUS_NOT_SUPPORTED);
  standin_cudnn_refuse(1);
  EXPECT_EQ(RunAttention({}, device, &y), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(RunAttention({}, device, &y), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(Reports(), "");
}

TEST(CudnnRulesTest, RefusesWrongAttributes) {
  Device device(1);
  {
    Graph g(device);
    const auto tensor = g.Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    g.Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::int64_t{1});
    g.Finalize(tensor);
    EXPECT_EQ(g.status(), CUDNN_STATUS_BAD_PARAM_NULL_POINTER) << "attributes are missing";
  }
  {
    Graph g(device);
    const auto tensor = g.Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    g.Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1.0f);
    EXPECT_EQ(g.status(), CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  }
  {
    Graph g(device);
    const auto x = g.Tensor(1, {2, 3}, {3, 1}), y = g.Tensor(2, {3, 2}, {2, 1});
    g.Pointwise(CUDNN_POINTWISE_EXP, {x}, y);
    EXPECT_EQ(g.Run(), CUDNN_STATUS_BAD_PARAM) << "shapes differ";
  }
  {
    Graph g(device);
    const auto x = g.Between(1, {2, 3}), y = g.Tensor(2, {2, 3}, {3, 1});
    g.Pointwise(CUDNN_POINTWISE_EXP, {x}, y);
    EXPECT_EQ(g.Run(), CUDNN_STATUS_BAD_PARAM) << "nothing writes x";
  }
}

// The same memory seen as its transpose.
TEST(CudnnRulesTest, ReshapeKeepsTheMemory) {
  Device device(1);
  Graph g(device);
  const auto x = g.Tensor(1, {2, 3}, {4, 1}),
             t = g.Tensor(2, {3, 2}, {1, 4}, CUDNN_DATA_FLOAT, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  const auto y = g.Tensor(3, {3, 2}, {2, 1});
  g.Operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
              {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x}, {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, t}});
  g.Pointwise(CUDNN_POINTWISE_ADD, {t, t}, y);
  g.Give(1, {1, 2, 3, 0, 4, 5, 6});
  g.Give(3, std::vector<float>(6));
  EXPECT_EQ(g.Run(), CUDNN_STATUS_SUCCESS);
  EXPECT_THAT(g.Read(3, 6), ::testing::ElementsAre(2, 8, 4, 10, 6, 12));
  EXPECT_EQ(Reports(), "");
}

// A convolution of two groups over a 4 x 5 image, 2 samples: strides 2 and 1, dilations 1 and 2,
// two rows of padding above, one column to the right. Tensors: 1 is x, 2 is w, 3 is y.
constexpr std::int64_t kX[] = {2, 4, 4, 5}, kW[] = {6, 2, 3, 2}, kY[] = {2, 6, 2, 4};

Dims Dense(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
  return strides;
}
std::size_t Count(const std::int64_t* dims) {
  return static_cast<std::size_t>(dims[0] * dims[1] * dims[2] * dims[3]);
}

// The written one of x, w and y.
std::vector<float> Convolve(cudnnBackendDescriptorType_t kind, std::int64_t written,
                            const std::vector<float>& x, const std::vector<float>& w,
                            const std::vector<float>& y, std::int64_t right = 1,
                            cudnnStatus_t expected = CUDNN_STATUS_SUCCESS) {
  Device device(1);
  Graph g(device);
  const auto how = g.Make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  g.Set(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  g.Set(how, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
        CUDNN_CROSS_CORRELATION);
  g.Set(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  g.Set(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, Dims{2, 1});
  g.Set(how, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, Dims{1, 2});
  g.Set(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, Dims{2, 0});
  g.Set(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, Dims{0, right});
  g.Finalize(how);
  std::vector<cudnnBackendDescriptor_t> tensors;
  for (const std::int64_t* dims : {kX, kW, kY}) {
    const Dims shape(dims, dims + 4);
    tensors.push_back(g.Tensor(static_cast<std::int64_t>(tensors.size()) + 1, shape, Dense(shape)));
  }
  const auto attribute = [&](int forward, int data, int filter) {
    return kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? forward
           : kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? data
                                                                                  : filter;
  };
  g.Operation(kind, {{attribute(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC),
                      how},
                     {attribute(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X),
                      tensors[0]},
                     {attribute(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW),
                      tensors[1]},
                     {attribute(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
                      tensors[2]}});
  g.Give(1, x);
  g.Give(2, w);
  g.Give(3, y);
  EXPECT_EQ(g.Run(), expected);
  EXPECT_EQ(Reports(), "");
  return g.Read(written, (written == 1 ? x : written == 2 ? w : y).size());
}

std::vector<float> ConvolutionByDefinition(const std::vector<float>& x,
                                           const std::vector<float>& w) {
  std::vector<float> y;
  for (int n = 0; n < 2; ++n) {
    for (int k = 0; k < 6; ++k) {
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 4; ++j) {
          float sum = 0;
          for (int c = 0; c < 2; ++c) {
            for (int a = 0; a < 3; ++a) {
              for (int b = 0; b < 2; ++b) {
                const int row = i * 2 + a - 2, column = j + b * 2, channel = k / 3 * 2 + c;
                if (row < 0 || row >= 4 || column >= 5) continue;
                sum += x[static_cast<std::size_t>(((n * 4 + channel) * 4 + row) * 5 + column)] *
                       w[static_cast<std::size_t>(((k * 2 + c) * 3 + a) * 2 + b)];
              }
            }
          }
          y.push_back(sum);
        }
      }
    }
  }
  return y;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

TEST(CudnnConvolutionTest, ProductsAreAsDescribed) {
  const auto x = Waves(Count(kX), 1), w = Waves(Count(kW), 2), dy = Waves(Count(kY), 3);
  const auto y = Convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 3, x, w, dy);
  EXPECT_TRUE(IsClose(y, ConvolutionByDefinition(x, w)));
  // Gradients are adjoint to it: sums of 96 products, in float.
  const auto dx =
      Convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 1, x, w, dy);
  const auto dw =
      Convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, 2, x, w, dy);
  for (const float phase : {4.0f, 5.0f, 6.0f}) {
    const auto x1 = Waves(Count(kX), phase), w1 = Waves(Count(kW), phase);
    EXPECT_NEAR(Dot(ConvolutionByDefinition(x1, w), dy), Dot(x1, dx), 1e-4);
    EXPECT_NEAR(Dot(ConvolutionByDefinition(x, w1), dy), Dot(w1, dw), 1e-4);
  }
}

TEST(CudnnConvolutionTest, RefusesSizesThatDoNotFit) {
  Convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 3, Waves(Count(kX), 1),
           Waves(Count(kW), 2), Waves(Count(kY), 3), 2, CUDNN_STATUS_BAD_PARAM);
}

}  // namespace
}  // namespace standin_test
