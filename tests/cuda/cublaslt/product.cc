// SPDX-License-Identifier: Apache-2.0
// Checks of descriptors, and the product that they describe, by definition and in double.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>
#include "cublaslt/descriptors.h"

namespace standin_cublaslt {
namespace {

template <typename T>
T Load(const void* base, std::uint64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
void Store(void* base, std::uint64_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * sizeof(T), &value, sizeof(T));
}

double Read(const void* base, int type, std::uint64_t index) {
  switch (type) {
    case CUDA_R_32F: return Load<float>(base, index);
    case CUDA_R_64F: return Load<double>(base, index);
    case CUDA_R_16BF: return __bfloat162float(Load<__nv_bfloat16>(base, index));
    default: return __half2float(Load<__half>(base, index));
  }
}

void Write(void* base, int type, std::uint64_t index, double value) {
  switch (type) {
    case CUDA_R_32F: return Store(base, index, static_cast<float>(value));
    case CUDA_R_64F: return Store(base, index, value);
    // By way of float, in which the real one computes.
    case CUDA_R_16BF: return Store(base, index, __float2bfloat16(static_cast<float>(value)));
    default: return Store(base, index, __float2half(static_cast<float>(value)));
  }
}

std::uint64_t Index(const Layout& layout, std::uint64_t row, std::uint64_t column) {
  const auto leading = static_cast<std::uint64_t>(layout.leading);
  return layout.order == CUBLASLT_ORDER_COL ? row + column * leading : row * leading + column;
}

const void* Batch(const void* base, const Layout& layout, int batch) {
  return static_cast<const char*>(base) +
         layout.stride * batch * static_cast<std::int64_t>(Bytes(layout.type));
}

constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
double Gelu(double x) { return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x))); }
double GeluGradient(double x) {
  const double t = std::tanh(kRoot * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRoot * (1 + 3 * 0.044715 * x * x);
}

bool IsLayout(const Layout& layout) {
  if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW) return false;
  const std::uint64_t least = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  return Bytes(layout.type) != 0 && layout.rows > 0 && layout.columns > 0 && layout.batch > 0 &&
         layout.leading > 0 && static_cast<std::uint64_t>(layout.leading) >= least;
}

bool AreTypesSupported(const Product& p) {
  const int in = p.a.type, out = p.d.type;
  if (p.b.type != in || p.c.type != out) return false;
  switch (p.description.compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      return p.description.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return p.description.scale == CUDA_R_32F && in != CUDA_R_64F &&
             (out == in || out == CUDA_R_32F);
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return p.description.scale == CUDA_R_32F && in == CUDA_R_32F && out == CUDA_R_32F;
    default: return false;
  }
}

bool IsEpilogue(int epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
  }
}

// op(matrix), or its transpose, row by row.
std::vector<double> Pack(const void* base, const Layout& layout, bool transposed) {
  const std::uint64_t rows = transposed ? layout.columns : layout.rows;
  const std::uint64_t columns = transposed ? layout.rows : layout.columns;
  std::vector<double> packed(rows * columns);
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t c = 0; c < columns; ++c) {
      packed[r * columns + c] =
          Read(base, layout.type, transposed ? Index(layout, c, r) : Index(layout, r, c));
    }
  }
  return packed;
}

// To the 10 bits of TF32, to nearest even.
void RoundToTf32(std::vector<double>& values) {
  for (double& value : values) {
    auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~std::uint32_t{0x1fff};
    value = std::bit_cast<float>(bits);
  }
}

double Dot(const double* a, const double* b, std::uint64_t count) {
  double sums[4] = {0, 0, 0, 0};
  std::uint64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double Rounded(int type, double value) {
  alignas(8) char room[8];
  Write(room, type, 0, value);
  return Read(room, type, 0);
}

// The steps between the product and D, for one element.
double Epilogue(const Product& p, double value, std::uint64_t row, std::uint64_t column,
                const void* bias, void* aux) {
  const int epilogue = p.description.epilogue;
  if (p.Has(CUBLASLT_EPILOGUE_BIAS)) value += Read(bias, p.bias_type(), row);
  const std::uint64_t at = row + column * static_cast<std::uint64_t>(p.description.aux_leading);
  auto* bits = static_cast<unsigned char*>(aux);
  const bool keeps = (epilogue & 128) != 0;
  if (p.Has(CUBLASLT_EPILOGUE_RELU)) {
    if (keeps) {
      const auto bit = static_cast<unsigned char>(1u << at % 8);
      bits[at / 8] =
          static_cast<unsigned char>(value > 0 ? bits[at / 8] | bit : bits[at / 8] & ~bit);
    }
    return std::max(value, 0.0);
  }
  if (p.Has(CUBLASLT_EPILOGUE_GELU)) {
    if (keeps) Write(aux, p.aux_type(), at, value);
    return Gelu(value);
  }
  if (p.Has(CUBLASLT_EPILOGUE_DRELU)) return (bits[at / 8] >> at % 8 & 1) != 0 ? value : 0.0;
  if (p.Has(CUBLASLT_EPILOGUE_DGELU)) return value * GeluGradient(Read(aux, p.aux_type(), at));
  return value;
}

}  // namespace

std::uint64_t Product::bias_length() const {
  if (description.epilogue == CUBLASLT_EPILOGUE_BGRADB) return n;
  const bool has = Has(CUBLASLT_EPILOGUE_BIAS) || Has(kBiasGradient) ||
                   description.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  return has ? m : 0;
}

std::size_t Bytes(int type) {
  switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F: return 2;
    default: return 0;
  }
}

std::size_t Span(const Layout& layout) {
  return (static_cast<std::size_t>(layout.stride) * static_cast<std::size_t>(layout.batch - 1) +
          Index(layout, layout.rows - 1, layout.columns - 1) + 1) *
         Bytes(layout.type);
}

std::size_t AuxSpan(const Product& p) {
  const std::uint64_t last = static_cast<std::uint64_t>(p.description.aux_stride) *
                                 static_cast<std::uint64_t>(p.d.batch - 1) +
                             p.m +
                             (p.n - 1) * static_cast<std::uint64_t>(p.description.aux_leading);
  const bool mask = p.Has(CUBLASLT_EPILOGUE_RELU) || p.Has(CUBLASLT_EPILOGUE_DRELU);
  return mask ? (last + 7) / 8 : last * Bytes(p.aux_type());
}

cublasStatus_t Check(Product& p) {
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    if (!IsLayout(*layout)) return CUBLAS_STATUS_INVALID_VALUE;
    if (layout->batch != p.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Description& d = p.description;
  const bool at = d.transpose_a != CUBLAS_OP_N, bt = d.transpose_b != CUBLAS_OP_N;
  p.m = at ? p.a.columns : p.a.rows;
  p.k = at ? p.a.rows : p.a.columns;
  p.n = bt ? p.b.rows : p.b.columns;
  if ((bt ? p.b.columns : p.b.rows) != p.k || p.c.rows != p.m || p.c.columns != p.n ||
      p.d.rows != p.m || p.d.columns != p.n) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!AreTypesSupported(p) || !IsEpilogue(d.epilogue) || d.transpose_c != CUBLAS_OP_N) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // As cuBLASLt 13.1 on an H100 answers: a bias has the type of D.
  if (p.Has(CUBLASLT_EPILOGUE_BIAS) && p.bias_type() != p.d.type)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
      (p.d.order != CUBLASLT_ORDER_COL || p.d.type == CUDA_R_64F)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if ((d.epilogue & 128) != 0) {
    if (d.aux_leading < static_cast<std::int64_t>(p.m)) return CUBLAS_STATUS_INVALID_VALUE;
    const bool mask = p.Has(CUBLASLT_EPILOGUE_RELU) || p.Has(CUBLASLT_EPILOGUE_DRELU);
    if (d.aux_leading % (mask ? 128 : 8) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

void Compute(const Product& p) {
  const Description& d = p.description;
  const auto scalar = [&](const void* device, double host) {
    return device != nullptr ? Read(device, d.scale, 0) : host;
  };
  const double alpha = scalar(p.device_alpha, p.alpha), beta = scalar(p.device_beta, p.beta);
  for (int batch = 0; batch < p.d.batch; ++batch) {
    std::vector<double> a = Pack(Batch(p.at_a, p.a, batch), p.a, d.transpose_a != CUBLAS_OP_N);
    std::vector<double> b = Pack(Batch(p.at_b, p.b, batch), p.b, d.transpose_b == CUBLAS_OP_N);
    if (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
      RoundToTf32(a);
      RoundToTf32(b);
    }
    const void* c = Batch(p.at_c, p.c, batch);
    void* out = const_cast<void*>(Batch(p.at_d, p.d, batch));
    char* bias = static_cast<char*>(d.bias) +
                 d.bias_stride * batch * static_cast<std::int64_t>(Bytes(p.bias_type()));
    const bool mask = p.Has(CUBLASLT_EPILOGUE_RELU) || p.Has(CUBLASLT_EPILOGUE_DRELU);
    void* aux = static_cast<char*>(d.aux) +
                (mask ? d.aux_stride * batch / 8
                      : d.aux_stride * batch * static_cast<std::int64_t>(Bytes(p.aux_type())));
    std::vector<double> gradient(p.bias_length());
    for (std::uint64_t row = 0; row < p.m; ++row) {
      for (std::uint64_t column = 0; column < p.n; ++column) {
        const double *left = &a[row * p.k], *right = &b[column * p.k];
        double value = 0;
        if (p.rounds_parts) {
          const std::uint64_t half = p.k / 2;
          for (const double part :
               {Dot(left, right, half), Dot(left + half, right + half, p.k - half)})
            value += alpha * Rounded(p.d.type, part);
        } else {
          value = alpha * Dot(left, right, p.k);
        }
        if (beta != 0) value += beta * Read(c, p.c.type, Index(p.c, row, column));
        value = Epilogue(p, value, row, column, bias, aux);
        if (p.Has(kBiasGradient)) gradient[row] += value;
        Write(out, p.d.type, Index(p.d, row, column), value);
      }
    }
    const bool of_a = d.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    if (of_a || d.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
      const std::vector<double>& operand = of_a ? a : b;
      for (std::uint64_t i = 0; i < gradient.size(); ++i) {
        for (std::uint64_t k = 0; k < p.k; ++k) gradient[i] += operand[i * p.k + k];
      }
    }
    if (p.Has(CUBLASLT_EPILOGUE_BIAS)) continue;
    for (std::uint64_t i = 0; i < gradient.size(); ++i) {
      Write(bias, p.bias_type(), i, gradient[i]);
    }
  }
}

}  // namespace standin_cublaslt
