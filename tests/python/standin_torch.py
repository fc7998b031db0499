# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA device: the real one if there is one, else a stand-in (tests/torch_bridge/standin_cuda_device.cc).

A test that imports it before torch is skipped where caesura has no PyTorch.
"""

import ctypes
import functools
import pathlib

import pytest

torch = pytest.importorskip("torch")

import caesura  # noqa: E402
from caesura import _core, torch_kernels  # noqa: E402
from caesura.runtime import gpu  # noqa: E402
from standin_cuda import StandinCuda, paths  # noqa: E402

if not torch_kernels.load():
    pytest.skip("built without LibTorch (CAESURA_TORCH=OFF)", allow_module_level=True)

DEVICE = torch.device("cuda", 0)
_PATH = pathlib.Path(_core.__file__).parents[2] / "lib" / "libstandin_cuda_device.so"


class StandinTorch(StandinCuda):
    """The stand-ins for CUDA's libraries, with tensors of PyTorch's in their memory."""

    def __init__(self):
        super().__init__()
        torch.ops.load_library(_PATH)
        self._device = ctypes.CDLL(_PATH)

    def use_device(self, index: int):
        """Makes this device, in place of the first one, that of all tensors."""
        self._device.standin_torch_use_device(index)

    def use_other_stream(self, other: bool):
        """Makes the current stream of PyTorch's another one than the legacy stream; or that one again."""
        self._device.standin_torch_use_other_stream(ctypes.c_bool(other))

    def choose_attention(self, backend: torch.nn.attention.SDPBackend):
        """Has PyTorch choose that attention on this device, which has MATH only: others are for captures."""
        self._device.standin_torch_choose_attention(ctypes.c_int64(int(backend)))


# A new one resets the driver, and tensors of earlier tests would be freed after it.
_only = functools.cache(StandinTorch)


def start(patch: pytest.MonkeyPatch, index: int = 0) -> StandinTorch:
    """Makes the stand-in PyTorch's CUDA device of this index, and our kernels' too."""
    made = _only()
    made.use_device(index)
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(torch.cuda, "is_initialized", lambda: True)
    patch.setattr(torch.cuda, "current_device", lambda: index)
    patch.setattr(gpu, "with_cuda_libraries", lambda options: {**options, **paths()})
    gpu._open_gpu.cache_clear()
    return made


@pytest.fixture(scope="module")
def stand_in():
    if not paths():
        pytest.skip("built without the stand-ins for CUDA (cmake/setup.sh --cuda)")
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        pytest.skip("this process has another stand-in device: run this file in a process of its own")
    with pytest.MonkeyPatch.context() as patch:
        yield start(patch)
    gpu._open_gpu.cache_clear()


@pytest.fixture
def cuda(stand_in):
    """The stand-in. At the test's end it may have nothing to report: no access out of order or out of bounds."""
    yield stand_in
    stand_in.use_other_stream(False)
    stand_in.choose_attention(torch.nn.attention.SDPBackend.MATH)
    assert stand_in.reports() == [], stand_in.reports()


@pytest.fixture(autouse=True)
def fresh(cuda):
    """For a test file that imports it: each test has the same random numbers, and nothing is left of earlier ones."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    caesura.reports.reset()
