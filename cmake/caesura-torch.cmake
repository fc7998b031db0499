# SPDX-License-Identifier: Apache-2.0
# Finds LibTorch: the target caesura::libtorch, TORCH_LIBRARIES, and caesura_torch_minor, its minor release, as "2.13". Included
# by the build and by the installed package.
#
# The package file of PyTorch's CUDA builds, which pip installs by default, asks for CUDA's toolkit. Nothing here needs it:
# for such a build the libraries of the CPU are named directly.

# Sets OUT to the minor release of the LibTorch in the folder ROOT.
function(caesura_torch_minor OUT ROOT)
  file(READ ${ROOT}/include/torch/headeronly/version.h version)
  string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+)" version "${version}")
  set(${OUT} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} PARENT_SCOPE)
endfunction()

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
if(NOT TARGET caesura::libtorch)
  add_library(caesura::libtorch INTERFACE IMPORTED)
  target_link_libraries(caesura::libtorch INTERFACE ${TORCH_LIBRARIES})
endif()
caesura_torch_minor(caesura_torch_minor "${caesura_torch_root}")
