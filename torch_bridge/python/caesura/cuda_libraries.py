# SPDX-License-Identifier: Apache-2.0
"""Finds CUDA's libraries where NVIDIA's Python packages have put them."""

import importlib.util
import pathlib

_LIBRARIES = {"nvrtc_library": "libnvrtc.so.*", "cublas_lt_library": "libcublasLt.so.*", "cudnn_library": "libcudnn.so.*",
              "nccl_library": "libnccl.so.*"}


def with_cuda_libraries(options: dict) -> dict:
    """The options with the files that NVIDIA's packages have installed beside Python, where the caller names none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(folder) for folder in (spec.submodule_search_locations or () if spec else ())]
    for option, pattern in _LIBRARIES.items():
        found = [path for folder in folders for path in sorted(folder.glob(f"*/lib/{pattern}"))]
        if found:
            options.setdefault(option, str(found[0]))
    return options
