# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch and sets TORCH_LIBRARIES. Included by the build and by the installed package.
#
# The package file of PyTorch's CUDA builds, which pip installs by default, asks for CUDA's toolkit. Nothing here needs it:
# for such a build the libraries of the CPU are named directly.
cmake_path(SET caesura_torch_root NORMALIZE "${Torch_DIR}/../../..")
if(NOT EXISTS "${caesura_torch_root}/lib/libtorch_cuda.so")
  find_package(Torch REQUIRED)
elseif(NOT TARGET torch)
  add_library(torch INTERFACE IMPORTED)
  target_include_directories(torch INTERFACE "${caesura_torch_root}/include"
                             "${caesura_torch_root}/include/torch/csrc/api/include")
  target_link_libraries(torch INTERFACE "${caesura_torch_root}/lib/libtorch_cpu.so" "${caesura_torch_root}/lib/libc10.so")
  set(TORCH_LIBRARIES torch)
endif()
