# SPDX-License-Identifier: Apache-2.0
"""The GPUs that captured graphs run on: the CUDA provider for each of PyTorch's CUDA devices."""

import functools
from typing import Optional

import torch

from caesura import _core, torch_kernels
from caesura.sessions.providers import with_cuda_libraries

CPU = torch.device("cpu")
# The stream that PyTorch works on unless a user changes it. Kernels of both are then in one order by themselves.
_LEGACY_STREAM = 1


@functools.cache
def open_gpu(device: torch.device) -> tuple[Optional[_core.Gpu], str]:
    """The device's provider, opened at the first call and kept; or None, and why our kernels do not run there."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None, "caesura's kernels are the CPU's and those of NVIDIA's GPUs"
    options = {"device_id": str(device.index or 0), "user_compute_stream": str(_LEGACY_STREAM)}
    try:
        if not torch_kernels.load():  # it has PyTorch's streams and memory
            return None, "this build has no calls of PyTorch's (CAESURA_TORCH=OFF)"
        return _core.Gpu(with_cuda_libraries(options)), ""
    except NotImplementedError as error:
        return None, str(error)
