# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays, strings, sequences and optionals to and from the library's values."""

import numpy as np

from caesura import _core

# ONNX's TensorProto.DataType number by NumPy dtype name.
_NUMBERS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15,
    "bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20,
    "uint4": 21, "int4": 22, "float4_e2m1fn": 23, "float8_e8m0fnu": 24, "uint2": 25, "int2": 26,
}
_STRING = 8
_NAMES = {number: name for name, number in _NUMBERS.items()}


def _numpy_dtype(number: int) -> np.dtype:
    name = _NAMES[number]
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # only for dtypes that NumPy does not have

        return np.dtype(getattr(ml_dtypes, name))


def to_value(item):
    """A NumPy array (or what converts to one), a string array, a list (a sequence) or None (an empty optional)."""
    if item is None:
        return _core.Value()
    if isinstance(item, (list, tuple)):
        return _core.sequence([to_value(element) for element in item])
    array = np.asarray(item)
    if array.dtype.kind in "OUST":
        texts = [t.decode() if isinstance(t, bytes) else str(t) for t in array.reshape(-1).tolist()]
        return _core.strings(list(array.shape), texts)
    number = _NUMBERS.get(array.dtype.name)
    if number is None:
        raise ValueError(f"dtype {array.dtype} has no ONNX counterpart")
    flat = np.ascontiguousarray(array).reshape(-1)
    return _core.tensor(number, list(array.shape), flat.view(np.uint8))


def from_value(value):
    """The inverse of to_value. Arrays share memory with the library, which gives it up to them."""
    if not value.has_value:
        return None
    if value.is_sequence:
        return [from_value(element) for element in value.elements()]
    if value.dtype == _STRING:
        return np.array(value.strings(), dtype=object).reshape(value.shape)
    return value.bytes().view(_numpy_dtype(value.dtype)).reshape(value.shape)
