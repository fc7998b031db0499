# SPDX-License-Identifier: Apache-2.0
"""The device of the tests: a GPU if PyTorch has one, else `standin` (tests/torch_bridge/standin_device.cc)."""

import functools
import pathlib
import types

import pytest
import torch

from caesura import _core


@functools.cache
def load() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if torch.accelerator.is_available():
        pytest.skip("this process has another stand-in device: run this file in a process of its own", allow_module_level=True)
    torch.ops.load_library(pathlib.Path(_core.__file__).parents[2] / "lib" / "libstandin_device.so")
    torch.utils.rename_privateuse1_backend("standin")
    state = torch.empty(0, dtype=torch.uint8)
    torch._register_device_module("standin", types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False, device_count=lambda: 1,
        current_device=lambda: 0, manual_seed_all=lambda seed: None, get_rng_state=lambda device=None: state,
        set_rng_state=lambda state, device=None: None, get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16]))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return torch.device("standin", 0)
