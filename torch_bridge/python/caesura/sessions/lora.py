# SPDX-License-Identifier: Apache-2.0
"""Adapters of ONNX models: LoRA, as a model; and onnxruntime's adapter files."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union, cast

import numpy as np

from caesura import _core
from caesura.sessions.values import model_source
from caesura.typing import Model, Path

_ENDINGS = ".lora_A.weight", ".lora_B.weight"  # of what an adapter trains


def lora(model: Model, targets: Union[str, Sequence[str]] = (), rank: int = 8, alpha: float = 8.0, *,
         adapter: Optional[Path] = None, merge: bool = False, seed: int = 0, path: Optional[Path] = None) -> Union[bytes, str]:
    """Returns `model` with an adapter, which alone trains: LoRA (Hu et al. 2021), as PEFT has it.

    A linear layer y = x W + b becomes y + x A^T B^T * alpha / rank. A [rank, in] is uniform in +-1/sqrt(in), B [out, rank] is
    zero, so nothing has changed yet. They are the initializers NAME.lora_A.weight and NAME.lora_B.weight, float32 where the
    layer is float16 or bfloat16. All other weights stay as they are in a TrainingSession, unless it is told to train them.

    Layers are MatMul and Gemm with a constant matrix, which DequantizeLinear may unpack, and MatMulNBits of com.microsoft. Their
    names are the paths of the modules that torch.onnx.export has left, or the names of their weights without ".weight".

    Args:
        model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
        targets: the layers: their names or the last parts of them ("q_proj"), names of weights or nodes; '*' matches
            anything.
        rank: the adapter's rank, PEFT's `r`.
        alpha: PEFT's `lora_alpha`.
        adapter: a folder of PEFT's or of save_adapter(), whose adapter the model gets: with the folder's layers, rank and
            alpha, or in place of the values of an adapter like it that the model has.
        merge: The adapter (the model's own, or the one of `adapter`) is added to the weights, and the model has none any more.
        seed: seeds A.
        path: the file to write. None: the model is returned.

    Returns:
        bytes | str: what sessions take as a model: the bytes of an ONNX file, or `path`.

    Raises:
        ValueError: a target without a layer (the layers that there are are listed), an adapter that does not fit, damaged
            files, a rank below 1, or a model that has an adapter already.
        NotImplementedError: weights that cannot be merged (in 4 bits, or shared with other nodes), or parts of PEFT's folder
            that are no LoRA of linear layers; they are named.
        FileNotFoundError: there is no file at `model`, or no adapter at `adapter`.

    Example::

        adapted = caesura.lora("net.onnx", ["q_proj", "v_proj"], rank=8, alpha=16)
        session = caesura.TrainingSession(adapted, target="labels")
        session.step({"images": images, "labels": labels})
        session.save_adapter("adapter")
        caesura.lora("net.onnx", adapter="adapter", merge=True, path="merged.onnx")
    """
    written = "" if path is None else os.fspath(path)
    made = _core.lora(model_source(model), targets=[targets] if isinstance(targets, str) else list(targets), rank=rank,
                      alpha=float(alpha), seed=seed, adapter="" if adapter is None else os.fspath(adapter), merge=merge,
                      path=written)
    return cast(bytes, made) if path is None else written


def adapter_matrices(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A session's parameters that are an adapter's. Raises ValueError where there are none."""
    matrices = {name: value for name, value in parameters.items() if name.endswith(_ENDINGS)}
    if not matrices:
        raise ValueError("the model has no adapter")
    return matrices


def is_onnxruntimes(path: Path) -> bool:
    """True if the name is that of an adapter file of onnxruntime's."""
    return os.fspath(path).endswith(".onnx_adapter")


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("adapter files of onnxruntime are read and written by it: pip install onnxruntime") from error
    return onnxruntime


def write_onnxruntimes(path: Path, matrices: Mapping[str, Any]) -> None:
    """Writes an adapter file of onnxruntime's, whose names are those of the model's inputs."""
    onnxruntime = _onnxruntime()
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(v)) for name, v in matrices.items()})
    unfinished = os.fspath(path) + ".unfinished"
    file.export_adapter(unfinished)
    os.replace(unfinished, path)  # a crash leaves the old file or the new one


def read_onnxruntimes(path: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """The matrices of such a file. Raises ValueError, listing what differs, unless they have the names and types of `like`."""
    onnxruntime = _onnxruntime()
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no adapter at '{os.fspath(path)}'")
    try:
        read = onnxruntime.AdapterFormat.read_adapter(os.fspath(path)).get_parameters()
    except Exception as error:  # onnxruntime raises RuntimeError, and its own exceptions
        raise ValueError(f"'{os.fspath(path)}' is no adapter of onnxruntime's: {error}") from error
    found = {name: value.numpy() for name, value in read.items()}
    wrong = [f"'{name}' is not in the file" for name in like if name not in found]
    wrong += [f"the model has no '{name}'" for name in found if name not in like]
    wrong += [f"'{name}': expected {like[name].dtype}{list(like[name].shape)}, got {value.dtype}{list(value.shape)}"
              for name, value in found.items() if name in like and (value.dtype, value.shape) != (like[name].dtype, like[name].shape)]
    if wrong:
        raise ValueError(f"the adapter '{os.fspath(path)}' does not fit the model:\n  " + "\n  ".join(wrong))
    return found
