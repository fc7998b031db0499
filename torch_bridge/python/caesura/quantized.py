# SPDX-License-Identifier: Apache-2.0
"""Frozen weights in blocks of 4 or 8 bits, for modules: layers that keep them packed, and GGUF files that they come from."""

import os
from typing import Any, Optional

import numpy as np
import torch

from caesura.capture.ops.matmul_nbits import unpacked
from caesura.typing import Path

__all__ = ["Embedding", "Linear", "load_gguf"]

_BLOCK = 32  # elements, in all of these types


class _Packed(torch.nn.Module):
    """A frozen matrix [rows, columns] in the layout of MatMulNBits (com.microsoft)."""

    qweight: torch.Tensor
    scales: torch.Tensor
    zero_points: Optional[torch.Tensor]

    def _keep(self, qweight: torch.Tensor, scales: torch.Tensor, zero_points: Optional[torch.Tensor], columns: int) -> None:
        rows, blocks = scales.shape
        self.bits = qweight.shape[-1] * 8 // _BLOCK
        self._columns = columns
        if qweight.dtype != torch.uint8 or self.bits not in (4, 8) or qweight.shape != (rows, blocks, _BLOCK * self.bits // 8):
            raise ValueError(f"qweight: expected uint8[{rows}, {blocks}, 16 or 32], got {qweight.dtype}{list(qweight.shape)}")
        if blocks != -(-columns // _BLOCK) or (zero_points is not None and zero_points.shape != scales.shape):
            raise ValueError(f"scales, zero_points: expected [{rows}, {-(-columns // _BLOCK)}], got {list(scales.shape)} and "
                             f"{None if zero_points is None else list(zero_points.shape)}")
        self.register_buffer("qweight", qweight)
        self.register_buffer("scales", scales)
        self.register_buffer("zero_points", zero_points)

    def dequantize(self) -> torch.Tensor:
        """Returns the matrix as floats."""
        return unpacked(self.qweight, self.scales, self.zero_points, self.bits, self._columns)

    @property
    def weight(self) -> torch.Tensor:
        """`qweight`, whose device PEFT asks for. What would merge floats into it fails."""
        return self.qweight


class Linear(_Packed, torch.nn.Linear):  # type: ignore[override]
    """A linear layer whose frozen weight stays packed; inputs have gradients, and so has the bias, if there is one.

    PEFT takes it for a torch.nn.Linear and puts its adapters around it. caesura.wrap and compile_step run it as MatMulNBits, which
    unpacks tile by tile; in eager, PyTorch unpacks some rows at a time.

    Args:
        qweight: uint8 [out, blocks, 32 * bits / 8]: blocks of 32 along the inputs, the first element in the low bits.
        scales: floats [out, blocks].
        zero_points: floats [out, blocks], subtracted from the integers; None: 8 for 4 bits, 128 for 8.
        bias: floats [out]; None: there is none.
        in_features: the number of inputs; None: the blocks are full.

    Raises:
        ValueError: shapes or dtypes do not fit each other.

    Example::

        module.fc = caesura.quantized.Linear(qweight, scales)
    """

    def __init__(self, qweight: torch.Tensor, scales: torch.Tensor, zero_points: Optional[torch.Tensor] = None,
                 bias: Optional[torch.Tensor] = None, in_features: Optional[int] = None) -> None:
        torch.nn.Module.__init__(self)
        self.in_features = scales.shape[1] * _BLOCK if in_features is None else in_features
        self.out_features = scales.shape[0]
        self._keep(qweight, scales, zero_points, self.in_features)
        self.bias = None if bias is None else torch.nn.Parameter(bias)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns input W^T + bias."""
        y = torch.ops.caesura.matmul_nbits(input, self.qweight, self.scales, self.zero_points, self.bits, self.in_features)
        return y if self.bias is None else y + self.bias


class Embedding(_Packed, torch.nn.Embedding):  # type: ignore[override]
    """A table of frozen rows that stay packed; a lookup unpacks the rows that it reads.

    Args:
        qweight: uint8 [rows, blocks, 32 * bits / 8], as in Linear.
        scales: floats [rows, blocks].
        zero_points: floats [rows, blocks] or None, as in Linear.

    Raises:
        ValueError: shapes or dtypes do not fit each other.

    Example::

        module.embed_tokens = caesura.quantized.Embedding(qweight, scales)
    """

    def __init__(self, qweight: torch.Tensor, scales: torch.Tensor, zero_points: Optional[torch.Tensor] = None) -> None:
        torch.nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = scales.shape[0], scales.shape[1] * _BLOCK
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        self._keep(qweight, scales, zero_points, self.embedding_dim)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the rows of these numbers."""
        zeros = None if self.zero_points is None else self.zero_points[input]
        return unpacked(self.qweight[input], self.scales[input], zeros, self.bits, self.embedding_dim)


# --- GGUF ---


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    """GGUF has the elements j and j + 16 in a byte, MatMulNBits has neighbours."""
    elements = np.concatenate([blocks & 15, blocks >> 4], -1)
    return elements[..., 0::2] | elements[..., 1::2] << 4


def _packed(kind: str, blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    """(qweight, scales) or (qweight, scales, zero points) of rows of blocks of this type, uint8 [..., bytes of a block]."""
    with np.errstate(over="ignore"):
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    if kind == "Q8_0":
        return blocks[..., 2:] ^ 128, scales  # int8 to uint8 with zero point 128
    if kind == "Q4_0":
        return _nibbles(blocks[..., 2:]), scales
    least = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16)[..., 0].astype(np.float32)
    q = _nibbles(blocks[..., 4:])
    flat = scales == 0  # all elements of such a block are `least`
    q[flat] = 0
    scales = np.where(flat, np.float32(1), scales)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by its place
        return q, scales, -least / scales


_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}  # of a block


class _File:
    """A GGUF file, whose tensors are asked for by gguf's names."""

    def __init__(self, path: str) -> None:
        try:
            import gguf
        except ImportError as error:
            raise ImportError("GGUF files are read by the package gguf: pip install gguf") from error
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no file '{path}'")
        self.path, self.gguf = path, gguf
        try:
            reader = gguf.GGUFReader(path)
            self.tensors = {tensor.name: tensor for tensor in reader.tensors}
            self.architecture = reader.fields["general.architecture"].contents()
            self.blocks = int(self._number(reader, "block_count"))
            if not 0 <= self.blocks <= len(self.tensors):  # gguf would make a name for each tensor of each block
                raise ValueError(f"{self.architecture}.block_count is {self.blocks}, and there are {len(self.tensors)} tensors")
            heads = self._number(reader, "attention.head_count")
            self.heads = {"attn_q": heads, "attn_k": self._number(reader, "attention.head_count_kv", heads)}
        except Exception as error:  # gguf reads what is there: a damaged file raises many kinds
            raise ValueError(f"'{path}' is no whole GGUF file: {type(error).__name__}: {error}") from error

    def _number(self, reader: Any, key: str, default: Optional[int] = None) -> int:
        field = reader.fields.get(f"{self.architecture}.{key}")
        if field is not None:
            return int(field.contents())
        if default is None:
            raise ValueError(f"it has no {self.architecture}.{key}")
        return default

    def rows(self, name: str, matrix: np.ndarray) -> np.ndarray:
        """The rows in the order of transformers: those of Q and K of llama are permuted in GGUF."""
        heads = self.heads.get(name.split(".")[-2]) if self.architecture == "llama" else None
        if heads is None:
            return matrix
        if heads < 1 or len(matrix) % (2 * heads):
            raise ValueError(f"'{self.path}': tensor '{name}': {len(matrix)} rows are not those of {heads} heads")
        return matrix.reshape(heads, -1, 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)

    def matrix(self, name: str) -> tuple[torch.Tensor, ...]:
        """Returns qweight and scales, and Q4_1's zero points; only the tensor itself where it holds floats."""
        tensor = self.tensors[name]
        kind, shape = tensor.tensor_type.name, [int(d) for d in reversed(tensor.shape)]
        if kind in ("F32", "F16"):
            return (torch.from_numpy(self.rows(name, np.array(tensor.data, np.float32).reshape(shape))),)
        if kind not in _BYTES:
            raise NotImplementedError(f"'{self.path}': tensor '{name}' is {kind}; F32, F16, {', '.join(_BYTES)} can be read")
        blocks = self.rows(name, tensor.data.reshape(shape[0], -1, _BYTES[kind]))
        parts = _packed(kind, blocks)
        for part in parts[1:]:
            if not np.isfinite(part).all():
                row, block = np.argwhere(~np.isfinite(part))[0]
                raise ValueError(f"'{self.path}': tensor '{name}', which begins at byte {tensor.data_offset}: the scale of row {row}, "
                                 f"block {block} is not finite")
        return tuple(torch.from_numpy(np.ascontiguousarray(part)) for part in parts)


def load_gguf(module: torch.nn.Module, path: Path) -> list[str]:
    """Gives a module of transformers the weights of a GGUF file. Linear layers and embeddings that are Q4_0, Q4_1 or Q8_0 in the
    file become `Linear` and `Embedding`, which keep them packed; all else becomes float32. All of it is frozen.

    Tensors are found by the names that the package gguf has for the file's architecture. The rows of Q and K of llama files are put
    into transformers' order. Weights that the module ties (an output head that is the embedding) are one in memory.

    Args:
        module: such as transformers.LlamaForCausalLM of the file's configuration; its own weights may be on the device "meta".
        path: the file. It is read by the package gguf.

    Returns:
        list: names of the file's tensors that nothing has taken.

    Raises:
        ValueError: the file is damaged, a tensor of the module is not in it, or its shape is another one; the tensors are named.
        NotImplementedError: a tensor is of another type; it is named.
        FileNotFoundError: there is no file at `path`.
        ImportError: gguf is not installed.

    Example::

        config = transformers.AutoConfig.from_pretrained(folder, gguf_file="model.Q4_1.gguf")
        with accelerate.init_empty_weights():  # weights on the device meta, buffers on the cpu
            model = transformers.AutoModelForCausalLM.from_config(config)
        caesura.quantized.load_gguf(model, folder / "model.Q4_1.gguf")
    """
    file = _File(os.fspath(path))
    architecture = next((key for key, name in file.gguf.MODEL_ARCH_NAMES.items() if name == file.architecture), None)
    if architecture is None:
        raise ValueError(f"'{file.path}': gguf does not know the architecture '{file.architecture}'")
    names = file.gguf.get_tensor_name_map(architecture, file.blocks)
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()  # a module of transformers on the device meta has lost its ties
    tied = _tied(module)
    found: dict[str, str] = {}  # the module's parameter to the file's tensor
    missing = []
    for name, _ in module.named_parameters(remove_duplicate=False):
        tensor = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if tensor in file.tensors:
            found[name] = tensor
        elif tied.get(name, name) == name:
            missing.append(name)
    wrong = [f"'{name}' is not in the file" for name in missing]
    for name, tensor in found.items():
        expected, got = list(module.get_parameter(name).shape), [int(d) for d in reversed(file.tensors[tensor].shape)]
        if expected != got:
            wrong.append(f"'{name}': expected {expected}, tensor '{tensor}' has {got}")
    if wrong:
        raise ValueError(f"'{file.path}' does not fit the module:\n  " + "\n  ".join(wrong))
    parts = {name: file.matrix(tensor) for name, tensor in found.items()}
    for name, first in tied.items():
        if name not in parts:
            parts[name] = parts[first]
    for name, part in parts.items():
        _put(module, name, part)
    for name, buffer in list(module.named_buffers()):
        if buffer.is_meta:
            raise ValueError(f"buffer '{name}' of the module is on the device meta, and no file has it: make the module on the cpu")
    module.requires_grad_(False)
    return sorted(set(file.tensors) - set(found.values()))


def _tied(module: torch.nn.Module) -> dict[str, str]:
    """Each parameter to the first name of the same one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(parameter), name) for name, parameter in module.named_parameters(remove_duplicate=False)}


def _put(module: torch.nn.Module, name: str, parts: tuple[torch.Tensor, ...]) -> None:
    """Sets a parameter, or puts a packed layer in the place of the one that has it."""
    path, _, leaf = name.rpartition(".")
    layer = module.get_submodule(path)
    if len(parts) == 1:
        setattr(layer, leaf, torch.nn.Parameter(parts[0], requires_grad=False))
        return
    parent, _, attribute = path.rpartition(".")
    qweight, scales, *zeros = parts
    made: torch.nn.Module
    if isinstance(layer, torch.nn.Linear) and leaf == "weight":
        made = Linear(qweight, scales, zeros[0] if zeros else None, layer.bias, layer.in_features)
    elif isinstance(layer, torch.nn.Embedding) and leaf == "weight":
        made = Embedding(qweight, scales, zeros[0] if zeros else None)
    else:
        raise NotImplementedError(f"'{name}' is packed in the file, and {type(layer).__name__} is no Linear or Embedding")
    setattr(module.get_submodule(parent), attribute, made)
