// SPDX-License-Identifier: Apache-2.0
// cublasLt.h of nvidia-cublas 13.1, with the two types that it takes from CUDA 13.1's headers
// and 13.0's do not have.
#pragma once
#include <cuda.h>
#if CUDA_VERSION < 13010
enum cudaEmulationMantissaControl : int;
enum cudaEmulationSpecialValuesSupport : int;
#endif
#include <cublasLt.h>
