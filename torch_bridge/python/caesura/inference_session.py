# SPDX-License-Identifier: Apache-2.0
"""Running an ONNX model, with the conventions of onnxruntime.InferenceSession."""

import os
from typing import NamedTuple, Optional, Sequence

from caesura import _core
from caesura.values import from_value, holds_torch


class ValueInfo(NamedTuple):
    """One input or output: its name, its type as text, and its dims (int, symbol or None; None: unknown rank)."""

    name: str
    type: str
    shape: Optional[list]


class InferenceSession:
    """A model made ready to run.

    model: a path, or the bytes of an ONNX file (external data needs a path).
    threads: how many threads a kernel may use; 0 takes CAESURA_NUM_THREADS or what OpenMP would take.
    provider: "cpu"; "torch": PyTorch's own operators where it has an equivalent, our kernels elsewhere; or "torch-only".
        The latter two need torch_library.load().

    run() may be called from several threads at the same time; it releases the interpreter lock.
    """

    def __init__(self, model, threads: int = 0, provider: str = "cpu"):
        if isinstance(model, (bytes, bytearray, memoryview)):
            self._session = _core.Session.from_bytes(bytes(model), threads, provider)
        else:
            self._session = _core.Session.from_path(os.fspath(model), threads, provider)

    def get_inputs(self) -> list:
        return [ValueInfo(name, text, dims) for name, text, _, dims in self._session.inputs()]

    def get_outputs(self) -> list:
        return [ValueInfo(name, text, dims) for name, text, _, dims in self._session.outputs()]

    def run(self, output_names: Optional[Sequence[str]], feeds: dict) -> list:
        """Outputs as NumPy arrays (lists for sequences, None for empty optionals).

        output_names: which, in which order; None for all. feeds: input name to array; inputs that have a default may
        be left out. Arrays of any library with DLPack (PyTorch, JAX) are taken without a copy; where one is a
        torch.Tensor the outputs are so too.
        """
        torch = holds_torch(feeds.values())
        return [from_value(value, torch) for value in self._session.run(feeds, list(output_names or []))]

    def plan(self, feeds: dict) -> str:
        """The execution plan for feeds of these shapes, one line a step."""
        return self._session.plan(feeds)
