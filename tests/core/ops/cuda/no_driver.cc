// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 without a device: cuDNN loads what it has compiled for a plan, and no more. A
// library and its kernels are there; every other call says that there is no device.
namespace {
constexpr int kSuccess = 0, kNoDevice = 100;
}

extern "C" {

int cuLibraryLoadData(void** library) {
  *library = library;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = kernel;
  return kSuccess;
}
int cuLibraryUnload() { return kSuccess; }
int cuGetErrorString(int, const char** text) {
  *text = "no device";
  return kSuccess;
}

#define NO_DEVICE(name) \
  int name() { return kNoDevice; }
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxGetLimit)
NO_DEVICE(cuCtxPopCurrent)
NO_DEVICE(cuCtxPushCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetCount)
NO_DEVICE(cuDriverGetVersion)
NO_DEVICE(cuGetErrorName)
NO_DEVICE(cuKernelGetAttribute)
NO_DEVICE(cuKernelSetAttribute)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLaunchKernelEx)
NO_DEVICE(cuLibraryLoadFromFile)
NO_DEVICE(cuLinkAddData)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate)
NO_DEVICE(cuLinkDestroy)
NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
NO_DEVICE(cuStreamGetCtx)

}  // extern "C"
