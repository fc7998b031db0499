# SPDX-License-Identifier: Apache-2.0
"""The providers that sessions name: which there are, their options, and how _core takes them."""

import ctypes
import functools
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any, Optional

from caesura import _core, torch_kernels
from caesura.cuda_libraries import with_cuda_libraries
from caesura.typing import Providers

CPU: str = "CPUExecutionProvider"
TORCH: str = "TorchExecutionProvider"
COUNTING: str = "CountingExecutionProvider"
OPENVINO, CUDA = "OpenVINOExecutionProvider", "CUDAExecutionProvider"
_DEVICES = pathlib.Path("/dev")
if _folder := torch_kernels.plugin_folder():
    _core.add_plugin_folder(_folder)


@functools.cache
def _has_gpu() -> bool:
    """True if NVIDIA's driver is installed and shows a device. It is not initialised: a process could not fork after that."""
    devices = [*_DEVICES.glob("nvidia[0-9]*"), *_DEVICES.glob("dxg")]  # dxg: of Windows' subsystem for Linux
    try:
        return bool(devices) and bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


def get_available_providers() -> list[str]:
    """Lists the providers that `InferenceSession(providers=...)` may name here, beside plug-ins of your own.

    Returns:
        list: "CUDAExecutionProvider" if there is a GPU of NVIDIA's with its driver; "CPUExecutionProvider";
        "TorchExecutionProvider" (PyTorch's own operators, where one means the same as the node) if PyTorch is installed;
        "OpenVINOExecutionProvider" (whole parts of the graph) if OpenVINO is.

    Example::

        print(onnxruntime.get_available_providers())
    """
    openvino = _core.has_plugin("caesura_openvino") and importlib.util.find_spec("openvino") is not None
    return [CUDA] * _has_gpu() + [CPU] + [TORCH] * torch_kernels.built() + [OPENVINO] * openvino


def _is_plugin(name: str) -> bool:
    """A path, or the name of a provider whose plug-in libcaesura_<name>.so is where they are looked for."""
    return "/" in name or _core.has_plugin("caesura_" + name.removesuffix("ExecutionProvider").lower())


def named_providers(providers: Providers, provider_options: Optional[Sequence[dict[str, Any]]]) -> dict[str, dict[str, str]]:
    """The providers' options by name, in order, with the CPU last. Raises for unknown names, options and forms."""
    known = get_available_providers() + [COUNTING]
    named: dict[str, dict[str, str]] = {}
    if isinstance(providers, str):
        raise ValueError(f"providers is a list of names, got the string '{providers}'")
    if provider_options is not None and len(provider_options) != len(providers):
        raise ValueError(f"{len(provider_options)} provider_options for {len(providers)} providers")
    for i, item in enumerate(providers):
        name, options = item if isinstance(item, tuple) else (item, provider_options[i] if provider_options else {})
        if name not in (*known, CUDA) and not _is_plugin(name):
            raise ValueError(f"provider '{name}' is not known; there are {', '.join(known[:-1])}")
        for option in options:
            if name in (CPU, TORCH, COUNTING) and (name, option) not in ((COUNTING, "memory_bytes"), (TORCH, "device")):
                raise ValueError(f"provider {name} has no option '{option}'")
        given = {key: str(value) for key, value in options.items()}
        named.setdefault(name, with_cuda_libraries(given) if name == CUDA else given)
    named.setdefault(CPU, {})
    return named


def native_providers(named: dict[str, dict[str, str]]) -> list[tuple[str, dict[str, str]]]:
    """As _core.Session takes them: PyTorch's operators in front of our own kernels are one provider, in its memory."""
    if TORCH in named:
        torch_kernels.load()
    if list(named)[:2] == [TORCH, CPU] and named[TORCH].get("device", "cpu") == "cpu":
        return [("torch", {})]
    own = {CPU: "cpu", TORCH: "torch-only", COUNTING: "counting"}
    return [(own.get(name, name), options) for name, options in named.items()]
