# SPDX-License-Identifier: Apache-2.0
"""Arrays, strings, sequences, maps and optionals to and from the library's values."""

import os
import sys
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from caesura import _core
from caesura.dtypes import NUMBERS
from caesura.typing import DType, Model

_STRING = 8
_NAMES = {number: name for name, number in NUMBERS.items()}


def _numpy_dtype(number: int) -> Any:
    name = _NAMES[number]
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # only for dtypes that NumPy does not have

        return np.dtype(getattr(ml_dtypes, name))


def model_source(model: Model) -> str | bytes:
    """A path, or the bytes of an ONNX file: those of `model` where it is bytes or an onnx.ModelProto."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    return model.SerializeToString() if hasattr(model, "SerializeToString") else os.fspath(model)


def dtype_number(element_type: DType) -> int:
    """ONNX's number of a dtype, given as that, or as NumPy has it (np.float32, ml_dtypes.bfloat16, "float32")."""
    if isinstance(element_type, int):
        return element_type
    dtype = np.dtype(element_type)
    if dtype.kind in "OUST":
        return _STRING
    number = NUMBERS.get(dtype.name)
    if number is None:
        raise ValueError(f"dtype {dtype} has no ONNX counterpart")
    return number


def _one_type(items: Collection[Any]) -> Any:
    """The keys or the values of a dict. NumPy makes numbers beside strings into strings: that is refused."""
    array = np.array(list(items))
    if array.ndim != 1 or array.dtype.kind == "O" or array.dtype.kind == "U" and not all(isinstance(i, str) for i in items):
        raise ValueError(f"the keys of a map are all strings or all integers, its values all strings or all numbers; got {items}")
    return array


def to_value(item: Any) -> _core.Value:
    """An array, a string array, a list (a sequence), a dict (a map) or None (an empty optional).

    Tensors of PyTorch, JAX and others come by DLPack, without a copy where they are dense; anything else must convert to
    a NumPy array. Gradients do not flow back through a value.
    """
    if item is None:
        return _core.Value()
    if isinstance(item, (list, tuple)):
        return _core.sequence([to_value(element) for element in item])
    if isinstance(item, dict):
        return _core.map(*(to_value(_one_type(part)) for part in (item.keys(), item.values())))
    if not isinstance(item, (np.ndarray, np.generic)) and hasattr(type(item), "__dlpack__"):
        return _core.Value.from_dlpack(item)
    array = np.asarray(item)
    number = dtype_number(array.dtype)
    if number == _STRING:
        texts = [t.decode() if isinstance(t, bytes) else str(t) for t in array.reshape(-1).tolist()]
        return _core.strings(list(array.shape), texts)
    if not array.dtype.isnative:
        array = array.byteswap().view(array.dtype.newbyteorder())  # ml_dtypes' own lose their names in astype
    flat = np.ascontiguousarray(array).reshape(-1)
    return _core.tensor(number, list(array.shape), flat.view(np.uint8))


def holds_torch(items: Iterable[Any]) -> bool:
    """True if an item, or a value nested in one, is a torch.Tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(item, torch.Tensor) or
                                     (isinstance(item, (list, tuple)) and holds_torch(item)) for item in items)


def from_value(value: _core.Value, torch: bool = False) -> Any:
    """The inverse of to_value. Arrays share memory with the library, which gives it up to them. A map is a dict of Python's
    own strings and numbers.

    torch: tensors come as torch.Tensor in place of NumPy arrays; maps stay as they are.
    """
    if not value.has_value:
        return None
    if value.is_sequence:
        return [from_value(element, torch) for element in value.elements()]
    if value.is_map:
        return value.dict()
    if value.dtype == _STRING:
        return np.array(value.strings(), dtype=object).reshape(value.shape)
    if torch:
        return value.to_torch()
    data: Any = value.bytes()
    return data.view(_numpy_dtype(value.dtype)).reshape(value.shape)
