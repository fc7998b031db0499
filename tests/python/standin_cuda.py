# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for CUDA's libraries (tests/cuda) in this process, as options of CUDAExecutionProvider."""

import ctypes
import functools
import pathlib

import pytest

from caesura import _core

LIBRARIES = {"driver_library": "cuda", "nvrtc_library": "nvrtc", "cublas_lt_library": "cublaslt", "cudnn_library": "cudnn",
             "nccl_library": "nccl"}


@functools.cache
def paths() -> dict:
    """The libraries by the option that names them; empty where this build has none."""
    build = pathlib.Path(_core.__file__).parents[2]
    found = {option: next(iter(build.glob(f"*/libcaesura_standin_{name}.so")), None) for option, name in LIBRARIES.items()}
    return {} if None in found.values() else {option: str(path) for option, path in found.items()}


class StandinCuda:
    """Steers and asks the stand-in driver (tests/cuda/standin.h)."""

    def __init__(self):
        # Kernels find the driver among the process's global names.
        self._driver = ctypes.CDLL(paths()["driver_library"], mode=ctypes.RTLD_GLOBAL)
        self._driver.standin_report.restype = ctypes.c_char_p
        for name in ("standin_calls", "standin_operations", "standin_host_waits", "standin_report_count"):
            getattr(self._driver, name).restype = ctypes.c_uint64
        self._driver.standin_reset(ctypes.c_uint64(1))

    def provider(self, **options) -> tuple:
        return "CUDAExecutionProvider", {**paths(), **options}

    def calls(self, function: str) -> int:
        return self._driver.standin_calls(function.encode())

    def operations(self, name: str) -> int:
        return self._driver.standin_operations(name.encode())

    def host_waits(self) -> int:
        return self._driver.standin_host_waits()

    def fail(self, function: str, n: int, error: int):
        """Makes the n-th call from now of the driver's function fail (1: the next)."""
        self._driver.standin_fail(function.encode(), n, error)

    def reports(self) -> list:
        return [self._driver.standin_report(i).decode() for i in range(self._driver.standin_report_count())]


@pytest.fixture
def standin():
    """A fresh stand-in. At the test's end it may have nothing to report: no access out of order or out of bounds."""
    if not paths():
        pytest.skip("built without the stand-ins for CUDA (cmake/setup.sh --cuda)")
    cuda = StandinCuda()
    yield cuda
    assert cuda.reports() == []
