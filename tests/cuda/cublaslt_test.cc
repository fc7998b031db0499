// SPDX-License-Identifier: Apache-2.0
// The stand-in cuBLASLt: products against their definition, and descriptors that are wrong.
#include "cublaslt/header.h"
#include <cmath>
#include "standin_device.h"

namespace standin_test {
namespace {

using ::testing::HasSubstr;

// D = op(A) op(B) with m = 3, n = 5, k = 4; what is not said is column-major and without gaps.
struct Case {
  bool transpose_a = false, transpose_b = false, row_major = false;
  int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::int64_t leading_a = 0, leading_d = 0;  // 0: without gaps
  int batch = 1;
  std::size_t bias_count = 3, offset_a = 0;  // of A in bytes
  float alpha = 1, beta = 0;
  std::uint64_t wrong_rows_of_b = 0;
};

constexpr int kM = 3, kN = 5, kK = 4, kAuxLeading = 8;

class Matrix {
 public:
  Matrix(int rows, int columns, bool row_major, std::int64_t leading, int batch)
      : leading_(leading != 0 ? leading
                 : row_major  ? columns
                              : rows),
        row_major_(row_major),
        stride_(static_cast<std::size_t>(leading_) *
                static_cast<std::size_t>(row_major ? rows : columns)),
        data(stride_ * static_cast<std::size_t>(batch)) {
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = std::sin(static_cast<float>(i + stride_));
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), leading_),
              CUBLAS_STATUS_SUCCESS);
    const std::int32_t order = row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    const auto stride = static_cast<std::int64_t>(stride_);
    Set(CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    Set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch);
    Set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  ~Matrix() { cublasLtMatrixLayoutDestroy(layout); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  template <typename T>
  void Set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  float& at(int batch, int row, int column) {
    const std::int64_t index = row_major_ ? row * leading_ + column : row + column * leading_;
    return data[static_cast<std::size_t>(batch) * stride_ + static_cast<std::size_t>(index)];
  }
  std::size_t bytes() const { return data.size() * sizeof(float); }

 private:
  std::int64_t leading_;
  bool row_major_;
  std::size_t stride_;

 public:
  std::vector<float> data;
  cublasLtMatrixLayout_t layout = nullptr;
};

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double GeluSlope(double x) { return (Gelu(x + 1e-6) - Gelu(x - 1e-6)) / 2e-6; }

// Runs the case; where the product was taken, compares all that it writes with the definition.
cublasStatus_t RunCase(const Case& c, std::uint64_t seed) {
  Device device(seed);
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  Matrix a(c.transpose_a ? kK : kM, c.transpose_a ? kM : kK, c.row_major, 0, c.batch);
  Matrix b(c.transpose_b ? kN : kK, c.transpose_b ? kK : kN, c.row_major, 0, c.batch);
  Matrix d(kM, kN, c.row_major, c.leading_d, c.batch);
  const Matrix before(kM, kN, c.row_major, c.leading_d, c.batch);
  if (c.leading_a != 0) a.Set(CUBLASLT_MATRIX_LAYOUT_LD, c.leading_a);
  if (c.wrong_rows_of_b != 0) b.Set(CUBLASLT_MATRIX_LAYOUT_ROWS, c.wrong_rows_of_b);
  std::vector<float> bias(c.bias_count), aux(kAuxLeading * kN);
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.3f * static_cast<float>(i) - 0.4f;
  for (std::size_t i = 0; i < aux.size(); ++i) aux[i] = std::cos(static_cast<float>(i));

  cublasLtMatmulDesc_t description = nullptr;
  EXPECT_EQ(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  };
  const CUstream stream = device.Stream();
  const auto upload = [&](const std::vector<float>& from, std::size_t offset = 0) {
    const CUdeviceptr at = device.Memory(from.size() * sizeof(float) + offset) + offset;
    EXPECT_CUDA(cuMemcpyHtoDAsync(at, from.data(), from.size() * sizeof(float), stream));
    return at;
  };
  const CUdeviceptr at_a = upload(a.data, c.offset_a), at_b = upload(b.data), at_d = upload(d.data);
  const CUdeviceptr at_bias = upload(bias), at_aux = upload(aux);
  set(CUBLASLT_MATMUL_DESC_TRANSA, c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  if (c.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at_bias);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at_aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{kAuxLeading});
  }
  cublasLtMatmulPreference_t preference = nullptr;
  EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const std::uint64_t most = 1 << 20;
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                       sizeof most);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, description, a.layout, b.layout, d.layout, d.layout, preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_SUCCESS) {
    const CUdeviceptr workspace = device.Memory(found.workspaceSize);
    const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
    status = cublasLtMatmul(handle, description, &c.alpha, pointer(at_a), a.layout, pointer(at_b),
                            b.layout, &c.beta, pointer(at_d), d.layout, pointer(at_d), d.layout,
                            &found.algo, pointer(workspace), found.workspaceSize, stream);
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    EXPECT_CUDA(cuMemcpyDtoHAsync(d.data.data(), at_d, d.bytes(), stream));
    std::vector<float> new_bias(bias.size()), new_aux(aux.size());
    EXPECT_CUDA(cuMemcpyDtoHAsync(new_bias.data(), at_bias, bias.size() * 4, stream));
    EXPECT_CUDA(cuMemcpyDtoHAsync(new_aux.data(), at_aux, aux.size() * 4, stream));
    const auto has = [&](int bit) { return (c.epilogue & bit) != 0; };
    std::vector<double> gradient(std::max(kM, kN), 0.0);
    auto& old = const_cast<Matrix&>(before);
    for (int batch = 0; batch < c.batch; ++batch) {
      for (int i = 0; i < kM; ++i) {
        for (int j = 0; j < kN; ++j) {
          double sum = 0;
          for (int k = 0; k < kK; ++k) {
            const double left = c.transpose_a ? a.at(batch, k, i) : a.at(batch, i, k);
            const double right = c.transpose_b ? b.at(batch, j, k) : b.at(batch, k, j);
            sum += left * right;
            if (c.epilogue == CUBLASLT_EPILOGUE_BGRADA && j == 0) gradient[i] += left;
            if (c.epilogue == CUBLASLT_EPILOGUE_BGRADB && i == 0) gradient[j] += right;
          }
          double value = c.alpha * sum + c.beta * old.at(batch, i, j);
          const std::size_t at = static_cast<std::size_t>(i + j * kAuxLeading);
          if (has(CUBLASLT_EPILOGUE_BIAS)) value += bias[static_cast<std::size_t>(i)];
          if (c.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
            EXPECT_NEAR(new_aux[at], value, 1e-6);
          }
          if (has(CUBLASLT_EPILOGUE_GELU)) value = Gelu(value);
          if (has(CUBLASLT_EPILOGUE_RELU)) value = std::max(value, 0.0);
          if (has(64)) value *= GeluSlope(aux[at]);
          if (has(16)) gradient[static_cast<std::size_t>(i)] += value;
          // Products of sines below 4 in all: 1e-6 is some float roundings.
          EXPECT_NEAR(d.at(batch, i, j), value, 1e-6) << i << ", " << j;
        }
      }
    }
    if (has(16 | 256 | 512)) {
      for (std::size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(new_bias[i], gradient[i], 1e-5);
    }
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatmulDescDestroy(description);
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  return status;
}

class CublasLtTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CublasLtTest, ::testing::Range<std::uint64_t>(0, kSeeds));

TEST_P(CublasLtTest, ProductsAreAsDescribed) {
  const Case cases[] = {
      {},
      {.transpose_a = true},
      {.transpose_b = true},
      {.transpose_a = true, .transpose_b = true, .batch = 3},
      {.row_major = true, .leading_d = 9},
      {.transpose_a = true, .row_major = true, .batch = 2},
      {.leading_d = 7, .alpha = 0.5f, .beta = 2},
      {.epilogue = CUBLASLT_EPILOGUE_BIAS},
      {.epilogue = CUBLASLT_EPILOGUE_RELU_BIAS},
      {.epilogue = CUBLASLT_EPILOGUE_GELU},
      {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
      {.epilogue = CUBLASLT_EPILOGUE_DGELU},
      {.epilogue = CUBLASLT_EPILOGUE_DGELU_BGRAD},
      {.epilogue = CUBLASLT_EPILOGUE_BGRADA},
      {.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_count = 5},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE("epilogue " + std::to_string(c.epilogue) + ", case " + std::to_string(&c - cases));
    EXPECT_EQ(RunCase(c, GetParam()), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(Reports(), "");
  }
}

TEST_P(CublasLtTest, NamesWrongLeadingDimension) {
  EXPECT_EQ(RunCase({.leading_a = kM - 1}, GetParam()), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(RunCase({.leading_a = kM + 1}, GetParam()), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(
      Reports(),
      HasSubstr("out of bounds: cublasLtMatmul reads to byte 60 of device memory 1 (48 bytes)"));
}

// The bias has an element for each column of D, where cuBLASLt wants one for each row.
TEST_P(CublasLtTest, NamesEpilogueOnTheWrongOperand) {
  EXPECT_EQ(RunCase({.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_count = kM}, GetParam()),
            CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(
      Reports(),
      HasSubstr("out of bounds: cublasLtMatmul writes to byte 20 of device memory 4 (12 bytes)"));
  EXPECT_EQ(RunCase({.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias_count = 2}, GetParam()),
            CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(
      Reports(),
      HasSubstr("out of bounds: cublasLtMatmul reads to byte 12 of device memory 4 (8 bytes)"));
}

// A column of 8 as D, from a matrix of one column and a 1 x 1 one; all of one type but D.
struct Column {
  cudaDataType type = CUDA_R_32F, type_of_d = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  int epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  bool device_scalars = false;
};

template <typename T, typename TD>
std::vector<TD> Multiply(Device& device, const Column& c, const std::vector<T>& a, T b,
                         CUdeviceptr aux) {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatrixLayout_t layouts[3] = {};
  cublasLtMatmulDesc_t description = nullptr;
  const cudaDataType scale = c.type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayoutCreate(&layouts[0], c.type, a.size(), 1, static_cast<std::int64_t>(a.size()));
  cublasLtMatrixLayoutCreate(&layouts[1], c.type, 1, 1, 1);
  cublasLtMatrixLayoutCreate(&layouts[2], c.type_of_d, a.size(), 1,
                             static_cast<std::int64_t>(a.size()));
  cublasLtMatmulDescCreate(&description, c.compute, scale);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{128});
  const double doubles[2] = {2, 0};
  const float floats[2] = {2, 0};
  const void* scalars = scale == CUDA_R_64F ? static_cast<const void*>(doubles) : floats;
  const std::size_t bytes = scale == CUDA_R_64F ? 8 : 4;
  const CUdeviceptr at_a = device.Memory(a.size() * sizeof(T)), at_b = device.Memory(sizeof(T));
  const CUdeviceptr at_d = device.Memory(a.size() * sizeof(TD)), at_s = device.Memory(16);
  EXPECT_CUDA(cuMemcpyHtoD(at_a, a.data(), a.size() * sizeof(T)));
  EXPECT_CUDA(cuMemcpyHtoD(at_b, &b, sizeof(T)));
  EXPECT_CUDA(cuMemcpyHtoD(at_s, scalars, 2 * bytes));
  if (c.device_scalars) {
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, std::int32_t{CUBLASLT_POINTER_MODE_DEVICE});
    scalars = reinterpret_cast<const void*>(at_s);
  }
  const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
  EXPECT_EQ(cublasLtMatmul(handle, description, scalars, pointer(at_a), layouts[0], pointer(at_b),
                           layouts[1], static_cast<const char*>(scalars) + bytes, pointer(at_d),
                           layouts[2], pointer(at_d), layouts[2], nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_SUCCESS);
  std::vector<TD> d(a.size());
  EXPECT_CUDA(cuMemcpyDtoH(d.data(), at_d, d.size() * sizeof(TD)));
  for (cublasLtMatrixLayout_t layout : layouts) cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(description);
  cublasLtDestroy(handle);
  return d;
}

TEST(CublasLtTypesTest, ProductsOfEachType) {
  using ::testing::ElementsAre;
  Device device(1);
  EXPECT_THAT((Multiply<double, double>(device, {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F},
                                        {1, 0x1.0000000001p0}, 3.0, 0)),
              ElementsAre(6, 6 * 0x1.0000000001p0));
  // 1.5 and -2, times 3, times 2: 9 and -12.
  EXPECT_THAT((Multiply<std::uint16_t, std::uint16_t>(device, {CUDA_R_16BF, CUDA_R_16BF},
                                                      {0x3fc0, 0xc000}, 0x4040, 0)),
              ElementsAre(0x4110, 0xc140));
  EXPECT_THAT((Multiply<std::uint16_t, float>(device, {CUDA_R_16F, CUDA_R_32F}, {0x3e00, 0xc000},
                                              0x4200, 0)),
              ElementsAre(9, -12));
  EXPECT_THAT((Multiply<float, float>(device, {.device_scalars = true}, {1, 2}, 5.0f, 0)),
              ElementsAre(10, 20));
  EXPECT_EQ(Reports(), "");
}

TEST(CublasLtTypesTest, MaskOfReluServesItsGradient) {
  Device device(1);
  const CUdeviceptr mask = device.Memory(16);
  const std::vector<float> x = {1, -1, 2, -2, 3, 4, -5, 6};
  const auto y =
      Multiply<float, float>(device, {.epilogue = CUBLASLT_EPILOGUE_RELU_AUX}, x, 1.0f, mask);
  EXPECT_THAT(y, ::testing::ElementsAre(2, 0, 4, 0, 6, 8, 0, 12));
  unsigned char bits = 0;
  EXPECT_CUDA(cuMemcpyDtoH(&bits, mask, 1));
  EXPECT_EQ(bits, 0b10110101);
  const auto gradient = Multiply<float, float>(device, {.epilogue = CUBLASLT_EPILOGUE_DRELU},
                                               std::vector<float>(8, 1.0f), 1.0f, mask);
  EXPECT_THAT(gradient, ::testing::ElementsAre(2, 0, 2, 0, 2, 2, 0, 2));
  EXPECT_EQ(Reports(), "");
}

TEST(CublasLtRulesTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(RunCase({.wrong_rows_of_b = 3}, 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(RunCase({.row_major = true, .epilogue = CUBLASLT_EPILOGUE_BIAS}, 1),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(RunCase({.epilogue = 3}, 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(RunCase({.offset_a = 4}, 1), CUBLAS_STATUS_NOT_SUPPORTED)
      << "the algorithm is for 16 bytes";
  EXPECT_EQ(Reports(), "");
  standin_cublaslt_refuse(1);
  EXPECT_EQ(RunCase({}, 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(RunCase({}, 1), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace standin_test
