// SPDX-License-Identifier: Apache-2.0
// CUDA C++ that the library holds as text: the files *.cuh below core/, and the headers that they
// include. A program is macros, then an #include of a file, which has defaults for its macros: so
// `nvcc -c -x cu -I <root>` takes each file as it is.
#ifndef CAESURA_CORE_CUDA_CUDA_SOURCE_H_
#define CAESURA_CORE_CUDA_CUDA_SOURCE_H_

#include <string>
#include <utility>
#include <vector>

namespace caesura {

struct CudaFile {
  const char *path, *text;  // the path from the root of the sources
};
// Made by the build (core/CMakeLists.txt).
const std::vector<CudaFile>& CudaFiles();

// Definitions of macros, in order; line ends in a text become spaces. Names have two letters at
// least, all capitals: others are those of template parameters.
std::string CudaMacros(const std::vector<std::pair<const char*, std::string>>& macros);
// The line that includes the file.
std::string CudaInclude(const std::string& path);

// The source with the files that it includes, and those that they include, each where it is first
// named. What includes no file of CudaFiles stays as it is. Compilers are told files and lines.
std::string WithCudaFiles(const std::string& source);

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_CUDA_SOURCE_H_
