# SPDX-License-Identifier: Apache-2.0
"""The GPUs that captured graphs run on: the CUDA provider for each of PyTorch's CUDA devices."""

import functools
from typing import Optional

import torch

from caesura import _core, torch_kernels
from caesura.cuda_libraries import with_cuda_libraries
from caesura.reports import refuse_lost_parts

CPU = torch.device("cpu")
# The stream that PyTorch works on unless a user changes it. Kernels of both are then in one order by themselves.
_LEGACY_STREAM = 1


def open_gpu(device: torch.device) -> tuple[Optional[_core.Gpu], str]:
    """The device's provider, opened at the first call and kept; or None, and why our kernels do not run there.

    Its products of float32 use TF32 where PyTorch's do, by its setting at this call. Raises StrictError within strict() if
    the device does without cuDNN or keeps no kernels on disk.
    """
    opened = _open_gpu(device, torch.backends.cuda.matmul.allow_tf32)
    refuse_lost_parts()
    return opened


@functools.cache
def _open_gpu(device: torch.device, tf32: bool) -> tuple[Optional[_core.Gpu], str]:
    if device.type != "cuda" or torch.version.hip is not None:
        return None, "caesura's kernels are the CPU's and those of NVIDIA's GPUs"
    options = {"device_id": str(device.index or 0), "user_compute_stream": str(_LEGACY_STREAM),
               "use_tf32": str(int(tf32))}
    try:
        if why := torch_kernels.misfit():  # it shares PyTorch's memory
            return None, why
        return _core.Gpu(with_cuda_libraries(options)), ""
    except NotImplementedError as error:
        return None, str(error)


def refusal(devices) -> str:
    """Why tensors on these devices are not in one program; "" where they are: on the CPU, and on one GPU at most."""
    away = sorted(set(devices) - {CPU}, key=str)
    missing = [f"{device}: {open_gpu(device)[1]}" for device in away if open_gpu(device)[0] is None]
    if not missing and len(away) < 2:
        return ""
    return f"of its tensors some lie on {'; '.join(missing) or ', '.join(map(str, away))}. caesura.wrap runs such modules"
